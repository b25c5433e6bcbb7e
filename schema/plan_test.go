package schema_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// open opens a turn and calls a tool in it.
func (r *testRun) open(call schema.ToolCalledData) {
	r.tb.Helper()
	r.start()
	r.write(&schema.TurnStartedData{Turn: 1}, 1)
	call.ToolCallID, call.Name = "c1", "deploy"
	require.Equal(r.tb, schema.Applied, r.write(&call, 1).Kind)
}

func (r *testRun) operator(d schema.Data, turn int32) schema.Verdict {
	r.tb.Helper()
	e := r.makeControl(d, r.head.Epoch)
	e.Turn = turn
	return r.event(e)
}

func TestPlan_OpenCall_SaysOutcome(t *testing.T) {
	settle := []string{
		"waymark settle --fleet f r1 1 c1 --epoch 1 --how decided --result JSON", "waymark settle --fleet f r1 1 c1 --epoch 1 --how rerun",
		"waymark settle --fleet f r1 1 c1 --epoch 1 --how abandoned",
	}
	inEpoch2 := slices.Clone(settle)
	for i, command := range inEpoch2 {
		inEpoch2[i] = strings.Replace(command, "--epoch 1", "--epoch 2", 1)
	}
	decided := func(r *testRun, decision string) {
		require.Equal(r.tb, schema.Applied, r.write(&schema.ToolDecidedData{ToolCallID: "c1", Decision: decision}, 1).Kind)
	}
	asked := func(r *testRun) {
		decided(r, schema.DecisionAsk)
		require.Equal(r.tb, schema.Applied, r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolApproval, ToolCallID: "c1"}, 1).Kind)
	}
	tests := map[string]struct {
		call schema.ToolCalledData
		then func(r *testRun)
		want schema.PlanCall
		next string
	}{
		"pure is run again": {
			call: schema.ToolCalledData{Replay: schema.ReplayPure},
			want: schema.PlanCall{Action: schema.CallRerun, IdempotencyKey: "r1.1.c1.1"},
		},
		"idempotent is run again under its own key": {
			call: schema.ToolCalledData{Replay: schema.ReplayIdempotent, IdempotencyKey: "order-7"},
			want: schema.PlanCall{Action: schema.CallRerun, IdempotencyKey: "order-7"},
		},
		"verify asks its subject": {
			call: schema.ToolCalledData{Replay: schema.ReplayVerify, VerifySubject: "tools.deploy.verify"},
			want: schema.PlanCall{Action: schema.CallVerify, VerifySubject: "tools.deploy.verify", IdempotencyKey: "r1.1.c1.1", Commands: settle},
		},
		"no policy is held": {
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle},
		},
		"already in doubt is the same": {
			then: func(r *testRun) { r.takeover("ex-2") },
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle},
		},
		"held and waited for names what it waits for": {
			then: func(r *testRun) {
				r.takeover("ex-2")
				r.write(&schema.RunWaitingData{InterruptID: "h1", Reason: schema.WaitToolInDoubt, ToolCallID: "c1"}, 1)
			},
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle, InterruptID: "h1"},
			next: schema.PlanWait,
		},
		"cleared by an operator while the run had no executor is run": {
			then: func(r *testRun) {
				r.takeover("ex-2")
				r.operator(&schema.RunOrphanedData{Executor: "ex-2"}, 0)
				require.Equal(r.tb, schema.Applied, r.operator(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "anna"}, 1).Kind)
			},
			want: schema.PlanCall{Action: schema.CallMake, IdempotencyKey: "r1.1.c1.1"},
		},
		"cleared while its executor was there has not begun before that wrote, and is run": {
			then: func(r *testRun) {
				r.takeover("ex-2")
				require.Equal(r.tb, schema.Applied, r.operator(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "anna"}, 1).Kind)
			},
			want: schema.PlanCall{Action: schema.CallMake, IdempotencyKey: "r1.1.c1.1"},
		},
		"cleared, and begun since: it may have run, and is held": {
			then: func(r *testRun) {
				r.takeover("ex-2")
				require.Equal(r.tb, schema.Applied, r.operator(&schema.ToolSettledData{ToolCallID: "c1", How: schema.SettledRerun, By: "anna"}, 1).Kind)
				require.Equal(r.tb, schema.Applied, r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "deploy"}, 1).Kind)
			},
			want: schema.PlanCall{Action: schema.CallHold, Commands: inEpoch2},
		},
		"a late result is adopted": {
			then: func(r *testRun) {
				old := r.takeover("ex-2")
				e, err := old.Event(&schema.ToolReturnedData{ToolCallID: "c1"}, 1, r.now(), 0)
				require.NoError(r.tb, err)
				require.Equal(r.tb, schema.Evidence, r.event(e).Kind)
			},
			want: schema.PlanCall{Action: schema.CallAdopt},
		},
		"asked and not answered waits": {
			call: schema.ToolCalledData{Requested: true},
			then: asked,
			want: schema.PlanCall{Action: schema.CallWait, InterruptID: "i1"},
			next: schema.PlanWait,
		},
		"decided to ask and not asked yet waits": {
			call: schema.ToolCalledData{Requested: true},
			then: func(r *testRun) { decided(r, schema.DecisionAsk) },
			want: schema.PlanCall{Action: schema.CallWait},
		},
		"answered goes on with the answer": {
			call: schema.ToolCalledData{Requested: true},
			then: func(r *testRun) {
				asked(r)
				require.Equal(r.tb, schema.Applied, r.operator(&schema.RunInputData{InterruptID: "i1", Payload: []byte(`{"decision":"allow"}`), By: "anna"}, 0).Kind)
			},
			want: schema.PlanCall{Action: schema.CallRerun, InterruptID: "i1", IdempotencyKey: "r1.1.c1.1"},
		},
		"denied never ran and is denied": {
			then: func(r *testRun) { decided(r, schema.DecisionDeny) },
			want: schema.PlanCall{Action: schema.CallDeny},
		},
		"asked behind its begin may have run": {
			then: asked,
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle},
			next: schema.PlanWait,
		},
		"allowed and not begun is made": {
			call: schema.ToolCalledData{Requested: true},
			then: func(r *testRun) { decided(r, schema.DecisionAsk); decided(r, schema.DecisionAllow) },
			want: schema.PlanCall{Action: schema.CallMake, IdempotencyKey: "r1.1.c1.1"},
		},
		"allowed may have run": {
			then: func(r *testRun) { decided(r, schema.DecisionAllow) },
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle},
		},
		"another call's decision does not count": {
			then: func(r *testRun) {
				require.Equal(r.tb, schema.Applied, r.write(&schema.ToolDecidedData{ToolCallID: "c1", Occurrence: 2, Decision: schema.DecisionDeny}, 1).Kind)
			},
			want: schema.PlanCall{Action: schema.CallHold, Commands: settle},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.open(test.call)
			if test.then != nil {
				test.then(r)
			}
			before := mustJSON(t, r.state)
			p := schema.PlanOf(r.state)
			require.Equal(t, before, mustJSON(t, r.state), "a plan changes nothing")
			require.Len(t, p.Calls, 1)
			got := p.Calls[0]
			require.NotEmpty(t, got.Why)
			got.Why = ""
			test.want.CallKey, test.want.Name = schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, "deploy"
			if test.want.Replay = test.call.Replay; test.want.Replay == "" {
				test.want.Replay = schema.ReplayHold
			}
			commands := test.want.Commands
			if test.want.Commands = nil; r.head.OpenCalls[0].State.InDoubt() {
				test.want.Commands = commands
			}
			require.Equal(t, test.want, got)
			if commands != nil && test.next == "" { // its executor may work on the call until it is gone
				gone := *r.state
				gone.Head.Status = schema.StatusOrphaned
				require.Equal(t, commands, schema.PlanOf(&gone).Calls[0].Commands)
			}
			if test.next == "" {
				test.next = schema.PlanContinue
			}
			require.Equal(t, test.next, p.Next)
			require.Equal(t, r.head.Epoch+1, p.Epoch)
			require.Equal(t, schema.PlanTurn{Turn: 1, Action: schema.TurnContinue}, p.Turn)
		})
	}
}

