package schema_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// forked is a run with one turn that has ended and one open turn, with a call in it.
func forked(t *testing.T) *testRun {
	t.Helper()
	r := newTestRun(t)
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("go")}}, 1)
	r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "read", Replay: schema.ReplayPure}, 1)
	r.write(&schema.ToolReturnedData{ToolCallID: "c1", Result: []byte(`1`)}, 1)
	r.write(&schema.TurnEndedData{Turn: 1, Messages: []schema.Message{assistantMessage(schema.Text("done"))}, Usage: &schema.Usage{InputTokens: 5}}, 1)
	r.write(&schema.CheckpointMarkedData{Name: "here"}, 0)
	r.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{userMessage("more")}}, 2)
	r.write(&schema.ToolCalledData{ToolCallID: "c2", Name: "pay", Replay: schema.ReplayHold}, 2)
	return r
}

// forkOf starts a run with a base.
func forkOf(t *testing.T, base *schema.Base) *testRun {
	t.Helper()
	r := newTestRun(t)
	r.w.Run = "fork-1"
	r.head, r.state = schema.NewHead(r.w.Fleet, "fork-1"), schema.NewState(r.w.Fleet, "fork-1")
	require.Equal(t, schema.Applied, r.write(&schema.RunStartedData{Agent: "coder", Executor: r.w.Executor, ResumedFrom: base.Run, Base: base}, 0).Kind)
	return r
}

func TestFork_Start_EqualsBase(t *testing.T) {
	r := forked(t)
	point := schema.Point{Kind: schema.PointSequence, Number: 8}
	f := forkOf(t, schema.BaseOf(point, 8, &r.head))
	h := &f.head
	require.Equal(t, &schema.BaseRef{Run: r.w.Run, Point: "seq:8", Position: r.head.Position, Records: 8, Digest: r.head.Digest}, h.Base)
	require.Equal(t, schema.StatusRunning, h.Status)
	require.Equal(t, schema.Epoch(1), h.Epoch)
	require.Equal(t, schema.Sequence(1), h.Sequence)
	require.Equal(t, int32(2), h.Turn)
	require.True(t, h.TurnOpen)
	require.Len(t, h.OpenCalls, 1)
	require.Equal(t, schema.CallHeld, h.OpenCalls[0].State, "the other executor may be at it")
	require.Empty(t, h.Marks)
	require.Zero(t, h.Usage, "its tokens were used by the other run")
	require.Equal(t, int64(1), h.Counts.Events)
	require.Equal(t, int64(2), h.Counts.ToolCalls)

	f.write(&schema.ToolSettledData{ToolCallID: "c2", How: schema.SettledAbandoned}, 2)
	require.Empty(t, f.head.OpenCalls)
	require.Equal(t, schema.Applied, f.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{userMessage("again")}}, 2).Kind, "its turn may be begun again")
	require.Equal(t, schema.Applied, f.write(&schema.TurnEndedData{Turn: 2}, 2).Kind)
	require.Zero(t, f.head.Counts.DeadLetters)
}

func TestFork_State_EqualsBase(t *testing.T) {
	r := forked(t)
	base := schema.NewState(r.w.Fleet, r.w.Run)
	for i := range r.log {
		base.Apply(schema.NoKeys, &r.log[i])
	}
	f := forkOf(t, schema.BaseOf(schema.Point{}, int64(len(r.log)), &base.Head))
	f.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{userMessage("again")}}, 2)
	f.write(&schema.ToolCalledData{ToolCallID: "c3", Name: "read", Replay: schema.ReplayPure}, 2)

	s := schema.NewState(f.w.Fleet, "fork-1")
	s.Graft(base)
	head := schema.NewHead(f.w.Fleet, "fork-1")
	for i := range f.log {
		s.Apply(schema.NoKeys, &f.log[i])
		head.Apply(schema.NoKeys, &f.log[i])
		require.Equal(t, head, s.Head)
	}
	var texts []string
	for _, m := range s.Messages {
		texts = append(texts, *m.Parts[0].Content)
	}
	require.Equal(t, []string{"go", "done", "again"}, texts, "the message of the turn that was begun again is superseded")
	require.Len(t, s.Calls, 3)
	require.True(t, s.Calls[1].InDoubt)
	require.Len(t, s.Turns, 2)
	require.Equal(t, 2, s.Turns[1].Attempts)
}

func TestFork_Base_ObeysRules(t *testing.T) {
	r := forked(t)
	for name, change := range map[string]func(*schema.Base){
		"another run's head":      func(b *schema.Base) { b.Head.Run = "other" },
		"another digest":          func(b *schema.Base) { b.Digest = strings.Repeat("0", 64) },
		"no digest":               func(b *schema.Base) { b.Digest, b.Head.Digest = "", "" },
		"no run id":               func(b *schema.Base) { b.Run, b.Head.Run = "a b", "a b" },
		"no position":             func(b *schema.Base) { b.Position.ID = "" },
		"no records":              func(b *schema.Base) { b.Records = 0 },
		"a turn below 0":          func(b *schema.Base) { b.Head.Turn = -1 },
		"too many calls":          func(b *schema.Base) { b.Head.OpenCalls = make([]schema.OpenCall, schema.MaxOpenCalls+1) },
		"a call without a name":   func(b *schema.Base) { b.Head.OpenCalls[0].Occurrence = 0 },
		"a call with a long name": func(b *schema.Base) { b.Head.OpenCalls[0].Name = strings.Repeat("x", 4096) },
		"a long decision":         func(b *schema.Base) { b.Head.OpenCalls[0].Decision = strings.Repeat("x", 4096) },
		"a long phase":            func(b *schema.Base) { b.Head.CompletedPhases = []string{strings.Repeat("x", 4096)} },
		// An executor forged one into each of 150 starts of 411 KB: more than an answer of the server holds.
		"a megabyte of calls and phases": func(b *schema.Base) {
			for i := range 1000 {
				c := schema.OpenCall{CallKey: schema.CallKey{Turn: 1, ToolCallID: fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, 44)), Occurrence: 1}, Name: strings.Repeat(`"`, 48), Replay: schema.ReplayHold}
				b.Head.OpenCalls = append(b.Head.OpenCalls, c)
			}
			for range 200 {
				b.Head.CompletedPhases = append(b.Head.CompletedPhases, strings.Repeat(`"`, 220))
			}
		},
		"a long question": func(b *schema.Base) {
			b.Head.Interrupts = []schema.OpenInterrupt{{InterruptID: "q", Message: strings.Repeat("x", 4096)}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			base := schema.BaseOf(schema.Point{}, 8, &r.head)
			change(base)
			err := schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: base})
			require.ErrorContains(t, err, "/base/")
		})
	}
	require.NoError(t, schema.Validate(&schema.RunStartedData{Agent: "a", Executor: "e", Base: schema.BaseOf(schema.Point{}, 8, &r.head)}))

	late := newTestRun(t)
	late.write(&schema.CheckpointMarkedData{Name: "first"}, 0)
	v := late.write(&schema.RunStartedData{Agent: "a", Executor: "e", Base: schema.BaseOf(schema.Point{}, 8, &r.head)}, 0)
	require.Equal(t, schema.Rejected, v.Kind, "a run that has begun is no fork")
}
