package backup

import (
	stdjson "encoding/json"
	"errors"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"
)

// contentWriter writes a stream's file.
type contentWriter struct {
	packed *s2.Writer
	arc    *archive.Writer
}

func newContentWriter(w io.Writer, st stdjson.RawMessage) (*contentWriter, error) {
	packed := s2.NewWriter(w, s2.WriterConcurrency(1))
	c := &contentWriter{packed: packed, arc: archive.NewWriter(packed)}
	return c, c.entry(&archive.Header{Name: stateEntry, PayloadSize: int64(len(st))}, nil, st)
}

func (c *contentWriter) entry(h *archive.Header, parts ...[]byte) error {
	if err := c.arc.WriteHeader(h); err != nil {
		return err
	}
	for _, p := range parts {
		if _, err := c.arc.Write(p); err != nil {
			return err
		}
	}
	return nil
}

func (c *contentWriter) add(m *message) error {
	return c.entry(&archive.Header{
		Name: m.subject, Sequence: m.seq, HeaderSize: int64(len(m.header)), PayloadSize: int64(len(m.body)),
	}, m.header, m.body)
}

// end writes the end of the file.
func (c *contentWriter) end() error {
	return errors.Join(c.entry(new(archive.Header)), c.arc.Close(), c.packed.Close())
}
