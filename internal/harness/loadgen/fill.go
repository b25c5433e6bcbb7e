package loadgen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// batchEvents and batchBytes bound one atomic batch; the server allows 1,000 messages.
	batchEvents = 1000
	batchBytes  = 4 << 20
	// batchWait bounds the wait for the answer to one.
	batchWait = time.Minute
	// foldedEvery is the interval at which the fold worker's position is read.
	foldedEvery = 500 * time.Millisecond
	// foldedTries is how many times in a row the server may be unavailable during that.
	foldedTries = 20
)

// Progress reports the progress of a fill. Its functions may be called from several goroutines.
type Progress struct {
	// Found is called, once for each shard, with the number of runs that are there already.
	Found func(runs int)
	// Published is called with the number of runs that were published since the last call.
	Published func(runs int)
	// Folded is called with the number of unfolded events.
	Folded func(behind uint64)
}

// shardFill fills one shard.
type shardFill struct {
	cfg   Config
	js    jetstream.JetStream
	names schema.Names
	// shards of the fleet.
	shards int
	p      Progress
}

// batch is one atomic publish.
type batch struct {
	msgs []*nats.Msg
	runs int
}

// Fill publishes the runs that the fleet does not have yet. It may be stopped at any time and called again. It does
// not wait for the fold workers; see [AwaitFolded].
func Fill(ctx context.Context, js jetstream.JetStream, cfg Config, p Progress) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	cfg = cfg.withDefaults()
	settings, _, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for shard := range settings.Shards {
		f := &shardFill{cfg: cfg, js: js, names: schema.NamesOf(cfg.Fleet, shard), shards: settings.Shards, p: p}
		group.Go(func() error { return f.fill(ctx) })
	}
	return group.Wait()
}

// fill publishes the shard's runs, encoding a batch while the one before is on its way.
func (f *shardFill) fill(ctx context.Context) error {
	from, err := f.resume(ctx)
	if err != nil {
		return err
	}
	batches := make(chan batch, 2)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		return f.encode(ctx, from, batches)
	})
	group.Go(func() error {
		for b := range batches {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err := f.publish(ctx, b); err != nil {
				return err
			}
			f.p.Published(b.runs)
		}
		return nil
	})
	return group.Wait()
}

// ours reports whether a run belongs to the shard.
func (f *shardFill) ours(n int) bool {
	return schema.ShardOf(RunID(n), f.shards) == f.names.Shard
}

// resume returns the number from which on none of the shard's runs is there: they were published in order.
func (f *shardFill) resume(ctx context.Context) (int, error) {
	stream, err := f.js.Stream(ctx, f.names.EventStream())
	if err != nil {
		return 0, fmt.Errorf("fill %s: %w", f.names.EventStream(), err)
	}
	var failed error
	from := sort.Search(f.cfg.Runs, func(n int) bool {
		for n < f.cfg.Runs && !f.ours(n) {
			n++
		}
		if n == f.cfg.Runs || failed != nil {
			return true
		}
		_, err := stream.GetLastMsgForSubject(ctx, f.names.EventSubject(RunID(n)))
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) {
			failed = err
		}
		return err != nil
	})
	there := 0
	for n := range from {
		if f.ours(n) {
			there++
		}
	}
	f.p.Found(there)
	return from, failed
}

// encode makes batches of complete runs.
func (f *shardFill) encode(ctx context.Context, from int, batches chan<- batch) error {
	var b batch
	bytes := 0
	send := func() error {
		select {
		case batches <- b:
			b, bytes = batch{}, 0
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for n := from; n < f.cfg.Runs; n++ {
		if !f.ours(n) {
			continue
		}
		events, err := f.cfg.Run(n)
		if err != nil {
			return fmt.Errorf("run %s: %w", RunID(n), err)
		}
		if len(b.msgs) > 0 && (len(b.msgs)+len(events) > batchEvents || bytes >= batchBytes) {
			if err := send(); err != nil {
				return err
			}
		}
		for i, e := range events {
			msg := f.message(e, i)
			bytes += len(msg.Data)
			b.msgs = append(b.msgs, msg)
		}
		b.runs++
	}
	if b.runs == 0 {
		return nil
	}
	return send()
}

// message is a published event. The first of a run expects none before it.
func (f *shardFill) message(e *schema.Event, i int) *nats.Msg {
	header, body := e.Encode()
	msg := &nats.Msg{Subject: f.names.EventSubject(e.Subject), Header: header, Data: body}
	msg.Header[jetstream.MsgIDHeader] = []string{e.ID}
	if i == 0 {
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.Itoa(0)}
	}
	return msg
}

// publish stores a batch atomically. After a lost answer the outcome is unknown; another Fill finds out.
func (f *shardFill) publish(ctx context.Context, b batch) error {
	// A started batch is finished, even if the fill is stopped: the next fill must find it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), batchWait)
	defer cancel()
	id, last := rand.Text(), len(b.msgs)-1
	for i, msg := range b.msgs {
		msg.Header[jsapi.HeaderBatch] = []string{id}
		msg.Header[jsapi.HeaderBatchSequence] = []string{strconv.Itoa(i + 1)}
		if i == last {
			break
		}
		if err := f.js.Conn().PublishMsg(msg); err != nil {
			return err // without its end the server drops the batch
		}
	}
	b.msgs[last].Header[jsapi.HeaderBatchCommit] = []string{"1"}
	if _, err := f.js.PublishMsg(ctx, b.msgs[last], jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("%s from %s on: %w", f.names.EventStream(), b.msgs[0].Subject, err)
	}
	return nil
}

// AwaitFolded waits until the fold workers of the fleet have reached the end of its log.
func AwaitFolded(ctx context.Context, js jetstream.JetStream, fleet string, p Progress) error {
	settings, _, err := kvstore.NewFleets(js).Get(ctx, fleet)
	if err != nil {
		return err
	}
	tick := time.NewTicker(foldedEvery)
	defer tick.Stop()
	for silent := 0; ; {
		behind, err := behindOf(ctx, js, settings)
		// A server that is busy with a million runs may miss an answer; one that misses many is gone.
		if silent++; err != nil && (silent > foldedTries || !errors.Is(err, kvstore.ErrUnavailable)) {
			return err
		}
		if err == nil {
			silent = 0
			p.Folded(behind)
			if behind <= uint64(settings.Shards) { //nolint:gosec // small
				return nil // a barrier is not folded
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// behindOf counts the events that are not folded yet.
func behindOf(ctx context.Context, js jetstream.JetStream, settings schema.FleetSettings) (uint64, error) {
	behind := uint64(0)
	for i := range settings.Shards {
		shard, err := kvstore.OpenShard(js, settings, i, "generator")
		if err != nil {
			return 0, err
		}
		usage, err := shard.Usage(ctx)
		if err != nil {
			return 0, err
		}
		mark, _, err := shard.Checkpoints.Watermark(ctx)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return 0, err
		}
		if n := uint64(usage.Last); n > uint64(mark.Position.Stream) {
			behind += n - uint64(mark.Position.Stream)
		}
	}
	return behind, nil
}
