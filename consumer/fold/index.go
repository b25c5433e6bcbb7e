package fold

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// indexed is a run's entries in the index of runs: the key under which it is listed as ended, "" while it is live,
// its position there, and the keys under its parents.
type indexed struct {
	ended string
	at    schema.StreamSequence
	// rev is the revision of the entry, 0 if this term did not put it.
	rev      schema.Revision
	children []string
	// unsure: the entries may be missing, and are put in any case.
	unsure bool
}

func indexedOf(h *schema.Head) indexed {
	i := indexed{children: schema.ChildKeys(h)}
	if !h.Live() && h.Status != schema.StatusErased {
		i.ended, i.at = schema.EndedKey(h), h.Position.Stream
	}
	return i
}

// runIndex is the index of a shard's runs during a term: entries of ended runs, and of children. Only the folding
// goroutine uses it.
type runIndex struct {
	shard *kvstore.Shard
	js    jetstream.JetStream
	names schema.Names
	lease *kvstore.Lease
	stats *Stats
	log   zerolog.Logger
	// state is the stored state of the index, at a revision.
	state kvstore.IndexState
	rev   schema.Revision
	// upTo is the message up to which the log must be folded before an index that is filled by folding is complete.
	upTo schema.StreamSequence
}

// read reads the stored state of the index.
func (x *runIndex) read(ctx context.Context) (err error) {
	x.state, x.rev, err = x.shard.Checkpoints.IndexState(ctx)
	return err
}

// gone reports whether there is no index, neither complete nor being filled.
func (x *runIndex) gone() bool { return !x.state.Complete && !x.state.Folding }

// put updates the index of runs from the heads, before their checkpoints are put: first it adds new entries, then it
// removes old ones. A crash in between leaves a stale entry, which differs from its checkpoint, or one that is put
// again; a run is always in the live index, or among the ended ones, or both.
func (x *runIndex) put(ctx context.Context, runs []*run) error {
	var puts []kvstore.IndexPut
	var gone []kvstore.IndexAt
	next := make([]indexed, len(runs))
	for i, r := range runs {
		next[i] = indexedOf(&r.head)
		if next[i].ended == r.index.ended {
			next[i].rev = r.index.rev
		}
		puts = appendIndexPuts(puts, &r.head, &r.index)
		if r.index.ended != "" && r.index.ended != next[i].ended {
			gone = append(gone, kvstore.IndexAt{Key: r.index.ended, Revision: r.index.rev})
		}
		if r.head.Status == schema.StatusErased {
			for _, key := range r.index.children {
				gone = append(gone, kvstore.IndexAt{Key: key})
			}
		}
	}
	revisions, err := x.putEntries(ctx, puts)
	if err != nil {
		return err
	}
	if err := x.takeEntries(ctx, gone); err != nil {
		return err
	}
	for i, r := range runs {
		if rev, ok := revisions[next[i].ended]; ok {
			next[i].rev = rev
		}
		r.index = next[i]
	}
	x.stats.IndexPuts.Add(int64(len(puts)))
	return nil
}

// putEntries puts entries into the index of runs and returns their revisions by key. An unexpected entry or revision
// is from a crash or an earlier term, and is replaced; or it is from another worker, which took the shard while this
// one was paused. The lease decides: that worker took it before any other step. The lease is checked after the
// revisions were read, so that compare-and-set refuses our put if the other worker puts after the check.
func (x *runIndex) putEntries(ctx context.Context, puts []kvstore.IndexPut) (map[string]schema.Revision, error) {
	cps := x.shard.Checkpoints
	revisions := make(map[string]schema.Revision, len(puts))
	var again []kvstore.IndexPut
	var keys []string
	for i, res := range cps.PutIndex(ctx, puts...) {
		switch {
		case errors.Is(res.Err, kvstore.ErrConflict):
			again, keys = append(again, puts[i]), append(keys, puts[i].Key)
		case res.Err != nil:
			return nil, res.Err
		default:
			revisions[puts[i].Key] = res.Revision
		}
	}
	if len(again) == 0 {
		return revisions, nil
	}
	there, err := cps.IndexRevisions(ctx, keys...)
	if err != nil {
		return nil, err
	}
	if err := x.leads(ctx); err != nil {
		return nil, err
	}
	for i := range again {
		again[i].Revision = there[i]
	}
	for i, res := range cps.PutIndex(ctx, again...) {
		if res.Err != nil {
			return nil, lost(res.Err)
		}
		revisions[again[i].Key] = res.Revision
	}
	return revisions, nil
}

