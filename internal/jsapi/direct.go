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

// Headers of the answers to direct gets, of which the server's are the last.
const (
	HeaderSequence = jetstream.SequenceHeader
	HeaderSubject  = jetstream.SubjectHeader
	HeaderTime     = jetstream.TimeStampHeaer
	// HeaderBefore names the message that was sent before in the same answer.
	HeaderBefore  = "Nats-Last-Sequence"
	HeaderPending = "Nats-Num-Pending"
	HeaderUpTo    = "Nats-UpTo-Sequence"

	headerStatus = "Status"
)

// Statuses of the server's own words.
const (
	StatusEnd          = "204"
	StatusNotFound     = "404"
	StatusTooMany      = "413"
	StatusNoResponders = "503"
)

// Last returns the last value of a header: the one that the server appended.
func Last(h nats.Header, name string) string {
	if values := h[name]; len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// Pending is how many messages lie behind an answer, from the words that end it.
func Pending(m *nats.Msg) (uint64, error) {
	n, err := strconv.ParseUint(Last(m.Header, HeaderPending), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: pending %.24q", ErrAnswer, Last(m.Header, HeaderPending))
	}
	return n, nil
}

// Status returns the status of the server's own words, "" for a message of the stream. The server adds the sequence to each message of a
// stream, whatever headers that message brought along.
func Status(m *nats.Msg) string {
	if len(m.Header) == 0 || Last(m.Header, HeaderSequence) != "" {
		return ""
	}
	status := Last(m.Header, headerStatus)
	switch status {
	case "":
		return "none"
	case StatusEnd, StatusNotFound, StatusTooMany, StatusNoResponders:
		return status
	default:
		return strings.TrimSpace(status + " " + Last(m.Header, "Description"))
	}
}

// LastOf asks any replica for the last message of a subject. For none it returns [jetstream.ErrMsgNotFound], where nothing serves the stream
// [nats.ErrNoResponders].
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

// Direct is one caller's line to a stream's direct get: any replica answers, and its answer may be stale. Close it after use.
type Direct struct {
	js      jetstream.JetStream
	subject string
	inbox   string
	msgs    chan *nats.Msg
	sub     *nats.Subscription
	closed  chan nats.Status
}

// Dial makes a line. Room is for how many messages of one answer: nats.go drops what does not fit.
func Dial(js jetstream.JetStream, stream string, room int) (*Direct, error) {
	nc := js.Conn()
	d := &Direct{js: js, subject: Subject(js, "DIRECT.GET."+stream), inbox: nc.NewRespInbox(), msgs: make(chan *nats.Msg, room)}
	// Not SubscribeSync: that allocates half a megabyte each time, and swallows messages whose header says 503.
	sub, err := nc.ChanSubscribe(d.inbox, d.msgs)
	if err != nil {
		return nil, err
	}
	d.sub, d.closed = sub, nc.StatusChanged(nats.CLOSED)
	return d, nil
}

// Close ends the line.
func (d *Direct) Close() {
	d.js.Conn().RemoveStatusListener(d.closed)
	_ = d.sub.Unsubscribe() // a closed connection has no subscription to end
}

// Ask sends one request and hands its answer over, message by message, until handle says done: status is empty for a message of the stream
// and set for the server's own words. An answer that breaks off is an error, never a short one: [nats.ErrTimeout] after a silence as long as
// that (0: as long as ctx lasts), [nats.ErrNoResponders] where nothing serves the stream. The line is of no use after an error of Ask's own.
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
		case <-d.closed:
			return nats.ErrConnectionClosed
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			return fmt.Errorf("%w after %s", nats.ErrTimeout, silence)
		}
	}
}
