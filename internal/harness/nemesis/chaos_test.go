//go:build unix

package nemesis_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// round is one world and its faults.
type round struct {
	*world
	storm  *storm
	prober *prober
	fleet  *publisher.Fleet
	// people have work for Loops; nil in a world without them.
	people *people
	struck []struck
	// fields counts the large fields that were read back, settled the calls in doubt by how they were settled, once judged.
	fields  atomic.Int64
	settled map[schema.Settlement]int
	// loops are the results of people's runs.
	loops loopCounts
}

// struck is a fault that was tried, and for how long nothing worked.
type struck struct {
	Fault   string `json:"fault"`
	Servers int    `json:"servers"`
	Seed    uint64 `json:"seed"`
	// Boundaries and Recoveries are the longest times without a success, from the fault's begin until every process
	// had caught up, in milliseconds. CaughtUp is how long that took from the end of the fault, and Returned how long
	// until each executor had written a boundary, each reader had been answered and a run was taken over.
	Boundaries int64 `json:"boundaries_ms"`
	Recoveries int64 `json:"recoveries_ms"`
	CaughtUp   int64 `json:"caught_up_ms"`
	Returned   int64 `json:"returned_ms"`

	begin, healed, end int64
}

// newRound starts a world under load.
func newRound(t *testing.T, s scale, seed uint64) *round {
	t.Helper()
	t.Logf("WAYMARK_CHAOS_SEED=%d WAYMARK_CHAOS_SERVERS=%d", seed, s.servers)
	w := newWorld(t, s, seed)
	js, err := jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	w.js = js
	r := &round{world: w, fleet: w.fleet("judge", 0, 10*time.Second)}
	r.storm = &storm{world: w, rnd: rand.New(rand.NewPCG(seed, 2))} //nolint:gosec // chooses the faults
	r.prober = w.probe()
	t.Cleanup(r.prober.end)
	w.load()
	if s.loops.executors > 0 {
		r.people = w.busy()
	}
	r.calm()
	return r
}

// choose draws faults by their weights, which shift from round to round: a few kinds come often, others hardly.
// WAYMARK_CHAOS_FAULTS replaces the given names; without any, all faults are possible.
func (r *round) choose(n int, only ...string) []fault {
	var list []fault
	if chosen := strings.FieldsFunc(os.Getenv("WAYMARK_CHAOS_FAULTS"), func(c rune) bool { return c == ',' }); len(chosen) > 0 {
		only = chosen
	}
	total := 0
	for _, f := range faults() {
		f.weight *= 1 + r.storm.rnd.IntN(4)
		if f.servers > r.scale.servers || len(only) > 0 && !slices.Contains(only, f.name) {
			continue
		}
		total += f.weight
		list = append(list, f)
	}
	require.NotEmpty(r.tb, list, "WAYMARK_CHAOS_FAULTS names no fault there is")
	var chosen []fault
	for range n {
		at := r.storm.rnd.IntN(total)
		for _, f := range list {
			if at -= f.weight; at < 0 {
				chosen = append(chosen, f)
				break
			}
		}
	}
	return chosen
}

// suffer injects one fault, heals it, and waits until every process has caught up.
func (r *round) suffer(f fault) {
	r.tb.Helper()
	op := r.record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: f.name})
	hit := struck{Fault: f.name, Servers: r.scale.servers, Seed: r.seed, begin: op.Start}
	err := f.strike(r.tb.Context(), r.storm)
	err = errors.Join(err, r.heal())
	r.record.End(op, func(op *checker.Op) { Ended(op, err) })
	require.NoError(r.tb, err, f.name)
	healed := time.Now()
	hit.healed = r.record.Now()
	r.calm()
	hit.CaughtUp = time.Since(healed).Milliseconds()
	hit.end = r.record.Now()
	r.struck = append(r.struck, hit)
}

// heal takes everything back that a fault did.
func (w *world) heal() error {
	for _, list := range append(slices.Clone(w.routes), w.allLinks()...) {
		for _, p := range list {
			if p != nil {
				p.Set(Weather{})
			}
		}
	}
	for _, p := range w.nodes {
		if p.running() {
			continue
		}
		if err := p.start(); err != nil {
			return err
		}
	}
	for i, p := range w.nodes {
		if p.served { // the line was read
			continue
		}
		if err := w.serving(i); err != nil {
			return err
		}
	}
	for _, p := range w.daemons {
		if !p.running() {
			if err := w.serve(p); err != nil {
				return err
			}
		}
	}
	for _, p := range w.executors {
		if p.running() {
			continue
		}
		if err := p.start(); err != nil {
			return err
		}
		if err := p.ready(nil); err != nil {
			return err
		}
	}
	return nil
}

