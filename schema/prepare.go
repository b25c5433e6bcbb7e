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
	p := Prepared{Record: rec}
	if p.Event, p.err = Decode(rec.Header, rec.Body); p.err != nil {
		p.Event = nil
		p.id = RecordID(rec, nil)
		return p
	}
	e := p.Event
	p.id, p.name, p.control, p.content = e.ID, e.Name(), e.IsControl(), e.ContentHash()
	p.key = keyOf(e, p.content)
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
