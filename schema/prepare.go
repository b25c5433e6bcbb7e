package schema

import (
	"bytes"
	"crypto/sha256"
	"reflect"
	"slices"
	"strings"
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
	return prepared(keys, rec, e, e.ContentHash(), nil)
}

// PrepareSealed is [Prepare] for the executor that made the event, with the hash that [Event.Seal] returned, and without
// a stream sequence. data is what [MarshalData] made the event's data of, nil if that is not known. The preparation shares
// memory with the event, and with data only texts.
func PrepareSealed(e *Event, content Hash, data Data) Prepared {
	if !e.roundTrips() {
		header, body := e.Encode()
		return Prepare(ExecutorsOnly, &Record{Header: header, Body: body})
	}
	return prepared(ExecutorsOnly, new(Record), e, content, owned(e, data))
}

func prepared(keys *Keys, rec *Record, e *Event, content Hash, data Data) Prepared {
	p := Prepared{Record: rec, Event: e, id: e.ID, content: content, key: keyOf(e, content), control: e.IsControl(), name: e.Name(), data: data}
	if data == nil {
		p.data, p.dataErr = ParseData(e)
	}
	p.refusal, p.bound, p.own = keys.check(e, rec.Stored)
	return p
}

// owned returns a copy of the data that the event's own was made of, equal to what [ParseData] reads; nil if only that can
// tell. A JSON value in it is its text in the event: the caller may change its own, and the event has it without spaces.
func owned(e *Event, data Data) Data {
	made := NewData(e.Name())
	if data == nil || made == nil || reflect.TypeOf(made) != reflect.TypeOf(data) || tooDeep(e.Data) {
		return nil
	}
	v := reflect.ValueOf(made).Elem()
	if v.Set(reflect.ValueOf(data).Elem()); !own(v, e.Data) {
		return nil
	}
	return made
}

// own replaces the memory that a value shares with the one it was copied from. It is false for what JSON may change.
func own(v reflect.Value, body []byte) bool {
	switch v.Kind() {
	case reflect.Bool, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64, reflect.Float64, reflect.String:
		return true
	case reflect.Pointer:
		if v.IsNil() {
			return true
		}
		if z, ok := reflect.TypeAssert[interface{ IsZero() bool }](v); ok && z.IsZero() {
			return false // the event leaves it out
		}
		to := reflect.New(v.Type().Elem())
		to.Elem().Set(v.Elem())
		v.Set(to)
		return own(to.Elem(), body)
	case reflect.Slice:
		if v.IsNil() || v.Len() == 0 {
			return v.IsNil()
		}
		if v.Type() == valueType {
			// Texts of the event may have a value as its caller wrote it, with the spaces that the event's own value lacks.
			value := v.Bytes()
			at := bytes.Index(body, value)
			if at < 0 || spaced(value) {
				return false
			}
			v.SetBytes(slices.Clip(body[at : at+len(value)]))
			return true
		}
		to := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		reflect.Copy(to, v)
		v.Set(to)
		for i := range v.Len() {
			if !own(v.Index(i), body) {
				return false
			}
		}
		return true
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Field(i)
			if f.IsZero() {
				continue
			}
			if !own(f, body) || f.Type() == valueType && strings.HasSuffix(v.Type().Field(i).Tag.Get("json"), ",embed") {
				return false
			}
		}
		return v.Type() != refType && v.Type() != baseType
	default:
		return v.IsZero()
	}
}

// spaced reports whether a JSON value has spaces outside of its strings.
func spaced(value []byte) bool {
	inString := false
	for i := 0; i < len(value); i++ {
		switch value[i] {
		case '\\':
			i++
		case '"':
			inString = !inString
		case ' ', '\t', '\r', '\n':
			if !inString {
				return true
			}
		}
	}
	return false
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
