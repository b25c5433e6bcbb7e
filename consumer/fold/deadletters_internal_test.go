package fold

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

func TestLetters_OneRun_LimitedWithinAPeriod(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	x := &letters{now: func() time.Time { return now }}
	for range LettersOfRun {
		require.True(t, x.grant("run-1"))
	}
	require.False(t, x.grant("run-1"))
	require.True(t, x.grant("run-2"), "another run has its own limit")
	now = now.Add(LetterPeriod - 1)
	require.False(t, x.grant("run-1"))
	now = now.Add(1)
	require.True(t, x.grant("run-1"))
}

func TestLetters_ManyRuns_ShareOneLimit(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_700_000_000, 0)
	x := &letters{now: func() time.Time { return now }}
	for i := range letterRuns {
		require.True(t, x.grant(fmt.Sprintf("run-%d", i)))
	}
	for i := range LettersOfRun / 2 {
		require.True(t, x.grant(fmt.Sprintf("more-%d", i)))
		require.True(t, x.grant("no run id"), "subjects without a run id share it, too")
	}
	require.False(t, x.grant("and-another"))
	require.True(t, x.grant("run-1"), "a run that is counted keeps its own")
	require.LessOrEqual(t, len(x.stored), letterRuns+1)
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
