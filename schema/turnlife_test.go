package schema_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// shownRun is a run with its overview and a short record of the notices about turns.
type shownRun struct {
	*testRun
	overview schema.Overview
	told     []string
}

func newShownRun(tb testing.TB) *shownRun {
	tb.Helper()
	return &shownRun{testRun: newTestRun(tb)}
}

// catchUp folds the part of the log after the overview.
func (r *shownRun) catchUp() *shownRun {
	head := schema.NewHead(r.w.Fleet, r.w.Run)
	overview := schema.Overview{}
	r.told = nil
	for i := range r.log {
		v := head.Apply(r.keys, &r.log[i])
		for _, n := range overview.Apply(&head, &v) {
			d := n.Data
			line := fmt.Sprintf("%s %d %s by %s", n.Name, d.Turn, d.Status, d.Event)
			if c := d.Calls; c.Recorded > 0 {
				line += fmt.Sprintf(" %d/%d/%d/%d/%d", c.Recorded, c.Open, c.Returned, c.Failed, c.Abandoned)
			}
			if d.Error != nil {
				line += " " + d.Error.Type
			}
			r.told = append(r.told, line)
		}
	}
	r.overview = overview
	return r
}

func TestTurnLife_TurnWithCalls_IsCreatedUpdatedAndFinalized(t *testing.T) {
	answer := &schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(schema.Text("I look")), Calls: []schema.RequestedCall{
		{ToolCallID: "c1", Name: "ls", Replay: schema.ReplayPure}, {ToolCallID: "c2", Name: "pay"}, {ToolCallID: "c3", Name: "nope", Error: &schema.Error{Type: "unknown_tool"}},
	}}
	tests := map[string]struct {
		play func(r *shownRun)
		want []string
	}{
		"calls of an answer, and the last outcome ends the turn": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("go")}}, 1)
				r.write(answer, 1)
				r.write(&schema.ToolCalledData{ToolCallID: "c2", Name: "pay"}, 1)
				r.write(&schema.ToolReturnedData{ToolCallID: "c2"}, 1)
				r.write(&schema.ToolFailedData{ToolCallID: "c1", Error: schema.Error{Type: "io"}}, 1)
			},
			want: []string{
				"turn.created 1 open by turn.started", "turn.updated 1 answered by turn.answered 3/2/0/1/0 unknown_tool",
				"turn.updated 1 answered by tool.called 3/2/0/1/0 unknown_tool", "turn.updated 1 answered by tool.returned 3/1/1/1/0 unknown_tool",
				"turn.finalized 1 completed by tool.failed 3/0/1/2/0 io",
			},
		},
		"an answer without calls is a whole turn": {
			play: func(r *shownRun) { r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage()}, 1) },
			want: []string{"turn.created 1 answered by turn.answered", "turn.finalized 1 completed by turn.answered"},
		},
		"an error ends the turn as failed": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
				r.write(&schema.TurnEndedData{Turn: 1, Error: &schema.Error{Type: "overloaded"}}, 1)
			},
			want: []string{"turn.created 1 open by turn.started", "turn.finalized 1 failed by turn.ended overloaded"},
		},
		"a later error of a turn that is over is told": {
			play: func(r *shownRun) {
				r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage()}, 1)
				r.write(&schema.TurnEndedData{Turn: 1, Error: &schema.Error{Type: "late"}}, 1)
			},
			want: []string{
				"turn.created 1 answered by turn.answered", "turn.finalized 1 completed by turn.answered", "turn.finalized 1 failed by turn.ended late",
			},
		},
		"the next turn supersedes an open one": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
				r.write(answer, 1)
				r.write(&schema.TurnStartedData{Turn: 2}, 2)
			},
			want: []string{
				"turn.created 1 open by turn.started", "turn.updated 1 answered by turn.answered 3/2/0/1/0 unknown_tool",
				"turn.finalized 1 superseded by turn.started 3/0/0/1/2 unknown_tool", "turn.created 2 open by turn.started",
			},
		},
		"a takeover updates the open turn, and its repeat counts": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
				r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "pay"}, 1)
				r.takeover("ex-2")
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
			},
			want: []string{
				"turn.created 1 open by turn.started", "turn.updated 1 open by tool.called 1/1/0/0/0", "turn.updated 1 open by run.resumed 1/1/0/0/0",
				"turn.updated 1 open by turn.started 1/1/0/0/0",
			},
		},
		"the end of the run ends its open turn, and a reopened run opens it again": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
				r.write(&schema.RunEndedData{Status: "failed", Error: &schema.Error{Type: "budget"}}, 0)
				r.event(r.makeControl(&schema.RunResumedData{
					Executor: "ex-2", Reason: schema.TakeoverReopen, RequestID: "q", From: schema.From{Epoch: 1, Sequence: r.head.Sequence, Digest: r.head.Digest},
				}, 2))
			},
			want: []string{
				"turn.created 1 open by turn.started", "turn.finalized 1 failed by run.ended budget", "turn.created 1 open by run.resumed budget",
			},
		},
		"what the fold refuses tells nothing": {
			play: func(r *shownRun) {
				r.write(&schema.TurnStartedData{Turn: 1}, 1)
				r.write(&schema.ToolReturnedData{ToolCallID: "never"}, 1)
				r.write(&schema.CheckpointMarkedData{Name: "m"}, 0)
			},
			want: []string{"turn.created 1 open by turn.started"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newShownRun(t)
			r.start()
			test.play(r)
			require.Equal(t, test.want, r.catchUp().told)
		})
	}
}

