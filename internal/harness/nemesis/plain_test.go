//go:build unix

package nemesis_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// plainEvents are a run written by hand from the page about events, without an SDK.
var plainEvents = []struct{ name, turn, data string }{
	{"run.started", "", `{"agent":"gardener","executor":"shell","task":"water the beds"}`},
	{"turn.started", "1", `{"turn":1,"messages":[{"role":"user","parts":[{"type":"text","content":"Water the beds – all of them: \"A\" & B."}]}]}`},
	{"turn.answered", "1", `{"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"I look first."},{"type":"tool_call","id":"c1","name":"moisture"}]},
		"calls":[{"tool_call_id":"c1","name":"moisture","arguments":{"bed":"A"},"replay":"hold"}],"usage":{"input_tokens":9,"output_tokens":4}}`},
	{"tool.called", "1", `{"tool_call_id":"c1","name":"moisture"}`},
	{"tool.returned", "1", `{"tool_call_id":"c1","result":{"percent":12}}`},
	{"turn.started", "2", `{"turn":2,"messages":[{"role":"tool","parts":[{"type":"tool_call_response","id":"c1","call_turn":1}]}]}`},
	{"turn.answered", "2", `{"turn":2,"message":{"role":"assistant","parts":[{"type":"text","content":"I water them."}]}}`},
	{"run.ended", "", `{"status":"completed","summary":"done"}`},
}

// plainMessage writes an event in one of the two modes, with nothing but strings.
func plainMessage(mode, run string, i int) *nats.Msg {
	e := plainEvents[i]
	id, typ := fmt.Sprintf("%s-%d", run, i), "io.waymark."+e.name+".v1"
	msg := nats.NewMsg("waymark.events.default." + run)
	if mode == "binary" {
		for name, value := range map[string]string{
			"ce-specversion": "1.0", "ce-id": id, "ce-source": "/waymark/default/shell", "ce-type": typ, "ce-subject": run,
			"ce-time": "2026-05-01T08:00:00Z", "ce-datacontenttype": "application/json",
		} {
			msg.Header.Set(name, value)
		}
		if e.turn != "" {
			msg.Header.Set("ce-turn", e.turn)
		}
		msg.Data = []byte(e.data)
		return msg
	}
	turn := ""
	if e.turn != "" {
		turn = `"turn":` + e.turn + `,`
	}
	msg.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	msg.Data = fmt.Appendf(nil, `{"specversion":"1.0","id":%q,"source":"/waymark/default/shell","type":%q,"subject":%q,%s"data":%s}`,
		id, typ, run, turn, e.data)
	return msg
}

func TestPlainCloudEvents_Killed_Recover(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	w := newLone(t)
	nc := w.conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	fleet := w.fleet(t, "successor")
	for _, mode := range []string{"binary", "structured"} {
		t.Run(mode, func(t *testing.T) {
			whole, half := "plain-"+mode, "half-"+mode
			for i := range plainEvents {
				_, err := js.PublishMsg(t.Context(), plainMessage(mode, whole, i))
				require.NoError(t, err)
				if i < 4 { // up to the begin of the call
					_, err := js.PublishMsg(t.Context(), plainMessage(mode, half, i))
					require.NoError(t, err)
				}
			}
			state, err := fleet.Get(t.Context(), whole)
			require.NoError(t, err)
			require.Equal(t, schema.StatusCompleted, state.Head.Status)
			require.EqualValues(t, 9, state.Head.Usage.InputTokens)
			messages := state.Joined()
			require.Len(t, messages, 4)
			require.Equal(t, `Water the beds – all of them: "A" & B.`, *messages[0].Parts[0].Content)
			require.JSONEq(t, `{"bed":"A"}`, string(messages[1].Parts[1].Arguments))
			require.JSONEq(t, `{"percent":12}`, string(messages[2].Parts[0].Response))

			// Also without any SDK on the other side: request and reply.
			answer, err := nc.Request("waymark.recover.default."+half,
				[]byte(`{"executor":"successor","request_id":"`+half+`","reason":"request","view":"head"}`), patience)
			require.NoError(t, err)
			var reply struct {
				Epoch        int `json:"epoch"`
				NextSequence int `json:"next_sequence"`
				InDoubt      []struct {
					ToolCallID string `json:"tool_call_id"`
				} `json:"in_doubt"`
			}
			require.NoError(t, json.Unmarshal(answer.Data, &reply), "%s", answer.Data)
			require.Equal(t, 2, reply.Epoch)
			require.Equal(t, 1, reply.NextSequence)
			require.Len(t, reply.InDoubt, 1)
			require.Equal(t, "c1", reply.InDoubt[0].ToolCallID)

			// And the SDK continues where the shell stopped.
			run, err := fleet.Resume(t.Context(), half, publisher.ResumeSpec{})
			require.NoError(t, err)
			require.EqualValues(t, 3, run.Epoch())
			require.Len(t, run.State().Messages, 2)
			require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
		})
	}
	require.Zero(t, w.deadLetters(t))
}
