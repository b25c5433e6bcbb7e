package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/failpoint"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// barrierPatience bounds one publish of a barrier; those who wait ask again until their own deadlines.
	barrierPatience = 2 * time.Second
	// barrierPurgeEvery and barrierPurgeAfter say when older barriers are taken away: not more often, and
	// not before there are that many.
	barrierPurgeEvery = 10 * time.Second
	barrierPurgeAfter = 64
)

// barrier publishes the shared barrier of one shard. Its acknowledgement proves that the real leader was reached:
// whoever then reads an answer that shows this barrier, or a later one, misses nothing acknowledged before.
//
// One publish serves all who were waiting when it was sent, and nobody who came later: their question might be about
// an event that was stored in between.
type barrier struct {
	js    jetstream.JetStream
	names schema.Names
	shard *kvstore.Shard
	actor string
	now   func() time.Time
	log   zerolog.Logger
	stats *ServiceStats

	// acked is when a barrier was last acknowledged, in nanoseconds since 1970; 0 before the first.
	acked atomic.Int64

	mu sync.Mutex
	// next is the round that those who come now join; nil when nobody waits.
	next    *round
	stopped bool
	wake    chan struct{}

	// The rest belongs to run.
	unpurged int
	purged   time.Time
}

// round is one publish and those who wait for it.
type round struct {
	done chan struct{}
	pos  schema.StreamSequence
	err  error
}

func newBarrier(js jetstream.JetStream, shard *kvstore.Shard, actor string, now func() time.Time, log zerolog.Logger,
	stats *ServiceStats,
) *barrier {
	return &barrier{
		js: js, names: shard.Names, shard: shard, actor: actor, now: now, log: log, stats: stats,
		wake: make(chan struct{}, 1), purged: now(),
	}
}

// wait returns the stream sequence of a barrier that was published after the call began.
func (b *barrier) wait(ctx context.Context) (schema.StreamSequence, error) {
	b.mu.Lock()
	if b.stopped {
		b.mu.Unlock()
		return 0, ErrStopping
	}
	if b.next == nil {
		b.next = &round{done: make(chan struct{})}
		select {
		case b.wake <- struct{}{}:
		default:
		}
	}
	r := b.next
	b.mu.Unlock()
	b.stats.Waiters.Add(1)
	defer b.stats.Waiters.Add(-1)
	select {
	case <-r.done:
		return r.pos, r.err
	case <-ctx.Done():
		return 0, fmt.Errorf("waiting for a barrier: %w", context.Cause(ctx))
	}
}

// take returns the waiting round and lets those who come from now on begin another.
func (b *barrier) take() *round {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.next
	b.next = nil
	return r
}

// run publishes barriers until ctx ends.
func (b *barrier) run(ctx context.Context) error {
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
		r.pos, r.err = b.publish(ctx)
		close(r.done)
		b.purge(ctx)
	}
}

// publish stores one barrier.
func (b *barrier) publish(ctx context.Context) (schema.StreamSequence, error) {
	ctx, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	e := schema.Event{
		ID:      schema.BarrierRun + "." + nuid.Next(),
		Source:  schema.Source(b.names.Fleet, b.actor),
		Type:    schema.TypeOf(schema.Barrier),
		Subject: schema.BarrierRun,
		Time:    schema.FormatTime(b.now()),
	}
	header, body := e.Encode()
	if err := failpoint.Hit(ctx, failpoint.BeforeBarrier); err != nil {
		return 0, err
	}
	lifted := false
	for {
		ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: b.names.EventSubject(schema.BarrierRun), Header: header, Data: body},
			jetstream.WithRetryAttempts(0))
		if err == nil {
			b.stats.Barriers.Add(1)
			b.acked.Store(b.now().UnixNano())
			b.unpurged++
			return schema.StreamSequence(ack.Sequence), failpoint.Hit(ctx, failpoint.AfterBarrier)
		}
		if lifted || !isFull(err) {
			return 0, fmt.Errorf("publish barrier into %s: %w", b.names.EventStream(), err)
		}
		lifted = true
		if _, err := b.shard.LiftQuota(ctx, controlRoom); err != nil {
			return 0, fmt.Errorf("publish barrier into full %s: %w", b.names.EventStream(), err)
		}
	}
}

// purge keeps the latest barrier only: it is all that a later answer is compared with.
func (b *barrier) purge(ctx context.Context) {
	now := b.now()
	if b.unpurged < barrierPurgeAfter || now.Sub(b.purged) < barrierPurgeEvery {
		return
	}
	b.purged = now
	ctx, cancel := context.WithTimeout(ctx, barrierPatience)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.names.EventStream())
	if err == nil {
		err = stream.Purge(ctx, jetstream.WithPurgeSubject(b.names.EventSubject(schema.BarrierRun)), jetstream.WithPurgeKeep(1))
	}
	if err != nil {
		if !errors.Is(err, context.Canceled) {
			b.log.Warn().Err(err).Int(keyShard, b.names.Shard).Msg("older barriers not purged")
		}
		return
	}
	b.unpurged = 0
}