// Events folded again after a crash give the same notices, and a checkpoint continues from its stored value. No two
// notices share an id, and each turn's notices are counted without a gap.
func TestTurnLife_OpenedByItsAnswer_BeganWhenTheModelWasAsked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ms     int64
		before time.Duration
	}{
		"as the answer says": {ms: 1500, before: 1500 * time.Millisecond},
		"not said":           {},
		"no such time":       {ms: math.MaxInt64},
		"before the years":   {ms: 250 * 365 * 24 * 3600 * 1000, before: 250 * 365 * 24 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newShownRun(t)
			r.write(&schema.RunStartedData{Agent: "coder", Executor: "executor-1"}, 0)
			r.write(&schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("done")}}, DurationMS: tt.ms}, 1)
			turn := r.catchUp().overview.Turn
			began, err := time.Parse(time.RFC3339Nano, turn.StartedAt)
			require.NoError(t, err)
			ended, err := time.Parse(time.RFC3339Nano, turn.EndedAt)
			require.NoError(t, err)
			require.Equal(t, tt.before, ended.Sub(began))
		})
	}
}

func TestOverview_AnyLogAtAnyCut_GoesOnFromAStoredCheckpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		head, overview := schema.NewHead("f", "r1"), schema.Overview{}
		told := make([][]schema.TurnNotice, len(log))
		stored := make([][]byte, len(log))
		ids := map[string]bool{}
		for i := range log {
			v := head.Apply(schema.NoKeys, &log[i])
			told[i] = overview.Apply(&head, &v)
			for _, n := range told[i] {
				id := schema.TurnNoticeID(v.Event.ID, n.Name, n.Data.Turn)
				require.False(t, ids[id], "%s is told twice", id)
				ids[id] = true
				require.Equal(t, head.Position, n.Data.Position)
				require.Equal(t, n.Name == schema.TurnFinalized, n.Data.Status.Final() && n.Name != schema.TurnCreated, "%s with %s", n.Name, n.Data.Status)
			}
			var err error
			stored[i], err = schema.EncodeCheckpoint(&schema.Checkpoint{Head: head, Overview: overview.Of(&head, 0)})
			require.NoError(t, err)
		}
		for cut := range stored {
			c, err := schema.DecodeCheckpoint(stored[cut])
			require.NoError(t, err)
			head, overview := c.Head, c.Overview
			for i := cut + 1; i < len(log); i++ {
				v := head.Apply(schema.NoKeys, &log[i])
				require.Equal(t, told[i], overview.Apply(&head, &v), "record %d behind cut %d", i, cut)
			}
			end, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: head, Overview: overview.Of(&head, 0)})
			require.NoError(t, err)
			require.Equal(t, string(stored[len(stored)-1]), string(end), "cut behind record %d", cut)
		}
	})
}

