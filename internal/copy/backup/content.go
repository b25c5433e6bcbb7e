package backup

import (
	// The state within a stream's file is written for encoding/json.
	stdjson "encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/klauspost/compress/s2"
	"github.com/nats-io/nats-server/v2/server/archive"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
)

// message is one message of a stream's file.
type message struct {
	subject string
	seq     uint64
	// header is the encoded form, with its first line; empty without headers.
	header, body []byte
}

// stored is the size of the message in a server's file store.
func (m *message) stored() uint64 {
	return uint64(eventlog.StoredSize(len(m.subject), len(m.header), len(m.body))) //nolint:gosec // a size
}

// behind is the sequence of the message that an event follows; 0 for none.
func (m *message) behind() uint64 {
	header, err := nats.DecodeHeadersMsg(m.header)
	if err != nil {
		return 0 // a message without headers
	}
	n, _ := strconv.ParseUint(header.Get(jetstream.ExpectedLastSubjSeqHeader), 10, 64) // 0 for other text
	return n
}

// maxMessage bounds a message of a file: no stream of a fleet accepts a larger one.
const maxMessage = 2 << 20

// stateEntry begins a stream's file.
const stateEntry = "state.json"

// readContent reads a stream's file: its state, then each message in order. A file without the server's end is
// [ErrDamaged]. The message's memory is used again.
func readContent(r io.Reader, has func(stdjson.RawMessage) error, yield func(*message) error) error {
	broken := func(what string, err error) error {
		if err == nil {
			return fmt.Errorf("%w: %s", ErrDamaged, what)
		}
		return fmt.Errorf("%w: %s: %w", ErrDamaged, what, err)
	}
	arc := archive.NewReader(s2.NewReader(r))
	head, err := arc.Next()
	if err != nil {
		return broken("its beginning", err)
	}
	if head.Name != stateEntry || head.HeaderSize != 0 || head.PayloadSize > maxMessage {
		return broken(fmt.Sprintf("it begins with %.80q", head.Name), nil)
	}
	st, err := io.ReadAll(arc)
	if err != nil {
		return broken(stateEntry, err)
	}
	if err := has(st); err != nil {
		return err
	}
	var (
		buf  []byte
		last uint64
	)
	for {
		head, err := arc.Next()
		if err != nil {
			return broken(fmt.Sprintf("it ends behind message %d", last), err)
		}
		if head.Sequence == 0 {
			if head.Name != "" || head.HeaderSize != 0 || head.PayloadSize != 0 {
				return broken(fmt.Sprintf("there is %.80q behind message %d", head.Name, last), nil)
			}
			if _, err := arc.Next(); !errors.Is(err, io.EOF) {
				return broken("something follows its end", nil)
			}
			return nil
		}
		size := head.HeaderSize + head.PayloadSize
		switch {
		case head.Sequence <= last:
			return broken(fmt.Sprintf("message %d follows %d", head.Sequence, last), nil)
		case size > maxMessage:
			return broken(fmt.Sprintf("message %d has %d bytes", head.Sequence, size), nil)
		}
		last = head.Sequence
		if int64(cap(buf)) < size {
			buf = make([]byte, size, 2*size)
		}
		buf = buf[:size]
		if size > 0 {
			if _, err := io.ReadFull(arc, buf); err != nil {
				return broken(fmt.Sprintf("message %d", last), err)
			}
		}
		m := message{subject: head.Name, seq: head.Sequence, header: buf[:head.HeaderSize], body: buf[head.HeaderSize:]}
		if err := yield(&m); err != nil {
			return err
		}
	}
}
