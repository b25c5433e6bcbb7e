//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/checker"
	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/schema"
)

// outcome is what became of one schedule.
type outcome struct {
	history *checker.History
	report  *checker.Report
	// met counts the failpoints at which a daemon died or stood still; stale the answers of a replica that was behind.
	met   map[string]int
	stale int64
	// sealed and purged count segments and purges.
	sealed, purged int64
}

// scheduleTime bounds one schedule; what takes longer hangs.
const scheduleTime = 3 * time.Minute

// runPlan carries a plan out. The error is one of the harness, or of a part that did not end.
func runPlan(parent context.Context, p *plan) (out *outcome, err error) {
	// No deadline: who has one trusts it to bound each request, and a daemon has none.
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
	if err := w.heal(); err != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: heal: %w", p.seed, err)
	}
	finals, err := w.finals()
	if err != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: %w", p.seed, err)
	}
	if failed := w.failed.Load(); failed != nil {
		return &outcome{history: w.rec.History()}, fmt.Errorf("seed %d: %w", p.seed, *failed)
	}
	out = &outcome{history: w.rec.History(), met: maps.Clone(w.met)}
	out.report = checker.Check(out.history, finals, checker.Options{
		Fleet: fleetName, Least: map[checker.Kind]int{checker.Publish: 1}, Damaged: w.damaged,
	})
	if w.replicas != nil {
		out.stale = w.replicas.shown.Load()
	}
	for _, d := range w.alive() {
		out.sealed += d.folder.Stats().Segments.Load()
		out.purged += d.folder.Stats().Purges.Load()
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
		case "head":
			x.read(a.run, schema.ViewHead)
		case "events":
			x.read(a.run, schema.ViewEvents)
		}
	}
}

// breakIt does what a step says to the system.
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
	case letGo:
		for _, d := range w.alive() {
			d.letGo()
		}
	case second:
		// Whoever stands still loses its shard to another.
		if len(w.alive()) < 3 {
			quiet("another daemon starts, the lease runs out", func() error { return errors.Join(w.expireLease(), w.startDaemon()) })
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
			return errors.Join(w.expireLease(), w.startDaemon())
		})
	case restart:
		quiet("the server is restarted", w.restartServer)
	case loseBucket:
		quiet("the checkpoint bucket is deleted", w.loseCheckpoints)
	case loseMessage:
		w.executors[s.executor].loseMessages.Store(int64(s.nth))
	case loseAnswer:
		w.executors[s.executor].loseAnswers.Store(int64(s.nth))
	case freeze:
		if w.replicas != nil {
			stale := 3 + int64(s.pick%6) //nolint:gosec // below ten
			quiet(fmt.Sprintf("a replica falls behind, and answers %d of 10", stale), func() error { return w.replicas.freeze(stale) })
		}
	case thaw:
		if w.replicas != nil {
			quiet("the replica catches up", w.replicas.thaw)
		}
	case damage:
		quiet("an event of "+s.run+" is taken out of the log", func() error { return w.damage(s.run, s.pick) })
	}
}

// damage takes an event out of the middle of a run.
func (w *world) damage(run string, pick uint64) error {
	stream, err := w.js.Stream(w.ctx, w.names.EventStream())
	if err != nil {
		return err
	}
	var at []schema.StreamSequence
	err = runlog.Read(w.ctx, w.js, w.names, run, 1, func(r schema.Record) error {
		at = append(at, r.Stream)
		return nil
	})
	if err != nil || len(at) < 3 {
		return errors.Join(err, errNothingToForge)
	}
	w.damaged[run] = true
	return stream.DeleteMsg(w.ctx, uint64(at[1+pick%uint64(len(at)-2)]))
}

// heal ends all faults and waits until the folders have caught up.
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
		d.letGo()
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
	return w.eventually("the fold catches up", w.caughtUp)
}

// forgetCheckpoints throws the checkpoints away once they are right: they must come back.
func (w *world) forgetCheckpoints() error {
	if err := w.eventually("the fold catches up before its checkpoints are lost", w.caughtUp); err != nil {
		return err
	}
	op := w.fault("the checkpoint bucket is deleted for good")
	err := w.loseCheckpoints()
	w.over(op, err)
	return err
}

// caughtUp says what is behind the log.
func (w *world) caughtUp() error {
	mark, _, err := w.shard.Checkpoints.Watermark(w.ctx)
	if err != nil {
		return err
	}
	last := schema.StreamSequence(0)
	for i := range w.plan.runs {
		run := fmt.Sprintf("run-%d", i+1)
		r, err := runlog.LastOf(w.ctx, w.js, w.names, run)
		if err != nil {
			return err
		}
		at := r.Records[run].Stream
		if last = max(last, at); at == 0 {
			continue
		}
		c, _, err := w.shard.Checkpoints.GetFresh(w.ctx, run)
		if err != nil {
			return fmt.Errorf("%s has events: %w", run, err)
		}
		if c.Position.Stream < at {
			return fmt.Errorf("the checkpoint of %s is at %d of %d", run, c.Position.Stream, at)
		}
	}
	if mark.Position.Stream < last {
		return fmt.Errorf("the watermark is at %d of %d", mark.Position.Stream, last)
	}
	return nil
}

// finals reads every run from the service, and what the buckets say of it.
func (w *world) finals() ([]checker.Final, error) {
	var finals []checker.Final
	for i := range w.plan.runs {
		run := fmt.Sprintf("run-%d", i+1)
		var f *found
		err := w.eventually("the service answers for "+run, func() error {
			ctx, cancel := context.WithTimeout(w.ctx, serviceTimeout)
			defer cancel()
			var err error
			if f, err = w.ask(ctx, w.nc, run, schema.ViewEvents); notFound(err) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if f == nil {
			continue
		}
		c, _, err := w.shard.Checkpoints.GetFresh(w.ctx, run)
		if err != nil {
			return nil, fmt.Errorf("checkpoint of %s: %w", run, err)
		}
		finals = append(finals, checker.Final{
			Run: run, Log: f.log, Head: f.reply.Head, Complete: f.reply.Complete && len(f.reply.Damage) == 0,
			Places: map[string]checker.Answer{"checkpoint": checker.AnswerOf(&c.Head, f.reply.Complete), "events": f.answer()},
		})
	}
	return finals, nil
}

func notFound(err error) bool {
	var e *schema.ServiceError
	return errors.As(err, &e) && e.Code == schema.CodeNotFound
}

// story is all there is to say about a schedule.
func (o *outcome) story(seed uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: run it alone with WAYMARK_SEED=%d WAYMARK_SCHEDULES=1\n", seed, seed)
	if o.report != nil {
		_ = o.report.Write(&b, o.history)
	} else if o.history != nil {
		_ = o.history.Timeline(&b, nil)
	}
	return b.String()
}
