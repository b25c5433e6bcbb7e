package service

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// repeated runs a repeater of two tasks at a time for a while, and returns when each attempt began.
func repeated(t *testing.T, lasts time.Duration, list func() []string, do func(ctx context.Context, task string)) map[string][]time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	began, attempts := time.Now(), make(chan string, 100)
	times := make(map[string][]time.Duration)
	r := repeater[string]{list: list, now: time.Now, first: 500 * time.Millisecond, most: 2 * time.Second, atOnce: 2, do: func(ctx context.Context, task string) {
		attempts <- task
		do(ctx, task)
	}}
	go func() {
		defer close(attempts)
		r.run(ctx)
	}()
	for task := range attempts {
		times[task] = append(times[task], time.Since(began))
	}
	return times
}

func TestRepeater_TaskStaysListed_PauseDoublesUpToTheMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		times := repeated(t, 8*time.Second, func() []string { return []string{"a"} }, func(context.Context, string) {})
		const ms = time.Millisecond
		require.Equal(t, []time.Duration{250 * ms, 750 * ms, 1750 * ms, 3750 * ms, 5750 * ms, 7750 * ms}, times["a"])
	})
}

func TestRepeater_TaskLeavesTheList_BeginsWithoutPauseWhenItIsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		times := repeated(t, 1100*time.Millisecond, func() []string {
			lists++
			return [][]string{nil, {"a"}, nil, {"a"}, nil}[lists]
		}, func(context.Context, string) {})
		require.Equal(t, []time.Duration{250 * time.Millisecond, 750 * time.Millisecond}, times["a"])
	})
}

// A slow task has one of two places until claimPatience is over, also while the list does not have it.
func TestRepeater_SlowTask_IsDoneOnceAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		times := repeated(t, claimPatience, func() []string {
			if lists++; lists == 2 {
				return nil
			}
			return []string{"slow", "b", "c"}
		}, func(ctx context.Context, task string) {
			if task == "slow" {
				<-ctx.Done()
			}
		})
		require.Len(t, times["slow"], 1)
		for _, task := range []string{"b", "c"} {
			require.Greater(t, len(times[task]), 1, task)
		}
	})
}

func TestRepeater_MoreTasksThanPlaces_WaitForAPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		at, most := make(chan int, 2), 0
		at <- 0
		add := func(n int) {
			now := <-at + n
			most = max(most, now)
			at <- now
		}
		times := repeated(t, 1900*time.Millisecond, func() []string { return []string{"a", "b", "c", "d"} }, func(ctx context.Context, _ string) {
			add(1)
			defer add(-1)
			timer := time.NewTimer(1100 * time.Millisecond)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		})
		require.Equal(t, 2, most)
		require.Len(t, times, 4)
	})
}
