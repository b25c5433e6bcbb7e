package eventlog

import "github.com/nats-io/nats.go"

// Parts of a message as stored, in bytes: a record's frame and hash, and the length of its headers.
const (
	recordBytes = 22 + 8
	headerBytes = 4
)

// StoredSize is the size of a message in its stream, as JetStream counts it, from the lengths of its subject, of its
// encoded headers, and of its body.
func StoredSize(subject, header, body int) int {
	n := recordBytes + subject + header + body
	if header > 0 {
		n += headerBytes
	}
	return n
}

// StoredBytes is [StoredSize] for a published or delivered message. The reply subject is not stored.
func StoredBytes(m *nats.Msg) int {
	subject, body := len(m.Subject), len(m.Data)
	return StoredSize(subject, m.Size()-len(m.Reply)-subject-body, body)
}
