package fold

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestLetterQuota_OneRun_HasABurstAndThenARate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var q letterQuota
	const burst = LetterBurst / letterCost
	for range burst {
		require.True(t, q.grant("run-1", 1, now))
	}
	require.False(t, q.grant("run-1", 1, now))
	require.True(t, q.grant("run-2", 1, now), "another run has its own")
	require.False(t, q.grant("run-1", 1, now.Add(-time.Hour)), "a clock that goes back grants nothing")
	const looks = 100_000
	for range looks - 1 {
		now = now.Add(10 * letterCost / LetterRate * time.Second / looks)
		q.of("run-1", now).settle(now)
	}
	now = now.Add(10 * letterCost / LetterRate * time.Second / looks)
	for range 10 {
		require.True(t, q.grant("run-1", 1, now))
	}
	require.False(t, q.grant("run-1", 1, now))
	now = now.Add(LetterBurst / LetterRate * time.Second)
	require.True(t, q.grant("run-1", 2*LetterBurst, now), "one of any size")
	require.False(t, q.grant("run-1", 1, now))
}

func TestLetterQuota_ManyRuns_ShareOneBeyondTheTable(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	var q letterQuota
	for i := range letterRuns {
		require.True(t, q.grant(fmt.Sprintf("run-%d", i), 1, now))
	}
	require.True(t, q.grant("one-more", LetterBurst-letterCost, now))
	require.True(t, q.grant("no run id", 1, now), "subjects without a run id share it, too")
	require.False(t, q.grant("and-another", 1, now))
	require.Len(t, q.runs, letterRuns)
	now = now.Add(letterCost / LetterRate * time.Second)
	require.True(t, q.grant("and-another", 1, now), "runs that stored nothing of late make room")
	require.Len(t, q.runs, 1)
}

func TestDroppedLetters_Tick_LogsTheirNumberOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	x := &letters{stats: new(Stats), log: zerolog.New(&out)}
	x.sayDropped()
	require.Zero(t, out.Len())
	for range 3 {
		x.countDropped(&batch{dropped: droppedLetters{n: 2, run: "run-1"}})
	}
	x.countDropped(&batch{})
	x.sayDropped()
	x.sayDropped()
	require.Equal(t, 1, bytes.Count(out.Bytes(), []byte("\n")))
	require.Contains(t, out.String(), `"run":"run-1","events":6`)
	require.EqualValues(t, 6, x.stats.DeadLettersDropped.Load())
}
