package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// fleetSize is the size of the fleet and its faults.
type fleetSize struct {
	workers, runs, kills int
	// pause is how long a tool takes at the median, in milliseconds.
	pause int64
	flags []string
}

// killEvery is the time between two kills.
const killEvery = 2 * time.Second

func TestFleet_ExecutorsKilled_EveryRunEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	size := fleetSize{workers: 8, runs: 60, kills: 4, pause: 1200, flags: shortSilence}
	if testbin.Full(t) {
		size = fleetSize{workers: 100, runs: 1000, kills: 30, pause: 7000}
	} else {
		t.Logf("%d executors, %d runs, %d kills; WAYMARK_E2E_FULL=1 does 100, 1,000 and 30", size.workers, size.runs, size.kills)
	}
	w := newWorld(t, size.flags...)
	w.shop(t)
	s := &siege{world: w, rnd: random(t), size: size, reader: journal.NewReader(w.journal()), done: make(map[string]bool)}
	var err error
	s.witness, err = journal.OpenUnsynced(w.journal(), time.Now)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.witness.Close()) })
	fleet := w.fleet(t, "person")
	s.start(t)
	begun := time.Now()
	s.kill(t)
	s.settleUntilAllHaveEnded(t, fleet)
	t.Logf("%d runs of %d executors ended %s after the first kill could come", size.runs, size.workers, time.Since(begun).Round(time.Second))
	s.prove(t, fleet)
}

// siege kills the executors of a fleet, and checks what becomes of its runs.
type siege struct {
	world   *world
	rnd     *rand.Rand
	size    fleetSize
	witness *journal.Writer
	reader  *journal.Reader
	history []journal.Entry
	workers []*child
	runs    []string
	done    map[string]bool
	// settled by the person: calls that were held.
	settled int
}

// calls of every turn: one of each policy.
func (s *siege) settings(name string, start []string) workerSettings {
	call := func(policy schema.Replay) workerCall {
		return workerCall{ID: "tool-" + string(policy), Replay: policy, Before: s.size.pause / 2, After: s.size.pause / 2}
	}
	return workerSettings{
		Name: name, Start: start, Turns: 2, Capacity: max(10, 3*s.size.runs/s.size.workers),
		Calls: []workerCall{
			call(schema.ReplayHold), call(schema.ReplayPure), call(schema.ReplayVerify), call(schema.ReplayIdempotent),
		},
	}
}

// start starts the executors, each with its share of the runs, and waits until all runs are begun.
func (s *siege) start(t *testing.T) {
	t.Helper()
	for i := range s.size.workers {
		var mine []string
		for r := i; r < s.size.runs; r += s.size.workers {
			mine = append(mine, fmt.Sprintf("run-%04d", r))
		}
		s.runs = append(s.runs, mine...)
		s.workers = append(s.workers, s.world.worker(t, s.settings(fmt.Sprintf("worker-%d", i), mine)))
	}
	for _, c := range s.workers {
		c.ready(t)
	}
	begun := make(map[string]bool)
	require.Eventually(t, func() bool {
		for _, e := range s.look(t) {
			begun[e.Run] = true
		}
		s.alive(t)
		return len(begun) == len(s.runs)
	}, 2*patience, 50*time.Millisecond, "the runs are never begun")
}

// look reads the new entries since the last time.
func (s *siege) look(t *testing.T) []journal.Entry {
	t.Helper()
	entries, err := s.reader.Next()
	require.NoError(t, err)
	s.history = append(s.history, entries...)
	for _, e := range entries {
		switch e.Op {
		case journal.Done:
			s.done[e.Run] = true
		case journal.Failed:
			t.Logf("run %s in process %d: %s", e.Run, e.PID, e.Note)
		}
	}
	return entries
}

// alive fails when an executor ended by itself.
func (s *siege) alive(t *testing.T) {
	t.Helper()
	for _, c := range s.workers {
		select {
		case <-c.gone:
			require.Fail(t, "an executor ended by itself", "%s: %v: %s", c.name, c.err, c.log)
		default:
		}
	}
}

