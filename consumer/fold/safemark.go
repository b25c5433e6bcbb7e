package fold

import (
	"context"
	"slices"
	"time"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// aging is a watermark and when it was put.
type aging struct {
	mark kvstore.Watermark
	at   time.Time
}

// safeMark is the watermark from which an unclean start folds again.
type safeMark struct {
	store *kvstore.SafeWatermarks
	names schema.Names
	// after is how long a watermark waits before it is safe.
	after time.Duration
	now   func() time.Time
	// rev is the revision of the safe watermark, as the term found or put it.
	rev schema.Revision
	// aging are watermarks on their way to becoming the safe one.
	aging []aging
}

// read reads the safe watermark.
func (x *safeMark) read(ctx context.Context) (mark kvstore.Watermark, err error) {
	mark, x.rev, err = x.store.Get(ctx, x.names)
	return mark, err
}

// move keeps the watermark of two sync intervals ago in a bucket that is synced: whatever a power cut took back of
// the checkpoints, what stood there before that is on disk. A shard that is always busy has one entry a tick on its
// way: SafeAfter divided by ReconcileEvery, a few dozen.
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
	// The revision is the one that this term began with, or put: a worker that stood still must not put over the next one's.
	rev, err := x.store.Put(ctx, x.names, x.aging[due].mark, x.rev)
	if err != nil {
		return lost(err)
	}
	x.rev = rev
	x.aging = x.aging[due+1:]
	return nil
}
