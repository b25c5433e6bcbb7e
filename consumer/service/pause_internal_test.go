package service

import (
	"context"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/schema"
)

// An answer without its age is that of a replica without any entry.
func TestReadUpTo_OlderAnswers_AreReadAgain(t *testing.T) {
	t.Parallel()
	answers := []schema.Revision{0, 6, 7}
	got, err := readUpTo(t.Context(), 7, func(context.Context) (int, schema.Revision, error) {
		at := answers[0]
		answers = answers[1:]
		return int(at), at, nil
	})
	require.NoError(t, err)
	require.Equal(t, 7, got)
	ctx, cancel := context.WithCancel(t.Context())
	_, err = readUpTo(ctx, 7, func(context.Context) (int, schema.Revision, error) { cancel(); return 0, 0, nil })
	require.ErrorIs(t, err, context.Canceled)
}

// Another operator may end a pause while the request for it still stops runs.
func TestStop_PauseHasEnded_WritesNothing(t *testing.T) {
	t.Parallel()
	s := &Service{liveRuns: liveness.NewLiveRuns(nil, 0, time.Now, zerolog.Nop())}
	r := &reader.Snapshot{Head: schema.Head{Run: "run-1", Status: schema.StatusRunning}}
	stops := func() bool {
		d, err := s.stop(t.Context(), r)
		require.NoError(t, err)
		return d.data != nil
	}
	s.liveRuns.SetPauses([]schema.Pause{{Scope: schema.Scope{Run: "run-1"}, Reason: "why"}})
	require.True(t, stops())
	s.liveRuns.SetPauses(nil)
	require.False(t, stops())
}
