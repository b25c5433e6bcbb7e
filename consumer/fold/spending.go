package fold

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxSpentBytes bounds the names of the shares that a shard counts in a day: thousands of tenants.
	maxSpentBytes = 128 << 10
	// maxSpentTokens bounds the tokens of one event: no sum overflows.
	maxSpentTokens = 1 << 40
)

// spending counts the tokens that runs use, for the budgets of the fleet.
type spending struct {
	kvstore.Spent
	rev schema.Revision
	// from is the position that the term found: earlier terms have counted the events up to it. The term itself applies
	// each event once.
	from    schema.StreamSequence
	changed bool
	// at is the index of a share by its flags, bytes are those of all flags, and full says that one had no room.
	at    map[string]int
	bytes int
	full  bool
}

// beginSpending reads what the shard has spent. It begins at zero if that was of another log, or of events that the log has lost:
// the log of the day is then folded, and counted, again.
func (s *term) beginSpending(ctx context.Context) error {
	x := &s.spending
	spent, rev, err := s.shard.Spent(ctx)
	x.rev = rev
	switch {
	case errors.Is(err, kvstore.ErrNotFound):
		return nil
	case err == nil && spent.Incarnation != s.incarnation:
		err = errRegressed
	case err == nil && spent.Position.Stream > 0:
		err = s.checkLog(ctx, spent.Position)
	}
	if errors.Is(err, errRegressed) || errors.Is(err, kvstore.ErrCorrupt) {
		s.log.Error().Err(err).Str("day", spent.Day).Msg("tokens of budgets are of another log, counting them from the beginning of the day")
		x.changed = true
		return nil
	}
	if err != nil {
		return err
	}
	x.Spent, x.from, x.at = spent, spent.Position.Stream, make(map[string]int)
	for i := range spent.Shares {
		x.index(spent.Shares[i].Flags(), i)
	}
	return nil
}

func (x *spending) index(flags string, i int) {
	x.at[flags] = i
	x.bytes += len(flags)
}

// spend counts an applied event of a run that had used tokens before it.
func (s *term) spend(limits []schema.Limit, h *schema.Head, before int64, v *schema.Verdict, rec *schema.Record) {
	switch v.Data.(type) {
	case *schema.TurnAnsweredData, *schema.TurnEndedData: // a fork begins with the tokens of its base
	default:
		return
	}
	if tokens := min(h.Usage.Tokens()-before, maxSpentTokens); tokens > 0 && rec.Stream > s.spending.from {
		if !s.spending.add(limits, h.Scoped(), tokens, time.Unix(0, rec.Stored)) && !s.spending.full {
			s.spending.full = true
			s.log.Error().Str("hint", "give budgets to labels with fewer values: waymark limit ls").
				Msg("budgets have more shares than a shard counts in a day, some are not counted")
		}
	}
}

// add adds tokens to the shares of budgets that select a run. It reports false if there was no room for a share.
func (x *spending) add(limits []schema.Limit, run *schema.Live, tokens int64, stored time.Time) bool {
	day, room := stored.UTC().Format(time.DateOnly), true
	added := make(map[string]bool)
	for i := range limits {
		share, ok := limits[i].Of(run)
		if !ok || limits[i].DayTokens == 0 || day < x.Day { // of a day that is over
			continue
		}
		if day > x.Day {
			x.Day, x.Shares, x.at, x.bytes, x.full = day, nil, make(map[string]int), 0, false
		}
		flags := share.Flags()
		if added[flags] { // another limit has the same runs
			continue
		}
		at, there := x.at[flags]
		if !there {
			if x.bytes+len(flags) > maxSpentBytes {
				room = false
				continue
			}
			at = len(x.Shares)
			x.Shares = append(x.Shares, kvstore.SpentShare{Scope: share})
			x.index(flags, at)
		}
		x.Shares[at].Tokens += tokens
		added[flags], x.changed = true, true
	}
	return room
}

// putSpent stores the tokens of a batch, before anything that has its events.
func (s *term) putSpent(ctx context.Context, b *batch) error {
	x := &s.spending
	if !x.changed {
		return nil
	}
	x.Incarnation, x.Position = s.incarnation, b.last
	rev, err := s.shard.PutSpent(ctx, &x.Spent, x.rev)
	if err != nil {
		return lost(err)
	}
	x.rev, x.changed = rev, false
	return nil
}