// calm waits until every replica has caught up, recoveries work, every executor has written a boundary since, and the
// fold worker has caught up with the log.
func (r *round) calm() {
	r.tb.Helper()
	ctx := r.tb.Context()
	r.eventually("the servers do not catch up", func() error { return r.replicated(ctx, r.js) })
	since, recovered := r.record.Now(), r.prober.recovered.Load()
	r.eventually("recoveries do not work again", func() error {
		if r.prober.recovered.Load() < recovered+2 {
			return errors.New("none since")
		}
		return nil
	})
	r.eventually("not every executor works again", func() error {
		h, err := r.read()
		if err != nil {
			return err
		}
		r.prober.know(runsOf(h))
		working := make(map[string]bool)
		for i := range h.Ops {
			op := &h.Ops[i]
			if op.Kind == checker.Publish && op.Outcome == checker.OK && op.Start > since {
				name, _, _ := strings.Cut(op.Actor, ".")
				working[name] = true
			}
		}
		for _, p := range r.slotted() {
			if !working[p.name] {
				return fmt.Errorf("%s has written nothing", p.name)
			}
		}
		return nil
	})
	r.eventually("the fold worker does not catch up", func() error {
		h, err := r.read()
		if err != nil {
			return err
		}
		for _, run := range recent(h, 5) {
			if err := r.foldedSince(ctx, r.fleet, run); err != nil {
				return err
			}
		}
		return nil
	})
}

// runsOf are all runs that were begun, or may have been.
func runsOf(h *checker.History) []string {
	runs := make(map[string]bool)
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Kind == checker.Publish && op.Outcome != checker.Failed {
			runs[op.Run] = true
		}
	}
	return slices.Sorted(maps.Keys(runs))
}

// recent are the runs of the latest boundaries.
func recent(h *checker.History, n int) []string {
	var runs []string
	for i := len(h.Ops) - 1; i >= 0 && len(runs) < n; i-- {
		op := &h.Ops[i]
		if op.Kind == checker.Publish && op.Outcome == checker.OK && !slices.Contains(runs, op.Run) {
			runs = append(runs, op.Run)
		}
	}
	return runs
}

// stop ends the load, cleanly.
func (r *round) stop() {
	r.tb.Helper()
	r.prober.end()
	if r.people != nil {
		r.people.end()
	}
	for _, p := range r.executors {
		r.must(p.terminate(r.tb.Context()))
	}
}

// judge stops the load, reads the final state of all runs, and makes the checker compare.
func (r *round) judge() {
	r.tb.Helper()
	begun := time.Now()
	r.stop()
	stopped := time.Now()
	h, err := r.read()
	r.must(err)
	var finals []checker.Final
	for _, run := range runsOf(h) {
		if f, there := r.final(run); there {
			finals = append(finals, f)
		}
	}
	found := time.Now()
	strict, loops := apart(h)
	slotted := slices.DeleteFunc(slices.Clone(finals), func(f checker.Final) bool { return ofLoop(f.Run) })
	checker.AttributeClaims(strict, slotted)
	stored(strict, slotted)
	least := map[checker.Kind]int{checker.Publish: 100, checker.Takeover: 10, checker.Read: 10}
	if len(r.slotted()) == 0 {
		least[checker.Publish] = 10 // the prober's
	}
	judged := checker.Check(strict, slotted, checker.Options{Keys: schema.NoKeys, Fleet: schema.DefaultFleet, Least: least})
	r.violations = judged.Violations
	if r.people != nil {
		r.violations = append(r.violations, checkLoops(loops, slices.DeleteFunc(slices.Clone(finals), func(f checker.Final) bool { return !ofLoop(f.Run) }))...)
		r.loops = r.people.judge(len(r.struck))
	}
	r.tb.Logf("the load stopped in %s, all runs were read in %s and judged in %s", stopped.Sub(begun).Round(time.Millisecond),
		found.Sub(stopped).Round(time.Millisecond), time.Since(found).Round(time.Millisecond))
	r.measure(h)
	for _, v := range r.violations {
		r.tb.Errorf("%v", v)
	}
	r.report(h, finals)
}

// stored marks fenced publishes that had been stored just before the takeover: the successor has them, and the
// publisher only knows that it is fenced.
func stored(h *checker.History, finals []checker.Final) {
	logs := make(map[string][]schema.Record)
	for i := range finals {
		logs[finals[i].Run] = finals[i].Log
	}
	for i := range h.Ops {
		op := &h.Ops[i]
		if op.Kind != checker.Publish || op.Outcome != checker.Failed || !op.Fenced || op.Token == "" {
			continue
		}
		if slices.ContainsFunc(logs[op.Run], func(rec schema.Record) bool { return bytes.Contains(rec.Body, []byte(op.Token)) }) {
			op.Outcome, op.Fenced = checker.Unknown, false
		}
	}
}

