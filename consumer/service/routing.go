package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// routing finds the shard of a run, and reads runs there.
type routing struct {
	js     jetstream.JetStream
	keys   *keyring.Ring
	reader *reader.Reader
	// timeout is [Config.Timeout].
	timeout time.Duration
	// shards of the fleet, in the order of their numbers.
	shards []*reader.Source
}

func newRouting(cfg *Config, js jetstream.JetStream, shards []*kvstore.Shard, keys *keyring.Ring, stats *reader.Stats, now func() time.Time,
	log zerolog.Logger,
) (*routing, error) {
	if len(shards) == 0 {
		return nil, fmt.Errorf("%w: no shard was given", ErrConfig)
	}
	rt := &routing{js: js, keys: keys, timeout: cfg.Timeout}
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

// notErased returns an error for a read of a run that was removed: its remaining data must not be sent.
func (rt *routing) notErased(ctx context.Context, run string, r *reader.Snapshot, err error) (*reader.Snapshot, error) {
	r, removed, err := rt.standingOf(ctx, run, r, err)
	if removed != nil {
		return nil, Erased(removed)
	}
	return r, err
}

// last reads the last message of a run from the leader. It returns the removal of a run that the message removes, and
// whether there is a message.
func (rt *routing) last(ctx context.Context, run string) (*schema.Removal, bool, error) {
	keys, err := rt.keys.Keys(ctx)
	if err != nil {
		return nil, false, err
	}
	last, removal, err := rt.of(run).Store.LastRemoval(ctx, keys, run)
	return removal, last.Stream != 0, err
}

// standing reads a run with proof, or returns its removal.
func (rt *routing) standing(ctx context.Context, run string) (*reader.Snapshot, *schema.Removal, error) {
	r, err := rt.reader.Proven(ctx, run, reader.Head)
	return rt.standingOf(ctx, run, r, err)
}

// standingOf is what a read of a run returned, or the run's removal.
func (rt *routing) standingOf(ctx context.Context, run string, r *reader.Snapshot, err error) (*reader.Snapshot, *schema.Removal, error) {
	if err == nil && r != nil && r.Head.Status == schema.StatusErased {
		return nil, r.Head.Erased, nil
	}
	if _, damaged := errors.AsType[*reader.Damaged](err); !damaged {
		return r, nil, err
	}
	// The segments of a removed run may be deleted at this moment.
	removed, _, lerr := rt.last(ctx, run)
	if removed != nil {
		return nil, removed, nil
	}
	return r, nil, errors.Join(err, lerr)
}
