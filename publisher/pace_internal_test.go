package publisher

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rounds plays publishers that all wait at once, and returns how many of the last rounds went as a batch.
func rounds(p *pace, waiting, n int, each, whole time.Duration) (batches int) {
	for i := range n {
		if waiting >= p.from() {
			p.batch(whole)
			if i >= n/2 {
				batches++
			}
			continue
		}
		for range waiting {
			p.passed(waiting)
			p.single(each)
		}
	}
	return batches
}

func TestPaceTakesTheFasterWay(t *testing.T) {
	t.Parallel()
	const each, whole = 250 * time.Microsecond, 5 * time.Millisecond
	tests := map[string]struct {
		waiting     int
		each, whole time.Duration
		// most and least of a hundred rounds that go as batches.
		least, most int
	}{
		"few go singly, whatever it costs":                       {waiting: 15, each: time.Second, whole: 1, least: 0, most: 0},
		"a batch that does not pay is seldom tried":              {waiting: 17, each: each, whole: whole, least: 0, most: 5},
		"many go in batches where each message is synced":        {waiting: 64, each: each, whole: whole, least: 95, most: 100},
		"many go singly where the server groups single messages": {waiting: 64, each: each / 10, whole: whole, least: 0, most: 5},
		"the most there can be go in batches, at any cost":       {waiting: 512, each: each / 100, whole: whole, least: 95, most: 100},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := &pace{least: 16}
			p.single(test.each)
			got := rounds(p, test.waiting, 200, test.each, test.whole)
			require.GreaterOrEqual(t, got, test.least)
			require.LessOrEqual(t, got, test.most)
		})
	}
}

// A server that becomes slower or faster, or another one behind the same connection, is noticed either way.
func TestPaceForgetsWhatWasOnce(t *testing.T) {
	t.Parallel()
	p := &pace{least: 16}
	p.single(250 * time.Microsecond)
	require.Positive(t, rounds(p, 64, 100, 250*time.Microsecond, 5*time.Millisecond))
	require.LessOrEqual(t, rounds(p, 64, 2000, 20*time.Microsecond, 5*time.Millisecond), 100, "singles became cheap")
	require.GreaterOrEqual(t, rounds(p, 64, 20000, 250*time.Microsecond, 5*time.Millisecond), 9000, "and dear again")
}

func TestPaceDoesNotMindOnePause(t *testing.T) {
	t.Parallel()
	p := &pace{least: 16}
	p.single(250 * time.Microsecond)
	p.batch(time.Minute)
	require.Less(t, p.from(), 24)
	p.single(time.Minute)
	require.GreaterOrEqual(t, p.from(), 16)
	require.GreaterOrEqual(t, rounds(p, 64, 100, 250*time.Microsecond, 5*time.Millisecond), 45)
}
