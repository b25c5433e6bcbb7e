package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestFigures_Rounds_Medians(t *testing.T) {
	us := func(n ...int) (l []time.Duration) {
		for _, v := range n {
			l = append(l, time.Duration(v)*time.Microsecond)
		}
		return l
	}
	f := figures([]Sample{
		{Boundaries: 100, Elapsed: time.Second, Latencies: us(3, 1, 2)},
		{Boundaries: 300, Elapsed: time.Second, Latencies: us(30, 10, 20)},
		{Boundaries: 200, Elapsed: time.Second, Latencies: us(6, 4, 5)},
	})
	require.EqualValues(t, 600, f.Count)
	require.InDelta(t, 200, *f.PerSecond, 1e-9)
	require.InDelta(t, 5, *f.P50, 1e-9)
	require.Nil(t, f.P99, "nine do not tell")
	require.InDelta(t, 1, *f.Spread, 1e-9, "from 100 to 300 around 200")
	many := make([]time.Duration, 999)
	for i := range many {
		many[i] = time.Duration(i+1) * time.Microsecond
	}
	f = figures([]Sample{{Latencies: many[:500]}, {Latencies: many[500:]}})
	require.InDelta(t, 990, *f.P99, 1e-9, "of all rounds together")
	require.Nil(t, figures(nil))
	one := figures([]Sample{{Boundaries: 1, Elapsed: time.Second}})
	require.Nil(t, one.Spread, "one round has no spread")
	require.Nil(t, one.P50, "nothing was timed")
}

func TestPutBytes_NothingGone_Exact(t *testing.T) {
	require.InDelta(t, 300, *stored{messages: 5, bytes: 500, sequences: 5}.putBytes(stored{messages: 2, bytes: 200, sequences: 2}), 0)
	require.Nil(t, stored{messages: 5, bytes: 500, sequences: 10}.putBytes(stored{messages: 2, bytes: 200, sequences: 2}), "something is gone")
	require.InDelta(t, 800, *stored{messages: 5, bytes: 500, sequences: 10}.meanPutBytes(stored{messages: 2, bytes: 200, sequences: 2}), 0)
	require.InDelta(t, 0, *stored{sequences: 2}.meanPutBytes(stored{sequences: 2}), 0)
	require.InDelta(t, 0, *stored{sequences: 2}.putBytes(stored{sequences: 2}), 0)
	require.Nil(t, stored{sequences: 3}.meanPutBytes(stored{sequences: 2}), "there is no basis for a mean")
	many := uint64(8 * 1_795_592_567_000_000) // of eight buckets
	require.NotNil(t, stored{messages: 3, bytes: 300, sequences: many + 3}.putBytes(stored{sequences: many}), "three puts are three")
	require.Nil(t, stored{messages: 3, bytes: 300, sequences: many + 4}.putBytes(stored{sequences: many}))
}

func TestSpent_Processes_AddedByKind(t *testing.T) {
	v := func(f float64) *float64 { return &f }
	var s spent
	s.add(reading{cpu: map[string]*float64{"measuring": v(1), "server": v(5)}}, reading{cpu: map[string]*float64{"measuring": v(3), "server": v(6)}})
	require.Equal(t, map[string]float64{"measuring": 2, "server": 1}, s.cpu)
	require.False(t, s.unknown)
	s.add(reading{cpu: map[string]*float64{"measuring": nil}}, reading{cpu: map[string]*float64{"measuring": nil}})
	require.True(t, s.unknown, "what is not told is not 0")
}

func TestTexts_Size_Reproducible(t *testing.T) {
	for _, n := range []int{2, 3, 300, 4096} {
		require.Len(t, NewText(1).Bytes(n), n)
		require.Len(t, NewText(1).Quoted(n), n)
	}
	again := NewText(7)
	require.Equal(t, NewText(7).Bytes(100), again.Bytes(100))
	require.NotEqual(t, NewText(7).Bytes(100), again.Bytes(100), "it goes on")
	require.NotEqual(t, NewText(7).Bytes(100), NewText(8).Bytes(100))
}
