package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// loadedMemoryAim is what a daemon may hold resident with a million runs stored, in bytes; readyAim is how long a
	// daemon of that store may take to start, in s.
	loadedMemoryAim = 256 << 20
	readyAim        = 2
	// flatAim is by how much a store of a million runs may be slower than one of a thousand.
	flatAim = 1.5
	// millionSilence is that of the executors, none of whom exists: their runs are orphaned and can be claimed.
	millionSilence = 5 * time.Second
	// foldWait bounds the fold of the store, and orphanWait the time until all runs are orphaned.
	foldWait   = 6 * time.Hour
	orphanWait = 10 * time.Minute
	// millionPage is the size of a page.
	millionPage = 100
	// millionVerified is the number of ended runs that are read back.
	millionVerified = 200
)

// millionCase compares a store of many runs with a small one.
func millionCase() Case {
	return Case{
		Name: "million",
		About: "A store of a million runs compared with one of a thousand: a daemon's start and memory, recovery, claims, and lists by page, status, " +
			"agent, label and age. It takes about 10 GB of disk and, on two cores, a quarter of an hour.",
		Uses:  []string{"runs", "shards"},
		Named: true,
		Variants: func(o Options) []Variant {
			few := new(million) // the figures that the large store is compared with
			variant := func(runs, live int) Variant {
				return Variant{
					Parameters: map[string]any{"live": live, "runs": runs},
					World: func(s *WorldSpec) {
						s.Daemons, s.Silence = 1, millionSilence
						if s.Server == Embedded {
							s.Server = OwnProcess
						}
						if s.Sync == "" {
							s.Sync = SyncDefault // a million segments would each wait for the disk
						}
					},
					Setup: func(ctx context.Context, w *World) (*Trial, error) {
						t := &million{w: w, few: few, latencies: make(map[string][]time.Duration)}
						t.cfg = loadgen.Config{Fleet: FleetName, Runs: runs, Live: live, Began: o.Now().Add(-time.Duration(runs) * time.Second)}
						return t.trial(ctx)
					},
				}
			}
			runs := o.Pick(o.Runs, 1_000_000, 400)
			small := o.Pick(0, 1000, 100)
			return []Variant{variant(small, small/3), variant(runs, max(runs/100, min(runs/3, small/3)))}
		},
	}
}

// million is one variant.
type million struct {
	w *World
	// few is the variant with few runs.
	few *million
	cfg loadgen.Config
	// reader asks, and claimer claims.
	reader, claimer *publisher.Fleet
	// ready is how long the daemon took, and at what the size of the process was then.
	ready time.Duration
	idle  *float64
	// half is when the first half of the runs was stored, and deep is the place in the list of all behind nine tenths of them.
	half time.Time
	deep string
	// all is how long a list of all runs took.
	all       time.Duration
	latencies map[string][]time.Duration
	headP50   *float64
	claimP50  *float64
}

// trial fills the store, then restarts the daemon on it.
func (t *million) trial(ctx context.Context) (*Trial, error) {
	w := t.w
	if err := t.fill(ctx); err != nil {
		return nil, err
	}
	// The daemon that folded them has held them; what counts is one that finds them there.
	if err := w.StopDaemons(); err != nil {
		return nil, err
	}
	began := time.Now()
	if err := w.StartDaemon(ctx); err != nil {
		return nil, err
	}
	t.ready = time.Since(began)
	if err := w.AwaitLeaders(ctx); err != nil {
		return nil, err
	}
	_, u, err := w.daemons[len(w.daemons)-1].tell()
	if err != nil {
		return nil, err
	}
	t.idle = u.Resident
	if t.reader, err = w.Fleet(ctx, "reader", func(c *publisher.Config) { c.Heartbeat = -1 }); err != nil {
		return nil, err
	}
	if t.claimer, err = w.Fleet(ctx, "claimer", func(c *publisher.Config) { c.Agent = "" }); err != nil {
		return nil, err
	}
	// No executor drives the running runs: they are orphaned before the measurement, so that no other work disturbs it.
	if err := w.Await(ctx, orphanWait, "the runs without an executor to be orphaned", func() (bool, error) {
		page, err := t.reader.List(ctx, schema.ListRequest{Status: []schema.Status{schema.StatusRunning}, Limit: 1})
		return err == nil && len(page.Runs) == 0, err
	}); err != nil {
		return nil, err
	}
	if err := t.listAll(ctx); err != nil {
		return nil, err
	}
	return &Trial{
		Ours:   t.round,
		Verify: t.verify,
		Finish: t.finish,
	}, nil
}

