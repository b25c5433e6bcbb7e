package mutant_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// A message wakes two runs before their time: one sleeps, the provider of the other has named a time. Without a mistake
// both wait on, as before.
func TestTimers_Mistakes_AreFound(t *testing.T) {
	eachMistake(t, woken, map[string]string{
		"retry-asked-early": "the provider is asked before the time that it named",
		"timer-set-again":   "the wait begins again",
	})
}

// woken returns what is wrong with the runs after the message.
func woken(t *testing.T) (wrong []string) {
	t.Helper()
	w := waymarktest.Start(t)
	var asked atomic.Int64
	e := w.Serve("ex-1", publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{"loop": {Model: func(context.Context, publisher.ModelRequest) (publisher.Answer, error) {
			asked.Add(1)
			return publisher.Answer{}, publisher.RetryAt(errors.New("429"), time.Now().Add(time.Hour))
		}}},
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"sleeper": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(ctx context.Context, run *publisher.Run) error {
					return run.Sleep(ctx, "night", time.Now().Add(time.Hour))
				}, nil
			},
		},
	}, nil)
	before := map[string]schema.Position{}
	for _, agent := range []string{"loop", "sleeper"} {
		_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: agent, Agent: agent, Task: "Go."})
		require.NoError(t, err)
		w.Await(agent, schema.StatusWaiting)
		require.Eventually(t, func() bool { return w.State(agent).Head.Unattended != "" }, time.Minute, time.Millisecond)
		before[agent] = w.State(agent).Head.Interrupts[0].Position
		require.NoError(t, e.Fleet().Signal(t.Context(), agent, publisher.SignalSpec{Name: "hello"}))
		require.Eventually(t, func() bool {
			s := w.State(agent)
			return len(s.Takeovers) >= 2 && s.Head.Unattended != ""
		}, time.Minute, time.Millisecond)
	}
	if asked.Load() > 1 {
		wrong = append(wrong, "the provider is asked before the time that it named")
	}
	if w.State("sleeper").Head.Interrupts[0].Position != before["sleeper"] {
		wrong = append(wrong, "the wait begins again")
	}
	return wrong
}
