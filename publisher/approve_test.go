package publisher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// fixed is a policy that decides alike about every call, and counts.
func fixed(d publisher.Decision, n *int) func(*publisher.Config) {
	return func(c *publisher.Config) {
		c.Policy = func(context.Context, *publisher.Run, publisher.ToolCall) (publisher.Decision, error) {
			*n++
			return d, nil
		}
	}
}

// decisions are those of the run's log: decision, policy, reason, by.
func decisions(s *schema.State) []string {
	var list []string
	for _, d := range s.Decisions {
		list = append(list, strings.TrimSpace(strings.Join([]string{d.Decision, d.Policy, d.Reason, d.By}, " ")))
	}
	return list
}

func TestApprove_Decision_RecordedFirst(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		decision publisher.Decision
		runs     int
		names    []string
		failure  string
	}{
		"allow": {
			decision: publisher.Decision{Decision: schema.DecisionAllow, Policy: "reads", Reason: "harmless"},
			runs:     1, names: []string{"tool.called", "tool.decided", "tool.called", "tool.returned"},
		},
		"deny": {
			decision: publisher.Decision{Decision: schema.DecisionDeny, Policy: "prod", Reason: "not on a Friday"},
			names:    []string{"tool.called", "tool.decided", "tool.failed"}, failure: "not on a Friday",
		},
		"deny without a reason": {
			decision: publisher.Decision{Decision: schema.DecisionDeny},
			names:    []string{"tool.called", "tool.decided", "tool.failed"}, failure: "the call was not allowed",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := newOutside(t)
			asked := 0
			f := w.fleet(fixed(test.decision, &asked))
			run := start(t, f, "r1")
			turn := openTurn(t, run)
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			_, err := turn.Tool(t.Context(), call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				require.Equal(t, "tool.decided", names(w.log("r1"))[3], "it is durable before the tool runs")
				return o.tool(ctx, inv)
			})
			require.Len(t, o.keys(), test.runs)
			require.Equal(t, test.names, names(w.log("r1"))[2:])
			s := w.requireSameFold(run)
			require.Equal(t, int32(1), s.Decisions[0].Turn)
			require.Equal(t, 1, s.Decisions[0].Occurrence)
			require.Equal(t, "exec-1", s.Decisions[0].By)
			if test.failure == "" {
				require.NoError(t, err)
			} else {
				var failed *publisher.ToolError
				require.ErrorAs(t, err, &failed)
				require.Equal(t, publisher.DeniedType, failed.Failure.Type)
				require.Equal(t, test.failure, failed.Failure.Message)
			}
			// The next executor gets the same, and no person is asked again.
			w.serve()
			_, again := resume(t, f, "r1").OpenTurn().Tool(t.Context(), call, o.tool)
			require.Equal(t, err == nil, again == nil)
			require.Equal(t, 1, asked)
			require.Len(t, o.keys(), test.runs)
		})
	}
}

func TestApprove_PolicyFails_DecidesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	broken := errors.New("policy server is down")
	var decision publisher.Decision
	err := broken
	f := w.fleet(func(c *publisher.Config) {
		c.Policy = func(_ context.Context, run *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
			require.Equal(t, "r1", run.ID())
			require.Equal(t, 1, call.Occurrence)
			return decision, err
		}
	})
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	o := newOutside(t)
	call := publisher.ToolCall{ID: "c1", Name: "deploy"}
	_, got := turn.Tool(t.Context(), call, o.tool)
	require.ErrorIs(t, got, broken)
	err = nil
	_, got = turn.Tool(t.Context(), call, o.tool)
	require.ErrorIs(t, got, publisher.ErrConfig, "an empty decision is none")
	require.Len(t, w.log("r1"), 3)
	decision.Decision = schema.DecisionAllow
	_, got = turn.Tool(t.Context(), call, o.tool)
	require.NoError(t, got)
	require.Len(t, o.keys(), 1)
	w.requireSameFold(run)
}

