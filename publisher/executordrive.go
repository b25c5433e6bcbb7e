package publisher

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// mostFinishPause is the longest wait between two tries to publish an outcome.
	mostFinishPause = time.Second
	// maxFailureText bounds the text of an error that ends a run.
	maxFailureText = 8 << 10
)

// drive does the work on a run and finishes it. If the run was about to wait and a signal arrived that the work had not
// seen, the work runs again: nothing else would wake the run.
func (e *Executor) drive(d *drive) {
	for e.driveOnce(d) {
	}
}

func (e *Executor) driveOnce(d *drive) (again bool) {
	ctx, cancel := d.run.Context(e.working)
	defer cancel()
	d.run.ledger.do(func(l *ledger) { l.signalUnseen = false })
	begun, err := false, errGoexit
	// Deferred, because work may end its goroutine instead of returning.
	defer func() {
		if e.finishes(d) {
			again = e.finish(d, e.classify(ctx, d, begun, err), err)
		}
	}()
	err = e.work(ctx, d.run, &begun)
	return false
}

// errGoexit is the error of work that ended its goroutine.
var errGoexit = errors.New("its goroutine was ended by runtime.Goexit")

// work makes the work and runs it. begun reports that it was made.
func (e *Executor) work(ctx context.Context, run *Run, begun *bool) (err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked := &panicError{value: p, stack: debug.Stack()}
			e.fleet.cfg.Logger.Error().Str("run", run.id).Bytes("stack", panicked.stack).Err(panicked).Msg("work panicked")
			err = panicked
		}
	}()
	if errors.Is(context.Cause(ctx), ErrShutdown) {
		return ErrShutdown
	}
	agent := run.Head().Agent
	if err := e.knows(agent); err != nil {
		return fmt.Errorf("run %s: %w", run.id, err)
	}
	if err := run.keep(e.spec.Contracts[agent]); err != nil {
		return err
	}
	work, err := e.spec.Agents[agent](ctx, run)
	if err != nil {
		return fmt.Errorf("work of agent %s for run %s: %w", agent, run.id, err)
	}
	if work == nil {
		return fmt.Errorf("work of agent %s for run %s: %w", agent, run.id, configError("Work", "nil", "return a Work, or an error"))
	}
	*begun = true // before a panic, too
	if err := work(ctx, run); err != nil || ctx.Err() != nil {
		return err
	}
	if err := run.leftInDoubt(); err != nil {
		return err
	}
	return run.uncompleted()
}

// classify maps the return of work to a trigger. The run's own state takes precedence over the returned error.
func (e *Executor) classify(ctx context.Context, d *drive, begun bool, err error) trigger {
	r := d.run
	mine, dead, head := r.driver.Load() == d, r.ledger.ended() != nil, r.Head()
	cause := context.Cause(ctx)
	held, isHeld := errors.AsType[*HeldError](err)
	switch {
	case !mine:
		return handleAdopted
	case dead:
		return handleEnded
	case head.Status.Terminal():
		return workEnded
	case head.Status == schema.StatusInterrupted, head.Unattended == schema.StatusInterrupted:
		return workReleased
	case head.CancelRequested && (errors.Is(cause, ErrCancelRequested) || errors.Is(err, ErrCancelRequested)):
		return runCancelled
	case head.Paused && !errors.Is(err, ErrWaiting) && (!isHeld || held.Run != r.id):
		return runPaused // whatever the work made of the pause, it continues afterwards
	case err == nil && !errors.Is(cause, ErrShutdown) && !errors.Is(cause, ErrStopped):
		return workDone
	case err == nil:
		// The work may have stopped half-way because of the shutdown. If there was nothing left to do, the next
		// executor finds that out.
		return executorStops
	case !begun && !errors.Is(err, ErrShutdown):
		return notContinued
	case isHeld && held.Run == r.id:
		return callHeld
	case errors.Is(err, ErrWaiting):
		return runWaits
	case errors.Is(cause, ErrShutdown), errors.Is(cause, ErrStopped):
		return executorStops
	case unavailable(err):
		return notAnswered
	case unknown(err), errors.Is(err, ErrDiverged), errors.Is(err, ErrConfig):
		return notContinued
	default:
		return workFailed
	}
}

// finish publishes the outcome of the run and releases it. It returns true if the run was about to wait and a signal
// arrived.
func (e *Executor) finish(d *drive, on trigger, cause error) (again bool) {
	outcome, err := e.publishFinish(d, on, cause)
	if outcome == "" && errors.Is(err, ErrSignalled) {
		e.mu.Lock()
		defer e.mu.Unlock()
		d.taken = false
		return true
	}
	log := e.fleet.cfg.Logger
	switch {
	case outcome == OutcomeLeft:
		log.Error().Str("run", d.run.id).Err(err).Msg("outcome not published; run will be orphaned")
		err = fmt.Errorf("outcome of run %s not published; it will be orphaned, and another executor resumes it: %w", d.run.id, err)
	case outcome == OutcomeWaiting && err != nil: // no failure
		log.Info().Str("run", d.run.id).Str("outcome", string(outcome)).Str("reason", err.Error()).Msg("executor finished the run")
	case err != nil:
		log.Info().Str("run", d.run.id).Str("outcome", string(outcome)).Err(err).Msg("executor finished the run")
	default:
		log.Debug().Str("run", d.run.id).Str("outcome", string(outcome)).Msg("executor finished the run")
	}
	if head := d.run.Head(); head.Status.Terminal() && len(head.Signals) > 0 {
		log.Warn().Str("run", d.run.id).Int("signals", len(head.Signals)).Str("first", head.Signals[0].SignalID).Msg("run has ended with signals that were not consumed")
	}
	d.run.driver.CompareAndSwap(d, nil)
	e.mu.Lock()
	delete(e.driven, d)
	if outcome == OutcomeLeft {
		e.left = append(e.left, err)
	}
	switch {
	case on == notAnswered:
		e.unanswered = d.run.id
	case on == workFailed && errors.Is(err, ErrUnauthorized):
		e.refused++
	case on == workDone:
		e.refused = 0
	}
	e.mu.Unlock()
	select {
	case e.freed <- struct{}{}:
	default:
	}
	if e.spec.OnOutcome != nil {
		e.spec.OnOutcome(d.run.id, outcome, err)
	}
	close(d.done)
	return false
}

