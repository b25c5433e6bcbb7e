//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// returnsWithin is how soon everything works again once the fault is over (FAULTS, P10).
const returnsWithin = time.Minute

// witness is a client that keeps publishing while no server answers, and requires every call to return in time with
// an error.
type witness struct {
	fleet   *publisher.Fleet
	run     *publisher.Run
	timeout time.Duration
	mu      sync.Mutex
	// errors by call and kind, and the slowest call.
	errors  map[string]int
	slowest time.Duration
	wrong   []string
}

// call makes one call that cannot work, and checks its result.
func (w *witness) call(ctx context.Context, what string, do func(ctx context.Context) error) {
	begun := time.Now()
	err := do(ctx)
	took := time.Since(begun)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slowest = max(w.slowest, took)
	said := "?"
	for name, is := range map[string]error{
		"ErrUnresolved": publisher.ErrUnresolved, "ErrUnavailable": publisher.ErrUnavailable, "ErrNoService": publisher.ErrNoService,
	} {
		if errors.Is(err, is) {
			said = name
		}
	}
	if said == "?" || took > 6*w.timeout {
		w.wrong = append(w.wrong, fmt.Sprintf("%s: %v after %s", what, err, took))
	}
	w.errors[what+": "+said]++
}

// calls makes one call after the other until ctx ends.
func (w *witness) calls(ctx context.Context) {
	ended := func() bool { return ctx.Err() != nil }
	free := context.WithoutCancel(ctx) // a call in progress returns by its own deadline
	for n := 0; !ended(); n++ {
		w.call(free, "an event", func(ctx context.Context) error {
			return w.run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("is a server there?")}})
		})
		if ended() {
			return
		}
		w.call(free, "a start", func(ctx context.Context) error {
			_, err := w.fleet.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("never-%d", n), Task: "nothing"})
			return err
		})
		if ended() {
			return
		}
		w.call(free, "a takeover", func(ctx context.Context) error {
			_, err := w.fleet.Resume(ctx, w.run.ID(), publisher.ResumeSpec{})
			return err
		})
		if ended() {
			return
		}
		w.call(free, "a read", func(ctx context.Context) error {
			_, err := w.fleet.Head(ctx, w.run.ID())
			return err
		})
	}
}

// It kills all servers and starts them again ten minutes later, or after WAYMARK_CHAOS_AWAY. Calls during that time
// return an error, no process dies or grows, and everything works again without help.
func TestOutage_AllServersTenMinutes_EverythingReturns(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	away := 10 * time.Minute
	if text := os.Getenv("WAYMARK_CHAOS_AWAY"); text != "" {
		var err error
		away, err = time.ParseDuration(text)
		require.NoError(t, err, "WAYMARK_CHAOS_AWAY")
	} else if !testbin.Full(t) {
		t.Skip(`sample: it takes ten minutes: run make chaos CHAOSFLAGS="-run TenMinutes"`)
	}
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			t.Parallel()                                                                             // it mostly waits
			if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(servers) { //nolint:gosec // 1 or 3
				t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, servers)
			}
			serversAway(t, servers, away)
		})
	}
}