func ask() publisher.Decision {
	return publisher.Decision{Decision: schema.DecisionAsk, Policy: "prod", Reason: "it changes production", Expires: time.Hour}
}

func TestApprove_Answer_Decides(t *testing.T) {
	t.Parallel()
	const id = "approval.1.c1.1"
	tests := map[string]struct {
		input   schema.RunInputData
		decided string
		runs    int
	}{
		"allow":           {input: schema.RunInputData{Payload: raw(`{"decision":"allow","reason":"go"}`), By: "anna"}, decided: "allow prod go anna", runs: 1},
		"a verified key":  {input: schema.RunInputData{Payload: raw(`{"decision":"allow","reason":"go"}`), By: schema.ProvenBy("operator", "UB1")}, decided: "allow prod go exec-1", runs: 1},
		"deny":            {input: schema.RunInputData{Payload: raw(`{"decision":"deny","reason":"no"}`), By: "anna"}, decided: "deny prod no anna"},
		"cancelled":       {input: schema.RunInputData{Status: "cancelled", By: "anna"}, decided: "deny prod the question was cancelled anna"},
		"expired":         {input: schema.RunInputData{Status: "expired", By: "daemon"}, decided: "deny prod no answer came in time daemon"},
		"no permission":   {input: schema.RunInputData{Payload: raw(`{"decision":"maybe"}`), By: "anna"}, decided: `deny prod the answer's decision "maybe" is neither allow nor deny anna`},
		"nothing at all":  {input: schema.RunInputData{By: "anna"}, decided: "deny prod the answer cannot be read"},
		"not even a word": {input: schema.RunInputData{Payload: raw(`true`), By: "anna"}, decided: "deny prod the answer cannot be read"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := newOutside(t)
			asked := 0
			f := w.fleet(fixed(ask(), &asked))
			run := start(t, f, "r1")
			turn := openTurn(t, run)
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			done := make(chan error, 1)
			go func() {
				_, err := turn.Tool(t.Context(), call, o.tool)
				done <- err
			}()
			require.Eventually(t, func() bool { return w.fold("r1").Head.Status == schema.StatusWaiting }, time.Minute, 5*time.Millisecond)
			s := w.fold("r1")
			require.Empty(t, o.keys())
			wait := s.Waits[0]
			require.Equal(t, id, wait.InterruptID)
			require.Equal(t, schema.WaitToolApproval, wait.Reason)
			require.Equal(t, "May the tool deploy be called? it changes production", wait.Message)
			require.JSONEq(t, `{"type":"object","properties":{"decision":{"enum":["allow","deny"]},"reason":{"type":"string"}},"required":["decision"]}`, string(wait.ResponseSchema))
			require.NotEmpty(t, wait.ExpiresAt)
			require.Equal(t, int32(1), s.Head.Interrupts[0].Turn)
			require.Equal(t, 1, s.Head.Interrupts[0].Occurrence)
			test.input.InterruptID = id
			w.control("r1", 1, &test.input)
			w.notify("exec-1", "r1")
			err := <-done
			s = w.requireSameFold(run)
			require.Equal(t, "ask prod it changes production exec-1", decisions(s)[0])
			require.Contains(t, decisions(s)[1], test.decided)
			require.Len(t, o.keys(), test.runs)
			require.Equal(t, 1, asked)
			if test.runs == 1 {
				require.NoError(t, err)
				return
			}
			var failed *publisher.ToolError
			require.ErrorAs(t, err, &failed)
			require.Equal(t, publisher.DeniedType, failed.Failure.Type)
		})
	}
}

