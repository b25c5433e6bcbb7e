package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// shortSilence makes executors count as dead sooner than by default, so that tests which wait for it stay short.
var shortSilence = []string{"--silence", "4s"}

// never is a tool's pause that no test waits for, in milliseconds.
const never = 3_600_000

// window is a moment at which the executor is killed.
type window struct {
	name string
	// op is the last entry of the tool before the kill.
	op            string
	before, after int64
}

var windows = []window{
	{name: "before", op: journal.Begin, before: never},
	{name: "after", op: journal.Effect, after: never},
}

// policyCase is the expected result of one policy in one window.
type policyCase struct {
	policy schema.Replay
	window window
	// begins and effects in sum, and how the call was settled; empty for one that need not be.
	begins, effects int
	settled         schema.Settlement
	// held calls wait for a person, who settles them as above.
	held bool
}

func (c policyCase) run() string { return fmt.Sprintf("%s-%s", c.policy, c.window.name) }

func TestPolicies_BothCrashWindows_Respected(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	before, after := windows[0], windows[1]
	cases := []policyCase{
		{schema.ReplayPure, before, 2, 1, "", false},
		{schema.ReplayPure, after, 2, 2, "", false},
		{schema.ReplayIdempotent, before, 2, 1, "", false},
		{schema.ReplayIdempotent, after, 2, 2, "", false},
		{schema.ReplayVerify, before, 2, 1, schema.SettledRerun, false},
		{schema.ReplayVerify, after, 1, 1, schema.SettledVerified, false},
		{schema.ReplayHold, before, 2, 1, schema.SettledRerun, true},
		{schema.ReplayHold, after, 1, 1, schema.SettledDecided, true},
	}
	w := newWorld(t, shortSilence...)
	w.shop(t)
	var victims []*child
	for _, c := range cases {
		victims = append(victims, w.worker(t, workerSettings{
			Name: "victim-" + c.run(), Start: []string{c.run()}, Turns: 1, Capacity: 1,
			Calls: []workerCall{{ID: "tool", Replay: c.policy, Before: c.window.before, After: c.window.after}},
		}))
	}
	for i, c := range cases {
		w.awaitEntry(t, c.run(), c.window.op)
		victims[i].kill9(t)
	}
	// The next executor knows the policies by the record alone, and its tools do not hesitate.
	successor := workerSettings{Name: "successor", Turns: 1, Capacity: len(cases), Calls: []workerCall{{ID: "tool"}}}
	w.worker(t, successor)
	fleet := w.fleet(t, "person")
	for _, c := range cases {
		t.Run(c.run(), func(t *testing.T) {
			key := schema.CallKey{Turn: 1, ToolCallID: "tool", Occurrence: 1}
			if c.held {
				awaitStatus(t, fleet, c.run(), schema.StatusWaiting)
				head, err := fleet.Head(t.Context(), c.run())
				require.NoError(t, err)
				require.Len(t, head.Interrupts, 1)
				require.Equal(t, schema.WaitToolInDoubt, head.Interrupts[0].Reason)
				require.Equal(t, key.ToolCallID, head.Interrupts[0].ToolCallID, "the name on it")
				require.True(t, head.OpenCalls[0].Held)
				require.Equal(t, 1, w.count(t, c.run(), journal.Begin), "it was not run again")
				w.settle(t, fleet, c.run(), key, c.settled)
			}
			awaitStatus(t, fleet, c.run(), schema.StatusCompleted)
			state, err := fleet.Get(t.Context(), c.run())
			require.NoError(t, err)
			require.Len(t, state.Calls, 1)
			settled := []schema.Settlement(nil)
			if c.settled != "" {
				settled = []schema.Settlement{c.settled}
			}
			require.Equal(t, settled, state.Calls[0].Settlements)
			want, err := json.Marshal(toolResult(c.run(), key))
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(state.Calls[0].Result))
			require.Equal(t, c.begins, w.count(t, c.run(), journal.Begin), "executions that were begun")
			require.Equal(t, c.effects, w.count(t, c.run(), journal.Effect), "effects on the world outside")
			for _, e := range w.history(t) {
				if e.Run == c.run() && e.Op == journal.Begin {
					require.Equal(t, key.IdempotencyKey(c.run()), e.Note, "every execution has the same key")
				}
			}
		})
	}
	require.Zero(t, w.deadLetters(t))
}

// settle is a person's decision about a call in doubt.
func (w *world) settle(t *testing.T, fleet *publisher.Fleet, run string, key schema.CallKey, how schema.Settlement) {
	t.Helper()
	request := schema.SettleRequest{CallKey: key, How: how, By: "person"}
	if how == schema.SettledDecided {
		var err error
		request.Result, err = json.Marshal(toolResult(run, key))
		require.NoError(t, err)
	}
	_, err := fleet.Settle(t.Context(), run, request)
	require.NoError(t, err)
}

// history is the journal so far.
func (w *world) history(t *testing.T) []journal.Entry {
	t.Helper()
	entries, err := journal.Read(w.journal())
	require.NoError(t, err)
	return entries
}

// count counts entries about a run.
func (w *world) count(t *testing.T, run, op string) int {
	t.Helper()
	n := 0
	for _, e := range w.history(t) {
		if e.Run == run && e.Op == op {
			n++
		}
	}
	return n
}

// awaitEntry waits until there is an entry about a run.
func (w *world) awaitEntry(t *testing.T, run, op string) {
	t.Helper()
	require.Eventually(t, func() bool { return w.count(t, run, op) > 0 }, patience, 20*time.Millisecond, "run %s: no entry %s", run, op)
}

// awaitStatus waits until a run has a status.
func awaitStatus(t *testing.T, fleet *publisher.Fleet, run string, status schema.Status) {
	t.Helper()
	var head schema.Head
	require.Eventually(t, func() bool {
		var err error
		head, err = fleet.Head(t.Context(), run)
		return err == nil && head.Status == status
	}, patience, 50*time.Millisecond, "run %s never becomes %s", run, status)
}