func TestPlan_Resume_SaysPosition(t *testing.T) {
	tests := map[string]struct {
		write func(r *testRun)
		turn  schema.PlanTurn
		next  string
	}{
		"a new run begins its first turn": {
			write: func(*testRun) {}, turn: schema.PlanTurn{Turn: 1, Action: schema.TurnNext}, next: schema.PlanContinue,
		},
		"a turn without an answer is repeated": {
			write: func(r *testRun) {
				r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("hi")}}, 1)
			},
			turn: schema.PlanTurn{Turn: 1, Action: schema.TurnRepeat, Messages: 1}, next: schema.PlanContinue,
		},
		"a turn with a message and no answer is repeated": {
			write: func(r *testRun) {
				r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("hi")}}, 1)
				r.write(&schema.MessageAddedData{Message: assistantMessage(schema.Text("well"))}, 1)
			},
			turn: schema.PlanTurn{Turn: 1, Action: schema.TurnRepeat, Messages: 2}, next: schema.PlanContinue,
		},
		"a turn with an answer goes on": {
			write: func(r *testRun) {
				r.write(&schema.TurnStartedData{Turn: 1, Messages: []schema.Message{userMessage("hi")}}, 1)
				r.write(&schema.TurnAnsweredData{
					Turn: 1, Message: assistantMessage(schema.CallPart("c1", "ls")), Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "ls", Replay: schema.ReplayPure}},
				}, 1)
			},
			turn: schema.PlanTurn{Turn: 1, Action: schema.TurnContinue, Messages: 2}, next: schema.PlanContinue,
		},
		"a turn of calls without an answer goes on": {
			write: func(r *testRun) { r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls"}, 0) },
			turn:  schema.PlanTurn{Turn: 1, Action: schema.TurnContinue}, next: schema.PlanContinue,
		},
		"a run that ended stays": {
			write: func(r *testRun) {
				r.write(&schema.TurnEndedData{Turn: 3}, 3)
				r.write(&schema.RunEndedData{Status: "completed"}, 0)
			},
			turn: schema.PlanTurn{Turn: 4, Action: schema.TurnNext}, next: schema.PlanEnded,
		},
		"a request to cancel precedes the waits": {
			write: func(r *testRun) {
				r.write(&schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitHumanInput}, 0)
				r.operator(&schema.RunCancelRequestedData{By: "anna"}, 0)
			},
			turn: schema.PlanTurn{Turn: 1, Action: schema.TurnNext}, next: schema.PlanCancel,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newTestRun(t)
			r.start()
			test.write(r)
			p := schema.PlanOf(r.state)
			require.Equal(t, test.turn, p.Turn)
			require.Equal(t, test.next, p.Next)
			require.Equal(t, schema.PlanPoint{
				Epoch: 1, Sequence: r.head.Sequence, Turn: r.head.Turn, Position: r.head.Position, Time: r.head.UpdatedAt,
			}, p.From)
			require.Len(t, p.Waits, len(r.head.Interrupts))
		})
	}
}

