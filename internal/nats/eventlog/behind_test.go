package eventlog_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

func TestBehind_Position_CountedWithoutBarriers(t *testing.T) {
	t.Parallel()
	js := start(t)
	behind := func(after schema.StreamSequence) eventlog.Waiting {
		w, err := eventlog.Behind(t.Context(), js, names, after)
		require.NoError(t, err)
		return w
	}
	require.Zero(t, behind(0), "of an empty log")
	barriers := func(n int) {
		for range n {
			publish(t, js, schema.BarrierRun, nil, nil)
		}
	}
	barriers(3)
	require.Zero(t, behind(0), "barriers are no events")
	before := time.Now()
	first := publish(t, js, "a", nil, []byte("1"))
	publish(t, js, "b", nil, []byte("2"))
	got := behind(0)
	require.EqualValues(t, 2, got.Events)
	require.Equal(t, first, got.First)
	require.WithinDuration(t, before, got.Stored, time.Minute)
	got = behind(first)
	require.EqualValues(t, 1, got.Events)
	require.Equal(t, first+1, got.First)
	require.Zero(t, behind(first+1))

	barriers(600) // more than a page
	last := publish(t, js, "c", nil, []byte("3"))
	barriers(5)
	got = behind(first + 1)
	require.EqualValues(t, 1, got.Events)
	require.Equal(t, last, got.First)
	require.Zero(t, behind(last))
	require.Zero(t, behind(last+1000), "beyond the end")

	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(names.EventSubject("a"))))
	require.EqualValues(t, 2, behind(0).Events, "what was purged does not wait")
}

func TestBehind_MissingStream_Error(t *testing.T) {
	t.Parallel()
	js := start(t)
	require.NoError(t, js.DeleteStream(t.Context(), names.EventStream()))
	_, err := eventlog.Behind(t.Context(), js, names, 0)
	require.ErrorIs(t, err, eventlog.ErrNoStream)
}
