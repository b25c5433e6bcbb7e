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

// Agents whose models ask for whatever they like, whose tools fail at random, and whose executors leave at random moments: each comes to
// its limit, and ends through the completion tool with a summary.
func TestLoop_RandomAgentsUnderALimit_EndThroughTheCompletionTool(t *testing.T) {
	t.Parallel()
	agents := 1000
	if testing.Short() {
		t.Log("short: 40 agents instead of 1,000")
		agents = 40
	}
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	var group errgroup.Group
	group.SetLimit(16)
	var left atomic.Int64
	for i := range agents {
		group.Go(func() error {
			id := fmt.Sprint("r", i)
			n, asked, err := randomAgent(t.Context(), f, id, rand.New(rand.NewPCG(uint64(i), 1))) //nolint:gosec // a test's
			left.Add(int64(n))
			if err != nil {
				return fmt.Errorf("run %s: %w", id, err)
			}
			s, err := f.Get(t.Context(), id)
			switch {
			case err != nil:
				return fmt.Errorf("run %s: %w", id, err)
			case s.Head.Status != schema.StatusCompleted || s.Head.CompletedBy != "end" || s.Head.Limit == "" || s.Head.Summary != "So far it came." || string(s.Ended.Output) != `"so far"`:
				return fmt.Errorf("run %s ended as %s, by %q, limit %q, summary %q, output %s", id, s.Head.Status, s.Head.CompletedBy, s.Head.Limit, s.Head.Summary, s.Ended.Output)
			case len(asked) > len(s.Turns)+n:
				return fmt.Errorf("run %s: the model was asked %d times for %d turns, and the executor left %d times", id, len(asked), len(s.Turns), n)
			}
			if err := shownOtherwise(asked, s); err != nil {
				return fmt.Errorf("run %s: %w", id, err)
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Positive(t, left.Load(), "no executor left in the middle")
	t.Logf("%d agents, left %d times", agents, left.Load())
}

// randomAgent works on a run until it has ended, and returns how often an executor left it in the middle, and what the model was asked.
func randomAgent(ctx context.Context, f *publisher.Fleet, id string, rnd *rand.Rand) (left int, asked []publisher.ModelRequest, err error) {
	leaves := errors.New("the executor leaves")
	var leave context.CancelCauseFunc
	at := 1 + rnd.IntN(12)
	step := func() {
		if at--; at == 0 {
			leave(leaves)
		}
	}
	names := []string{"look", "put", "submit", "fly"}
	model := func(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		asked = append(asked, request)
		step()
		answer := publisher.Answer{Usage: &schema.Usage{InputTokens: 100, OutputTokens: int64(rnd.IntN(100))}}
		if request.Limit != "" {
			answer.Message = assistant(schema.Text("So far it came."))
			answer.Calls = []publisher.ToolCall{call("end", "submit", `{"result":"so far"}`)}
			return answer, nil
		}
		for i := range 1 + rnd.IntN(3) {
			answer.Calls = append(answer.Calls, call(fmt.Sprint("c", i), names[rnd.IntN(len(names))], []string{`{"at":1}`, `{}`, `{"result":""}`, `{"at":`}[rnd.IntN(4)]))
		}
		return answer, nil
	}
	tool := func(name string, replay schema.Replay) publisher.Tool {
		return publisher.NewTool(name, "", replay, func(ctx context.Context, in place) (string, error) {
			if step(); ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			if rnd.IntN(4) == 0 {
				return "", errors.New("it does not work")
			}
			return fmt.Sprint(in.At), nil
		})
	}
	loop := publisher.Loop{
		Model: model, Tools: []publisher.Tool{tool("look", publisher.Pure), tool("put", publisher.Idempotent), submit()}, Complete: "submit", Parallel: 1,
	}
	if rnd.IntN(2) == 0 {
		loop.MaxTurns = 1 + rnd.Int32N(8)
	} else {
		loop.MaxTokens = 1 + rnd.Int64N(800)
	}
	run, err := f.Start(ctx, publisher.RunSpec{ID: id, Task: "write it"})
	for err == nil {
		var working context.Context
		working, leave = context.WithCancelCause(ctx)
		err = loop.Work(working, run)
		leave(nil)
		if err == nil || !errors.Is(err, leaves) && !errors.Is(err, context.Canceled) {
			return left, asked, err
		}
		left++
		at = 1 + rnd.IntN(12)
		resume, cancel := context.WithTimeout(ctx, time.Minute)
		run, err = f.Resume(resume, id, publisher.ResumeSpec{})
		cancel()
	}
	return left, asked, err
}
