package schema

import (
	"crypto/sha256"
)

// Prepared is a record with everything about it that does not depend on earlier records: decoded, validated and
// hashed. It is made once per record, on any goroutine, while earlier records are still being folded.
type Prepared struct {
	// Record that was prepared; it must not be changed.
	Record *Record
	// Event is nil for a message that is no CloudEvent, and err says why.
	Event *Event
	err   error
	// id is that of the record's position.
	id string
	// content is the event's hash, and key identifies the event among the latest ones.
	content Hash
	key     string
	control bool
	name    string
	// data is nil for unknown types, and if dataErr is set.
	data    Data
	dataErr error
	// refusal is why the fleet's keys refuse the event, or "". bound: it was signed for one place.
	refusal string
	bound   bool
	// own: an executor's event in a fleet with keys, which no key of the fleet signed.
	own bool
}

// Prepare decodes, validates and hashes a record, and checks its signature against the fleet's keys. It is pure and
// total.
func Prepare(keys *Keys, rec *Record) Prepared {
	e, err := Decode(rec.Header, rec.Body)
	if err != nil {
		return Prepared{Record: rec, err: err, id: RecordID(rec, nil)}
	}
	return prepared(keys, rec, e, e.ContentHash())
}

// PrepareSealed is [Prepare] for the executor that made the event, with the hash that [Event.Seal] returned, and without
// a stream sequence. The preparation shares memory with the event.
func PrepareSealed(e *Event, content Hash) Prepared {
	if !e.roundTrips() {
		header, body := e.Encode()
		return Prepare(ExecutorsOnly, &Record{Header: header, Body: body})
	}
	return prepared(ExecutorsOnly, new(Record), e, content)
}

func prepared(keys *Keys, rec *Record, e *Event, content Hash) Prepared {
	p := Prepared{Record: rec, Event: e, id: e.ID, content: content, key: keyOf(e, content), control: e.IsControl(), name: e.Name()}
	p.data, p.dataErr = ParseData(e)
	p.refusal, p.bound, p.own = keys.check(e, rec.Stored)
	return p
}

// keyOf identifies the event among the latest ones.
func keyOf(e *Event, content Hash) string {
	if e.Sequence != 0 {
		return shortHash(content[:])
	}
	sum := sha256.Sum256([]byte(e.Source + "\n" + e.ID))
	return shortHash(sum[:])
}

// Position returns the position of the record.
func (p *Prepared) Position() Position { return Position{Stream: p.Record.Stream, ID: p.id} }

// Data returns the event's data; nil for unknown types and for invalid data.
func (p *Prepared) Data() Data { return p.data }