func TestPlan_ClosedCalls_AreReused(t *testing.T) {
	r := newTestRun(t)
	r.start()
	r.write(&schema.PhaseStartedData{Phase: "build"}, 0)
	r.write(&schema.PhaseCompletedData{Phase: "build"}, 0)
	r.write(&schema.PhaseStartedData{Phase: "deploy"}, 0)
	for turn := int32(1); turn <= 2; turn++ {
		r.write(&schema.TurnStartedData{Turn: turn}, turn)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "read"}, turn)
		r.write(&schema.ToolReturnedData{ToolCallID: "c1", DurationMS: 100}, turn)
		r.write(&schema.ToolCalledData{ToolCallID: "c2", Name: "write"}, turn)
		r.write(&schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: "error"}, DurationMS: 10}, turn)
		r.write(&schema.TurnEndedData{Turn: turn, Usage: &schema.Usage{InputTokens: 50, OutputTokens: 7, CacheReadInputTokens: 40}}, turn)
	}
	r.write(&schema.TurnStartedData{Turn: 3}, 3)
	p := schema.PlanOf(r.state)
	r.write(&schema.TurnAnsweredData{
		Turn: 3, Message: schema.Message{Role: schema.RoleAssistant}, DurationMS: 5, Usage: &schema.Usage{OutputTokens: 1},
		Calls: []schema.RequestedCall{{ToolCallID: "c3", Name: "read", Replay: schema.ReplayPure}},
	}, 3)
	answered := schema.PlanOf(r.state)
	require.Contains(t, answered.Calls[0].Why, "whether it ran is not recorded")
	require.Equal(t, []string{"build"}, p.PhasesSkipped)
	require.Equal(t, "deploy", p.PhaseRestarted)
	require.Len(t, p.Reused, 4)
	require.Equal(t, schema.OutcomeFailed, p.Reused[1].Outcome)
	require.Equal(t, schema.CallReuse, p.Reused[1].Action)

	var back schema.Plan
	require.NoError(t, json.Unmarshal(mustJSON(t, p), &back))
	require.Equal(t, p, back)
}

