package transcript

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ReplayOptions say how a run is replayed.
type ReplayOptions struct {
	// Speed divides the source's pauses; 0 means as fast as possible.
	Speed float64
	// Execute is called before a result is published: to count results, or to repeat the work. It is called again if an
	// earlier replay ended before the result was durable. An error ends the replay. nil does nothing.
	Execute func(ctx context.Context, call *Call) error
	// OnBoundary is called after each durable event; nil does nothing.
	OnBoundary func(b Boundary)
	// TakeOver continues a run of another executor that is gone, and a run that a person cancelled. Without it Replay
	// returns [ErrInUse] or [ErrCancelled].
	TakeOver bool
}

// Validate returns an error that names the wrong field and value.
func (o ReplayOptions) Validate() error {
	if o.Speed < 0 || math.IsNaN(o.Speed) || math.IsInf(o.Speed, 0) {
		return fmt.Errorf("speed %v: use 0 for as fast as possible, or a factor above 0", o.Speed)
	}
	return nil
}

// Boundary is an event that became durable.
type Boundary struct {
	Run string
	// Step counts the plan's events from 1 to Steps, including those that already existed.
	Step, Steps int
	// Name of the event, such as tool.returned.
	Name string
	Turn int32
	// Call of tool.called and tool.returned; zero for others.
	Call schema.CallKey
}

// Outcome is the result of a replay.
type Outcome struct {
	// Steps of the plan; Done of them already existed. If all did, nothing was published.
	Steps, Done int
	// Resumed: the run existed and was taken over.
	Resumed bool
	// Reopened: the run had ended, and the transcript has more.
	Reopened bool
	Epoch    schema.Epoch
	// Notes list data that stays as first imported, because no event can change it.
	Notes []string
	// More describes data of the run beyond the transcript, which is then an older copy; empty if there is none.
	More string
}

// Replay publishes a run as the original executor would have: turn by turn, each answer before the results of its
// calls. An existing run is compared with the transcript, and only missing events are published, whether an earlier
// replay was interrupted or the transcript grew: recorded results are not requested again, messages are not duplicated,
// an open turn continues, an ended run is reopened.
//
// It returns [ErrDiverged] for a run that is not a beginning of this transcript, [ErrInUse] for a run of another
// executor, [ErrCancelled] for one that a person cancelled (in these cases nothing was changed), and the publisher's
// errors. If another executor reopened a run after it had the whole transcript, nothing is missing.
func Replay(ctx context.Context, fleet *publisher.Fleet, run *Run, o ReplayOptions) (Outcome, error) {
	if err := o.Validate(); err != nil {
		return Outcome{}, err
	}
	steps := plan(run, fleet.Executor())
	out := Outcome{Steps: len(steps)}
	handle, err := begin(ctx, fleet, run)
	switch {
	case err == nil:
		o.boundary(run, steps, 0)
		out.Epoch = handle.Epoch()
		return out, drive(ctx, handle, run, steps, 1, o)
	case !errors.Is(err, publisher.ErrRunExists):
		return out, fmt.Errorf("replay run %s: %w", run.ID, err)
	}
	out, there, left, err := look(ctx, fleet, run, o)
	if err != nil || left.complete() {
		return out, err
	}
	spec := publisher.ResumeSpec{Reason: schema.TakeoverRestart}
	if out.Reopened {
		spec.Reason = schema.TakeoverReopen
	}
	handle, err = fleet.Resume(ctx, run.ID, spec)
	if err != nil {
		return out, fmt.Errorf("replay run %s, which exists: %w", run.ID, err)
	}
	out.Epoch = handle.Epoch()
	if left, err = stillLeft(ctx, fleet, handle, run, there, left); err != nil {
		return out, err
	}
	out.Steps, out.Done = len(left.steps), left.done
	return out, drive(ctx, handle, run, left.steps, left.done, o)
}

