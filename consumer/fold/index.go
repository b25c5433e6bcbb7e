package fold

import (
	"cmp"
	"context"
	"slices"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// indexed is a run's entries in the index of runs: the key under which it is listed as ended, "" while it is live,
// its position there, and the keys under its parents. It is empty if the entries may be missing: they are put again.
type indexed struct {
	ended    string
	at       schema.StreamSequence
	children []string
	// end is the signal by which its parent hears of its end.
	end string
}

func indexedOf(h *schema.Head, maxClaims int) indexed {
	i := indexed{children: schema.ChildKeys(h)}
	if end := schema.EndOf(h, maxClaims); end != nil {
		i.end = end.SignalID()
	}
	if !h.Live() && h.Status != schema.StatusErased {
		i.ended, i.at = schema.EndedKey(h), h.Position.Stream
	}
	return i
}

// putIndex puts the entries of runs that the index of runs lacks, in the order of the log: lists show the last put
// first. It comes before the checkpoints. No entry is removed before its run is: the entry of a reopened run differs
// from the checkpoint, and is skipped. So a paused worker can add a stale entry, but never removes one.
func (s *term) putIndex(ctx context.Context, runs []*run) error {
	runs = slices.Clone(runs)
	slices.SortFunc(runs, func(a, b *run) int { return cmp.Compare(a.head.Position.Stream, b.head.Position.Stream) })
	var puts []kvstore.IndexPut
	next := make([]indexed, len(runs))
	for i, r := range runs {
		next[i] = indexedOf(&r.head, s.cfg.MaxClaims)
		if next[i].ended != "" && (next[i].ended != r.index.ended || next[i].at != r.index.at) {
			e := schema.EndedOf(&r.head)
			e.Rebuilt = s.mark.RebuildTo > 0
			puts = append(puts, kvstore.IndexPut{Key: next[i].ended, Ended: &e})
		}
		for n, key := range next[i].children {
			// A run's parents are only ever added to.
			if n >= len(r.index.children) || r.index.children[n] != key {
				puts = append(puts, kvstore.IndexPut{Key: key})
			}
		}
		if next[i].end != "" && next[i].end != r.index.end { // the service deletes it, once the parent was told
			puts = append(puts, kvstore.IndexPut{Key: schema.UntoldKeyPrefix + r.id})
		}
	}
	if err := s.shard.Checkpoints.PutIndex(ctx, puts...); err != nil {
		return err
	}
	for i, r := range runs {
		r.index = next[i]
	}
	return nil
}

// beginRebuild records that the shard is folded again from the beginning of its log, and removes the index of runs:
// its entries may be of another log. A crash in between leaves the record, and the next term begins here again. A
// paused worker removes no entry that another worker has put since: that worker took the shard after the record.
func (s *term) beginRebuild(ctx context.Context) error {
	if s.rebuild {
		usage, err := s.shard.Usage(ctx)
		if err != nil {
			return err
		}
		s.mark.RebuildTo = max(usage.Last, 1)
		if err := s.putMark(ctx, s.mark.Position); err != nil {
			return err
		}
	}
	if s.mark.RebuildTo == 0 || s.mark.Position.Stream > 0 {
		return nil
	}
	return s.shard.Checkpoints.ClearIndex(ctx, s.markRev)
}

// endRebuild records, between two batches, that everything is folded again that the log had when a rebuild began.
func (s *term) endRebuild(ctx context.Context) error {
	to := s.mark.RebuildTo
	if to == 0 {
		return nil
	}
	if s.passed < to {
		if s.behind.Load() > 0 {
			return nil
		}
		// The last message may be gone since, or still on its way here: the leader knows.
		next, found, err := eventlog.Next(ctx, s.js, s.names, "*", s.passed+1)
		if err != nil || found && next.Stream <= to {
			return err
		}
	}
	s.mark.RebuildTo = 0
	if err := s.putMark(ctx, s.mark.Position); err != nil {
		return err
	}
	s.log.Debug().Msg("shard is folded again from the beginning of its log")
	return nil
}
