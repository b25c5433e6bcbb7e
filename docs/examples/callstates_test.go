package examples_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// callEvents change the state of an open call, which an earlier epoch left in it.
var callEvents = []struct {
	title string
	data  func(h *schema.Head) schema.Data
	// epoch of its writer; 0 for a control event.
	epoch schema.Epoch
}{
	{"`tool.called`", func(*schema.Head) schema.Data { return &schema.ToolCalledData{ToolCallID: "c", Name: "tool"} }, 2},
	{"takeover", resumed("claim"), 0},
	{"rewind, fork", resumed(schema.TakeoverRewind), 0},
	{"result of an older epoch", func(*schema.Head) schema.Data { return &schema.ToolReturnedData{ToolCallID: "c"} }, 1},
	{"`run.waiting` (`tool_in_doubt`)", func(*schema.Head) schema.Data {
		return &schema.RunWaitingData{InterruptID: "i", Reason: schema.WaitToolInDoubt, ToolCallID: "c"}
	}, 2},
	{"`rerun` by its executor", rerun, 2},
	{"`rerun` by a person", rerun, 0},
	{"end of the turn", func(*schema.Head) schema.Data { return &schema.TurnEndedData{Turn: 1} }, 2},
}

func rerun(*schema.Head) schema.Data {
	return &schema.ToolSettledData{ToolCallID: "c", How: schema.SettledRerun}
}

func resumed(reason string) func(h *schema.Head) schema.Data {
	return func(h *schema.Head) schema.Data {
		d := &schema.RunResumedData{Executor: "e", Reason: reason, RequestID: "q", From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest}}
		if reason == schema.TakeoverRewind {
			d.To, _ = schema.RewindTo(schema.Point{}, h, nil)
		}
		return d
	}
}

// The table of call states in docs/events.md is what the fold does. -update writes it.
func TestEventsPage_CallStates_AreThoseOfTheFold(t *testing.T) {
	t.Parallel()
	table := "| `state` |"
	for _, e := range callEvents {
		table += " " + e.title + " |"
	}
	table += "\n" + strings.Repeat("|---", len(callEvents)+1) + "|\n"
	for _, state := range []schema.CallState{schema.CallRequested, schema.CallAgain, schema.CallBegun, schema.CallInDoubt, schema.CallHeld, schema.CallLate} {
		table += "| `" + string(state) + "` |"
		for i := range callEvents {
			table += " " + eachPolicy(func(replay schema.Replay) string { return stateAfter(t, state, replay, i) }) + " |"
		}
		table += "\n"
	}
	text, err := os.ReadFile("../events.md")
	require.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), "| `state` |")
	require.True(t, ok, "docs/events.md has no table of call states")
	_, after, _ := strings.Cut(rest, "\n\n")
	page := before + table + "\n" + after
	if *update {
		require.NoError(t, os.WriteFile("../events.md", []byte(page), 0o600))
	}
	require.Equal(t, page, string(text), "go test ./docs/examples -run CallStates -update writes the table again")
}

// eachPolicy joins what holds for each policy; one text where all are the same.
func eachPolicy(of func(schema.Replay) string) string {
	free, verify, hold := of(schema.ReplayIdempotent), of(schema.ReplayVerify), of(schema.ReplayHold)
	switch {
	case free == verify && verify == hold:
		return free
	case free == verify:
		return free + "; hold: " + hold
	case verify == hold:
		return free + "; verify, hold: " + hold
	}
	return free + "; verify: " + verify + "; hold: " + hold
}

// stateAfter folds an event into a run with one open call.
func stateAfter(t *testing.T, state schema.CallState, replay schema.Replay, event int) string {
	t.Helper()
	h := schema.Head{
		Fleet: "f", Run: "r", Agent: "a", Executor: "e", Status: schema.StatusRunning, Epoch: 2, Turn: 1, TurnOpen: true, TurnAnswered: true, Records: 1,
		Digest: schema.Hash{}.String(), Position: schema.Position{Stream: 1, ID: "x"},
		OpenCalls: []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}, Name: "tool", Replay: replay, State: state, Epoch: 1}},
	}
	var e *schema.Event
	var err error
	if from := callEvents[event]; from.epoch == 0 {
		data, epoch := from.data(&h), h.Epoch
		if _, takeover := data.(*schema.RunResumedData); takeover {
			epoch++
		}
		e, err = schema.NewControl(h.Fleet, "daemon", h.Run, epoch, "n", data, time.Unix(1, 0))
	} else {
		w := schema.Writer{Fleet: h.Fleet, Run: h.Run, Executor: "e", Epoch: from.epoch}
		e, err = w.Event(from.data(&h), 1, time.Unix(1, 0), 0)
	}
	require.NoError(t, err)
	header, body := e.Encode()
	rec := schema.NewRecord(2, header, body)
	switch v := h.Apply(schema.NoKeys, &rec); {
	case v.Kind == schema.Rejected:
		return "refused"
	case len(h.OpenCalls) == 0:
		return "abandoned"
	}
	return "`" + string(h.OpenCalls[0].State) + "`"
}
