//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// outcome is the result of one schedule.
type outcome struct {
	history *checker.History
	report  *checker.Report
	finals  []checker.Final
	// met counts the failpoints at which a daemon died or was stopped; stale the answers of a lagging replica.
	met   map[string]int
	stale int64
	// sealed and purged count segments and purges.
	sealed, purged int64
	shards         int
	// orphaned counts run.orphaned events.
	orphaned int
}

// scheduleTime bounds one schedule; a longer one hangs.
const scheduleTime = 3 * time.Minute

// runPlan carries a plan out. The error is one of the harness, or of a part that did not end.
func runPlan(parent context.Context, p *plan) (out *outcome, err error) {
	// No deadline: requests of a caller with one rely on it, and a daemon has none.
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	defer time.AfterFunc(scheduleTime, func() { cancel(fmt.Errorf("the schedule took longer than %s", scheduleTime)) }).Stop()
	w, err := newWorld(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("seed %d: %w", p.seed, err)
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for i := range p.steps {
		w.do(&p.steps[i])
	}
	if w.wentBack != nil {
		gone := checker.Violation{Rule: checker.RuleConverged, Detail: "what was folded has gone back: " + w.wentBack.Error()}
		return &outcome{history: w.rec.History(), report: &checker.Report{Violations: []checker.Violation{gone}}}, nil
	}
	if err := w.heal(); err != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: heal: %w", p.seed, err)
	}
	finals, err := w.rested()
	if err != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: %w", p.seed, err)
	}
	if failed := w.failed.Load(); failed != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: %w", p.seed, *failed)
	}
	out = &outcome{history: w.rec.History(), finals: finals, met: maps.Clone(w.met), shards: len(w.names)}
	for i := range finals {
		for _, rec := range finals[i].Log {
			if e, err := schema.Decode(rec.Header, rec.Body); err == nil && e.Name() == schema.RunOrphaned {
				out.orphaned++
			}
		}
	}
	keys, err := kvstore.ReadKeys(w.ctx, w.js, fleetName)
	if err != nil {
		return out, fmt.Errorf("seed %d: %w", p.seed, err)
	}
	checker.AttributeClaims(out.history, finals)
	out.report = checker.Check(out.history, finals, checker.Options{
		Keys:  keys,
		Fleet: fleetName, Least: map[checker.Kind]int{checker.Publish: 1}, Damaged: w.damaged,
	})
	if w.replicas != nil {
		out.stale = w.replicas.shown.Load()
	}
	for _, d := range w.alive() {
		for _, worker := range d.waymark.Workers() {
			out.sealed += worker.Stats().Segments.Load()
			out.purged += worker.Stats().Purge.Purges.Load()
		}
	}
	return out, nil
}

// do carries one step out.
func (w *world) do(s *step) {
	if s.kind == burst {
		var group sync.WaitGroup
		for i := range s.acts {
			a := &s.acts[i]
			group.Go(func() { w.executors[a.executor].act(a) })
		}
		group.Wait()
		return
	}
	w.breakIt(s)
}

func (x *executor) act(a *act) {
	for i := range a.times {
		switch a.what {
		case "start":
			x.start(a.run)
		case "step":
			x.step(a.run, a.choice+i*31)
		case "take":
			x.takeOver(a.run)
		case "claim":
			x.claim()
		case "leave":
			x.leave(a.run)
		case "head":
			x.read(a.run, schema.ViewHead)
		case "events":
			x.read(a.run, schema.ViewEvents)
		case "hold":
			x.hold(a.run)
		case "rescue":
			x.rescue(a.run)
		case "end-turn", "call-again", "answer-again":
			x.publish(a.run, func(h *schema.Head, token string) (schema.Data, int32) { return turnEvent(a.what, h, token) })
		}
	}
}

