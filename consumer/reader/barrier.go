package reader

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// barrierPatience bounds one publish of a barrier; waiting requests retry until their own deadlines.
	barrierPatience = 2 * time.Second
	// barrierPurgeEvery and barrierPurgeAfter limit the purges of older barriers: not more often, and not before
	// there are that many.
	barrierPurgeEvery = 10 * time.Second
	barrierPurgeAfter = 64
	// barrierFullFor is how long a log counts as full after a barrier found no room in it.
	barrierFullFor = time.Minute
	// barrierLifts bounds how often one publish makes room: executors use the same room.
	barrierLifts = 4
	// replicatedFor is how long it is remembered that the log has several replicas: a needless barrier costs only
	// time.
	replicatedFor = 10 * time.Second
)

// Bound is a position in a shard's log: every event that was acknowledged before the request is stored at or before
// it.
type Bound struct {
	At schema.StreamSequence
	// lone: the server with the log's only replica reported its end. There is no barrier at the position.
	lone bool
}

// in reports whether a server's answer includes the bound.
func (b Bound) in(answer *eventlog.Answer) bool {
	if b.lone {
		return answer.UpTo >= b.At
	}
	return answer.Records[schema.BarrierRun].Stream >= b.At
}

// Barrier finds bounds of one shard's log. If the log has several replicas it publishes a barrier, which all waiting
// requests share: the acknowledgement proves that the real leader was reached, and an answer that includes this
// barrier, or a later one, misses no event acknowledged before. If the log has one replica, the server with it
// reports the end of its log instead, and nothing is written: see [eventlog.AskLone]. Only an answer to this request
// shows that there is one replica. Several replicas are remembered for 10 s: a needless barrier costs only time.
//
// One round serves the requests that waited when it began. A later request joins the next round, because it may need
// an event that was stored in between.
type Barrier struct {
	js    jetstream.JetStream
	names schema.Names
	shard *kvstore.Shard
	actor string
	now   func() time.Time
	log   zerolog.Logger
	stats *Stats

	// acked is when a barrier was last acknowledged, in nanoseconds since 1970; 0 before the first.
	acked atomic.Int64

	mu sync.Mutex
	// next is the round that new requests join; nil if no request waits.
	next    *round
	stopped bool
	wake    chan struct{}

	// The following fields belong to run.
	unpurged int
	purged   time.Time
	// full is when a barrier last found no room; replicated is when the log was last seen with several replicas.
	full, replicated time.Time
}

// round is one bound and the requests that wait for it.
type round struct {
	done chan struct{}
	// write: a request waits for the proof that the log accepts writes, which only a publish gives.
	write bool
	bound Bound
	err   error
}

// NewBarrier returns the barrier of a shard. actor is the source of its barriers. Call Run to answer waiting reads.
func NewBarrier(js jetstream.JetStream, shard *kvstore.Shard, actor string, now func() time.Time, log zerolog.Logger,
	stats *Stats,
) *Barrier {
	return &Barrier{
		js: js, names: shard.Names, shard: shard, actor: actor, now: now, log: log, stats: stats,
		wake: make(chan struct{}, 1), purged: now(),
	}
}

// Wait returns a bound that was found after the call began.
func (b *Barrier) Wait(ctx context.Context) (Bound, error) { return b.join(ctx, false) }

// written waits until a barrier that was published after the call began is acknowledged.
func (b *Barrier) written(ctx context.Context) error {
	_, err := b.join(ctx, true)
	return err
}

func (b *Barrier) join(ctx context.Context, write bool) (Bound, error) {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return Bound{}, ErrStopping
	}
	if b.next == nil {
		b.next = &round{done: make(chan struct{})}
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	r := b.next
	r.write = r.write || write
	b.mu.Unlock()
	b.stats.Waiters.Add(1)
	defer b.stats.Waiters.Add(-1)
	select {
	case <-r.done:
		return r.bound, r.err
	case <-ctx.Done():
		return Bound{}, fmt.Errorf("waiting for a barrier: %w", context.Cause(ctx))
	}
}

// take returns the waiting round; new requests begin another.
func (b *Barrier) take() *round {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.next
	b.next = nil
	return r
}

