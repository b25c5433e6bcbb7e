package e2e_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func text(role, s string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(s)}}
}

func TestExecutor_OlderEpoch_Fenced(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newWorld(t)
	older, newer := w.fleet(t, "older"), w.fleet(t, "newer")
	first, err := older.Start(t.Context(), publisher.RunSpec{ID: "contested", Agent: "a"})
	require.NoError(t, err)
	require.NoError(t, first.AddMessage(t.Context(), text("user", "before")))

	second, err := newer.Resume(t.Context(), "contested", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.EqualValues(t, 2, second.Epoch())
	require.Len(t, second.State().Messages, 1, "the successor has what was acknowledged")

	require.ErrorIs(t, first.AddMessage(t.Context(), text("user", "too late")), publisher.ErrFenced)
	require.ErrorIs(t, first.End(t.Context(), publisher.RunEnd{}), publisher.ErrFenced, "the handle is over")
	require.NoError(t, second.AddMessage(t.Context(), text("user", "after")))

	// An executor that publishes its older epoch without an expectation.
	js, err := jetstream.New(w.conn(t))
	require.NoError(t, err)
	head := first.Head()
	writer := schema.Writer{Fleet: "default", Run: "contested", Executor: "older", Epoch: 1, Last: head.Sequence}
	event, err := writer.Event(&schema.MessageAddedData{Message: text("user", "forged")}, 0, time.Now(), 0)
	require.NoError(t, err)
	header, body := event.Encode()
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: "waymark.events.default.contested", Header: header, Data: body})
	require.NoError(t, err)

	require.NoError(t, second.AddMessage(t.Context(), text("user", "last")), "a forged event does not stop the valid writer")
	require.NoError(t, second.End(t.Context(), publisher.RunEnd{}))
	state, err := newer.Get(t.Context(), "contested")
	require.NoError(t, err)
	var said []string
	for _, m := range state.Messages {
		said = append(said, *m.Parts[0].Content)
	}
	require.Equal(t, []string{"before", "after", "last"}, said)
	require.EqualValues(t, 1, state.Head.Counts.Fenced)
	require.Eventually(t, func() bool { return w.deadLetters(t) == 1 }, patience, 20*time.Millisecond, "the forged event is a dead letter")
}