// final is the final state of a run. It need not exist if its start is unknown.
func (r *round) final(run string) (f checker.Final, there bool) {
	r.tb.Helper()
	ctx := r.tb.Context()
	f = checker.Final{Run: run, Places: make(map[string]checker.Answer)}
	r.eventually("run "+run+" cannot be read", func() error {
		f.Log, there = nil, true
		head, err := r.fleet.Head(ctx, run)
		var incomplete *publisher.IncompleteError
		switch {
		case errors.Is(err, publisher.ErrRunNotFound):
			there = false
			return nil
		case err != nil && !errors.As(err, &incomplete):
			return err
		}
		f.Head, f.Complete = head, err == nil
		err = r.fleet.Events(ctx, run, func(rec schema.Record) error {
			f.Log = append(f.Log, rec)
			return nil
		})
		if errors.As(err, &incomplete) {
			f.Complete = false
			return nil
		}
		return err
	})
	if !there {
		return f, false
	}
	defer func() { f.Unread = r.unread(f.Log, 3) }()
	r.eventually("run "+run+" is not folded", func() error {
		c, err := checkpoint(ctx, r.js, run)
		if err != nil {
			return err
		}
		if c.Digest != f.Head.Digest || c.Counts != f.Head.Counts {
			// Orphaning and the like may still be under way.
			head, err := r.fleet.Head(ctx, run)
			if err != nil {
				return err
			}
			if head.Digest != f.Head.Digest {
				f.Head, f.Log = head, nil
				if err := r.fleet.Events(ctx, run, func(rec schema.Record) error {
					f.Log = append(f.Log, rec)
					return nil
				}); err != nil {
					return err
				}
			}
			return fmt.Errorf("checkpoint has %d events and %.8s, the log %d and %.8s", c.Counts.Events, c.Digest, head.Counts.Events, head.Digest)
		}
		f.Stored, f.Places["checkpoint"] = &c.Head, checker.AnswerOf(&c.Head, true)
		return nil
	})
	return f, true
}

// unread loads the large fields of events, and returns which it could not load in so many tries.
func (r *round) unread(log []schema.Record, tries int) map[string]string {
	r.tb.Helper()
	unread := make(map[string]string)
	loaded := make(map[string]bool)
	for i := range log {
		e, err := schema.Decode(log[i].Header, log[i].Body)
		if err != nil || e.DataRef == "" || loaded[e.DataRef] {
			continue
		}
		loaded[e.DataRef] = true
		for range tries {
			_, err = r.fleet.Blob(r.tb.Context(), e.DataRef)
			if err == nil {
				break
			}
		}
		if err != nil {
			unread[e.DataRef] = err.Error()
		}
	}
	r.fields.Add(int64(len(loaded)))
	return unread
}

// measure finds out for how long nothing worked around each fault.
func (r *round) measure(h *checker.History) {
	var boundaries, recoveries []int64
	for i := range h.Ops {
		op := &h.Ops[i]
		switch {
		case op.Outcome != checker.OK:
		case op.Kind == checker.Publish && op.Actor != "prober":
			boundaries = append(boundaries, op.End)
		case op.Kind == checker.Takeover && op.Actor == "prober":
			recoveries = append(recoveries, op.End)
		}
	}
	slices.Sort(boundaries)
	slices.Sort(recoveries)
	for i := range r.struck {
		s := &r.struck[i]
		s.Boundaries, s.Recoveries = longest(boundaries, s.begin, s.end), longest(recoveries, s.begin, s.end)
		last, who := r.returned(h, s)
		s.Returned = (last - s.healed) / int64(time.Millisecond)
		if s.Returned > returns.Milliseconds() {
			r.tb.Errorf("%s: %s worked again %d ms after its end, and not within %s", s.Fault, who, s.Returned, returns)
		}
	}
}

// returns is how long service may take to return once a fault has ended. Replicas may take longer to catch up.
const returns = time.Minute

