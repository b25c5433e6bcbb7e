package jsapi

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Headers of the answers to direct gets. The server appends its own values last.
const (
	HeaderSequence = jetstream.SequenceHeader
	HeaderSubject  = jetstream.SubjectHeader
	HeaderTime     = jetstream.TimeStampHeaer
	// HeaderBefore names the previous message in the same answer.
	HeaderBefore  = "Nats-Last-Sequence"
	HeaderPending = "Nats-Num-Pending"
	HeaderUpTo    = "Nats-UpTo-Sequence"

	headerStatus      = "Status"
	headerDescription = "Description"
)

// Statuses of the server's status messages.
const (
	StatusEnd          = "204"
	StatusNotFound     = "404"
	StatusNoResponders = "503"
)

// Last returns the last value of a header: the one that the server appended.
func Last(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// Pending is the number of messages after an answer, from its last status message.
func Pending(m *nats.Msg) (uint64, error) {
	n, err := strconv.ParseUint(Last(m.Header, HeaderPending), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: pending %.24q", ErrAnswer, Last(m.Header, HeaderPending))
	}
	return n, nil
}

// Status returns the status of a status message, "" for a message of the stream. The server adds the sequence to each
// message of a stream, whatever headers the message has.
//
// It removes the headers of a message of which a part is hidden: then the place that they show may be the sender's. Such
// a message is read from the leader, as one without headers.
func Status(m *nats.Msg) string {
	if HidesHeaders(m) {
		m.Header = nil
	}
	if len(m.Header) == 0 || Last(m.Header, HeaderSequence) != "" {
		return ""
	}
	status := Last(m.Header, headerStatus)
	switch status {
	case "":
		return "none"
	case StatusEnd, StatusNotFound, StatusNoResponders:
		return status
	default:
		return strings.TrimSpace(status + " " + Last(m.Header, headerDescription))
	}
}

// maxLines bounds the headers of a message, and so what short lines can make up for: see [HidesHeaders].
const maxLines = 32

// HidesHeaders reports whether a part of a message's header was not parsed. The server appends its own lines, and ends
// lines at CR LF, but nats.go ends them at LF: a sender can hide its line from the server behind a bare LF, and the
// server's lines from nats.go behind an empty line. So every byte of the header must belong to a parsed line, or to the
// status in the first one. A line in its short form ("a:b", LF alone) compensates for two hidden bytes, hence the bound
// on their number: together they save less than the length of the server's lines.
func HidesHeaders(m *nats.Msg) bool {
	size, count := len("NATS/1.0\r\n\r\n"), 0
	for key, values := range m.Header {
		count += len(values)
		for _, value := range values {
			size += len(key) + len(": ") + len(value) + len("\r\n")
		}
	}
	raw := m.Size() - len(m.Subject) - len(m.Reply) - len(m.Data)
	first := len(": \r\n") + len(headerStatus) - len(" ")
	if description := Last(m.Header, headerDescription); description != "" {
		first += len(headerDescription) + len(": \r\n") - len(" ")
	}
	return len(m.Header) > 0 && (count > maxLines || raw != size && raw != size-first)
}

// LastOf asks any replica for the last message of a subject. If there is none it returns [jetstream.ErrMsgNotFound],
// and [nats.ErrNoResponders] if no server has the stream.
func LastOf(ctx context.Context, js jetstream.JetStream, stream, subject string) (*nats.Msg, error) {
	m, err := js.Conn().RequestWithContext(ctx, Subject(js, "DIRECT.GET."+stream+"."+subject), nil)
	if err != nil {
		return nil, err
	}
	switch status := Status(m); status {
	case "":
		return m, nil
	case StatusNotFound:
		return nil, jetstream.ErrMsgNotFound
	default:
		return nil, fmt.Errorf("%w: status %.80s", ErrAnswer, status)
	}
}

// Direct is a connection to a stream's direct get: any replica answers, and its answer may be stale. Close it after
// use.
type Direct struct {
	js      jetstream.JetStream
	subject string
	inbox   string
	msgs    chan *nats.Msg
	sub     *nats.Subscription
	lost    chan nats.Status
}

// Dial makes one. room is the capacity for messages of one answer: nats.go drops messages beyond it.
func Dial(js jetstream.JetStream, stream string, room int) (*Direct, error) {
	nc := js.Conn()
	d := &Direct{js: js, subject: Subject(js, "DIRECT.GET."+stream), inbox: nc.NewRespInbox(), msgs: make(chan *nats.Msg, room)}
	// Not SubscribeSync: that allocates half a megabyte each time, and swallows messages whose header says 503.
	sub, err := nc.ChanSubscribe(d.inbox, d.msgs)
	if err != nil {
		return nil, err
	}
	d.sub, d.lost = sub, nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	return d, nil
}

// Close ends the subscription.
func (d *Direct) Close() {
	d.js.Conn().RemoveStatusListener(d.lost)
	_ = d.sub.Unsubscribe() // a closed connection has no subscription to end
}

// Ask sends one request and passes its answer on, message by message, until handle returns done: status is empty for
// a message of the stream and set for a status message. An answer that breaks off is an error, never a short one:
// [nats.ErrTimeout] after the given silence (0: as long as ctx lasts), [nats.ErrConnectionReconnecting] or
// [nats.ErrConnectionClosed] once the connection is lost, [nats.ErrNoResponders] if no server has the stream. After an
// error of Ask itself the Direct is unusable.
func (d *Direct) Ask(ctx context.Context, silence time.Duration, what GetRequest, handle func(m *nats.Msg, status string) (done bool, err error)) error {
	body, err := json.Marshal(what)
	if err != nil {
		return err
	}
	if err := d.js.Conn().PublishRequest(d.subject, d.inbox, body); err != nil {
		return err
	}
	timer := time.NewTimer(cmp.Or(silence, math.MaxInt64))
	defer timer.Stop()
	for {
		select {
		case m := <-d.msgs:
			status := Status(m)
			if status == StatusNoResponders {
				return nats.ErrNoResponders
			}
			if done, err := handle(m, status); err != nil || done {
				return err
			}
			if silence > 0 {
				timer.Reset(silence)
			}
		case now := <-d.lost:
			if now == nats.CLOSED {
				return nats.ErrConnectionClosed
			}
			return nats.ErrConnectionReconnecting // an answer on its way never comes
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return fmt.Errorf("%w after %s", nats.ErrTimeout, silence)
		}
	}
}
