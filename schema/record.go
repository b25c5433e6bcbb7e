package schema

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Record is a message of a run in the log: its stream sequence, its time of storage, its CloudEvents headers, its
// body.
type Record struct {
	// Stream is the message's stream sequence.
	Stream StreamSequence
	// Stored is when the server stored the message, by its clock, in nanoseconds since 1970. It is 0 if unknown: an
	// executor that folds its own events does not know it.
	Stored int64
	// Header holds the message's headers without those of NATS itself.
	Header map[string][]string
	// Body as published.
	Body []byte
	// Behind is the stream sequence of the run's previous message, from the server's compare-and-set when it stored
	// the message; 0 without one.
	Behind StreamSequence
}

// NewRecord returns the record of a message. It leaves out headers that belong to NATS (Nats-…): they are
// instructions to the server and no part of the event.
func NewRecord(stream StreamSequence, header map[string][]string, body []byte) Record {
	kept := header
	for name := range header {
		if isNATSHeader(name) {
			kept = make(map[string][]string, len(header))
			for name, values := range header {
				if !isNATSHeader(name) {
					kept[name] = values
				}
			}
			break
		}
	}
	return Record{Stream: stream, Header: kept, Body: body}
}

func isNATSHeader(name string) bool {
	return len(name) > 5 && strings.EqualFold(name[:5], "nats-")
}

// Size is the number of bytes of headers and body, the measure for the content of a run's log.
func (r *Record) Size() int {
	n := len(r.Body)
	for name, values := range r.Header {
		for _, v := range values {
			n += len(name) + len(v)
		}
	}
	return n
}

// A frame is: stream sequence, time of storage, stream sequence of the previous message from the compare-and-set,
// number of header lines, each line's name and value with their lengths, length and bytes of the body. Numbers are
// unsigned varints. Header lines are sorted by name, so that equal records have equal frames.

// AppendFrame appends the frame of a record.
func AppendFrame(b []byte, r *Record) []byte { return append(AppendFrameStart(b, r), r.Body...) }

// AppendFrameStart appends the frame of a record without the body, which is its end.
func AppendFrameStart(b []byte, r *Record) []byte {
	b = binary.AppendUvarint(b, uint64(r.Stream))
	b = binary.AppendUvarint(b, uint64(max(r.Stored, 0))) //nolint:gosec // not negative
	b = binary.AppendUvarint(b, uint64(r.Behind))
	names := make([]string, 0, 24)
	lines := 0
	for name, values := range r.Header {
		names = append(names, name)
		lines += len(values)
	}
	slices.Sort(names)
	b = binary.AppendUvarint(b, uint64(lines)) //nolint:gosec // a length
	for _, name := range names {
		for _, value := range r.Header[name] {
			b = append(binary.AppendUvarint(b, uint64(len(name))), name...)
			b = append(binary.AppendUvarint(b, uint64(len(value))), value...)
		}
	}
	return binary.AppendUvarint(b, uint64(len(r.Body)))
}

// FrameReader reads frames one after another. Records share memory with its input.
type FrameReader struct {
	rest []byte
	// at counts the frames read, for error messages.
	at int
}

// NewFrameReader returns a reader of the frames in b.
func NewFrameReader(b []byte) *FrameReader { return &FrameReader{rest: b} }

// fewHeaderLines is how many header lines are allocated up front, so that a damaged count allocates little.
const fewHeaderLines = 32

// Next returns the next record, io.EOF at the end, or an error that wraps [ErrCorrupt].
func (f *FrameReader) Next() (Record, error) {
	if len(f.rest) == 0 {
		return Record{}, io.EOF
	}
	var r Record
	stream, ok := f.uvarint()
	stored, ok2 := f.uvarint()
	behind, ok3 := f.uvarint()
	lines, ok4 := f.uvarint()
	if !ok || !ok2 || !ok3 || !ok4 || stored > math.MaxInt64 || lines > uint64(len(f.rest))/2 {
		return r, f.corrupt()
	}
	r.Stream, r.Stored, r.Behind = StreamSequence(stream), int64(stored), StreamSequence(behind)
	r.Header = make(map[string][]string, min(lines, fewHeaderLines))
	for range lines {
		name, ok := f.bytes()
		value, ok2 := f.bytes()
		if !ok || !ok2 {
			return r, f.corrupt()
		}
		r.Header[string(name)] = append(r.Header[string(name)], string(value))
	}
	if r.Body, ok = f.bytes(); !ok {
		return r, f.corrupt()
	}
	f.at++
	return r, nil
}

func (f *FrameReader) corrupt() error { return fmt.Errorf("frame %d: %w", f.at+1, ErrCorrupt) }

func (f *FrameReader) uvarint() (uint64, bool) {
	v, n := binary.Uvarint(f.rest)
	if n <= 0 {
		return 0, false
	}
	f.rest = f.rest[n:]
	return v, true
}

func (f *FrameReader) bytes() ([]byte, bool) {
	n, ok := f.uvarint()
	if !ok || n > uint64(len(f.rest)) {
		return nil, false
	}
	b := f.rest[:n:n]
	f.rest = f.rest[n:]
	return b, true
}

// Equal reports whether two records are the same message at the same place. The server's data about it are not
// compared: a place has one message.
func (r *Record) Equal(o *Record) bool {
	a, b := *r, *o
	a.Stored, b.Stored, a.Behind, b.Behind = 0, 0, 0, 0
	return bytes.Equal(AppendFrame(nil, &a), AppendFrame(nil, &b))
}
