package publisher_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// TestResume_LogBeginsAgain_Works: the event stream was lost and made again, what was sealed is there, and new events
// stand at sequences below it.
func TestResume_LogBeginsAgain_Works(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	r := start(t, f, "run-1")
	for n := range int32(3) {
		require.NoError(t, r.Publish(t.Context(), &schema.TurnStartedData{Turn: n + 1, Messages: []schema.Message{user("go on")}}, n+1))
		require.NoError(t, r.Publish(t.Context(), &schema.TurnEndedData{Turn: n + 1}, n+1))
	}
	records := w.log("run-1")
	var frames []byte
	head := schema.NewHead("default", "run-1")
	for i := range records {
		frames = schema.AppendFrame(frames, &records[i])
		head.Apply(schema.NoKeys, &records[i])
	}
	stored, err := schema.EncodeSegment(schema.SegmentInfo{
		Fleet: "default", Run: "run-1", Number: 1, Events: len(records),
		First: schema.PositionOf(&records[0]), Last: head.Position, DigestAfter: head.Digest,
	}, nil, frames)
	require.NoError(t, err)
	settings, _, err := kvstore.NewFleets(w.js).Get(t.Context(), "default")
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(w.js, settings, 0, "tester")
	require.NoError(t, err)
	require.NoError(t, shard.Segments.Create(t.Context(), "run-1", 1, stored))
	stream, err := w.js.Stream(t.Context(), w.names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.js.DeleteStream(t.Context(), w.names.EventStream()))
	_, err = w.js.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)

	again, err := f.Resume(t.Context(), "run-1", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.EqualValues(t, 2, again.Epoch())
	require.Len(t, again.State().Messages, 3)
	require.NoError(t, again.Publish(t.Context(), &schema.TurnStartedData{Turn: 4, Messages: []schema.Message{user("on")}}, 4))
	state, err := f.Get(t.Context(), "run-1")
	require.NoError(t, err)
	require.Len(t, state.Messages, 4)
	require.Equal(t, again.Head().Digest, state.Head.Digest)
	seen := 0
	require.NoError(t, f.Events(t.Context(), "run-1", func(schema.Record) error { seen++; return nil }))
	require.Equal(t, len(records)+2, seen)
}
