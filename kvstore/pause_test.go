package kvstore_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestPaused_Times_OnlyAPauseThatEndsSoonCounts(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	now := time.Now()
	require.False(t, b.shard.Paused(t.Context(), now), "no backup was taken")
	for _, c := range []struct {
		until time.Duration
		want  bool
	}{
		{kvstore.PauseFor, true},
		{2 * kvstore.PauseFor, true},
		{time.Hour, false}, // of a clock that is wrong
		{0, false},         // the backup is done
		{-time.Hour, false},
	} {
		require.NoError(t, kvstore.Pause(t.Context(), b.js, b.shard.Names.Fleet, now.Add(c.until)))
		require.Equal(t, c.want, b.shard.Paused(t.Context(), now), "%s", c.until)
	}
}