func TestPlan_BeforeAndAfterTakeover_Same(t *testing.T) {
	planSchema := compileSchema(t, "plan")
	compared := 0
	rapid.Check(t, func(t *rapid.T) {
		s := schema.NewState("f", "r1")
		log := drawLog(t, 40)
		for i := range log {
			s.Apply(schema.NoKeys, &log[i])
		}
		if s.Head.Status == "" {
			return // nothing was accepted: there is no run
		}
		before := schema.PlanOf(s)
		require.NoError(t, checkSchema(t, planSchema, mustMarshal(t, before)))
		require.Len(t, before.Calls, len(s.Head.OpenCalls))
		require.Len(t, s.Calls, len(before.Calls)+len(before.Reused), "every call is in the plan once")
		reason := "claim"
		if s.Head.Status.Terminal() {
			reason = "reopen"
		}
		e, err := schema.NewControl("f", "daemon", "r1", s.Head.Epoch+1, "plan", &schema.RunResumedData{
			Executor: "ex-9", Reason: reason, RequestID: "plan",
			From: schema.From{Epoch: s.Head.Epoch, Sequence: s.Head.Sequence, Digest: s.Head.Digest},
		}, time.Unix(1e9, 0))
		require.NoError(t, err)
		header, body := e.Encode()
		rec := schema.NewRecord(s.Head.Position.Stream+1, header, body)
		require.Equal(t, schema.Applied, s.Apply(schema.NoKeys, &rec).Kind)
		after := schema.PlanOf(s)
		for i := range before.Calls { // commands of calls that their executor may work on until now
			before.Calls[i].Commands, after.Calls[i].Commands = nil, nil
		}
		require.Equal(t, before.Calls, after.Calls)
		require.Equal(t, before.Turn, after.Turn)
		require.Equal(t, before.Epoch+1, after.Epoch)
		compared += len(before.Calls)
	})
	require.NotZero(t, compared, "no log had an open call")
}

func TestSettleCommands_StatesOfTheCall_OnlyWhatIsAccepted(t *testing.T) {
	command := func(h *schema.Head) string {
		if list := h.SettleCommands("f", h.OpenCalls[0].CallKey); list != nil {
			return list[len(list)-1]
		}
		return ""
	}
	for want, key := range map[string]schema.CallKey{
		`waymark settle --fleet f r1 2 call_1 --epoch 3 --how abandoned`:                {Turn: 2, ToolCallID: "call_1", Occurrence: 1},
		`waymark settle --fleet f r1 2 call_1 --occurrence 3 --epoch 3 --how abandoned`: {Turn: 2, ToolCallID: "call_1", Occurrence: 3},
		`waymark settle --fleet f r1 2 'a b'\''c' --epoch 3 --how abandoned`:            {Turn: 2, ToolCallID: "a b'c", Occurrence: 1},
		`waymark settle --fleet f r1 2 '$(rm)' --epoch 3 --how abandoned`:               {Turn: 2, ToolCallID: "$(rm)"},
		`waymark settle --fleet f --epoch 3 --how abandoned -- r1 2 '-x'`:               {Turn: 2, ToolCallID: "-x"},
	} {
		require.Equal(t, want, command(&schema.Head{Run: "r1", OpenCalls: []schema.OpenCall{{CallKey: key, Epoch: 3, State: schema.CallInDoubt}}}))
	}
	for name, test := range map[string]struct {
		head schema.Head
		call schema.OpenCall
		want int
	}{
		"its executor runs it":                 {schema.Head{Status: schema.StatusRunning}, schema.OpenCall{}, 0},
		"its executor waits":                   {schema.Head{Status: schema.StatusWaiting}, schema.OpenCall{}, 0},
		"the run is orphaned":                  {schema.Head{Status: schema.StatusOrphaned}, schema.OpenCall{}, 3},
		"the run is released":                  {schema.Head{Status: schema.StatusInterrupted}, schema.OpenCall{}, 3},
		"the run waits without an executor":    {schema.Head{Status: schema.StatusWaiting, Unattended: schema.StatusOrphaned}, schema.OpenCall{}, 3},
		"the run is orphaned, not begun":       {schema.Head{Status: schema.StatusOrphaned}, schema.OpenCall{State: schema.CallRequested}, 0},
		"in doubt":                             {schema.Head{Status: schema.StatusRunning}, schema.OpenCall{State: schema.CallInDoubt}, 3},
		"the run has ended: it runs no more":   {schema.Head{Status: schema.StatusFailed}, schema.OpenCall{State: schema.CallInDoubt}, 2},
		"the run has ended before it was made": {schema.Head{Status: schema.StatusCancelled}, schema.OpenCall{State: schema.CallRequested}, 2},
	} {
		test.head.OpenCalls = []schema.OpenCall{test.call}
		test.head.OpenCalls[0].CallKey = schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
		require.Empty(t, test.head.SettleCommands("", test.call.CallKey), name) // of no open call
		require.Len(t, test.head.SettleCommands("", test.head.OpenCalls[0].CallKey), test.want, name)
	}
}