// The turn of the overview matches the state's: status, attempts and outcomes.
func TestOverview_AnyLogWithoutRewinds_CountsAsTheStateDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		state, overview := schema.NewState("f", "r1"), schema.Overview{}
		for i := range log {
			v := state.Apply(schema.NoKeys, &log[i])
			overview.Apply(&state.Head, &v)
			h := &state.Head
			if h.Turn == 0 || len(h.Superseded) > 0 || h.Base != nil {
				continue
			}
			turn := overview.Turn
			require.Equal(t, h.Turn, turn.Turn)
			require.Equal(t, h.TurnOpen && !h.Status.Terminal(), !turn.Status.Final(), "behind %s", v.Event)
			require.Equal(t, state.Turns[len(state.Turns)-1].Attempts, turn.Attempts)
			var want schema.TurnCallCounts
			for _, c := range state.Calls {
				if c.Turn != h.Turn {
					continue
				}
				want.Recorded++
				n := len(c.Settlements)
				switch {
				case c.Outcome == schema.OutcomeOpen:
					want.Open++
				case c.Outcome == schema.OutcomeAbandoned:
					want.Abandoned++
				case n > 0 && c.Settlements[n-1] != schema.SettledRerun:
					want.Settled++
				case c.Outcome == schema.OutcomeReturned:
					want.Returned++
				default:
					want.Failed++
				}
			}
			got := turn.Calls
			got.Begun, got.InDoubt = 0, 0
			require.Equal(t, want, got, "behind record %d", i)
		}
	})
}

// The instructions of a checkpoint match the plan.
func TestInstructions_AnyLog_SayWhatThePlanSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		log := drawLog(t, 40)
		state := schema.NewState("f", "r1")
		for i := range log {
			state.Apply(schema.NoKeys, &log[i])
			plan, in := schema.PlanOf(state), schema.InstructionsOf(&state.Head, 0)
			require.Equal(t, plan.Next, in.Next)
			require.LessOrEqual(t, len(in.Lines), schema.MaxOverviewLines)
			text := strings.Join(in.Lines, "\n")
			if !plan.Quarantined {
				require.Contains(t, text, schema.NextText(plan.Next))
			}
			if plan.Next == schema.PlanEnded {
				continue
			}
			require.Contains(t, text, fmt.Sprintf("turn %d %s", plan.Turn.Turn, schema.TurnText(plan.Turn.Action)))
			calls := 0
			for _, line := range in.Lines {
				if strings.HasPrefix(line, "call ") {
					calls++
					requirePlanned(t, line, plan.Calls)
				}
			}
			require.GreaterOrEqual(t, calls+in.LeftOut, len(plan.Calls), "each call has a line, or is counted")
		}
	})
}

// requirePlanned requires that a call of the plan matches the line. The head does not know which subject can be
// asked, nor the answer about an approval.
func requirePlanned(t require.TestingT, line string, calls []schema.PlanCall) {
	for _, c := range calls {
		said := func(action schema.CallAction) bool {
			return strings.HasPrefix(line, fmt.Sprintf("call %s (%s) of turn %d: %s, ", c.ToolCallID, c.Name, c.Turn, action))
		}
		verify := c.Replay == schema.ReplayVerify && (c.Action == schema.CallHold && said(schema.CallVerify) || c.Action == schema.CallVerify && said(schema.CallHold))
		answered := c.InterruptID != "" && c.Action == schema.CallRerun && said(schema.CallWait)
		if said(c.Action) || verify || answered {
			return
		}
	}
	require.Fail(t, "not in the plan", "%s\n%+v", line, calls)
}

