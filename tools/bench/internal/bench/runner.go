package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/waymarkio/waymark/kvstore"
)

// Run measures the cases one after the other and passes on each line once it is complete. A variant that fails leaves
// a line that says so, and the others are measured all the same; Run then returns the errors joined, ErrWrongData
// among them where data was wrong. It ends early with ctx, or with an error of emit.
func Run(ctx context.Context, cases []Case, o Options, emit func(*Result) error) error {
	if err := o.Validate(); err != nil {
		return err
	}
	o = o.Defaults()
	var errs []error
	for _, c := range cases {
		for _, v := range c.Variants(o) {
			o.Progress(title(c.Name, v.Parameters))
			r, err := measure(ctx, v, o)
			if ctx.Err() != nil {
				return errors.Join(append(errs, context.Cause(ctx))...)
			}
			if err != nil {
				err = fmt.Errorf("%s: %w", title(c.Name, v.Parameters), err)
				r = &Result{Error: err.Error()}
				errs = append(errs, err)
			}
			describe(r, c, v, o)
			if err := emit(r); err != nil {
				return errors.Join(append(errs, err)...)
			}
		}
	}
	return errors.Join(errs...)
}

// title names a variant.
func title(name string, parameters map[string]any) string {
	var b strings.Builder
	b.WriteString(name)
	for _, key := range sortedKeys(parameters) {
		fmt.Fprintf(&b, " %s=%v", key, parameters[key])
	}
	return b.String()
}

// spec returns the specification of a variant's world.
func (v *Variant) spec(o Options) WorldSpec {
	spec := WorldSpec{Server: o.Server, Sync: o.Sync, Shards: o.Shards, Daemons: o.Daemons}
	if v.World != nil {
		v.World(&spec)
	}
	if spec.Sync == "" {
		spec.Sync = SyncAlways
	}
	if spec.Shards == 0 {
		spec.Shards = 1
		if spec.Server != ThreeNodes && spec.Sync == SyncAlways {
			spec.Shards = kvstore.LoneShards // as waymark serve makes a fleet
		}
	}
	return spec
}

// describe sets the fields that do not depend on the outcome.
func describe(r *Result, c Case, v Variant, o Options) {
	spec := v.spec(o)
	r.Format, r.Case, r.Parameters, r.Quick = Format, c.Name, v.Parameters, o.Quick
	r.Server, r.Sync, r.Shards, r.Daemons = spec.Server, spec.Sync, spec.Shards, spec.Daemons
	r.Replicas = "R1"
	if spec.Server == ThreeNodes {
		r.Replicas = "R3"
	}
	if r.Rounds == 0 {
		r.Rounds = o.Rounds
	}
	r.Version = o.Version
	r.Machine = machine(o.storeDir())
}

// measure opens a world, measures a variant in it and closes it.
func measure(ctx context.Context, v Variant, o Options) (_ *Result, err error) {
	ctx, cancel := context.WithCancel(ctx) // goroutines of the case end here
	defer cancel()
	began := time.Now()
	r := &Result{Began: o.Now().UTC().Format(time.RFC3339)}
	runtime.GC() // memory of earlier cases does not count
	forgetPeak()
	w, err := openWorld(ctx, v.spec(o), o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if closeErr := w.close(ctx); closeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean-up: %w", closeErr))
		}
	}()
	trial, err := v.Setup(ctx, w)
	if err != nil {
		return nil, fmt.Errorf("preparation: %w", err)
	}
	m := &measurement{w: w, trial: trial, result: r, rounds: o.Rounds}
	if trial.Rounds > 0 {
		m.rounds = trial.Rounds
	}
	if err := m.run(ctx); err != nil {
		return nil, err
	}
	r.Took = time.Since(began).Seconds()
	return r, nil
}

// measurement is a trial while it runs.
type measurement struct {
	w         *World
	trial     *Trial
	result    *Result
	rounds    int
	raw, ours []Sample
	spent     spent
}

