package publisher

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestWorks_Overdue_AreListedOldestFirst(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := &works{now: func() time.Time { return now }}
	require.Nil(t, w.begin(schema.Overdue{Run: "r0"}, 0), "without a limit nothing is overdue")
	var none *work
	none.again()
	none.end()
	long := w.begin(schema.Overdue{Run: "r2"}, 3*time.Second)
	now = now.Add(500 * time.Millisecond)
	short := w.begin(schema.Overdue{Run: "r1"}, time.Second)
	named := func() (runs []string) {
		for _, o := range w.overdue() {
			runs = append(runs, o.Run)
		}
		return runs
	}
	now = now.Add(1999 * time.Millisecond)
	require.Empty(t, named(), "it has a second to return")
	now = now.Add(time.Millisecond)
	list := w.overdue()
	require.Equal(t, []schema.Overdue{{Run: "r1", Since: "2026-01-02T03:04:05.5Z", LimitMS: 1000}}, list)
	now = now.Add(time.Minute)
	require.Equal(t, []string{"r2", "r1"}, named(), "r1 is further beyond its limit, r2 is older")
	short.again()
	require.Equal(t, []string{"r2"}, named())
	long.end()
	require.Empty(t, named())
	short.end()
	require.Empty(t, w.all)

	for range schema.MaxOverdue + 3 {
		w.begin(schema.Overdue{Run: "r1"}, time.Millisecond)
	}
	now = now.Add(time.Minute)
	require.Len(t, w.overdue(), schema.MaxOverdue)
}

// A try that ended in time, and the pause after it, do not hang, however long the pause is. A later try that hangs does.
func TestRetried_PauseBetweenTries_IsNotOverdue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 10 * time.Millisecond
		w := &works{now: time.Now}
		run, err := Unrecorded(t.Context(), Config{Executor: "e", Agent: "a"}, RunSpec{ID: "r1"})
		require.NoError(t, err)
		l := looping{Loop: Loop{ToolTries: 9}, run: run}
		var tries atomic.Int64
		release, done := make(chan struct{}), make(chan error, 1)
		tool := l.retried(func(ctx context.Context, _ Invocation) (ToolResult, error) {
			if tries.Add(1) < int64(l.ToolTries) {
				<-ctx.Done()
				return ToolResult{}, ctx.Err()
			}
			<-release
			return ToolResult{}, nil
		}, limit)
		work := w.begin(schema.Overdue{Run: "r1"}, limit)
		go func() {
			_, err := tool(t.Context(), Invocation{work: work, latest: new(int)})
			done <- err
		}()
		for tries.Load() < int64(l.ToolTries) {
			list := w.overdue()
			require.Empty(t, list, "after %d tries", tries.Load())
			<-time.After(limit)
			synctest.Wait()
		}
		<-time.After(limit + overdueGrace)
		list := w.overdue()
		require.Len(t, list, 1)
		close(release)
		require.NoError(t, <-done)
		require.Empty(t, w.all)
	})
}