func TestOverview_TextsOfATurn_AreCutAndSaySo(t *testing.T) {
	r := newShownRun(t)
	long := strings.Repeat("é", schema.MaxOverviewText)
	r.write(&schema.RunStartedData{Agent: "coder", Executor: "ex-1", Model: "m-1", ModelTier: strings.Repeat("e", 100), Labels: map[string]string{"tenant": "acme", "k": "v"}}, 0)
	r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("x" + long)}}, 1)
	r.write(&schema.TurnAnsweredData{Turn: 1, Message: assistantMessage(schema.Reasoning("hm"), schema.Text("a\x1b[2Jb\nc"), schema.Text("d")), Calls: []schema.RequestedCall{
		{ToolCallID: "c1", Name: "a"}, {ToolCallID: "c2", Name: "b"},
	}}, 1)
	o := r.catchUp().overview.Of(&r.head, 0)
	require.Equal(t, "m-1", o.Model)
	require.Equal(t, strings.Repeat("e", schema.MaxOverviewName-len("…"))+"…", o.ModelTier)
	require.Equal(t, "acme", o.Tenant)
	require.Equal(t, "x"+strings.Repeat("é", (schema.MaxOverviewText-1-len("…"))/2)+"…", o.Turn.Input)
	require.Equal(t, "a [2Jb c d", o.Turn.Answer, "control characters are spaces, and reasoning is left out")
	require.EqualValues(t, 2, o.Turn.Calls.Recorded)
}

func TestOverview_EncryptedAndStoredTexts_AreNotInIt(t *testing.T) {
	r := newShownRun(t)
	r.start()
	secret, stored := "c2VhbGVk", schema.DataRef("r1", strings.Repeat("0", 64))
	r.write(&schema.TurnStartedData{
		Turn: 1, Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{{Type: schema.PartText}, schema.Text(secret)}}},
		Refs: []schema.Ref{
			{Path: "/messages/0/parts/0/content", DataRef: stored, Size: 300_000}, {Path: "/messages/0/parts/1/content", KeyID: "k1", Codec: "aes"},
		},
	}, 1)
	r.write(&schema.TurnAnsweredData{
		Turn: 1, Message: assistantMessage(schema.Text(secret)), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "ls"}},
		Refs: []schema.Ref{{Path: "/message/parts", KeyID: "k1", Codec: "aes"}},
	}, 1)
	r.write(&schema.ToolFailedData{
		ToolCallID: "c1", Error: schema.Error{Type: "io", Message: secret}, Refs: []schema.Ref{{Path: "/error/message", KeyID: "k1", Codec: "aes"}},
	}, 1)
	o := r.catchUp().overview.Of(&r.head, 0)
	require.Equal(t, "(in the object store) (encrypted)", o.Turn.Input)
	require.Equal(t, schema.EncryptedText, o.Turn.Answer)
	require.Equal(t, &schema.Error{Type: "io", Message: schema.EncryptedText}, o.Turn.Error)
	text, err := json.Marshal(&o)
	require.NoError(t, err)
	require.NotContains(t, string(text), secret)
}

func TestOverview_RewindBehindAnOpenTurn_FinalizesIt(t *testing.T) {
	r := newShownRun(t)
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("one")}}, 1)
	point, at := len(r.log), r.head.Clone()
	r.write(&schema.TurnEndedData{Turn: 1}, 1)
	r.write(&schema.TurnStartedData{Turn: 2, Messages: []schema.Message{userMessage("secret plans")}}, 2)
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(point)}, &at, nil) //nolint:gosec // a small number
	require.NoError(t, err)
	v := r.event(r.makeControl(&schema.RunResumedData{
		Executor: "ex-2", Reason: schema.TakeoverRewind, RequestID: "q", To: to, From: schema.From{Epoch: 1, Sequence: r.head.Sequence, Digest: r.head.Digest},
	}, 2))
	require.Equal(t, schema.Applied, v.Kind, v.Detail)
	require.Equal(t, []string{
		"turn.created 1 open by turn.started", "turn.finalized 1 completed by turn.ended", "turn.created 2 open by turn.started",
		"turn.finalized 2 superseded by run.resumed", "turn.created 1 open by run.resumed",
	}, r.catchUp().told)
	require.Empty(t, r.overview.Turn.Input, "abandoned messages are not shown")
}