func serversAway(t *testing.T, servers int, away time.Duration) {
	t.Helper()
	s := scaleOf(servers)
	s.metrics = true
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	w := &witness{timeout: s.timeout, errors: make(map[string]int), fleet: r.world.fleet("witness", 0, s.timeout)}
	r.eventually("the witness cannot begin", func() (err error) {
		w.run, err = w.fleet.Start(t.Context(), publisher.RunSpec{ID: "witness", Task: "wait"})
		return err
	})
	clients := slices.Concat(r.daemons, r.executors)
	before := r.take(t, clients)
	starts := make(map[string]int)
	for _, p := range clients {
		starts[p.name] = p.starts
	}

	op := r.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "all servers away for " + away.String()})
	hit := struck{Fault: "servers-away-" + away.String(), Servers: servers, Seed: r.seed, begin: op.Start}
	for _, n := range r.nodes {
		require.NoError(t, n.kill())
	}
	ctx, cancel := context.WithTimeout(t.Context(), away)
	defer cancel()
	var calls sync.WaitGroup
	calls.Go(func() { w.calls(ctx) })
	most := make(map[string]map[string]float64)
	for of, figures := range before {
		most[of] = maps.Clone(figures)
	}
	for every := time.NewTicker(5 * time.Second); ctx.Err() == nil; {
		select {
		case <-every.C:
			for of, now := range r.take(t, clients) {
				for figure, value := range now {
					most[of][figure] = max(most[of][figure], value)
				}
			}
		case <-ctx.Done():
			every.Stop()
		}
	}
	calls.Wait()
	// No process ended: every process recovers without help.
	for _, p := range clients {
		require.True(t, p.running() && p.starts == starts[p.name], "%s did not live through it", p.name)
	}
	require.NoError(t, r.heal())
	healed := r.record.Now()
	r.record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	r.calm()
	hit.CaughtUp = (r.record.Now() - healed) / int64(time.Millisecond)
	hit.end = r.record.Now()
	r.struck = append(r.struck, hit)
	r.eventually("the witness cannot go on", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), s.timeout)
		defer cancel()
		if err := w.run.Resolve(ctx); err != nil {
			return err
		}
		return w.run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("there you are")}})
	})
	require.Empty(t, w.wrong, "calls that came back otherwise than promised")
	require.Greater(t, len(w.errors), 3, "%v", w.errors)

	h, err := r.read()
	require.NoError(t, err)
	boundary, recovery := firstAfter(h, healed)
	t.Logf("%d servers, away for %s: the first boundary came %s after the servers were there, the first recovery %s; all had caught up in %d ms; calls during that: %v, the slowest took %s",
		servers, away, boundary, recovery, hit.CaughtUp, w.errors, w.slowest.Round(time.Millisecond))
	require.Less(t, boundary, returnsWithin)
	require.Less(t, recovery, returnsWithin)
	require.Less(t, hit.CaughtUp, returnsWithin.Milliseconds(), "everything works again within a minute")
	r.grown(t, before, most)
	r.judge()
}

// take is the resource usage of some processes.
func (w *world) take(t *testing.T, list []*process) map[string]map[string]float64 {
	t.Helper()
	all := make(map[string]map[string]float64)
	for _, p := range list {
		figures, err := p.takes(t.Context())
		require.NoError(t, err, p.name)
		all[p.name] = figures
	}
	return all
}

// grown fails if a process grew more while the servers were away than work alone explains, and logs the usage of
// each.
func (w *world) grown(t *testing.T, before, most map[string]map[string]float64) {
	t.Helper()
	for of := range before {
		t.Logf("%s: %.0f goroutines before, %.0f at most; %.1f MiB resident before, %.1f at most; %.1f MiB of heap in use before, %.1f at most; %.0f open files before, %.0f at most",
			of, before[of][goroutines], most[of][goroutines], before[of][resident]/(1<<20), most[of][resident]/(1<<20),
			before[of][heapInUse]/(1<<20), most[of][heapInUse]/(1<<20), before[of][openFiles], most[of][openFiles])
		require.LessOrEqual(t, most[of][goroutines], 1.5*before[of][goroutines]+20, "goroutines of %s", of)
		// nats.go leaves each connection that was accepted and closed again, as the proxies here do it, to the garbage collector, which
		// comes every two minutes: that many attempts are 20 a second at most.
		require.LessOrEqual(t, most[of][openFiles], before[of][openFiles]+2500, "open files of %s", of)
		require.LessOrEqual(t, most[of][resident], 1.5*before[of][resident]+32*(1<<20), "memory of %s", of)
	}
}

// firstAfter is how long after a moment the first boundary, and the first recovery, succeeded.
func firstAfter(h *checker.History, moment int64) (boundary, recovery time.Duration) {
	boundary, recovery = 1<<62, 1<<62
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Outcome != checker.OK || op.End < moment {
			continue
		}
		after := time.Duration(op.End - moment)
		switch {
		case op.Kind == checker.Publish && op.Actor != "prober":
			boundary = min(boundary, after)
		case op.Kind == checker.Takeover && op.Actor == "prober":
			recovery = min(recovery, after)
		}
	}
	return boundary, recovery
}
