package publisher_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A caller may use its message again once the call has returned, however the call ended.
func TestHandle_CallersBuffers_NotKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) {
		c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options()
	})
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	messages := []schema.Message{user("one"), user("two")}
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{Messages: messages}))
	messages[0].Parts[0] = schema.Text("changed")
	messages[1] = schema.Message{}

	p.deafen(f)
	data := &schema.TurnStartedData{Turn: 2, Messages: []schema.Message{user("three")}}
	require.ErrorIs(t, run.Publish(t.Context(), data, 2), publisher.ErrUnresolved)
	data.Turn, data.Messages = 7, append(data.Messages, user("four"))
	p.heal(f)
	require.NoError(t, run.Resolve(t.Context()))

	end := &schema.TurnEndedData{Turn: 2, Messages: []schema.Message{user("five")}}
	require.NoError(t, run.Publish(t.Context(), end, 2))
	end.Messages[0].Parts = nil

	log := w.fold("r1")
	require.Equal(t, log, run.State())
	require.Equal(t, int64(4), log.Head.Counts.Messages)
}

// Readers do not parse a year of five digits: the event of such a clock is refused as the fold refuses it.
func TestEvent_YearBeyondFourDigits_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	run := start(t, w.fleet(func(c *publisher.Config) { c.Heartbeat, c.Now = -1, func() time.Time { return now } }), "r1")
	now = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	require.ErrorIs(t, run.AddMessage(t.Context(), user("late")), publisher.ErrRejected)
	now = time.Now()
	require.NoError(t, run.AddMessage(t.Context(), user("in time")))
	w.requireSameFold(run)
}
