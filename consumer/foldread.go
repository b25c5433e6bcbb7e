package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// pullMessages and pullBytes bound what is under way from the server to the fold.
	pullMessages = 2048
	pullBytes    = 16 << 20
	// pullExpires is how long one request waits for messages, pullHeartbeat how often the server says meanwhile that
	// it is still there, and pullSilence how long its silence is borne.
	pullExpires   = 30 * time.Second
	pullHeartbeat = time.Second
	pullSilence   = 4 * time.Second
	// consumerIdle is when the server takes away a consumer that nobody asks any more: of a daemon that was killed.
	consumerIdle = time.Minute
)

// errReadAgain ends a reign because the reading broke off; the next one reads from the watermark.
var errReadAgain = errors.New("reading the event stream broke off")

// logReader reads a shard's log in the order of the stream, each message once. It speaks to the consumer itself, as
// stock clients take a message without a body whose headers look like the server's own words (Status: 100) for
// exactly that: one such message, published by anybody, would keep them from ever reading what is behind it. What
// the server says comes without a reply subject, what the stream holds comes with one.
//
// Whatever goes wrong ends the reading with an error: what was not delivered is read again, by another reader.
type logReader struct {
	nc       *nats.Conn
	consumer jetstream.Consumer
	stream   string
	subject  string
	inbox    string
	msgs     chan *nats.Msg
	sub      *nats.Subscription
	status   chan nats.Status
	// pulls counts the requests, and names the inbox of the last; open is how many messages it may still bring.
	pulls, open int
	// delivered is the consumer's sequence of the last message: a hole in it is a message lost on its way.
	delivered uint64
}

// openLog makes a reader that begins at a stream sequence.
func openLog(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, names schema.Names, from schema.StreamSequence) (*logReader, error) {
	cons, err := js.CreateConsumer(ctx, names.EventStream(), jetstream.ConsumerConfig{
		FilterSubjects:    []string{names.EventSubjects()},
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       max(uint64(from), 1),
		AckPolicy:         jetstream.AckNonePolicy,
		MaxDeliver:        1,
		Replicas:          1,
		MemoryStorage:     true,
		InactiveThreshold: consumerIdle,
	})
	if err != nil {
		return nil, fmt.Errorf("read event stream %s: %w", names.EventStream(), err)
	}
	r := &logReader{
		nc: nc, consumer: cons, stream: names.EventStream(), inbox: nc.NewInbox(),
		// Never full: of one request's messages, with room for what the server says.
		msgs:    make(chan *nats.Msg, pullMessages+256),
		subject: runlog.APISubject(js, "CONSUMER.MSG.NEXT."+names.EventStream()+"."+cons.CachedInfo().Name),
	}
	if r.sub, err = nc.ChanSubscribe(r.inbox+".*", r.msgs); err != nil {
		return nil, r.broken(err)
	}
	r.status = nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	return r, nil
}

// close ends the reading and takes the consumer away, which otherwise goes by itself.
func (r *logReader) close(ctx context.Context, js jetstream.JetStream) {
	r.nc.RemoveStatusListener(r.status)
	_ = r.sub.Unsubscribe()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if r.nc.IsConnected() {
		_ = js.DeleteConsumer(ctx, r.stream, r.consumer.CachedInfo().Name)
	}
}

func (r *logReader) broken(err error) error {
	return fmt.Errorf("%w: %s: %w", errReadAgain, r.stream, err)
}

// pull asks for the next messages.
func (r *logReader) pull() error {
	body, err := json.Marshal(map[string]int64{
		"batch": pullMessages, "max_bytes": pullBytes,
		"expires": int64(pullExpires), "idle_heartbeat": int64(pullHeartbeat),
	})
	if err != nil {
		return err
	}
	r.pulls++
	r.open = pullMessages
	return r.nc.PublishRequest(r.subject, r.inbox+"."+strconv.Itoa(r.pulls), body)
}

// next returns the next message of the log, and waits for it until ctx ends.
func (r *logReader) next(ctx context.Context) (arrived, error) {
	silence := time.NewTimer(pullSilence)
	defer silence.Stop()
	for {
		if r.open == 0 {
			if err := r.pull(); err != nil {
				return arrived{}, r.broken(err)
			}
		}
		select {
		case <-ctx.Done():
			return arrived{}, ctx.Err()
		case status := <-r.status:
			// What was under way is lost, and so may the consumer be.
			return arrived{}, r.broken(fmt.Errorf("the connection was %s", strings.ToLower(status.String())))
		case <-silence.C:
			return arrived{}, r.broken(fmt.Errorf("no answer within %s", pullSilence))
		case m := <-r.msgs:
			silence.Reset(pullSilence)
			if m.Reply == "" {
				if err := r.said(m); err != nil {
					return arrived{}, r.broken(err)
				}
				continue
			}
			return r.message(m)
		}
	}
}

// message takes a message of the stream.
func (r *logReader) message(m *nats.Msg) (arrived, error) {
	meta, err := m.Metadata()
	if err != nil {
		return arrived{}, r.broken(err)
	}
	if meta.Sequence.Consumer != r.delivered+1 {
		return arrived{}, r.broken(fmt.Errorf("message %d of the consumer came after %d", meta.Sequence.Consumer, r.delivered))
	}
	r.delivered++
	if r.open > 0 {
		r.open--
	}
	return arrived{
		subject: m.Subject, rec: schema.NewRecord(schema.StreamSequence(meta.Sequence.Stream), m.Header, m.Data),
		first: isFirst(m.Header),
	}, nil
}

// isFirst reports whether the server compared and found that nothing had been published on the message's subject.
// What the event says of itself is no proof: an event of epoch 1 and sequence 1 can stand behind others.
func isFirst(h nats.Header) bool {
	expected := h[jetstream.ExpectedLastSubjSeqHeader]
	return len(expected) == 1 && expected[0] == "0" && len(h[jetstream.ExpectedLastSubjSeqSubjHeader]) == 0
}

// said takes what the server says of a request.
func (r *logReader) said(m *nats.Msg) error {
	if m.Subject != r.inbox+"."+strconv.Itoa(r.pulls) {
		return nil // of an earlier request
	}
	status, description := m.Header.Get("Status"), m.Header.Get("Description")
	switch {
	case status == "100":
		return nil
	case status == "404", status == "408",
		status == "409" && (strings.Contains(description, "MaxBytes") || strings.Contains(description, "Batch Completed")):
		r.open = 0 // the request has ended; the next one goes on
		return nil
	default:
		return fmt.Errorf("the server said %s %s", status, description)
	}
}