// Compare reports what [Replay] would do, without writing. It returns the same errors.
func Compare(ctx context.Context, fleet *publisher.Fleet, run *Run, o ReplayOptions) (Outcome, error) {
	switch _, err := fleet.Head(ctx, run.ID); {
	case errors.Is(err, publisher.ErrRunNotFound):
		return Outcome{Steps: len(plan(run, fleet.Executor()))}, nil
	case err != nil:
		return Outcome{}, fmt.Errorf("compare run %s: %w", run.ID, err)
	}
	out, _, _, err := look(ctx, fleet, run, o)
	return out, err
}

// look compares an existing run before it is taken over: a run of another agent with the same id must not be fenced.
func look(ctx context.Context, fleet *publisher.Fleet, run *Run, o ReplayOptions) (Outcome, *schema.State, *standing, error) {
	var out Outcome
	fail := func(err error) (Outcome, *schema.State, *standing, error) {
		return out, nil, nil, fmt.Errorf("replay run %s, which exists: %w", run.ID, err)
	}
	there, err := fleet.Get(ctx, run.ID)
	if err != nil {
		return fail(err)
	}
	if err := fleet.Hydrate(ctx, there); err != nil {
		return fail(err)
	}
	left, err := compare(there, run, fleet.Executor())
	if err != nil {
		return fail(err)
	}
	out.Steps, out.Done, out.Notes, out.More = len(left.steps), left.done, left.notes, left.more
	if left.complete() {
		return out, there, left, nil
	}
	if holder := holder(&there.Head); holder != "" && holder != fleet.Executor() && !o.TakeOver {
		if left.onlyEnd() && reopened(there) {
			// The run has the whole transcript. Its executor ends it.
			left.done, left.notes = len(left.steps), nil
			out.Done, out.Notes = left.done, nil
			out.More = fmt.Sprintf("executor %s continues it, in epoch %d", holder, there.Head.Epoch)
			return out, there, left, nil
		}
		return fail(fmt.Errorf("%w: %s, in epoch %d", ErrInUse, holder, there.Head.Epoch))
	}
	if there.Head.Status == schema.StatusCancelled && there.Head.CancelRequested && !o.TakeOver {
		return fail(ErrCancelled)
	}
	out.Resumed, out.Reopened = true, there.Head.Status.Terminal()
	return out, there, left, nil
}

// reopened reports whether the run had ended and continues.
func reopened(s *schema.State) bool {
	return slices.ContainsFunc(s.Takeovers, func(t schema.RunResumedData) bool { return t.Reason == schema.TakeoverReopen })
}

// holder is the executor that has a run; empty when the run has ended, or may be claimed.
func holder(h *schema.Head) string {
	if h.Status.Terminal() || h.Status.Claimable() || h.Unattended != "" {
		return ""
	}
	return h.Executor
}

// stillLeft are the missing steps after the takeover: the same as before, unless the run changed meanwhile.
func stillLeft(ctx context.Context, fleet *publisher.Fleet, handle *publisher.Run, run *Run, there *schema.State, left *standing) (*standing, error) {
	changed := false
	handle.View(func(s *schema.State) {
		n := len(s.Takeovers)
		changed = n == 0 || s.Takeovers[n-1].From.Digest != there.Head.Digest
	})
	if !changed {
		return left, nil
	}
	now := handle.State()
	err := fleet.Hydrate(ctx, now)
	if err == nil {
		left, err = compare(now, run, fleet.Executor())
	}
	if err != nil {
		return nil, fmt.Errorf("replay run %s, which changed meanwhile: %w", run.ID, err)
	}
	return left, nil
}

// begin starts the run unless it exists. It checks first: an executor of the same name that starts the same run again
// publishes the same event, which the server treats as a duplicate of the first one.
func begin(ctx context.Context, fleet *publisher.Fleet, run *Run) (*publisher.Run, error) {
	switch _, err := fleet.Head(ctx, run.ID); {
	case err == nil:
		return nil, publisher.ErrRunExists
	case !errors.Is(err, publisher.ErrRunNotFound):
		return nil, err
	}
	return fleet.Start(ctx, publisher.RunSpec{
		ID: run.ID, Agent: run.Agent, ThreadID: run.ThreadID, Model: run.Model, Parent: run.Parent,
		Labels: labels(run), Source: []byte(run.Source), Time: run.StartedAt,
	})
}

