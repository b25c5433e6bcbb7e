package story

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestTell_WaitsAtTheSameTime_CountOnce(t *testing.T) {
	t.Parallel()
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds int) string { return schema.FormatTime(begun.Add(time.Duration(seconds) * time.Second)) }
	wait := func(from, seconds int) *Beat {
		took := int64(1000 * seconds)
		return &Beat{Kind: KindWait, At: at(from), DurationMS: &took}
	}
	s := &Story{State: new(schema.State), beats: []*Beat{
		wait(0, 10), wait(2, 3), wait(5, 20),
		{Kind: KindCall, At: at(6), DurationMS: wait(0, 9).DurationMS},
		wait(40, 5),
		{Kind: KindWait, At: at(42), Open: true},
	}}
	require.EqualValues(t, 25_000+10_000, s.Tell(0, begun.Add(50*time.Second)).WaitedMS)
}
