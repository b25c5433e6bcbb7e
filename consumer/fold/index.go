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

// indexed is what the index of runs holds of one: the key under which it is listed as ended, "" while it is live, at which
// position, and the keys under which it is found by what it came of.
type indexed struct {
	ended string
	at    schema.StreamSequence
	// rev is the revision of the entry, 0 when this term did not put it.
	rev      schema.Revision
	children []string
	// unsure: perhaps it does not hold them, and they are put whatever this says.
	unsure bool
}

func indexedOf(h *schema.Head) indexed {
	i := indexed{children: schema.ChildKeys(h)}
	if !h.Live() && h.Status != schema.StatusErased {
		i.ended, i.at = schema.EndedKey(h), h.Position.Stream
	}
	return i
}

// runIndex is the index of a shard's runs during a term: entries of ended runs, and of what came of a run. It is the folding
// goroutine's.
type runIndex struct {
	shard *kvstore.Shard
	js    jetstream.JetStream
	names schema.Names
	lease *kvstore.Lease
	stats *Stats
	log   zerolog.Logger
	// state is how far the index is, at a revision.
	state kvstore.IndexState
	rev   schema.Revision
	// upTo is the message up to which all must be folded before an index that is filled by folding is complete.
	upTo schema.StreamSequence
}

// read reads how far the index is.
func (x *runIndex) read(ctx context.Context) (err error) {
	x.state, x.rev, err = x.shard.Checkpoints.IndexState(ctx)
	return err
}

// gone reports whether there is no index, neither a complete one nor one that is being filled.
func (x *runIndex) gone() bool { return !x.state.Complete && !x.state.Folding }

// put brings the index of runs up to what the heads say, before their checkpoints are put: what a run needs there
// first, and then what it has there no more. A crash between leaves a name too many, which differs from its checkpoint, or
// is put once more; a run is at every moment in the live index, or among the ended ones, or both.
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

// putEntries puts entries into the index of runs and returns their revisions by key. What stands where nothing was
// expected, or another revision, was left by a crash or an earlier term, and is replaced; or it is of another
// worker, which took the shard while this one was paused. The lease tells: it was taken before anything else was done. It is
// looked at behind the revisions, so that what is put after that look is in the way of compare-and-set.
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

// takeEntries takes entries out of the index of runs, as they were before anybody else can have taken the shard.
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

// leads makes sure that nobody else has taken the shard up to now.
func (x *runIndex) leads(ctx context.Context) error {
	err := x.lease.Stands(ctx)
	if errors.Is(err, kvstore.ErrLeaseLost) {
		return fmt.Errorf("%w: %w", errSuperseded, err)
	}
	return err
}

// appendIndexPuts appends the entries that a run needs and does not have.
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
		// What a run came of is only ever added to.
		if has.unsure || i >= len(has.children) || has.children[i] != key {
			puts = append(puts, kvstore.IndexPut{Key: key})
		}
	}
	return puts
}

// begin begins an index where there is none: as all runs come again, from checkpoints that are of another log or from none.
func (x *runIndex) begin(ctx context.Context, distrust, rebuild bool) error {
	var err error
	switch {
	case distrust:
		// What is there is of another log, and every run comes again.
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

// clear takes everything out of the index that was there before anybody else can have taken the shard.
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

// folded is called between batches, with the last message that was taken and how many are behind it. An index that is filled by folding is complete when the fold has come to where the
// log ended when it began.
func (x *runIndex) folded(ctx context.Context, passed schema.StreamSequence, behind uint64) error {
	if !x.state.Folding || passed < x.upTo && behind > 0 {
		return nil
	}
	if passed < x.upTo {
		// What it ended with may be gone since, or still on its way here: the leader knows.
		next, found, err := eventlog.Next(ctx, x.js, x.names, "*", passed+1)
		if err != nil || found && next.Stream <= x.upTo {
			return err
		}
	}
	return x.complete(ctx)
}

// complete says that the index has every run.
func (x *runIndex) complete(ctx context.Context) error {
	if err := x.keep(ctx, kvstore.IndexState{Complete: true}); err != nil {
		return err
	}
	x.log.Info().Msg("index of runs is complete")
	return nil
}