// publishFinish tries until the outcome is published, or until the executor stops and its grace is over. It returns the
// outcome, and the error of the work or of publishing. No outcome means [ErrSignalled]: the run does not wait.
func (e *Executor) publishFinish(d *drive, on trigger, cause error) (Outcome, error) {
	r := d.run
	wait := &pause.Backoff{Next: DefaultBackoff, Most: mostFinishPause}
	begun := time.Now()
	for {
		err := r.Resolve(e.finishing)
		t := transitionOn(on)
		// No other process has these outcomes: without them, a person is asked about a hold call.
		for _, outcome := range with(r.ledger, func(l *ledger) []draft { return l.calls.unrecorded() }) {
			if _, failed := r.publish(e.finishing, outcome); err == nil && unknown(failed) {
				err = failed
			}
		}
		if err == nil {
			err = e.publishTransition(d, t, cause)
		}
		// The run may end, be taken over or be adopted until its outcome is durable.
		mine, status, dead := r.driver.Load() == d, r.Head().Status, r.ledger.ended()
		switch {
		case !mine:
			return OutcomeHandedOver, cause
		case dead != nil && !r.ledger.wentAway():
			return OutcomeDropped, errors.Join(cause, dead)
		case status.Terminal():
			return Outcome(status), cause
		case err == nil:
			return t.to, cause
		case errors.Is(err, ErrSignalled):
			return "", err
		case errors.Is(err, ErrFleetFull), !e.fleet.nc.IsConnected():
			// No other executor could publish more now: keep trying.
			begun = time.Now()
		case time.Since(begun) > e.spec.Patience:
			return e.leave(r, errors.Join(cause, err))
		}
		if errors.Is(err, ErrStopped) || !wait.Wait(e.finishing) {
			return e.leave(r, errors.Join(cause, err))
		}
	}
}

// leave gives up a run whose outcome cannot be published: it ends the handle.
func (e *Executor) leave(r *Run, err error) (Outcome, error) {
	r.ledger.release(releasedError(r, err))
	return OutcomeLeft, err
}

// publishTransition publishes the events of the transition, unless an earlier try did.
func (e *Executor) publishTransition(d *drive, t transition, cause error) error {
	r, ctx := d.run, e.finishing
	head := r.Head()
	switch {
	case r.driver.Load() != d, head.Status.Terminal():
		return nil
	case head.Status == schema.StatusInterrupted, head.Unattended == schema.StatusInterrupted:
		r.ledger.release(releasedError(r, cause))
		return nil
	}
	if held, ok := errors.AsType[*HeldError](cause); ok && t.wait {
		// Settled at this moment, or open in this epoch: then it is in doubt for the next executor.
		if err := r.publishHeld(ctx, held.Key, held.Detail); err != nil && !errors.Is(err, ErrNotInDoubt) {
			return err
		}
	}
	if t.raises() && cause != nil && !d.raised {
		if _, err := r.publish(ctx, draft{data: &schema.ErrorRaisedData{Error: *recordedError(cause), Scope: "run"}}); err != nil {
			return err
		}
		d.raised = true
	}
	if t.interrupted != "" {
		last := draft{data: &schema.RunInterruptedData{Reason: t.interrupted}}
		if t.interrupted == schema.InterruptedWaiting {
			last.unless = unlessUnseen
		}
		return r.publishLast(ctx, releasedError(r, cause), last)
	}
	if t.ended != "" {
		return r.End(ctx, RunEnd{Status: t.ended, Error: failureFor(t, cause)})
	}
	return nil
}

// releasedError is the error of a handle whose run was released.
func releasedError(r *Run, cause error) error {
	if cause == nil {
		return fmt.Errorf("run %s: %w: the executor released it", r.id, ErrStopped)
	}
	return fmt.Errorf("run %s: the executor released it: %w", r.id, cause)
}

// failureFor is the recorded error of a failed run.
func failureFor(t transition, cause error) *schema.Error {
	if t.ended != schema.StatusFailed {
		return nil
	}
	return recordedError(cause)
}

// recordedError converts an error for the record and shortens it.
func recordedError(cause error) *schema.Error {
	failure := failureOf(cause)
	failure.Message = clipped(failure.Message, maxFailureText)
	return &failure
}
