package schema

import (
	"crypto/sha256"
)

// Prepared is a record and everything about it that does not depend on the records before it: what was decoded,
// validated and hashed. It is made once a record, on any goroutine, while the records before it are still being folded.
type Prepared struct {
	// Record that was prepared; it is not to be changed.
	Record *Record
	// Event is nil for what is no CloudEvent, and err says why.
	Event *Event
	err   error
	// id is that of the record's position.
	id string
	// content is the event's hash, and key what names the event among the latest.
	content Hash
	key     string
	control bool
	name    string
	// data is nil for unknown types, and when dataErr is not.
	data    Data
	dataErr error
	// refusal says why the fleet's keys refuse the event; "" when they do not. bound: it was signed for one place.
	refusal string
	bound   bool
	// own: it is an executor's in a fleet with keys, and no key of the fleet signed it.
	own bool
}

// Prepare decodes, validates and hashes a record, and checks its signature by the fleet's keys. It is pure and total.
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

// keyOf is what names the event among the latest.
func keyOf(e *Event, content Hash) string {
	if e.Sequence != 0 {
		return shortHash(content[:])
	}
	sum := sha256.Sum256([]byte(e.Source + "\n" + e.ID))
	return shortHash(sum[:])
}

// Position returns the position of the record.
func (p *Prepared) Position() Position { return Position{Stream: p.Record.Stream, ID: p.id} }
