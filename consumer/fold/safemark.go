package fold

import (
	"context"
	"slices"
	"time"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// aging is a watermark and the time of its put.
type aging struct {
	mark kvstore.Watermark
	at   time.Time
}

// safeMark is the watermark from which the fold begins after an unclean start.
type safeMark struct {
	store *kvstore.SafeWatermarks
	names schema.Names
	// after is how long a watermark waits before it is safe.
	after time.Duration
	now   func() time.Time
	// rev is the revision of the safe watermark that the term found or put.
	rev schema.Revision
	// aging are watermarks that wait to become the safe one.
	aging []aging
}

// read reads the safe watermark.
func (x *safeMark) read(ctx context.Context) (mark kvstore.Watermark, err error) {
	mark, x.rev, err = x.store.Get(ctx, x.names)
	return mark, err
}

// move keeps the watermark of two sync intervals ago in a synced bucket: whatever checkpoints a power cut undid,
// those before that watermark are on disk. A busy shard has one waiting entry per tick: SafeAfter divided by
// ReconcileEvery, a few dozen.
func (x *safeMark) move(ctx context.Context, mark *kvstore.Watermark) error {
	now := x.now()
	if n := len(x.aging); n == 0 || x.aging[n-1].mark.Position != mark.Position || !slices.Equal(x.aging[n-1].mark.Parked, mark.Parked) {
		x.aging = append(x.aging, aging{*mark, now})
	}
	due := -1
	for i, a := range x.aging {
		if now.Sub(a.at) >= x.after {
			due = i
		}
	}
	if due < 0 || x.aging[due].mark.Incarnation == "" {
		return nil
	}
	// The revision is from this term's beginning or last put: a paused worker must not overwrite its successor's
	// value.
	rev, err := x.store.Put(ctx, x.names, x.aging[due].mark, x.rev)
	if err != nil {
		return lost(err)
	}
	x.rev = rev
	x.aging = x.aging[due+1:]
	return nil
}