// takeEntries removes entries from the index of runs at revisions from before another worker can have taken the
// shard.
func (x *runIndex) takeEntries(ctx context.Context, entries []kvstore.IndexAt) error {
	var keys []string
	for _, e := range entries {
		if e.Revision == 0 {
			keys = append(keys, e.Key)
		}
	}
	if len(keys) > 0 {
		there, err := x.shard.Checkpoints.IndexRevisions(ctx, keys...)
		if err != nil {
			return err
		}
		if err := x.leads(ctx); err != nil {
			return err
		}
		for i := range entries {
			if entries[i].Revision == 0 {
				entries[i].Revision, there = there[0], there[1:]
			}
		}
	}
	return x.shard.Checkpoints.TakeIndex(ctx, entries...)
}

// leads checks that no other worker has taken the shard so far.
func (x *runIndex) leads(ctx context.Context) error {
	err := x.lease.Stands(ctx)
	if errors.Is(err, kvstore.ErrLeaseLost) {
		return fmt.Errorf("%w: %w", errSuperseded, err)
	}
	return err
}

// appendIndexPuts appends the entries that a run needs and lacks.
func appendIndexPuts(puts []kvstore.IndexPut, h *schema.Head, has *indexed) []kvstore.IndexPut {
	needs := indexedOf(h)
	if needs.ended != "" && (has.unsure || needs.ended != has.ended || needs.at != has.at) {
		e := schema.EndedOf(h)
		put := kvstore.IndexPut{Key: needs.ended, Ended: &e}
		if needs.ended == has.ended {
			put.Revision = has.rev
		}
		puts = append(puts, put)
	}
	for i, key := range needs.children {
		// A run's parents are only ever added to.
		if has.unsure || i >= len(has.children) || has.children[i] != key {
			puts = append(puts, kvstore.IndexPut{Key: key})
		}
	}
	return puts
}

// begin begins an index if there is none: all runs are folded again, from checkpoints of another log or from none.
func (x *runIndex) begin(ctx context.Context, distrust, rebuild bool) error {
	var err error
	switch {
	case distrust:
		// The entries are of another log, and every run is folded again.
		if err := x.clear(ctx); err != nil {
			return err
		}
		err = x.keep(ctx, kvstore.IndexState{Folding: true})
	case rebuild:
		err = x.keep(ctx, kvstore.IndexState{Folding: true})
	}
	if err != nil || !x.state.Folding {
		return err
	}
	usage, err := x.shard.Usage(ctx)
	x.upTo = usage.Last
	return err
}

// clear removes all entries of the index from before another worker can have taken the shard.
func (x *runIndex) clear(ctx context.Context) error {
	latest, err := x.shard.Checkpoints.Latest(ctx)
	if err != nil {
		return err
	}
	if err := x.leads(ctx); err != nil {
		return err
	}
	return x.shard.Checkpoints.ClearIndex(ctx, latest)
}

func (x *runIndex) keep(ctx context.Context, st kvstore.IndexState) error {
	rev, err := x.shard.Checkpoints.PutIndexState(ctx, st, x.rev)
	if err != nil {
		return lost(err)
	}
	x.state, x.rev = st, rev
	return nil
}

// folded is called between batches, with the last message that was taken and how many follow. An index that is filled
// by folding is complete when the fold has reached the end that the log had at its beginning.
func (x *runIndex) folded(ctx context.Context, passed schema.StreamSequence, behind uint64) error {
	if !x.state.Folding || passed < x.upTo && behind > 0 {
		return nil
	}
	if passed < x.upTo {
		// The last message may be gone since, or still on its way here: the leader knows.
		next, found, err := eventlog.Next(ctx, x.js, x.names, "*", passed+1)
		if err != nil || found && next.Stream <= x.upTo {
			return err
		}
	}
	return x.complete(ctx)
}

// complete records that the index has every run.
func (x *runIndex) complete(ctx context.Context) error {
	if err := x.keep(ctx, kvstore.IndexState{Complete: true}); err != nil {
		return err
	}
	x.log.Info().Msg("index of runs is complete")
	return nil
}