// breakIt executes a step's fault.
func (w *world) breakIt(s *step) {
	quiet := func(what string, do func() error) {
		op := w.fault("%s", what)
		w.over(op, do())
	}
	switch s.kind {
	case forge:
		w.adversary.act(s.what, s.run, s.pick)
	case crash, pause:
		all := w.alive()
		if len(all) == 0 {
			return
		}
		d := w.leader()
		if d == nil {
			d = all[s.pick%uint64(len(all))]
		}
		d.setTrap(&trap{point: s.point, nth: s.nth, pause: s.kind == pause})
	case resume:
		for _, d := range w.alive() {
			d.resume()
		}
	case second:
		// A stopped daemon loses its shard to another.
		if len(w.alive()) < 3 {
			quiet("another daemon starts, the lease runs out", w.anotherDaemon)
		}
	case stopOne:
		all := w.alive()
		if len(all) == 0 {
			return
		}
		d := all[s.pick%uint64(len(all))]
		quiet(d.name+" is stopped, another starts", func() error {
			d.stop()
			w.forget(d)
			return w.anotherDaemon()
		})
	case restart:
		quiet("the server is restarted", w.restartServer)
	case loseBucket:
		lost := w.names[s.pick%uint64(len(w.names))]
		quiet("the bucket "+lost.CheckpointBucket()+" is deleted", func() error { return w.loseCheckpoints(lost) })
	case loseMessage:
		w.executors[s.executor].loseMessages.Store(int64(s.nth))
	case loseAnswer:
		w.executors[s.executor].loseAnswers.Store(int64(s.nth))
	case freeze:
		if w.replicas != nil {
			stale := 3 + int64(s.pick%6) //nolint:gosec // below ten
			quiet(fmt.Sprintf("replicas fall behind, and answer %d of 10", stale), func() error { return w.replicas.freeze(stale) })
		}
	case thaw:
		if w.replicas != nil {
			quiet("the replica catches up", w.replicas.thaw)
		}
	case damage:
		quiet("an event of "+s.run+" is taken out of the log", func() error { return w.damage(s.run, s.pick) })
	case silence:
		w.awaitOrphan()
	case stands:
		w.must(w.eventually("a daemon stands still", func() error {
			if w.held() == nil {
				return errors.New("none does")
			}
			return nil
		}))
	case settle:
		w.must(w.eventually("the fold catches up", w.caughtUp))
	case goOn:
		w.must(w.goOn())
	}
}

// must records that a step of the plan could not be done.
func (w *world) must(err error) {
	if err != nil {
		w.fail(err)
	}
}

// held is a daemon that is stopped at a failpoint, or nil.
func (w *world) held() *daemon {
	for _, d := range w.alive() {
		if d.held.Load() {
			return d
		}
	}
	return nil
}

// goOn releases the stopped daemon, and records what has gone back when it finished the interrupted action.
func (w *world) goOn() error {
	d := w.held()
	if d == nil {
		return errors.New("no daemon stands at a failpoint")
	}
	before := d.points.Load()
	d.resume()
	err := w.eventually(d.name+" does what it stood before, or gives up", func() error {
		for _, worker := range d.waymark.Workers() {
			if worker.Leads() && d.points.Load() == before {
				return errors.New("it is not there yet")
			}
		}
		return nil
	})
	// Nothing was published since everything was folded.
	w.wentBack = w.caughtUp()
	return err
}

// awaitOrphan waits a moment for a run to be orphaned: there may be no such run, or no daemon to orphan it.
func (w *world) awaitOrphan() {
	op := w.fault("all executors are silent")
	defer w.over(op, nil)
	end := time.NewTimer(40 * silent)
	defer end.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		live := 0
		for i := range w.plan.runs {
			run := runName(i)
			c, _, err := w.shards[w.shardOf(run)].Checkpoints.GetFresh(w.ctx, run)
			if err == nil && c.Status.Claimable() {
				return
			}
			if err == nil && !c.Status.Terminal() {
				live++
			}
		}
		if live == 0 || w.held() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-w.ctx.Done():
			return
		}
	}
}

