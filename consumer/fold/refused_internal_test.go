package fold

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// An executor without a fold gets an acknowledgement for whatever it publishes, and would run a tool that is not
// recorded. A notice tells it, and observers.
func TestNotices_RefusedEventOfAPlainExecutor_ReachesItsSender(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	told := w.listenTo(schema.NoticeSubject("default", "py-1"))
	observed := w.listenTo(schema.ObservedSubject("default", schema.EventRefused, "r1"))
	n := 0
	publish := func(name, data string) string {
		n++
		id := strconv.Itoa(n)
		m := nats.NewMsg(w.Names.EventSubject("r1"))
		for name, value := range map[string]string{
			"specversion": "1.0", "id": id, "source": "/waymark/default/py-1", "subject": "r1", "epoch": "1", "turn": "1", "type": "io.waymark." + name + ".v1",
		} {
			m.Header.Set("ce-"+name, value)
		}
		m.Data = []byte(data)
		ack, err := w.NC.RequestMsg(m, time.Minute)
		require.NoError(t, err)
		require.NotContains(t, string(ack.Data), "error", "the server takes it")
		return id
	}
	publish("run.started", `{"agent":"a","executor":"py-1"}`)
	publish("turn.answered", `{"turn":1,"message":{"role":"assistant","parts":[{"type":"tool_call","id":"c1","name":"pay"},{"type":"tool_call","id":"c2","name":"read"}]},`+
		`"calls":[{"tool_call_id":"c1","name":"pay","replay":"hold","arguments":{}},{"tool_call_id":"c2","name":"read","replay":"pure","arguments":{}}]}`)
	publish("tool.decided", `{"tool_call_id":"c1","decision":"ask"}`)
	for _, tt := range []struct {
		name, event, data string
		reason            schema.Reason
		detail            string
	}{
		{"an unknown policy", "tool.called", `{"tool_call_id":"c3","name":"pay","replay":"hodl"}`, schema.ReasonInvalidData, "replay"},
		{"a misspelt member", "tool.called", `{"call_id":"c3","name":"pay","replay":"hold"}`, schema.ReasonInvalidData, "tool_call_id"},
		{"the begin of a call that a person is asked about", "tool.called", `{"tool_call_id":"c1","name":"pay","replay":"hold"}`, schema.ReasonNotAllowed, ""},
		{"an outcome of an unknown call", "tool.returned", `{"tool_call_id":"zz","result":1}`, schema.ReasonUnknownCall, ""},
		{"an occurrence that the call has not", "tool.called", `{"tool_call_id":"c2","occurrence":7,"name":"read"}`, schema.ReasonInvalidData, ""},
		{"half a character", "tool.returned", `{"tool_call_id":"c2","result":"log of the day \ud83d"}`, schema.ReasonInvalidData, "surrogate"},
		{"bytes that are no UTF-8", "tool.returned", "{\"tool_call_id\":\"c2\",\"result\":\"\xff\"}", schema.ReasonInvalidData, "UTF-8"},
		{"a member twice", "tool.returned", `{"tool_call_id":"c2","result":1,"result":2}`, schema.ReasonInvalidData, "duplicate"},
	} {
		id := publish(tt.event, tt.data)
		for _, m := range []*nats.Msg{next(t, told), next(t, observed)} {
			var notice schema.Notice
			require.NoError(t, json.Unmarshal(m.Data, &notice))
			require.Equal(t, schema.EventRefused, notice.Name)
			require.Equal(t, "r1", notice.Run)
			require.Equal(t, id, notice.Position.ID, tt.name)
			require.NotZero(t, notice.Position.Stream)
			require.Equal(t, tt.reason, notice.Reason, "%s: %s", tt.name, notice.Detail)
			require.Contains(t, notice.Detail, tt.detail)
		}
	}
	publish("tool.returned", `{"tool_call_id":"c2","result":"ok"}`)
	require.Eventually(t, func() bool { return w.worker.stats.Applied.Load() == 4 }, time.Minute, time.Millisecond)
	require.Empty(t, told)
	require.Empty(t, observed)
}
