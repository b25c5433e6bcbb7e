package publisher

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// ResumeSpec describes a takeover.
type ResumeSpec struct {
	// Reason is claim, request, restart, input or reopen; empty means request. Only reopen, or At, takes over a run
	// that has ended.
	Reason string
	// At, if it is not the zero point, is where the run continues: after that point, under its own id, even if it has
	// ended. Later events stay in the record but are no longer part of the run. Their external effects are not undone:
	// calls that the agent makes again have new idempotency keys. Leave Reason empty with it. To continue after the
	// outcome of the third tool call: schema.Point{Kind: schema.PointResult, Number: 3}.
	At schema.Point
	// RequestID makes a repeated Resume continue the epoch that the first one opened, instead of opening another; empty
	// means a new id. Use an id that outlives the process if the takeover must not be done twice.
	RequestID string
	// ExpectedEpoch, if set, is the epoch that was seen before the decision to take the run over. If another takeover
	// came since, Resume returns [ErrConflict], whose text names the executor.
	ExpectedEpoch schema.Epoch
	// Agent that the executor runs; empty means the agent of Config, or any agent if Config names none.
	Agent string
	// AllowGaps takes over a run although events of it are known to be missing. Without it Resume returns
	// [ErrIncomplete]. The takeover itself is done then, and can be repeated with AllowGaps.
	AllowGaps bool
}

// Resume takes a run over. It opens a new epoch, which fences the previous executor, and returns the handle with the
// run's state, which includes every acknowledged event. Continue with [Run.OpenTurn], [Run.Phase] and [Turn.Tool].
//
// It returns [ErrRunNotFound], [ErrRunEnded], [ErrPointNotFound], [ErrPointAmbiguous], [ErrWrongAgent], [ErrConflict],
// [ErrIncomplete], [ErrUnavailable] and [ErrNoService]. They wrap the daemon's *schema.ServiceError, with its hint.
func (f *Fleet) Resume(ctx context.Context, run string, spec ResumeSpec) (*Run, error) {
	if err := spec.complete(f); err != nil {
		return nil, err
	}
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("resume of run %s: %w", run, err)
	}
	if err := f.mayRead(ctx, run); err != nil {
		return nil, fmt.Errorf("resume (nothing was changed): %w", err)
	}
	return f.resume(ctx, run, spec)
}

// complete checks the spec, and fills in what the configuration says.
func (s *ResumeSpec) complete(f *Fleet) error {
	if s.At != (schema.Point{}) {
		if s.Reason != "" {
			return configError("Reason", s.Reason, "leave it empty if At is set")
		}
		s.Reason = schema.TakeoverRewind
	} else if s.Reason == schema.TakeoverRewind {
		return configError("At", "the end of the run", "name the point after which the run continues, and leave Reason empty")
	}
	if s.Agent == "" {
		s.Agent = f.cfg.Agent
	}
	return nil
}

// Release takes a run over and leaves it to other executors, which may claim it at once. It returns the head after
// that. It reads only the run's head: it needs no key, and it works on runs of any size and on runs with missing
// events. It returns the errors of [Fleet.Resume] and of publishing.
func (f *Fleet) Release(ctx context.Context, run string, spec ResumeSpec) (schema.Head, error) {
	if err := spec.complete(f); err != nil {
		return schema.Head{}, err
	}
	r, err := f.takeHead(ctx, run, spec)
	if err != nil {
		return schema.Head{}, err
	}
	if err := r.Interrupt(ctx, schema.InterruptedPreempted); err != nil && !errors.Is(err, ErrFenced) {
		return schema.Head{}, fmt.Errorf("run %s was taken over but not released: release it again, or wait until %s counts as gone: %w", run, f.cfg.Executor, err)
	}
	return r.Head(), nil
}

// takeover is the request of a takeover.
func (f *Fleet) takeover(spec *ResumeSpec, view string) *schema.RecoverRequest {
	request := &schema.RecoverRequest{
		Executor: f.cfg.Executor, Instance: f.instance, Agent: spec.Agent, Reason: spec.Reason, RequestID: cmp.Or(spec.RequestID, rand.Text()),
		ExpectedEpoch: spec.ExpectedEpoch, View: view,
	}
	if spec.Reason == schema.TakeoverRewind {
		request.At = spec.At.String()
	}
	return request
}