func (o *ReplayOptions) boundary(run *Run, steps []step, i int) {
	if o.OnBoundary == nil {
		return
	}
	s := &steps[i]
	b := Boundary{Run: run.ID, Step: i + 1, Steps: len(steps), Name: s.data.EventName(), Turn: s.turn}
	if s.call != nil {
		b.Call = s.call.Key
	}
	o.OnBoundary(b)
}

// driver publishes steps through the SDK.
type driver struct {
	handle *publisher.Run
	run    *Run
	steps  []step
	o      ReplayOptions
	last   time.Time
}

// drive publishes the steps from the given one on.
func drive(ctx context.Context, handle *publisher.Run, run *Run, steps []step, from int, o ReplayOptions) error {
	d := &driver{handle: handle, run: run, steps: steps, o: o}
	return d.wind(ctx, d.drive(ctx, from))
}

// drive publishes the steps from the given one on.
func (d *driver) drive(ctx context.Context, from int) error {
	run, steps := d.run, d.steps
	if from > 0 {
		d.last = steps[from-1].at
	}
	for i := from; i < len(steps); i++ {
		if err := d.pause(ctx, steps[i].at); err != nil {
			return fmt.Errorf("replay run %s: %w", run.ID, err)
		}
		if err := d.publish(ctx, &steps[i]); err != nil {
			return fmt.Errorf("replay run %s, step %d of %d (%s): %w", run.ID, i+1, len(steps), steps[i].data.EventName(), err)
		}
		d.o.boundary(d.run, d.steps, i)
	}
	return nil
}

// wind ends a run after an operator's request to cancel it.
func (d *driver) wind(ctx context.Context, err error) error {
	if !errors.Is(err, publisher.ErrCancelRequested) {
		return err
	}
	return errors.Join(err, d.handle.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled, Summary: "cancelled on request"}))
}

// pause waits for the source's pause, divided by the speed.
func (d *driver) pause(ctx context.Context, at time.Time) error {
	if at.IsZero() {
		return ctx.Err()
	}
	wait := time.Duration(0)
	if d.o.Speed > 0 && !d.last.IsZero() && at.After(d.last) {
		wait = time.Duration(float64(at.Sub(d.last)) / d.o.Speed)
	}
	if at.After(d.last) {
		d.last = at
	}
	if wait <= 0 {
		return ctx.Err()
	}
	return pause.For(ctx, wait)
}

// publish makes one step durable.
func (d *driver) publish(ctx context.Context, s *step) error {
	ctx = publisher.WithTime(ctx, s.at)
	switch data := s.data.(type) {
	case *schema.RunEndedData:
		return d.handle.End(ctx, publisher.RunEnd{
			Status: schema.Status(data.Status), Output: []byte(data.Output), Summary: data.Summary, Error: data.Error,
			Usage: data.Usage, Source: []byte(data.Source), Time: s.at,
		})
	case *schema.ToolReturnedData:
		if d.o.Execute != nil {
			if err := d.o.Execute(ctx, s.call); err != nil {
				return err
			}
		}
		if d.inDoubt(s.call.Key) {
			return d.handle.Publish(ctx, settlement(data), s.turn)
		}
	default:
	}
	return d.handle.Publish(ctx, s.data, s.turn)
}

// inDoubt reports whether the takeover left the outcome of a call open.
func (d *driver) inDoubt(key schema.CallKey) (found bool) {
	d.handle.View(func(s *schema.State) {
		for i := range s.Head.OpenCalls {
			if c := &s.Head.OpenCalls[i]; c.CallKey == key {
				found = c.InDoubt
			}
		}
	})
	return found
}

func labels(run *Run) map[string]string { return map[string]string{"format": string(run.Format)} }
