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

// title names the line.
func (r *Result) title() string { return title(r.Case, r.Parameters) }

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
	r.Machine = machine()
}

// measure opens a world, measures a variant in it and closes it.
func measure(ctx context.Context, v Variant, o Options) (_ *Result, err error) {
	ctx, cancel := context.WithCancel(ctx) // goroutines of the case end here
	defer cancel()
	began := time.Now()
	r := &Result{Began: began.UTC().Format(time.RFC3339)}
	runtime.GC() // garbage of earlier cases does not count
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
	raw, ours side
}

// side holds the measurements of one of the two compared systems: raw JetStream or Waymark.
type side struct {
	samples []Sample
	spent   spent
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
	return nil
}

// settle waits for unfinished work of the round before.
func (m *measurement) settle(ctx context.Context) error {
	if m.w.Spec.NoDaemon && len(m.w.daemons) == 0 {
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
	before, err := m.w.read(ctx)
	if err != nil {
		return err
	}
	if m.trial.Raw != nil {
		s, err := m.trial.Raw(ctx, round)
		if err != nil {
			return fmt.Errorf("raw: %w", err)
		}
		if before, err = m.raw.add(ctx, m.w, s, before); err != nil {
			return err
		}
	}
	s, err := m.trial.Ours(ctx, round)
	if err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	_, err = m.ours.add(ctx, m.w, s, before)
	return err
}

// add adds a round that began with a reading, and returns the reading at its end.
func (s *side) add(ctx context.Context, w *World, sample Sample, before reading) (reading, error) {
	after, err := w.read(ctx)
	if err == nil {
		s.samples = append(s.samples, sample)
		s.spent.add(before, after)
	}
	return after, err
}

// cpu returns the processor time of each counted thing in us: of all processes, and of each kind where they are several.
func (s *side) cpu(count int64) map[string]float64 {
	if count == 0 || s.spent.unknown {
		return nil
	}
	cpu := map[string]float64{"all": 0}
	for kind, us := range s.spent.cpu {
		cpu["all"] += us / float64(count)
		if len(s.spent.cpu) > 1 {
			cpu[kind] = us / float64(count)
		}
	}
	return cpu
}

// fill sets the figures that are measured around the rounds.
func (m *measurement) fill(begin, end reading) {
	r := m.result
	r.Rounds = m.rounds
	r.Ours, r.Raw = figures(m.ours.samples), figures(m.raw.samples)
	r.CPU = m.ours.cpu(r.Ours.Count)
	if r.Raw != nil {
		r.RateRatio, r.P50Ratio = ratio(r.Ours.PerSecond, r.Raw.PerSecond), ratio(r.Ours.P50, r.Raw.P50)
		delete(m.raw.spent.cpu, "daemon") // it has no part in raw messages
		r.RawCPU = m.raw.cpu(r.Raw.Count)
	}
	m.fillBytes(begin, end)
}

func (m *measurement) fillBytes(begin, end reading) {
	r := m.result
	payload := 0.0
	for _, s := range m.ours.samples {
		payload += float64(s.Payload)
	}
	if payload == 0 || end.log.sequences == begin.log.sequences { // nothing was written
		return
	}
	r.PayloadBytes = &payload
	r.LogBytes = end.log.putBytes(begin.log)
	r.SegmentBytes = end.segments.putBytes(begin.segments)
	r.CheckpointBytes = end.checkpoints.meanPutBytes(begin.checkpoints)
	r.StoredPerPayload = ratio(sum(sum(r.LogBytes, r.SegmentBytes), r.CheckpointBytes), r.PayloadBytes)
}