// kill kills one executor after the other and replaces each by a new process: in turns under the same name, and under
// another.
func (s *siege) kill(t *testing.T) {
	t.Helper()
	ticker := time.NewTicker(killEvery)
	defer ticker.Stop()
	for n := range s.size.kills {
		<-ticker.C
		s.look(t)
		s.alive(t)
		i := s.rnd.IntN(len(s.workers))
		victim := s.workers[i]
		require.NoError(t, s.witness.Write(journal.Entry{Op: journal.Killed, PIDOf: victim.cmd.Process.Pid, Name: victim.name}))
		victim.kill9(t)
		name := victim.name
		if n%2 == 1 {
			name = fmt.Sprintf("replacement-%d", n)
		}
		s.workers[i] = s.world.worker(t, s.settings(name, nil))
	}
}

// settleUntilAllHaveEnded is the person: it settles each held call, by the tool's own file, until every run has
// ended.
func (s *siege) settleUntilAllHaveEnded(t *testing.T, fleet *publisher.Fleet) {
	t.Helper()
	deadline := time.Now().Add(4 * patience)
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		s.look(t)
		s.alive(t)
		s.ended(t, fleet)
		if len(s.done) == len(s.runs) {
			return
		}
		if time.Now().After(deadline) {
			require.Fail(t, "runs do not end", "%s", s.open(t, fleet))
		}
		request := schema.ListRequest{Status: []schema.Status{schema.StatusWaiting}, Limit: schema.MaxList}
		for {
			page, err := fleet.List(t.Context(), request)
			require.NoError(t, err)
			for i := range page.Runs {
				s.settle(t, fleet, page.Runs[i].Run)
			}
			if page.Next == "" {
				break
			}
			request.After = page.Next
		}
		<-ticker.C
	}
}

// ended asks for the last runs whose end is not in the journal: an executor may be killed between the acknowledgement of the end
// and its own note of it.
func (s *siege) ended(t *testing.T, fleet *publisher.Fleet) {
	t.Helper()
	if len(s.runs)-len(s.done) > s.size.workers {
		return
	}
	for _, run := range s.runs {
		if s.done[run] {
			continue
		}
		head, err := fleet.Head(t.Context(), run)
		require.NoError(t, err, run)
		if head.Status.Terminal() {
			s.done[run] = true
		}
	}
}

// settle settles a run's waits.
func (s *siege) settle(t *testing.T, fleet *publisher.Fleet, run string) {
	t.Helper()
	head, err := fleet.Head(t.Context(), run)
	require.NoError(t, err)
	for _, held := range head.Interrupts {
		require.Equal(t, schema.WaitToolInDoubt, held.Reason)
		require.Equal(t, "tool-hold", held.ToolCallID, "nothing else is held")
		key := schema.CallKey{Turn: held.Turn, ToolCallID: held.ToolCallID, Occurrence: held.Occurrence}
		request := schema.SettleRequest{CallKey: key, How: schema.SettledRerun, By: "person"}
		if slices.ContainsFunc(s.history, func(e journal.Entry) bool {
			return e.Op == journal.Effect && e.Run == run && e.Call == callOf(key)
		}) {
			request.How = schema.SettledDecided
			request.Result, err = json.Marshal(toolResult(run, key))
			require.NoError(t, err)
		}
		// The decision is recorded before it is given: an executor may act on it at once.
		require.NoError(t, s.witness.Write(journal.Entry{
			Op: journal.Settled, Run: run, Call: callOf(key), Note: string(request.How),
		}))
		_, err := fleet.Settle(t.Context(), run, request)
		require.NoError(t, err, run)
		s.settled++
	}
}

// open lists the runs that have not ended, and their states.
func (s *siege) open(t *testing.T, fleet *publisher.Fleet) string {
	t.Helper()
	said := fmt.Sprintf("%d of %d ended;", len(s.done), len(s.runs))
	for _, run := range s.runs {
		if s.done[run] {
			continue
		}
		head, err := fleet.Head(t.Context(), run)
		if err != nil {
			return said + err.Error()
		}
		said += fmt.Sprintf(" %s: %s by %s, epoch %d, turn %d, %d claims without progress, open calls %v;",
			run, head.Status, head.Executor, head.Epoch, head.Turn, head.Stalled, head.OpenCalls)
	}
	return said
}

