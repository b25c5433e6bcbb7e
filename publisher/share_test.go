package publisher_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

// crew are executors that work on runs until a test lets them end.
type crew struct {
	mu sync.Mutex
	// took are the runs that each executor was given.
	took    map[string][]string
	release chan struct{}
}

// newCrew serves with executors of this capacity, and waits until each has asked for a run.
func newCrew(w *world, capacity int, names ...string) *crew {
	w.tb.Helper()
	c := &crew{took: make(map[string][]string), release: make(chan struct{})}
	for _, name := range names {
		serveRuns(w.tb, w.fleet(named(name)), func(ctx context.Context, run *publisher.Run) error {
			c.mu.Lock()
			c.took[name] = append(c.took[name], run.ID())
			release := c.release
			c.mu.Unlock()
			select {
			case <-release:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, func(spec *publisher.ExecutorSpec) { spec.Capacity = capacity })
	}
	return c
}

// counts are the runs of each executor, the fewest first, once there are so many.
func (c *crew) counts(tb testing.TB, runs int, names ...string) []int {
	tb.Helper()
	var counts []int
	require.Eventually(tb, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		counts = counts[:0]
		all := 0
		for _, name := range names {
			counts = append(counts, len(c.took[name]))
			all += len(c.took[name])
		}
		return all == runs
	}, patience, time.Millisecond)
	return counts
}

// letEnd ends all work.
func (c *crew) letEnd() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.release)
	c.release, c.took = make(chan struct{}), make(map[string][]string)
}

func submitAtOnce(tb testing.TB, f *publisher.Fleet, prefix string, n int) {
	tb.Helper()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			_, err := f.Submit(tb.Context(), publisher.RunSpec{ID: fmt.Sprintf("%s-%d", prefix, i), Agent: "coder"})
			require.NoError(tb, err)
		})
	}
	all.Wait()
}

// A slow executor is not waited for, so a round on a busy machine may be uneven. Without calls the first executor that
// asks gets nearly all runs of each round.
func TestExecutors_SixRunsAtOnce_AreShared(t *testing.T) {
	t.Parallel()
	rounds := 20
	if testing.Short() {
		t.Log("short: 4 rounds instead of 20")
		rounds = 4
	}
	w := newWorld(t)
	w.daemon()
	names := []string{"exec-1", "exec-2", "exec-3"}
	c := newCrew(w, 8, names...)
	f := w.fleet(named("submitter"))
	var most []int
	for round := range rounds {
		submitAtOnce(t, f, fmt.Sprint("r", round), 6)
		most = append(most, slices.Max(c.counts(t, 6, names...)))
		c.letEnd()
	}
	slices.Sort(most)
	require.LessOrEqual(t, most[rounds/2], 3, "the most runs of an executor, by round: %v", most)
}

func TestExecutors_SixtyRunsAtOnce_AreShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	names := []string{"exec-1", "exec-2", "exec-3"}
	c := newCrew(w, 60, names...)
	submitAtOnce(t, w.fleet(named("submitter")), "r", 60)
	counts := c.counts(t, 60, names...)
	require.GreaterOrEqual(t, slices.Min(counts), 5, "%v", counts)
}
