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

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// pullMessages and pullBytes bound the messages in flight from the server to the fold worker.
	pullMessages = 2048
	pullBytes    = 16 << 20
	// pullExpires is how long one request waits for messages, pullHeartbeat how often the server sends an idle
	// heartbeat, and pullSilence how long it may be silent.
	pullExpires   = 30 * time.Second
	pullHeartbeat = time.Second
	pullSilence   = 4 * time.Second
	// consumerIdle is when the server removes an unused consumer, as of a killed daemon.
	consumerIdle = time.Minute
)

// Arrived is a message of a shard's log.
type Arrived struct {
	Subject string
	Record  schema.Record
	// First: the server accepted it as the first message on its subject, so its run has no earlier one.
	First bool
	// Pending is the number of messages after it when it was sent.
	Pending uint64
	// Stored is the size of the message in the stream, as JetStream counts it.
	Stored int
}

// FollowFrom is where a [Follower] begins and what it reads.
type FollowFrom struct {
	// Run to read; empty means all runs of the shard.
	Run string
	// Stream sequence to begin with, inclusive; 0 means the log's beginning.
	Stream schema.StreamSequence
	// Since begins with the first message stored at or after a time; used if Stream is 0.
	Since time.Time
	// New begins after the currently stored messages; used if Stream is 0 and Since is zero.
	New bool
	// HeadersOnly leaves the bodies out.
	HeadersOnly bool
}

// Follower reads a shard's log in stream order, each message once. It implements the pull protocol itself, because
// stock clients mistake a message without a body whose headers look like a server's status message (Status: 100) for
// one: a single such message, published by any client, would keep them from reading further. Status messages have no
// reply subject, stream messages have one.
//
// Any problem ends the reading with an error that wraps [ErrBroken]; another reader reads the undelivered messages
// again.
type Follower struct {
	nc       *nats.Conn
	consumer jetstream.Consumer
	stream   string
	subject  string
	inbox    string
	msgs     chan *nats.Msg
	sub      *nats.Subscription
	status   chan nats.Status
	// pulls counts the requests, and names the inbox of the last; open is how many messages it may still deliver.
	pulls, open int
	// delivered is the consumer's sequence of the last message: a gap means a lost message.
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

// FollowKeys makes a follower of a bucket's stream that reads the stored keys that match a filter, and then new
// puts, in stream order. It is for keys with one stored message each, such as those put with a roll-up; of another
// key every message comes, the last one last.
//
// A request for the last message of each subject instead would make the server read all blocks with one before it
// answers, and store nothing in the meantime: five seconds and more in a bucket of a million runs.
func FollowKeys(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, stream string, filters ...string) (*Follower, error) {
	return follow(ctx, nc, js, stream, jetstream.ConsumerConfig{
		FilterSubjects:    filters,
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
		// Never full: for one request's messages, with room for status messages.
		msgs:    make(chan *nats.Msg, pullMessages+256),
		subject: jsapi.Subject(js, "CONSUMER.MSG.NEXT."+stream+"."+cons.CachedInfo().Name),
	}
	if r.sub, err = nc.ChanSubscribe(r.inbox+".*", r.msgs); err != nil {
		return nil, r.broken(err)
	}
	r.status = nc.StatusChanged(nats.CONNECTED, nats.CLOSED)
	return r, nil
}

// Pending is the number of messages to read that were stored when the follower was made.
func (r *Follower) Pending() uint64 { return r.consumer.CachedInfo().NumPending }

// Close ends the reading and removes the consumer, which otherwise expires.
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

// Waiting asks the server how many messages are still unread.
func (r *Follower) Waiting(ctx context.Context) (uint64, error) {
	info, err := r.consumer.Info(ctx)
	if err != nil {
		return 0, r.broken(err)
	}
	return info.NumPending, nil
}

// NextOrIdle is Next, but returns with idle set, and no message, about every second in which no message came and the
// server sent a heartbeat.
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
			// Messages in flight are lost, and perhaps the consumer.
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

// NextIfThere is Next without waiting: there is false if no message has arrived.
func (r *Follower) NextIfThere() (a Arrived, there bool, err error) {
	a, h, err := r.there()
	return a, h == message, err
}

// heard is the kind of a message on the inbox.
type heard int

const (
	// nothing of interest to a reader.
	nothing heard = iota
	// stillThere is an idle heartbeat of the server.
	stillThere
	// message of the stream.
	message
)

// there takes arrived messages, and asks for more before the last of them.
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

// hear handles one message of the inbox.
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

// message handles a message of the stream.
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

// expected returns the last message on the message's subject when the server accepted it; first means that there was
// none. The event's own attributes are no proof: an event of epoch 1 and sequence 1 can follow others.
func expected(h nats.Header) (last schema.StreamSequence, first bool) {
	values := h[jetstream.ExpectedLastSubjSeqHeader]
	if len(values) != 1 || len(h[jetstream.ExpectedLastSubjSeqSubjHeader]) != 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(values[0], 10, 64)
	return schema.StreamSequence(n), err == nil && values[0] == "0"
}

// said handles a status message about a request.
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
		r.open = 0 // the request has ended; the next one continues
		return nil
	default:
		return fmt.Errorf("the server said %s %s", status, description)
	}
}
