package webhook_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/webhook"
	"github.com/waymarkio/waymark/schema"
)

// shardEnds are the ends of a shard behind its cursor, like those of the index.
type shardEnds struct {
	fleet
	list []schema.RunSummary
}

func (s *shardEnds) end(run string, epoch schema.Epoch) {
	s.change(func() {
		s.list = append(s.list, schema.RunSummary{Run: run, Epoch: epoch, Status: schema.StatusCompleted})
	})
}

func (s *shardEnds) page(context.Context, int) (page webhook.Page, err error) {
	s.change(func() { page.Ends = slices.Clone(s.list[:min(len(s.list), 64)]) })
	page.Accepted = func(context.Context) error {
		s.change(func() { s.list = s.list[len(page.Ends):] })
		return nil
	}
	return page, nil
}

func (s *shardEnds) left() (n int) {
	s.change(func() { n = len(s.list) })
	return n
}

// One run's ends are refused for good. The ends of other runs fill the page, and follow it.
func TestWatch_OneRunsEndIsRefused_HoldsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shardEnds{fleet: fleet{known: true}}
		r := &receiver{t: t, refuses: "bad.finished.1"}
		w, stop := start(t, &s.fleet, r, s.page)
		s.end("bad", 1)
		after(time.Hour)
		require.Equal(t, 1, s.left(), "nothing else was accepted: the receiver may be away")
		began := w.Stats().EndsFailing[0].Load().Since
		s.end("bad", 2)
		for i := range 40 {
			s.end(fmt.Sprint("good-", i), 1)
		}
		after(3 * time.Second)
		require.Len(t, distinct(r.got()), 41, "at once")
		require.NotContains(t, r.got(), "bad.finished.2", "in order")
		require.Equal(t, began, w.Stats().EndsFailing[0].Load().Since)
		for i := range 100 {
			s.end(fmt.Sprint("later-", i), 1)
		}
		after(20 * time.Minute)
		require.Zero(t, s.left())
		require.Len(t, distinct(r.got()), 142)
		require.Equal(t, int64(1), w.Stats().GivenUp.Load())
		require.Equal(t, int64(141), w.Stats().Taken.Load())
		require.Nil(t, w.Stats().EndsFailing[0].Load())
		stop()
	})
}

// The receiver refuses as many ends as a page has.
func TestWatch_WholePageIsRefused_HoldsNoLaterEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shardEnds{fleet: fleet{known: true}}
		w, stop := start(t, &s.fleet, &receiver{t: t, refuses: "bad-"}, s.page)
		s.end("good", 1)
		after(3 * time.Second)
		require.Zero(t, s.left())
		for i := range 64 {
			s.end(fmt.Sprint("bad-", i), 1)
		}
		s.end("later", 1)
		after(20 * time.Minute)
		require.Zero(t, s.left())
		require.Equal(t, int64(64), w.Stats().GivenUp.Load())
		require.Equal(t, int64(2), w.Stats().Taken.Load())
		stop()
	})
}

// The receiver goes down in the middle of a page, and the daemon restarts before it is up again.
func TestWatch_ReceiverIsAway_LosesNoEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shardEnds{fleet: fleet{known: true}}
		r := &receiver{t: t, answers: append([]int{200, 200}, slices.Repeat([]int{503}, 1_000_000)...)}
		for i := range 100 {
			s.end(fmt.Sprint("r", i%90), schema.Epoch(1+i/90)) //nolint:gosec // small
		}
		for range 2 {
			w, stop := start(t, &s.fleet, r, s.page)
			after(2 * time.Hour)
			require.Equal(t, 100, s.left())
			require.Zero(t, w.Stats().GivenUp.Load())
			stop()
		}
		r.mu.Lock()
		r.answers, r.ids = nil, nil
		r.mu.Unlock()
		_, stop := start(t, &s.fleet, r, s.page)
		after(time.Minute)
		require.Zero(t, s.left())
		require.Len(t, distinct(r.got()), 100)
		stop()
	})
}
