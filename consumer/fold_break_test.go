package consumer_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/schema"
)

func TestMessagesThatLookLikeTheServersOwnWordsBlockNobody(t *testing.T) {
	for _, header := range []nats.Header{
		{"Status": {"100"}},
		{"Status": {"404"}},
		{"Status": {"503"}},
		{"Status": {"409"}, "Description": {"Consumer Deleted"}},
		{"Status": {"409"}, "Description": {"Server Shutdown"}},
		{"Status": {"408"}, "Description": {"Request Timeout"}},
	} {
		t.Run(header.Get("Status")+" "+header.Get("Description"), func(t *testing.T) {
			w := newFoldWorld(t)
			folder, _ := w.fold(consumer.FolderConfig{})
			x := w.writer("run-1")
			x.start()
			_, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-poison"), Header: header})
			require.NoError(t, err)
			last := x.turnOf(100)
			w.await("the turn behind the poison", func(c *schema.Checkpoint) bool { return c.Run == "run-1" && c.Position.Stream >= last })
			require.EqualValues(t, 1, folder.Stats().DeadLetters.Load())
		})
	}
}

func TestARunThatGarbageCameBeforeIsCountedWholeByTheNextFolder(t *testing.T) {
	w := newFoldWorld(t)
	folder, stop := w.fold(consumer.FolderConfig{})
	ack, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-1"), Data: []byte("garbage")})
	require.NoError(t, err)
	// Behind the garbage, so that it is not what the next folder begins with.
	ack2, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("run-2"), Data: []byte("garbage")})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return folder.Stats().Position.Load() >= ack2.Sequence }, 10*time.Second, time.Millisecond)
	stop()

	folder, _ = w.fold(consumer.FolderConfig{Holder: "folder-2", SealBytes: 1 << 10})
	x := w.writer("run-1")
	x.last = ack.Sequence
	x.acked = append(x.acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), nil, []byte("garbage")))
	x.start()
	last := x.turnOf(2000)
	c := w.await("the turn", func(c *schema.Checkpoint) bool { return c.Position.Stream >= last && c.Segments.Count > 0 })
	require.Equal(t, x.model(), c.Head)
	require.Zero(t, folder.Stats().Regressions.Load())
	require.Len(t, w.segments(c), len(x.acked))
}