// Run finds bounds until ctx ends.
func (b *Barrier) Run(ctx context.Context) error {
	defer func() {
		b.mu.Lock()
		b.stopped = true
		r := b.next
		b.next = nil
		b.mu.Unlock()
		if r != nil {
			r.err = ErrStopping
			close(r.done)
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.wake:
		}
		r := b.take()
		if r == nil {
			continue
		}
		r.bound, r.err = b.find(ctx, r.write)
		close(r.done)
		b.purge(ctx)
	}
}

// find returns a bound: the end of the log if one server has all of it and no write is requested, else a barrier.
func (b *Barrier) find(ctx context.Context, write bool) (Bound, error) {
	ctx, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	if !write && b.now().Sub(b.replicated) >= replicatedFor {
		log, err := eventlog.AskLone(ctx, b.js, b.names, "")
		if err != nil {
			return Bound{}, err
		}
		if log.Only {
			return Bound{At: log.Last, lone: true}, nil
		}
		b.replicated = b.now()
	}
	at, err := b.publish(ctx)
	return Bound{At: at}, err
}

// publish stores one barrier. The limit of a full log is raised by the barrier's size, which is smaller than any
// event: executors that wait for room cannot use it.
func (b *Barrier) publish(ctx context.Context) (schema.StreamSequence, error) {
	e := schema.Event{
		ID:      schema.BarrierRun + "." + rand.Text(),
		Source:  schema.Source(b.names.Fleet, b.actor),
		Type:    schema.TypeOf(schema.Barrier),
		Subject: schema.BarrierRun,
		Time:    schema.FormatTime(b.now()),
	}
	header, body := e.Encode()
	msg := &nats.Msg{Subject: b.names.EventSubject(schema.BarrierRun), Header: header, Data: body}
	if err := failpoint.Hit(ctx, failpoint.BeforeBarrier); err != nil {
		return 0, err
	}
	for lifts := 0; ; lifts++ {
		ack, err := b.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		if err == nil {
			b.stats.Barriers.Add(1)
			b.acked.Store(b.now().UnixNano())
			b.unpurged++
			return schema.StreamSequence(ack.Sequence), failpoint.Hit(ctx, failpoint.AfterBarrier)
		}
		if lifts == barrierLifts || !jsapi.StreamFull(err) {
			return 0, fmt.Errorf("publish barrier into %s: %w", b.names.EventStream(), err)
		}
		b.full = b.now()
		if err := b.makeRoom(ctx, int64(eventlog.StoredBytes(msg))); err != nil {
			return 0, fmt.Errorf("publish barrier into full %s: %w", b.names.EventStream(), err)
		}
	}
}

// makeRoom raises the limit of a full log by a barrier's size. Once the reserve is used up, the barrier replaces
// earlier ones: reads continue.
func (b *Barrier) makeRoom(ctx context.Context, need int64) error {
	_, err := b.shard.LiftQuota(ctx, need)
	if !errors.Is(err, kvstore.ErrFull) {
		return err
	}
	return b.purgeTo(ctx, 0)
}

// purge keeps only the latest barrier: later answers are compared with it alone. In a full log it purges after each
// barrier: the freed room is enough for one barrier, and for no event, so that barriers do not give the reserve to
// executors.
func (b *Barrier) purge(ctx context.Context) {
	now := b.now()
	full := !b.full.IsZero() && now.Sub(b.full) < barrierFullFor
	if b.unpurged == 0 || !full && (b.unpurged < barrierPurgeAfter || now.Sub(b.purged) < barrierPurgeEvery) {
		return
	}
	b.purged = now
	ctx, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	if err := b.purgeTo(ctx, 1); err != nil {
		if !errors.Is(err, context.Canceled) {
			b.log.Warn().Err(err).Int(logkey.Shard, b.names.Shard).Msg("older barriers not purged")
		}
		return
	}
	b.unpurged = 0
}

// purgeTo purges all barriers except the latest keep.
func (b *Barrier) purgeTo(ctx context.Context, keep uint64) error {
	stream, err := b.js.Stream(ctx, b.names.EventStream())
	if err != nil {
		return err
	}
	opts := []jetstream.StreamPurgeOpt{jetstream.WithPurgeSubject(b.names.EventSubject(schema.BarrierRun))}
	if keep > 0 {
		opts = append(opts, jetstream.WithPurgeKeep(keep))
	}
	return stream.Purge(ctx, opts...)
}