// takeHead takes a run over without its content. The handle can release the run, and nothing else.
func (f *Fleet) takeHead(ctx context.Context, run string, spec ResumeSpec) (*Run, error) {
	if err := f.appear(); err != nil {
		return nil, fmt.Errorf("resume of run %s: %w", run, err)
	}
	_, done := f.hand.begin(run)
	defer done()
	reply, err := ask[schema.RecoverReply](ctx, f.Reader, schema.VerbRecover, run, f.takeover(&spec, schema.ViewHead))
	if err != nil {
		return nil, err
	}
	state := schema.NewState(f.cfg.Fleet, run)
	state.Head = reply.Head
	state.Settle()
	return f.taken(state, reply)
}

// taken returns the handle of a run that was taken over.
func (f *Fleet) taken(state *schema.State, reply *schema.RecoverReply) (*Run, error) {
	r := newRun(f, schema.NamesOf(f.cfg.Fleet, reply.Shard), state.Head.Run)
	if err := with(r.ledger, func(l *ledger) error { return l.takeUp(state, reply, time.Now()) }); err != nil {
		return nil, err
	}
	return r, nil
}

// resume is Resume of an executor that has appeared, for a run of any agent, unless spec names one.
func (f *Fleet) resume(ctx context.Context, run string, spec ResumeSpec) (*Run, error) {
	_, done := f.hand.begin(run)
	defer done()
	a, request := newAssembly(ctx, f.Reader, run), f.takeover(&spec, schema.ViewEvents)
	reply, err := read[schema.RecoverReply](ctx, f.Reader, schema.VerbRecover, run, func(after string) any {
		next := *request
		next.After = after
		return &next
	}, a.take)
	if err == nil {
		err = a.finish(ctx, 0)
	}
	if err != nil {
		return nil, err
	}
	state := a.state
	err = checkFold(run, &state.Head, &reply.Head, reply.Complete, reply.Gaps)
	if err != nil {
		if !spec.AllowGaps || reply.Complete {
			return nil, fmt.Errorf("resume of run %s: %w", run, err)
		}
		// The missing events are missing in the content. The daemon's head has the run's position.
		state.Head = reply.Head
	}
	if err := cmp.Or(f.hasKeys(ctx, &reply.Head), a.unread); err != nil {
		return nil, fmt.Errorf("resume: %w", err)
	}
	return f.taken(state, reply)
}

// rebuild reads the run again from the daemon, because the log no longer has the message that the handle knows: the
// purger purges sealed events once later ones exist. It returns errAgain if the leader still has it.
func (a *appender) rebuild(ctx context.Context, items []*item) error {
	before, beforeID := a.ledger.end()
	rec, found, err := eventlog.Next(ctx, a.js, a.names, a.run, before)
	if err != nil {
		return errors.Join(errAgain, err)
	}
	if found && rec.Stream == before {
		return errAgain // an older replica answered
	}
	gone := fmt.Errorf("run %s: %w: %s at stream sequence %d was acknowledged", a.run, ErrLogRegressed, beforeID, before)
	var behind []schema.Record
	seen := false
	err = a.Events(ctx, a.run, func(rec schema.Record) error {
		switch {
		case rec.Stream == before:
			if seen = schema.PositionOf(&rec).ID == beforeID; !seen {
				return a.ledger.die(gone)
			}
		case rec.Stream > before:
			if behind = append(behind, rec); len(behind) > maxBehind {
				return a.ledger.die(fmt.Errorf("run %s: %w: more than %d messages were written behind this handle", a.run, ErrFenced, maxBehind))
			}
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrLogRegressed), errors.Is(err, ErrFenced):
		return err
	case errors.Is(err, ErrRunErased):
		return a.ledger.die(fmt.Errorf("%w: stop working on it", err))
	case errors.Is(err, ErrIncomplete), err == nil && !seen:
		return a.ledger.die(errors.Join(gone, err))
	case err != nil:
		return errors.Join(errAgain, err)
	}
	for i := range behind {
		if err := a.meet(ctx, &behind[i], items); err != nil {
			return err
		}
	}
	return errAgain // now continue reading after them
}

// maxBehind bounds the foreign messages held in memory.
const maxBehind = 4096
