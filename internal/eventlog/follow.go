package eventlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/jsapi"
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

// Arrived is a message of a shard's log.
type Arrived struct {
	Subject string
	Record  schema.Record
	// First: the server accepted it as the first message on its subject, so nothing of its run is before it.
	First bool
	// Pending is the number of messages behind it when it was sent.
	Pending uint64
	// Stored is the number of bytes that the message takes in the stream, as JetStream counts them.
	Stored int
}

// FollowFrom says where a [Follower] begins and what it reads.
type FollowFrom struct {
	// Run to read; empty means all runs of the shard.
	Run string
	// Stream sequence to begin with, inclusive; 0 means the log's beginning.
	Stream schema.StreamSequence
	// Since begins with the first message stored then or later; it counts when Stream is 0.
	Since time.Time
	// New begins behind what is stored now; it counts when Stream is 0 and Since is zero.
	New bool
	// HeadersOnly leaves the bodies out.
	HeadersOnly bool
}

// Follower reads a shard's log in the order of the stream, each message once. It speaks to the consumer itself, as
// stock clients take a message without a body whose headers look like the server's own words (Status: 100) for
// exactly that: one such message, published by anybody, would keep them from ever reading what is behind it. What
// the server says comes without a reply subject, what the stream holds comes with one.
//
// Whatever goes wrong ends the reading with an error that wraps [ErrBroken]: what was not delivered is read again, by another reader.
type Follower struct {
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

// Follow makes a follower. Close it after use.
func Follow(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, names schema.Names, from FollowFrom) (*Follower, error) {
	config := jetstream.ConsumerConfig{
		FilterSubjects:    []string{names.EventSubjects()},
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       max(uint64(from.Stream), 1),
		AckPolicy:         jetstream.AckNonePolicy,
		MaxDeliver:        1,
		Replicas:          1,
		MemoryStorage:     true,
		InactiveThreshold: consumerIdle,
		HeadersOnly:       from.HeadersOnly,
	}
	if from.Run != "" {
		config.FilterSubjects = []string{names.EventSubject(from.Run)}
	}
	switch {
	case from.Stream != 0:
	case !from.Since.IsZero():
		config.DeliverPolicy, config.OptStartSeq, config.OptStartTime = jetstream.DeliverByStartTimePolicy, 0, &from.Since
	case from.New:
		config.DeliverPolicy, config.OptStartSeq = jetstream.DeliverNewPolicy, 0
	}
	return follow(ctx, nc, js, names.EventStream(), config)
}

// FollowKeys makes a follower of a bucket's stream that reads what is stored on the keys that the filter matches, and then what
// is put there, in the order of the stream. It is for keys of which the stream keeps one message each, as all that
// are put with a roll-up are; of another every message comes, the last one last.
//
// To ask for the last message of each subject instead makes the server read all blocks that hold one before it answers, and
// nothing is stored meanwhile: five seconds and more in a bucket of a million runs.
func FollowKeys(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream, filter string) (*Follower, error) {
	return follow(ctx, nc, js, stream, jetstream.ConsumerConfig{
		FilterSubjects:    []string{filter},
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		MaxDeliver:        1,
		Replicas:          1,
		MemoryStorage:     true,
		InactiveThreshold: consumerIdle,
	})
}

func follow(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, config jetstream.ConsumerConfig) (*Follower, error) {
	cons, err := js.CreateConsumer(ctx, stream, config)
	if err != nil {
		return nil, fmt.Errorf("read stream %s: %w", stream, err)
	}
	r := &Follower{
		nc: nc, consumer: cons, stream: stream, inbox: nc.NewInbox(),
		// Never full: of one request's messages, with room for what the server says.
		msgs:    make(chan *nats.Msg, pullMessages+256),
		subject: jsapi.Subject(js, "CONSUMER.MSG.NEXT."+stream+"."+cons.CachedInfo().Name),
	}
	if r.sub, err = nc.ChanSubscribe(r.inbox+".*", r.msgs); err != nil {
		return nil, r.broken(err)
	}
	r.status = nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	return r, nil
}

// Pending is the number of messages that were stored when the follower was made and are to be read.
func (r *Follower) Pending() uint64 { return r.consumer.CachedInfo().NumPending }

// Close ends the reading and takes the consumer away, which otherwise goes by itself.
func (r *Follower) Close(ctx context.Context, js jetstream.JetStream) {
	r.nc.RemoveStatusListener(r.status)
	_ = r.sub.Unsubscribe()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if r.nc.IsConnected() {
		_ = js.DeleteConsumer(ctx, r.stream, r.consumer.CachedInfo().Name)
	}
}

func (r *Follower) broken(err error) error {
	return fmt.Errorf("%w: %s: %w", ErrBroken, r.stream, err)
}

// pull asks for the next messages.
func (r *Follower) pull() error {
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

// Next returns the next message of the log, and waits for it until ctx ends.
func (r *Follower) Next(ctx context.Context) (Arrived, error) {
	for {
		a, idle, err := r.NextOrIdle(ctx)
		if err != nil || !idle {
			return a, err
		}
	}
}

// Waiting asks the server how many messages are yet to be read.
func (r *Follower) Waiting(ctx context.Context) (uint64, error) {
	info, err := r.consumer.Info(ctx)
	if err != nil {
		return 0, r.broken(err)
	}
	return info.NumPending, nil
}

// NextOrIdle is Next, but returns with idle set, and no message, about every second in which none came and the server
// said that it is still there.
func (r *Follower) NextOrIdle(ctx context.Context) (a Arrived, idle bool, err error) {
	a, h, err := r.there()
	if err != nil || h != nothing {
		return a, h == stillThere, err
	}
	silence := time.NewTimer(pullSilence)
	defer silence.Stop()
	for {
		select {
		case <-ctx.Done():
			return Arrived{}, false, ctx.Err()
		case status := <-r.status:
			// What was under way is lost, and so may the consumer be.
			return Arrived{}, false, r.broken(fmt.Errorf("the connection was %s", strings.ToLower(status.String())))
		case <-silence.C:
			return Arrived{}, false, r.broken(fmt.Errorf("no answer within %s", pullSilence))
		case m := <-r.msgs:
			silence.Reset(pullSilence)
			a, h, err := r.hear(m)
			if err == nil && h == nothing {
				a, h, err = r.there()
			}
			if err != nil || h != nothing {
				return a, h == stillThere, err
			}
		}
	}
}

// NextIfThere is Next for who does not want to wait: there is false when no message has arrived.
func (r *Follower) NextIfThere() (a Arrived, there bool, err error) {
	a, h, err := r.there()
	return a, h == message, err
}

// heard is what a message on the inbox was.
type heard int

const (
	// nothing that concerns a reader.
	nothing heard = iota
	// stillThere is the server's word that it has nothing to send.
	stillThere
	// message of the stream.
	message
)

// there takes what has arrived, and asks for more before the last of it was taken.
func (r *Follower) there() (Arrived, heard, error) {
	for {
		if r.open == 0 {
			if err := r.pull(); err != nil {
				return Arrived{}, nothing, r.broken(err)
			}
		}
		select {
		case m := <-r.msgs:
			if a, h, err := r.hear(m); err != nil || h != nothing {
				return a, h, err
			}
		default:
			return Arrived{}, nothing, nil
		}
	}
}

// hear takes one message of the inbox.
func (r *Follower) hear(m *nats.Msg) (Arrived, heard, error) {
	if m.Reply == "" {
		if err := r.said(m); err != nil {
			return Arrived{}, nothing, r.broken(err)
		}
		if m.Header.Get("Status") == "100" {
			return Arrived{}, stillThere, nil
		}
		return Arrived{}, nothing, nil
	}
	a, err := r.message(m)
	return a, message, err
}

// message takes a message of the stream.
func (r *Follower) message(m *nats.Msg) (Arrived, error) {
	meta, err := m.Metadata()
	if err != nil {
		return Arrived{}, r.broken(err)
	}
	if meta.Sequence.Consumer != r.delivered+1 {
		return Arrived{}, r.broken(fmt.Errorf("message %d of the consumer came after %d", meta.Sequence.Consumer, r.delivered))
	}
	r.delivered++
	if r.open > 0 {
		r.open--
	}
	rec, first := own(schema.StreamSequence(meta.Sequence.Stream), meta.Timestamp, m)
	return Arrived{Subject: m.Subject, Record: rec, First: first, Pending: meta.NumPending, Stored: StoredBytes(m)}, nil
}

// expected tells which message the server found to be the last on the message's subject when it accepted it; first says
// that there was none. What the event says of itself is no proof: an event of epoch 1 and sequence 1 can stand behind
// others.
func expected(h nats.Header) (last schema.StreamSequence, first bool) {
	values := h[jetstream.ExpectedLastSubjSeqHeader]
	if len(values) != 1 || len(h[jetstream.ExpectedLastSubjSeqSubjHeader]) != 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(values[0], 10, 64)
	return schema.StreamSequence(n), err == nil && values[0] == "0"
}

// said takes what the server says of a request.
func (r *Follower) said(m *nats.Msg) error {
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