// An hour's difference between the clocks of executor and server is longer than the time to answer.
func TestApproval_LateExecutorClock_NotDeniedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	o := newOutside(t)
	question := func(run string, expires time.Duration) <-chan error {
		asked := 0
		d := publisher.Decision{Decision: schema.DecisionAsk, Policy: "prod", Reason: "it changes production", Expires: expires}
		f := w.fleet(fixed(d, &asked), func(c *publisher.Config) { c.Now = func() time.Time { return time.Now().Add(-time.Hour) } })
		turn := openTurn(t, start(t, f, run))
		done := make(chan error, 1)
		go func() {
			_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy"}, o.tool)
			done <- err
		}()
		require.Eventually(t, func() bool { return len(w.fold(run).Waits) > 0 }, time.Minute, 5*time.Millisecond)
		return done
	}
	long := question("r1", 30*time.Minute)
	short := question("r2", time.Millisecond)
	require.ErrorContains(t, <-short, "no answer came in time")
	require.Equal(t, schema.StatusWaiting, w.fold("r1").Head.Status, "its time has only begun")
	select {
	case err := <-long:
		require.FailNow(t, "denied", "%v", err)
	default:
	}
}

// The executor dies after each event of an approval. The next one goes on with it: a call that was not begun never ran, in whatever way it was
// allowed, and is not held.
func TestApprove_EachCrash_Continues(t *testing.T) {
	t.Parallel()
	type step = func(t *testing.T, w *world, turn *publisher.Turn)
	decide := func(decision string) step {
		return func(t *testing.T, _ *world, turn *publisher.Turn) {
			t.Helper()
			require.NoError(t, turn.Run().Sync(t.Context())) // the answer, which goes before a permission
			require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolDecidedData{ToolCallID: "c1", Decision: decision, Policy: "prod", Reason: "it changes production", By: "anna"}, turn.Number()))
		}
	}
	asks := func(t *testing.T, _ *world, turn *publisher.Turn) {
		t.Helper()
		require.NoError(t, turn.Run().Wait(t.Context(), schema.RunWaitingData{InterruptID: "asked otherwise", Reason: schema.WaitToolApproval, ToolCallID: "c1", Message: "first"}))
	}
	answer := func(decision string) step {
		return func(t *testing.T, w *world, _ *publisher.Turn) {
			t.Helper()
			head := w.fold("r1").Head
			require.Len(t, head.Interrupts, 1)
			w.control("r1", head.Epoch, &schema.RunInputData{InterruptID: head.Interrupts[0].InterruptID, Payload: raw(`{"decision":"` + decision + `"}`), By: "anna"})
			w.notify("exec-1", "r1")
		}
	}
	begins := func(t *testing.T, _ *world, turn *publisher.Turn) {
		t.Helper()
		require.NoError(t, turn.Begin(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}))
	}
	tests := map[string]struct {
		steps []step
		// begun: it was not recorded as requested.
		begun bool
		// later is what comes once the next executor waits.
		later   step
		runs    int
		want    error
		message string
		asked   int
	}{
		"after the call":                    {later: answer("allow"), runs: 1, message: "May the tool deploy be called? it changes production", asked: 1},
		"after the call, which was begun":   {begun: true, want: publisher.ErrHeld},
		"after ask, and the call was begun": {begun: true, steps: []step{decide("ask")}, want: publisher.ErrHeld},
		"after no, and the call was begun":  {begun: true, steps: []step{decide("deny")}, want: publisher.ErrToolFailed},
		"after ask, the question was lost": {
			steps: []step{decide("ask")}, later: answer("allow"), runs: 1, message: "May the tool deploy be called? it changes production", asked: 1,
		},
		"after the question": {steps: []step{decide("ask"), asks}, later: answer("allow"), runs: 1, message: "first"},
		"after the question, denied": {
			steps: []step{decide("ask"), asks}, later: answer("deny"), want: publisher.ErrToolFailed, message: "first",
		},
		"after the answer": {steps: []step{decide("ask"), asks, answer("allow")}, runs: 1, message: "first"},
		"after a question of another's making, answered": {steps: []step{decide("ask"), func(t *testing.T, w *world, turn *publisher.Turn) {
			t.Helper()
			require.NoError(t, turn.Run().Wait(t.Context(), schema.RunWaitingData{InterruptID: "i1", Reason: schema.WaitToolApproval, ToolCallID: "c1", Message: "theirs"}))
			w.control("r1", 1, &schema.RunInputData{InterruptID: "i1", Payload: raw(`{"decision":"allow"}`), By: "anna"})
		}}, runs: 1, message: "theirs"},
		"after no": {steps: []step{decide("ask"), asks, answer("deny")}, want: publisher.ErrToolFailed, message: "first"},
		"after the recorded no": {
			steps: []step{decide("ask"), asks, answer("deny"), decide("deny")}, want: publisher.ErrToolFailed, message: "first",
		},
		"after the permission":                        {steps: []step{decide("ask"), asks, answer("allow"), decide("allow")}, runs: 1, message: "first"},
		"after the permission and the begin":          {steps: []step{decide("ask"), asks, answer("allow"), decide("allow"), begins}, want: publisher.ErrHeld, message: "first"},
		"after the policy's permission":               {steps: []step{decide("allow")}, runs: 1},
		"after the policy's permission and the begin": {steps: []step{decide("allow"), begins}, want: publisher.ErrHeld},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			o := newOutside(t)
			asked := 0
			f := w.fleet(fixed(ask(), &asked))
			call := publisher.ToolCall{ID: "c1", Name: "deploy"}
			turn := openTurn(t, start(t, w.fleet(), "r1")) // without the policy, which would refuse some of the steps
			require.NoError(t, turn.Run().Publish(t.Context(), &schema.ToolCalledData{ToolCallID: "c1", Name: "deploy", Requested: !test.begun}, 1))
			for _, step := range test.steps {
				step(t, w, turn)
			}
			w.serve()
			run := resume(t, f, "r1")
			done := make(chan error, 1)
			go func() {
				_, err := run.Turn(1).Tool(t.Context(), call, o.tool)
				done <- err
			}()
			if test.later != nil && test.want != publisher.ErrHeld { //nolint:errorlint // the table's own value
				require.Eventually(t, func() bool { return len(w.fold("r1").Head.Interrupts) == 1 }, time.Minute, 5*time.Millisecond)
				test.later(t, w, run.OpenTurn())
			}
			err := <-done
			require.ErrorIs(t, err, test.want)
			require.Len(t, o.keys(), test.runs)
			s := w.requireSameFold(run)
			require.Equal(t, test.asked, asked)
			require.LessOrEqual(t, len(s.Waits), 1, "no person is asked twice")
			if test.message != "" {
				require.Equal(t, test.message, s.Waits[0].Message)
			}
			if test.runs == 1 && test.message != "" {
				require.Equal(t, "anna", s.Decisions[len(s.Decisions)-1].By)
			}
		})
	}
}

func TestApprove_LongCallID_QuestionIDFits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	asked := 0
	f := w.fleet(fixed(ask(), &asked))
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := turn.Tool(ctx, publisher.ToolCall{ID: strings.Repeat("x", schema.MaxIdentifier), Name: "deploy"}, counted(new(atomic.Int64), "done"))
		done <- err
	}()
	require.Eventually(t, func() bool { return len(w.fold("r1").Head.Interrupts) == 1 }, time.Minute, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	require.LessOrEqual(t, len(w.fold("r1").Waits[0].InterruptID), schema.MaxIdentifier)
}

func TestApproval_UnusableResponseSchema_AsksNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := newOutside(t)
	asked := 0
	d := ask()
	d.ResponseSchema = raw(`{"type":"text"}`)
	run := start(t, w.fleet(fixed(d, &asked)), "r1")
	_, err := openTurn(t, run).Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy"}, o.tool)
	require.ErrorIs(t, err, publisher.ErrConfig)
	require.ErrorContains(t, err, "ResponseSchema")
	require.Empty(t, o.keys())
	require.Empty(t, w.fold("r1").Decisions)
}