// fill publishes the runs and waits until they are folded.
func (t *million) fill(ctx context.Context) error {
	var mu sync.Mutex
	there := 0
	count := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		if there += n; there >= t.cfg.Runs/2 && t.half.IsZero() {
			t.half = time.Now()
		}
	}
	if err := loadgen.Fill(ctx, t.w.JS, t.cfg, loadgen.Progress{Found: count, Published: count}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, foldWait, fmt.Errorf("waited %s for the fold", foldWait))
	defer cancel()
	return loadgen.AwaitFolded(ctx, t.w.JS, FleetName, loadgen.Progress{Folded: func(behind uint64) {
		t.w.Options.Progress(fmt.Sprintf("million: %d events to fold", behind))
	}})
}

// listAll pages through all runs: each is there once.
func (t *million) listAll(ctx context.Context) error {
	seen := make([]bool, t.cfg.Runs)
	request := schema.ListRequest{Limit: schema.MaxList}
	count := 0
	began := time.Now()
	for {
		page, err := t.reader.List(ctx, request)
		if err != nil {
			return err
		}
		if page.Incomplete {
			return errors.New("the index of runs is not complete")
		}
		for i := range page.Runs {
			var n int
			if _, err := fmt.Sscanf(page.Runs[i].Run, "gen-%d", &n); err != nil || n >= len(seen) || seen[n] {
				return &WrongDataError{Run: page.Runs[i].Run, Field: "place in the list", Wrote: "one", Read: "none of its own"}
			}
			seen[n] = true
		}
		if count += len(page.Runs); count < t.cfg.Runs*9/10 {
			t.deep = page.Next
		}
		if page.Next == "" {
			break
		}
		request.After = page.Next
	}
	t.all = time.Since(began)
	if n := slices.Index(seen, false); n >= 0 {
		return &WrongDataError{Run: loadgen.RunID(n), Field: "place in the list", Wrote: "one", Read: "none"}
	}
	return nil
}

// lists are what is listed, by name.
func (t *million) lists() map[string]schema.ListRequest {
	return map[string]schema.ListRequest{
		"first":  {},
		"deep":   {After: t.deep},
		"live":   {Status: []schema.Status{schema.StatusOrphaned, schema.StatusWaiting}},
		"failed": {Status: []schema.Status{schema.StatusFailed}},
		"agent":  {Agent: "agent-3"},
		"rare":   {Agent: "rare"},
		"label":  {Labels: map[string]string{"team": "team-7"}},
		"age":    {Status: []schema.Status{schema.StatusCompleted}, Until: schema.FormatTime(t.half)},
	}
}

// round recovers runs from all over the store, lists, and claims.
func (t *million) round(ctx context.Context, round int) (Sample, error) {
	o := t.w.Options
	random := rand.New(rand.NewPCG(uint64(round), 1)) //nolint:gosec // not a secret
	var heads Clock
	began := time.Now()
	for range o.Pick(0, 100, 3) {
		run := loadgen.RunID(random.IntN(t.cfg.Runs))
		if err := heads.Time(ctx, func(ctx context.Context) error {
			head, err := t.reader.Head(ctx, run)
			if err == nil && head.Run != run {
				err = &WrongDataError{Run: run, Field: "run", Wrote: run, Read: head.Run}
			}
			return err
		}); err != nil {
			return Sample{}, err
		}
	}
	sample := Sample{Boundaries: int64(len(heads.Latencies)), Elapsed: time.Since(began), Latencies: heads.Latencies}
	for _, name := range sortedKeys(t.lists()) {
		if err := t.list(ctx, name, o.Pick(0, 10, 1)); err != nil {
			return Sample{}, fmt.Errorf("list %s: %w", name, err)
		}
	}
	var claims Clock
	for range o.Pick(0, 20, 2) {
		if err := claims.Time(ctx, func(ctx context.Context) error {
			_, err := t.claimer.Claim(ctx, publisher.ClaimSpec{})
			return err
		}); err != nil {
			return Sample{}, fmt.Errorf("claim: %w", err)
		}
	}
	t.latencies["claim"] = append(t.latencies["claim"], claims.Latencies...)
	return sample, nil
}