func runName(i int) string { return fmt.Sprintf("run-%d", i+1) }

// damage removes an event from the middle of a run. A missing last event cannot be noticed before the next one comes.
func (w *world) damage(run string, pick uint64) error {
	names := w.names[w.shardOf(run)]
	stream, err := w.js.Stream(w.ctx, names.EventStream())
	if err != nil {
		return err
	}
	var at []schema.StreamSequence
	err = eventlog.Read(w.ctx, w.js, names, run, 1, func(r schema.Record) error {
		at = append(at, r.Stream)
		return nil
	})
	if err != nil || len(at) < 3 {
		return errors.Join(err, errNothingToForge)
	}
	w.damaged[run] = true
	return stream.DeleteMsg(w.ctx, uint64(at[1+pick%uint64(len(at)-2)]))
}

// heal ends all faults and waits until the fold workers have caught up.
func (w *world) heal() error {
	for _, x := range w.executors {
		x.loseMessages.Store(0)
		x.loseAnswers.Store(0)
	}
	if w.replicas != nil {
		if err := w.eventually("the replica catches up", w.replicas.thaw); err != nil {
			return err
		}
	}
	for _, d := range w.alive() {
		d.resume()
	}
	op := w.fault("all is healed")
	w.over(op, nil)
	for _, x := range w.executors {
		for id, run := range x.runs {
			op := w.rec.Begin(checker.Op{Actor: x.name, Kind: checker.Fault, Detail: "resolves " + id})
			w.over(op, run.Resolve(x.ctx))
		}
	}
	if err := w.eventually("a daemon lives", func() error {
		if len(w.alive()) == 0 {
			return errors.New("there is none")
		}
		return nil
	}); err != nil {
		return err
	}
	if w.plan.forget {
		if err := w.forgetCheckpoints(); err != nil {
			return err
		}
	}
	return w.folded("the fold catches up")
}

// errBehind: an undisturbed fold did not reach the log's end.
var errBehind = errors.New("the checkpoints are not the log's")

// folded waits until the fold workers have caught up.
func (w *world) folded(what string) error {
	if err := w.eventually(what, w.caughtUp); err != nil {
		return fmt.Errorf("%w: %w", errBehind, err)
	}
	return nil
}

// forgetCheckpoints deletes the checkpoints once they are correct: they must come back.
func (w *world) forgetCheckpoints() error {
	if err := w.folded("the fold catches up before its checkpoints are lost"); err != nil {
		return err
	}
	op := w.fault("the checkpoint buckets are deleted for good")
	err := w.loseCheckpoints(w.names...)
	w.over(op, err)
	return err
}

// caughtUp returns which checkpoints are behind the log.
func (w *world) caughtUp() error {
	last := make([]schema.StreamSequence, len(w.names))
	marks := make([]schema.StreamSequence, len(w.names))
	for n, shard := range w.shards {
		mark, _, err := shard.Checkpoints.Watermark(w.ctx)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) { // there is none if nothing was folded
			return err
		}
		marks[n] = mark.Position.Stream
	}
	for i := range w.plan.runs {
		run := runName(i)
		n := w.shardOf(run)
		at, behind, err := w.behind(run)
		if err != nil {
			return err
		}
		last[n] = max(last[n], at)
		if behind != nil {
			return behind
		}
	}
	for n := range last {
		if marks[n] < last[n] {
			return fmt.Errorf("the watermark of shard %d is at %d of %d", n, marks[n], last[n])
		}
	}
	return nil
}