func (m *measurement) run(ctx context.Context) error {
	if m.trial.WarmUp != nil {
		if err := m.trial.WarmUp(ctx); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	begin, err := m.w.read(ctx)
	if err != nil {
		return err
	}
	for round := range m.rounds {
		if err := m.round(ctx, round); err != nil {
			return fmt.Errorf("round %d: %w", round+1, err)
		}
	}
	end, err := m.w.read(ctx)
	if err != nil {
		return err
	}
	m.fill(begin, end)
	if err := m.trial.Verify(ctx); err != nil {
		return err
	}
	m.result.Verified = m.w.verified
	if m.trial.Finish != nil {
		return m.trial.Finish(ctx, m.result)
	}
	return nil
}

// settle waits for unfinished work of the round before.
func (m *measurement) settle(ctx context.Context) error {
	if m.w.Spec.NoDaemon && m.w.Daemons() == 0 {
		return nil
	}
	return m.w.AwaitFolded(ctx)
}

// round measures one round of raw and one of ours.
func (m *measurement) round(ctx context.Context, round int) error {
	if m.trial.Prepare != nil {
		if err := m.trial.Prepare(ctx, round); err != nil {
			return fmt.Errorf("preparation: %w", err)
		}
	}
	if m.trial.Raw != nil {
		s, err := m.trial.Raw(ctx, round)
		if err != nil {
			return fmt.Errorf("raw: %w", err)
		}
		m.raw = append(m.raw, s)
	}
	before, err := m.w.read(ctx)
	if err != nil {
		return err
	}
	s, err := m.trial.Ours(ctx, round)
	if err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	after, err := m.w.read(ctx)
	if err != nil {
		return err
	}
	m.ours = append(m.ours, s)
	m.spent.add(before, after)
	return nil
}

// fill sets the figures that are measured around the rounds.
func (m *measurement) fill(begin, end reading) {
	r := m.result
	r.Rounds = m.rounds
	r.Ours, r.Raw = figures(m.ours), figures(m.raw)
	if r.Raw != nil {
		r.RateRatio, r.P50Ratio = ratio(r.Ours.PerSecond, r.Raw.PerSecond), ratio(r.Ours.P50, r.Raw.P50)
	}
	if puts := end.fold.Checkpoints - begin.fold.Checkpoints; puts > 0 {
		perPut := float64(end.fold.Events-begin.fold.Events) / float64(puts)
		r.EventsPerCheckpoint = &perPut
	}
	m.fillBytes(begin, end)
	if n := float64(r.Ours.Count); n > 0 && m.spent.known {
		r.CPU = make(map[string]float64)
		all := 0.0
		for kind, us := range m.spent.cpu {
			all += us
			if len(m.spent.cpu) > 1 {
				r.CPU[kind] = us / n
			}
		}
		r.CPU["all"] = all / n
	}
	r.PeakMemory = make(map[string]float64)
	for kind, u := range end.used {
		if u.PeakResident != nil {
			r.PeakMemory[kind] = *u.PeakResident
		}
	}
}

func (m *measurement) fillBytes(begin, end reading) {
	r := m.result
	payload := 0.0
	for _, s := range m.ours {
		payload += float64(s.Payload)
	}
	if payload == 0 || end.log.sequences == begin.log.sequences { // nothing was written
		return
	}
	r.PayloadBytes = &payload
	r.DeviceBytes = m.spent.written
	r.LogBytes = end.log.putBytes(begin.log)
	r.SegmentBytes = end.segments.putBytes(begin.segments)
	r.CheckpointBytes = end.checkpoints.meanPutBytes(begin.checkpoints)
	r.fillRatios()
}

// fillRatios computes the ratios of bytes.
func (r *Result) fillRatios() {
	r.StoredPerPayload = ratio(sum(sum(r.LogBytes, r.SegmentBytes), r.CheckpointBytes), r.PayloadBytes)
	r.DevicePerPayload = ratio(r.DeviceBytes, r.PayloadBytes)
}
