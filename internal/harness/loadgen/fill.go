package loadgen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
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
	// batchEvents bounds one atomic batch; the server allows 1,000 messages, and a run has up to five.
	batchEvents = 995
	// batchWait bounds the wait for the answer to one.
	batchWait = time.Minute
	// foldedEvery is the interval at which the fold worker's position is read.
	foldedEvery = 500 * time.Millisecond
	// foldedTries is how many times in a row the server may be unavailable during that.
	foldedTries = 20
)

// ErrDiffers is returned by [Check] if a run does not match its number.
var ErrDiffers = errors.New("a generated run is not what was generated")

// Fill publishes the runs of a fleet that has none of them. It does not wait for the fold workers; see [AwaitFolded].
func Fill(ctx context.Context, js jetstream.JetStream, cfg Config) error {
	settings, _, err := kvstore.NewFleets(js).Get(ctx, cfg.Fleet)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for shard := range settings.Shards {
		group.Go(func() error {
			names := schema.NamesOf(cfg.Fleet, shard)
			var batch []*nats.Msg
			for n := range cfg.Runs {
				if schema.ShardOf(RunID(n), settings.Shards) != shard {
					continue
				}
				events, err := cfg.Run(n)
				if err != nil {
					return err
				}
				for i, e := range events {
					batch = append(batch, message(names, e, i))
				}
				if len(batch) > batchEvents-len(events) {
					if err := publish(ctx, js, batch); err != nil {
						return err
					}
					batch = nil
				}
			}
			return publish(ctx, js, batch)
		})
	}
	return group.Wait()
}

// message is a published event. The first of a run expects none before it.
func message(names schema.Names, e *schema.Event, i int) *nats.Msg {
	header, body := e.Encode()
	msg := &nats.Msg{Subject: names.EventSubject(e.Subject), Header: header, Data: body}
	msg.Header[jetstream.MsgIDHeader] = []string{e.ID}
	if i == 0 {
		msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.Itoa(0)}
	}
	return msg
}

// publish stores a batch atomically.
func publish(ctx context.Context, js jetstream.JetStream, batch []*nats.Msg) error {
	if len(batch) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, batchWait)
	defer cancel()
	id, last := rand.Text(), len(batch)-1
	for i, msg := range batch[:last] {
		msg.Header[jsapi.HeaderBatch] = []string{id}
		msg.Header[jsapi.HeaderBatchSequence] = []string{strconv.Itoa(i + 1)}
		if err := js.Conn().PublishMsg(msg); err != nil {
			return err // without its end the server drops the batch
		}
	}
	batch[last].Header[jsapi.HeaderBatch] = []string{id}
	batch[last].Header[jsapi.HeaderBatchSequence] = []string{strconv.Itoa(last + 1)}
	batch[last].Header[jsapi.HeaderBatchCommit] = []string{"1"}
	if _, err := js.PublishMsg(ctx, batch[last], jetstream.WithRetryAttempts(0)); err != nil {
		return fmt.Errorf("publish a batch from %s on: %w", batch[0].Subject, err)
	}
	return nil
}

// AwaitFolded waits until the fold workers of the fleet have reached the end of its log.
func AwaitFolded(ctx context.Context, js jetstream.JetStream, fleet string) error {
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

// Check reads count runs, evenly spread, and compares each with the run of its number. Runs without an executor, to
// which the daemon has written since, are compared up to there.
func Check(ctx context.Context, cfg Config, count int, get func(ctx context.Context, run string) (*schema.Head, error)) error {
	for i := range count {
		n := i * cfg.Runs / count
		events, err := cfg.Run(n)
		if err != nil {
			return err
		}
		want := schema.NewHead(cfg.Fleet, RunID(n))
		for at, e := range events {
			header, body := e.Encode()
			rec := schema.NewRecord(schema.StreamSequence(at+1), header, body) //nolint:gosec // small
			if v := want.Apply(schema.NoKeys, &rec); v.Kind != schema.Applied {
				return fmt.Errorf("%w: event %s of run %s is not valid: %s", ErrDiffers, e.ID, RunID(n), v.Detail)
			}
		}
		got, err := get(ctx, RunID(n))
		if err != nil {
			return fmt.Errorf("run %s: %w", RunID(n), err)
		}
		if !got.Complete() || got.Agent != want.Agent || got.Sequence != want.Sequence && got.Epoch == want.Epoch ||
			want.Status.Terminal() && (got.Digest != want.Digest || got.Status != want.Status) {
			return fmt.Errorf("%w: run %s is %s at %d with digest %.16s, want %s at %d with digest %.16s",
				ErrDiffers, RunID(n), got.Status, got.Sequence, got.Digest, want.Status, want.Sequence, want.Digest)
		}
	}
	return nil
}