// behind returns the position of a run's last message, 0 if it has none, and whether its checkpoint is behind it.
func (w *world) behind(run string) (at schema.StreamSequence, behind, err error) {
	n := w.shardOf(run)
	r, err := eventlog.LastOf(w.ctx, w.js, w.names[n], run)
	if err != nil {
		return 0, nil, err
	}
	if at = r.Records[run].Stream; at == 0 {
		return 0, nil, nil
	}
	c, _, err := w.shards[n].Checkpoints.GetFresh(w.ctx, run)
	if err != nil {
		return at, nil, fmt.Errorf("%s has events: %w", run, err)
	}
	if c.Position.Stream < at {
		behind = fmt.Errorf("the checkpoint of %s is at %d of %d", run, c.Position.Stream, at)
	}
	return at, behind, nil
}

// rested is finals of a log without a write in between: a takeover whose requester is gone may still be in progress.
func (w *world) rested() (finals []checker.Final, err error) {
	err = w.eventually("the log rests", func() error {
		before, err := w.lasts()
		if err != nil {
			return err
		}
		if err := w.caughtUp(); err != nil {
			return err
		}
		if finals, err = w.finals(); err != nil {
			return err
		}
		after, err := w.lasts()
		if err != nil {
			return err
		}
		if !slices.Equal(before, after) {
			return fmt.Errorf("runs ended at %v and now at %v", before, after)
		}
		return nil
	})
	return finals, err
}

// lasts are the stream sequences of the runs' last messages.
func (w *world) lasts() ([]schema.StreamSequence, error) {
	list := make([]schema.StreamSequence, w.plan.runs)
	for i := range list {
		run := runName(i)
		r, err := eventlog.LastOf(w.ctx, w.js, w.names[w.shardOf(run)], run)
		if err != nil {
			return nil, err
		}
		list[i] = r.Records[run].Stream
	}
	return list, nil
}

// finals reads every run from the service, and its state in the buckets.
func (w *world) finals() ([]checker.Final, error) {
	var finals []checker.Final
	for i := range w.plan.runs {
		run := runName(i)
		var f, state *found
		err := w.eventually("the service answers for "+run, func() error {
			ctx, cancel := context.WithTimeout(w.ctx, 2*serviceTimeout)
			defer cancel()
			var err error
			if f, err = w.ask(ctx, w.nc, run, schema.ViewEvents); notFound(err) {
				return nil
			}
			if err == nil {
				state, err = w.ask(ctx, w.nc, run, schema.ViewState)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		c, _, err := w.shards[w.shardOf(run)].Checkpoints.GetFresh(w.ctx, run)
		if err != nil {
			return nil, fmt.Errorf("checkpoint of %s: %w", run, err)
		}
		finals = append(finals, checker.Final{
			Run: run, Log: f.log, Head: f.reply.Head, Complete: f.reply.Complete && len(f.reply.Damage) == 0,
			Stored: &c.Head, State: state.reply.State,
			Places: map[string]checker.Answer{"checkpoint": checker.AnswerOf(&c.Head, f.reply.Complete), "events": f.answer(), "state": state.answer()},
		})
	}
	return finals, nil
}

func notFound(err error) bool {
	var e *schema.ServiceError
	return errors.As(err, &e) && e.Code == schema.CodeNotFound
}

// story is the complete report of a schedule.
func (o *outcome) story(seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: run it alone with WAYMARK_SEED=%d WAYMARK_SCHEDULES=1\n", seed, seed)
	if o.report != nil {
		_ = o.report.Write(&b, o.history)
	} else if o.history != nil {
		_ = o.history.Timeline(&b, nil)
	}
	// The order of the messages tells more than their senders.
	for i := range o.finals {
		fmt.Fprintf(&b, "log of %s:\n", o.finals[i].Run)
		for _, rec := range o.finals[i].Log {
			e, err := schema.Decode(rec.Header, rec.Body)
			if err != nil {
				fmt.Fprintf(&b, "%8d  %s\n", rec.Stream, err)
				continue
			}
			fmt.Fprintf(&b, "%8d  %s epoch %d sequence %d %s by %s\n", rec.Stream, e.ID, e.Epoch, e.Sequence, e.Name(), e.Source)
		}
	}
	return b.String()
}