// returned is when the last of all working processes had succeeded with something that began after a fault, and its
// name.
func (r *round) returned(h *checker.History, s *struck) (last int64, who string) {
	first := map[string]int64{"prober takeover": s.end, "reader-0 read": s.end, "reader-1 read": s.end}
	for _, p := range r.slotted() {
		first[p.name+" publish"] = s.end
	}
	for i := range h.Ops {
		op := &h.Ops[i]
		name, _, _ := strings.Cut(op.Actor, ".")
		name += " " + string(op.Kind)
		if at, asked := first[name]; asked && op.Outcome == checker.OK && op.Start >= s.healed && op.End < at {
			first[name] = op.End
		}
	}
	for name, at := range first {
		if at > last {
			last, who = at, name
		}
	}
	return last, who
}

// longest is the longest time between two of the sorted moments, limited to the time between begin and end, in
// milliseconds.
func longest(moments []int64, begin, end int64) int64 {
	last, most := begin, int64(0)
	for _, m := range moments {
		if m < begin {
			continue
		}
		if m > end {
			break
		}
		most = max(most, m-last)
		last = m
	}
	return max(most, end-last) / int64(time.Millisecond)
}

// report logs the faults, and the results.
func (r *round) report(h *checker.History, finals []checker.Final) {
	r.tb.Helper()
	outcomes := make(map[string]int)
	for i := range h.Ops {
		outcomes[string(h.Ops[i].Kind)+" "+string(h.Ops[i].Outcome)]++
	}
	var events int
	for i := range finals {
		events += len(finals[i].Log)
		for _, rec := range finals[i].Log {
			e, err := schema.Decode(rec.Header, rec.Body)
			if err != nil || e.Name() != schema.ToolSettled {
				continue
			}
			if data, err := schema.ParseData(e); err == nil {
				if d, ok := data.(*schema.ToolSettledData); ok {
					outcomes["in doubt "+string(d.How)]++
					if r.settled == nil {
						r.settled = make(map[schema.Settlement]int)
					}
					r.settled[d.How]++
				}
			}
		}
	}
	var words []string
	for _, k := range slices.Sorted(maps.Keys(outcomes)) {
		words = append(words, fmt.Sprintf("%s %d", k, outcomes[k]))
	}
	r.tb.Logf("seed %d, %d servers: %d runs with %d events and %d large fields in the end; %s", r.seed, r.scale.servers, len(finals), events, r.fields.Load(), strings.Join(words, ", "))
	for _, s := range r.struck {
		r.tb.Logf("  %-30s no boundary for %d ms, no recovery for %d ms, all worked %d ms after its end and had caught up after %d ms", s.Fault, s.Boundaries, s.Recoveries, s.Returned, s.CaughtUp)
	}
	name := os.Getenv("WAYMARK_CHAOS_REPORT")
	if name == "" {
		return
	}
	file, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	r.must(err)
	for _, s := range r.struck {
		line, err := json.Marshal(s)
		r.must(err)
		_, err = file.Write(append(line, '\n'))
		r.must(err)
	}
	if r.people != nil {
		line, err := json.Marshal(r.loops)
		r.must(err)
		_, err = file.Write(append(line, '\n'))
		r.must(err)
	}
	line, err := json.Marshal(map[string]any{
		"round": r.seed, "servers": r.scale.servers, "faults": len(r.struck), "runs": len(finals), "events": events, "fields": r.fields.Load(), "operations": outcomes, "violations": len(r.violations),
	}, json.Deterministic(true))
	r.must(err)
	_, err = file.Write(append(line, '\n'))
	r.must(err)
	r.must(file.Close())
}

// guilty reports whether an operation is part of a violation.
func (w *world) guilty(op *checker.Op) bool {
	for _, v := range w.violations {
		if slices.Contains(v.Ops, op.ID) {
			return true
		}
	}
	return false
}

func TestOneServer_RandomFaults_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	chaos(t, 1)
}

func TestThreeServers_RandomFaults_LoseNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	chaos(t, 3)
}

// chaos plays rounds of random faults.
func chaos(t *testing.T, servers int) {
	t.Helper()
	t.Parallel() // it mostly waits
	if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(servers) {
		t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, servers)
	}
	rounds := number(t, "WAYMARK_CHAOS_ROUNDS", 1)
	seed := number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)) //nolint:gosec // any number will do
	for i := range rounds {
		t.Run(fmt.Sprintf("seed=%d", seed+i), func(t *testing.T) {
			s := scaleOf(servers)
			n := 2
			if testbin.Full(t) {
				n = 3
				if servers > 1 {
					s.loops = loopScale{executors: 2, each: 3, turns: 6, pause: 200}
				}
			}
			r := newRound(t, s, seed+i)
			for _, f := range r.choose(n) {
				r.suffer(f)
			}
			r.judge()
			if servers > 1 && testbin.Full(t) {
				r.sameEverywhere()
			}
		})
	}
}