// list asks some times for a page, and sees that it has what was asked for.
func (t *million) list(ctx context.Context, name string, times int) error {
	request := t.lists()[name]
	request.Limit = millionPage
	var c Clock
	for range times {
		var page *schema.ListReply
		if err := c.Time(ctx, func(ctx context.Context) (err error) {
			page, err = t.reader.List(ctx, request)
			return err
		}); err != nil {
			return err
		}
		if len(page.Runs) == 0 && name != "rare" {
			return errors.New("it is empty")
		}
		for i := range page.Runs {
			r := &page.Runs[i]
			if request.Agent != "" && r.Agent != request.Agent || len(request.Status) > 0 && !slices.Contains(request.Status, r.Status) ||
				request.Labels != nil && r.Labels["team"] != request.Labels["team"] {
				return &WrongDataError{Run: r.Run, Field: "line in a list", Wrote: "what was not asked for", Read: name}
			}
		}
	}
	t.latencies["list_"+name] = append(t.latencies["list_"+name], c.Latencies...)
	return nil
}

// verify reads ended runs back, from all over the store.
func (t *million) verify(ctx context.Context) error {
	var wrote []Wrote
	for i := range min(millionVerified, t.cfg.Runs) {
		n := i * t.cfg.Runs / min(millionVerified, t.cfg.Runs)
		head, err := loadgen.HeadOf(t.cfg, n)
		if err != nil {
			return err
		}
		if !head.Live() { // the others were written to since, by the daemon and the claiming executors
			wrote = append(wrote, Wrote{Run: head.Run, Head: head})
		}
	}
	return t.w.Verify(ctx, wrote)
}

// finish sets the figures.
func (t *million) finish(_ context.Context, r *Result) error {
	_, u, err := t.w.daemons[len(t.w.daemons)-1].tell()
	if err != nil {
		return err
	}
	if u.Resident == nil || t.idle == nil {
		return fmt.Errorf("%w: this system does not tell how much memory a process has", ErrChild)
	}
	r.Set("ready_s", t.ready.Seconds())
	r.Set("ready_bytes", *t.idle)
	r.Set("after_work_bytes", *u.Resident)
	r.Set("list_all_s", t.all.Seconds())
	for name, latencies := range t.latencies {
		slices.Sort(latencies)
		r.Set(name+"_p50_us", *percentile(latencies, 0.5))
		r.Set(name+"_p99_us", *percentile(latencies, 0.99))
	}
	t.headP50, t.claimP50 = r.Ours.P50, percentile(t.latencies["claim"], 0.5)
	if t.few.headP50 == nil {
		*t.few = *t
		t.few.w = nil
		return nil
	}
	ready := t.ready.Seconds()
	at := fmt.Sprintf("%d runs", t.cfg.Runs)
	r.AtMost("start of a daemon with "+at+", s", &ready, readyAim).For(t.goal(GoalReady), "")
	r.AtMost("daemon with "+at+" stored, bytes", u.Resident, loadedMemoryAim).For(t.goal(GoalLoadedMemory), "")
	r.AtMost("recovery, p50, by that with few runs", ratio(t.headP50, t.few.headP50), flatAim).Compares(t.headP50, t.few.headP50)
	r.AtMost("claim, p50, by that with few runs", ratio(t.claimP50, t.few.claimP50), flatAim).Compares(t.claimP50, t.few.claimP50)
	return nil
}

// goal is a line of the design's table, which speaks about a million runs and no fewer.
func (t *million) goal(g Goal) Goal {
	if t.cfg.Runs < 1_000_000 {
		return ""
	}
	return g
}
