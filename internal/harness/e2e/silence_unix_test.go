//go:build unix

package e2e_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/schema"
)

// TestSilence_TwoSeconds_KilledExecutorsRunGoesOnWithinFive kills executors in the middle of a tool, and looks at when another one runs it.
func TestSilence_TwoSeconds_KilledExecutorsRunGoesOnWithinFive(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	kills := 3
	if testbin.Full(t) {
		kills = 10
	}
	w := newWorld(t, "--silence", "2s")
	call := workerCall{ID: "tool", Replay: schema.ReplayPure, Before: never}
	for i := range 2 {
		w.worker(t, workerSettings{Name: fmt.Sprint("successor-", i), Turns: 1, Capacity: kills, Calls: []workerCall{call}}).ready(t)
	}
	for i := range kills {
		run := fmt.Sprint("run-", i)
		victim := w.worker(t, workerSettings{Name: fmt.Sprint("victim-", i), Start: []string{run}, Turns: 1, Capacity: -1, Calls: []workerCall{call}})
		w.awaitEntry(t, run, journal.Begin)
		killed := time.Now()
		victim.kill9(t)
		require.Eventually(t, func() bool { return w.count(t, run, journal.Begin) == 2 }, patience, 10*time.Millisecond)
		took := time.Since(killed)
		t.Logf("the tool of %s runs again %s after the kill", run, took.Round(10*time.Millisecond))
		require.Less(t, took, 5*time.Second)
	}
	require.Zero(t, w.deadLetters(t))
}

// It burns all CPUs next to a working fleet, and sometimes stops its executors for a second.
func TestSilence_TwoSeconds_LoadedFleetOrphansNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes work for a while")
	}
	took := 10 * time.Second
	if testbin.Full(t) {
		took = time.Minute
	}
	w := newWorld(t, "--silence", "2s")
	fleet := w.fleet(t, "reader")
	var workers []*child
	var runs []string
	for i := range 4 {
		var own []string
		for j := range 10 {
			own = append(own, fmt.Sprintf("run-%d-%d", i, j))
		}
		workers = append(workers, w.worker(t, workerSettings{
			Name: fmt.Sprint("worker-", i), Start: own, Turns: 1 << 20, Capacity: 100,
			Calls: []workerCall{{ID: "tool", Replay: schema.ReplayPure, Before: 500}},
		}))
		runs = append(runs, own...)
	}
	require.Eventually(t, func() bool { return w.runsWith(t, journal.Begin) == len(runs) }, patience, 100*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), took)
	defer cancel()
	var burning sync.WaitGroup
	for range runtime.NumCPU() {
		burning.Go(func() {
			for kept := [][]byte(nil); ctx.Err() == nil; {
				if kept = append(kept, make([]byte, 1<<20)); len(kept) > 64 {
					kept = nil // garbage for the collector
				}
			}
		})
	}
	pauses := time.NewTicker(2500 * time.Millisecond)
	defer pauses.Stop()
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-pauses.C:
			process := workers[i%len(workers)].cmd.Process
			require.NoError(t, process.Signal(syscall.SIGSTOP))
			goOn := time.AfterFunc(time.Second, func() { _ = process.Signal(syscall.SIGCONT) })
			defer goOn.Stop()
		case <-ctx.Done():
		}
	}
	burning.Wait()
	for _, worker := range workers {
		require.NoError(t, worker.cmd.Process.Signal(syscall.SIGCONT))
	}
	turns := int32(0)
	for _, run := range runs {
		head, err := fleet.Head(t.Context(), run)
		require.NoError(t, err)
		require.EqualValues(t, 1, head.Epoch, "%s was orphaned and claimed", run)
		require.Equal(t, schema.StatusRunning, head.Status)
		turns += head.Turn
	}
	t.Logf("%d turns of %d runs, and no run was orphaned", turns, len(runs))
	require.Zero(t, w.deadLetters(t))
}
