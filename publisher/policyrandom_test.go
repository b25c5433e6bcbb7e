package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Agents that use each method of the SDK in any order, handle or ignore its errors, and are taken over at any moment: no call is recorded as
// returned unless the policy allowed it before, and no tool runs that the SDK was asked about and that was not allowed.
func TestPolicy_RandomAgents_NoUnauthorizedCall(t *testing.T) {
	t.Parallel()
	agents := 400
	if testing.Short() {
		t.Log("short: 40 agents instead of 400")
		agents = 40
	}
	w := newWorld(t)
	w.serve()
	f := w.fleet(withPolicy(publisher.PolicyEnforce))
	var group errgroup.Group
	group.SetLimit(8)
	var returned, refused, taken atomic.Int64
	for i := range agents {
		group.Go(func() error {
			a := &sloppyAgent{rnd: rand.New(rand.NewPCG(uint64(i), 9)), ran: make(map[string]int)} //nolint:gosec // a test's
			id := fmt.Sprint("r", i)
			if err := a.live(t.Context(), f, id); err != nil {
				return fmt.Errorf("run %s: %w", id, err)
			}
			for _, name := range []string{"rm", "wipe", "mail", "odd"} {
				if a.ran[name] > 0 {
					return fmt.Errorf("run %s: tool %s ran %d times", id, name, a.ran[name])
				}
			}
			n, err := unauthorized(w.log(id))
			returned.Add(int64(n))
			refused.Add(int64(a.refused))
			taken.Add(int64(a.taken))
			if err != nil {
				return fmt.Errorf("run %s: %w", id, err)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Greater(t, returned.Load(), int64(agents), "too few calls came to a result")
	require.Greater(t, refused.Load(), int64(agents), "too few ways around were tried")
	require.Positive(t, taken.Load(), "no run was taken over")
	t.Logf("%d agents, %d results, %d refusals, %d takeovers", agents, returned.Load(), refused.Load(), taken.Load())
}

// unauthorized reads a run's log without the fold of the SDK: it counts the results, and finds one that nothing allowed.
func unauthorized(log []schema.Record) (results int, err error) {
	names, allowed := map[string]string{}, map[string]bool{}
	for i := range log {
		e, err := schema.Decode(log[i].Header, log[i].Body)
		if err != nil {
			return results, err
		}
		data, err := schema.ParseData(e)
		if err != nil {
			return results, err
		}
		switch d := data.(type) {
		case *schema.TurnAnsweredData:
			for _, c := range d.Calls {
				names[c.ToolCallID] = c.Name
			}
		case *schema.ToolCalledData:
			names[d.ToolCallID] = d.Name
		case *schema.ToolDecidedData:
			if d.Policy == "inside" && d.Decision == schema.DecisionAllow {
				allowed[d.ToolCallID] = true
			}
		case *schema.ToolReturnedData:
			results++
			if !allowed[d.ToolCallID] || names[d.ToolCallID] != "look" && names[d.ToolCallID] != "put" {
				return results, fmt.Errorf("call %s of tool %s has a result and was not allowed", d.ToolCallID, names[d.ToolCallID])
			}
		}
	}
	return results, nil
}

// sloppyAgent has calls with ids that are used once, so that a log is judged without occurrences.
type sloppyAgent struct {
	rnd            *rand.Rand
	ran            map[string]int
	calls          int
	refused, taken int
}

func (a *sloppyAgent) live(ctx context.Context, f *publisher.Fleet, id string) error {
	run, err := f.Start(ctx, publisher.RunSpec{ID: id})
	for range 6 + a.rnd.IntN(8) {
		if err != nil {
			return err
		}
		if a.rnd.IntN(5) == 0 {
			a.taken++
			resume, cancel := context.WithTimeout(ctx, time.Minute)
			run, err = f.Resume(resume, id, publisher.ResumeSpec{})
			cancel()
			continue
		}
		a.turn(ctx, run)
		if err = run.Err(); errors.Is(err, publisher.ErrUnresolved) { // the turn's time was over before the server's answer
			err = run.Resolve(ctx)
		}
	}
	return err
}

// turn does a few things in a new turn, or in the one that is open. Errors are counted, and ignored.
func (a *sloppyAgent) turn(ctx context.Context, run *publisher.Run) {
	// A person is asked about mail, who does not answer.
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	turn := run.OpenTurn()
	if turn == nil || a.rnd.IntN(3) == 0 {
		var err error
		if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
			return
		}
	}
	a.calls++
	call := publisher.ToolCall{
		ID: fmt.Sprint("c", a.calls), Name: []string{"look", "put", "rm", "wipe", "mail", "odd"}[a.rnd.IntN(6)],
		Replay: []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayHold}[a.rnd.IntN(3)],
	}
	if call.Name == "mail" {
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(ctx, 20*time.Millisecond)
		defer stop()
	}
	key := schema.CallKey{Turn: turn.Number(), ToolCallID: call.ID, Occurrence: 1}
	run1 := func() { a.ran[call.Name]++ }
	if a.rnd.IntN(3) > 0 && !run.Head().TurnAnswered {
		a.count(func() error {
			_, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.CallPart(call.ID, call.Name)), Calls: []publisher.ToolCall{call}})
			return err
		}())
	}
	for range 1 + a.rnd.IntN(4) {
		switch a.rnd.IntN(9) {
		case 0:
			_, err := turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
				run1()
				return gone, nil
			})
			a.count(err)
		case 1: // as it should be
			_, err := turn.Call(ctx, call)
			if a.count(err); err == nil {
				run1()
				a.count(turn.Return(ctx, key, gone))
			}
		case 2: // errors are ignored
			_, err := turn.Call(ctx, call)
			a.count(err)
			a.count(turn.Return(ctx, key, gone))
		case 3:
			if err := turn.Begin(ctx, key); err == nil {
				run1()
				a.count(turn.Return(ctx, key, gone))
			}
		case 4:
			a.count(turn.Return(ctx, key, gone))
		case 5:
			a.count(run.Publish(ctx, &schema.ToolCalledData{ToolCallID: call.ID, Name: call.Name, Replay: call.Replay, Requested: a.rnd.IntN(2) == 0}, key.Turn))
			a.count(run.Publish(ctx, &schema.ToolReturnedData{ToolCallID: call.ID, Result: []byte(gone.Result)}, key.Turn))
		case 6:
			decision := []string{schema.DecisionAllow, schema.DecisionDeny, schema.DecisionAsk}[a.rnd.IntN(3)]
			a.count(run.Publish(ctx, &schema.ToolDecidedData{
				ToolCallID: call.ID, Decision: decision, Policy: []string{"inside", schema.BeginPolicy, ""}[a.rnd.IntN(3)], Mode: []string{"", schema.ModeObserve}[a.rnd.IntN(2)],
			}, key.Turn))
			a.count(turn.Return(ctx, key, gone))
		case 7:
			how := []schema.Settlement{schema.SettledVerified, schema.SettledAdopted, schema.SettledDecided, schema.SettledRerun}[a.rnd.IntN(4)]
			a.count(run.Publish(ctx, &schema.ToolSettledData{ToolCallID: call.ID, How: how, Result: []byte(gone.Result)}, key.Turn))
		}
	}
}

// count counts a refusal.
func (a *sloppyAgent) count(err error) {
	if errors.Is(err, publisher.ErrNotAllowed) {
		a.refused++
	}
}
