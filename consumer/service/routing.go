package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// routing finds the shard of a run, and reads runs there.
type routing struct {
	js     jetstream.JetStream
	now    func() time.Time
	reader *reader.Reader
	// timeout is [Config.Timeout].
	timeout time.Duration
	folded  foldedSince
	// shards of the fleet, in the order of their numbers.
	shards []*reader.Source
}

func newRouting(cfg *Config, js jetstream.JetStream, shards []*kvstore.Shard, keys *keyring.Ring, stats *reader.Stats, now func() time.Time,
	log zerolog.Logger,
) (*routing, error) {
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: no shard was given", ErrConfig)
	}
	rt := &routing{js: js, now: now, timeout: cfg.Timeout}
	for i, shard := range shards {
		if want := schema.NamesOf(cfg.Fleet, i); shard.Names != want {
			return nil, fmt.Errorf("%w: shard %d is %s, want %s", ErrConfig, i, shard.Names.EventStream(), want.EventStream())
		}
		rt.shards = append(rt.shards, &reader.Source{Store: shard, Barrier: reader.NewBarrier(js, shard, cfg.Name, now, log, stats)})
	}
	rt.reader = reader.New(js, cfg.Fleet, keys, rt.of, stats, log)
	return rt, nil
}

// of returns the shard of a run.
func (rt *routing) of(run string) *reader.Source {
	return rt.shards[schema.ShardOf(run, len(rt.shards))]
}

// find reads the run without proof. An empty read means that its shard did not show it.
func (rt *routing) find(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := rt.reader.Find(ctx, run, want)
	return rt.notErased(ctx, run, r, err)
}

// proven is [reader.Reader.Proven] of a run that was not removed.
func (rt *routing) proven(ctx context.Context, run string, want reader.Want) (*reader.Snapshot, error) {
	r, err := rt.reader.Proven(ctx, run, want)
	return rt.notErased(ctx, run, r, err)
}

// notErased returns an error for a read of a run that was removed, or is being removed: its remaining data must not
// be sent.
func (rt *routing) notErased(ctx context.Context, run string, r *reader.Snapshot, err error) (*reader.Snapshot, error) {
	var bad *reader.Damaged
	switch {
	case err == nil && r != nil && (r.Marked || r.Head.Status == schema.StatusErased):
	case err == nil, !errors.Is(err, reader.ErrNoRun) && !errors.As(err, &bad):
		return r, err
	}
	record, _, gerr := rt.erasure(ctx, run)
	switch {
	case errors.Is(gerr, kvstore.ErrNotFound):
		return r, err // a forged tombstone
	case gerr != nil:
		return nil, gerr
	case record.RemovedAt == "" && r != nil && r.Head.Status != schema.StatusErased && (!r.Marked || !record.Decided()):
		return r, err // an order without its tombstone decides nothing
	}
	return nil, Erased(record)
}

// stays refuses a point of a run whose removal is being decided: a new fork must know whether its base remains.
func (rt *routing) stays(ctx context.Context, run string) error {
	record, _, err := rt.erasure(ctx, run)
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err != nil:
		return err
	case record.RemovedAt != "":
		return Erased(record)
	default:
		return schema.Fail(schema.CodeUnavailable, "Ask again: the run is then removed, or kept.", "the removal of run %s, asked by %s, is being decided", run, record.By)
	}
}

// erasure returns the record of a run's removal.
func (rt *routing) erasure(ctx context.Context, run string) (*schema.Erasure, schema.Revision, error) {
	record, rev, _, err := rt.of(run).Store.Erasures.Get(ctx, run)
	return record, rev, err
}