// prove looks at everything, once all have ended.
func (s *siege) prove(t *testing.T, fleet *publisher.Fleet) {
	t.Helper()
	recovered := make(map[string][]journal.Event)
	resumed := 0
	for _, run := range s.runs {
		events, err := player.ReadBack(t.Context(), fleet, run)
		require.NoError(t, err)
		recovered[run] = events
		state, err := fleet.Get(t.Context(), run)
		require.NoError(t, err)
		require.Equal(t, schema.StatusCompleted, state.Head.Status, run)
		require.Empty(t, state.Head.OpenCalls, run)
		require.Len(t, state.Calls, 8, run)
		for _, call := range state.Calls {
			want, err := json.Marshal(toolResult(run, call.CallKey))
			require.NoError(t, err)
			require.JSONEq(t, string(want), string(call.Result), "%s %v", run, call.CallKey)
		}
		resumed += int(state.Head.Counts.Resumes)
	}
	facts := journal.Check(s.history, recovered)
	effects := make(map[schema.Replay]map[string]int)
	for _, e := range s.history {
		if e.Op != journal.Effect {
			continue
		}
		policy := schema.Replay(e.Replay)
		if effects[policy] == nil {
			effects[policy] = make(map[string]int)
		}
		effects[policy][e.Run+" "+e.Call.String()]++
	}
	calls := 2 * len(s.runs)
	for policy, list := range effects {
		require.Len(t, list, calls, policy)
		again := 0
		for call, n := range list {
			if n > 1 {
				again += n - 1
			}
			if policy == schema.ReplayHold || policy == schema.ReplayVerify {
				require.Equal(t, 1, n, "%s: a tool with side effects has its effect once", call)
			}
		}
		t.Logf("%s: %d calls, %d effects more than one", policy, len(list), again)
	}
	toNew, toBoundary := s.recoveries()
	t.Logf("%d kills met %d runs; to the new executor p50 %s, p99 %s, max %s; to its first boundary p50 %s, p99 %s",
		s.size.kills, len(toNew), quantile(toNew, 50), quantile(toNew, 99), quantile(toNew, 100),
		quantile(toBoundary, 50), quantile(toBoundary, 99))
	t.Logf("the daemon reset the silence timers %d times", s.world.server.log.count("silence timers reset"))
	t.Logf("%d takeovers, %d calls held and settled by a person; %d boundaries acknowledged, %d lost; %d executions of %d calls, %d again validly, %d not",
		resumed, s.settled, facts.Acknowledged, facts.Lost, facts.Executions, facts.Calls, facts.Reruns, facts.Twice)
	require.Empty(t, facts.Problems)
	require.GreaterOrEqual(t, len(toNew), s.size.kills, "too few kills hit an active run for the test to mean something")
	require.Zero(t, s.world.deadLetters(t))
}

// recoveries are the times from a kill to the takeover of each active run of the killed executor, and to the first
// boundary after it, in rising order.
func (s *siege) recoveries() (toNew, toBoundary []time.Duration) {
	owner := make(map[string]int)
	killed := make(map[string]int64) // runs without an executor, and since when
	taken := make(map[string]int64)
	for _, e := range s.history {
		switch e.Op {
		case journal.Killed:
			for run, pid := range owner {
				if pid == e.PIDOf {
					killed[run] = e.At
					delete(owner, run)
				}
			}
			continue
		case journal.Done:
			delete(owner, e.Run)
			continue
		case journal.Resumed:
			owner[e.Run] = e.PID
			if since, ok := killed[e.Run]; ok {
				toNew = append(toNew, time.Duration(e.At-since))
				taken[e.Run] = since
				delete(killed, e.Run)
			}
			continue
		case journal.Held:
			delete(taken, e.Run) // a person's time does not count
			delete(owner, e.Run)
			continue
		case journal.Ack:
			owner[e.Run] = e.PID
		case journal.Begin:
		default:
			continue
		}
		// The settlement that lets the tool run again is also durable.
		if since, ok := taken[e.Run]; ok {
			toBoundary = append(toBoundary, time.Duration(e.At-since))
			delete(taken, e.Run)
		}
	}
	slices.Sort(toNew)
	slices.Sort(toBoundary)
	return toNew, toBoundary
}

// quantile returns the nth percentile of sorted times.
func quantile(list []time.Duration, nth int) time.Duration {
	if len(list) == 0 {
		return 0
	}
	value := list[min(len(list)-1, len(list)*nth/100)]
	if value < time.Second {
		return value.Round(10 * time.Microsecond)
	}
	return value.Round(time.Millisecond)
}
