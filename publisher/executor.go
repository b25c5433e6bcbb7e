package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/schema"
)

// Defaults of [ExecutorSpec].
const (
	defaultCapacity = 100
	defaultGrace    = 10 * time.Second
	defaultPatience = time.Minute
)

// Work does the rest of a run's work, from wherever its record ends: turns that ended are not repeated, completed
// phases are skipped ([Run.Phase]), and recorded results are returned ([Turn.Tool]). ctx is that of [Run.Context]; it
// also ends with the cause [ErrShutdown]. The returned error decides the run's outcome; see [Executor].
type Work func(ctx context.Context, run *Run) error

// ExecutorSpec says which runs an executor drives, and how.
type ExecutorSpec struct {
	// Agents of this executor. Each has a function that makes the work for one run. If it fails or panics, the run is
	// left to other executors and counts as a claim without progress. Agents or Loops is required.
	Agents map[string]func(ctx context.Context, run *Run) (Work, error)
	// Loops are agents that consist of a model and its tools. Their names differ from those of Agents.
	Loops map[string]Loop
	// Contracts bind the runs of an agent, by its name, in addition to each run's own contract.
	Contracts map[string]Contract
	// Labels that runs must have, with these values, to be claimed.
	Labels map[string]string
	// Capacity is the number of active runs at which the executor claims no more; 0 means 100, and a negative number
	// means that it claims none. Waiting runs count, too, unless WaitDetached releases them. Start and Adopt ignore it.
	// So does the retry of a run that was claimed earlier and could not be resumed at once; see [Fleet.Claim].
	Capacity int
	// Grace is how long work may take to stop after Serve's ctx has ended, and how long the executor then tries to
	// publish the outcomes of its runs; 0 means 10 seconds each.
	Grace time.Duration
	// Patience is how long the executor tries to publish an outcome while the server is connected but does not accept
	// it. Then it gives the run up, and the run is orphaned. While the server is disconnected or the fleet is full, the
	// executor keeps trying. 0 means one minute.
	Patience time.Duration
	// WaitDetached releases waiting runs: Ask, AwaitInput, AwaitSettled and AwaitSignal return [ErrWaiting] instead of
	// waiting, and the work, or its pure or idempotent tool, should return it. The run then needs no memory and no
	// capacity until it is answered. The executor that claims it next reaches the same question, runs the tool again, and
	// gets the answer.
	WaitDetached bool
	// OnOutcome is called once for each run that the executor has finished with. err is the error of its work, or the
	// reason why the outcome could not be published. nil means no callback.
	OnOutcome func(run string, outcome Outcome, err error)
}

// Executor drives runs: it claims them up to its capacity, or gets them from Start and Adopt, and records the outcome
// of each in the log. The outcome depends on what the work returns:
//
//   - any result after the run was cancelled by request, nil included: the run ends as cancelled;
//   - any result but the two about waits after the run was paused: it is interrupted, and continues after the pause;
//   - any result after Serve's ctx ended, nil included: the run is interrupted, and others may claim it at once;
//   - nil: the run ends as completed, unless the work has ended it;
//   - a [*HeldError] of the run, or nil while a call is in doubt that must not run again: run.waiting for the
//     settlement is published, once, and the run is released until then;
//   - [ErrWaiting]: the run is released until it is answered;
//   - [ErrUnavailable], [ErrNoService]: it is interrupted, and the claim does not count as one without progress;
//   - another error of this package that proves nothing (docs/sdk.md lists them), or that another version of the work
//     cures, [ErrDiverged] and [ErrConfig]: the error is recorded, and the run is interrupted;
//   - any other error, or a panic: it ends as failed, with the error's [Failure] if it has one.
//
// If the handle has ended (fenced, forked, regressed), the executor publishes nothing, whatever the work returns. It
// retries an outcome that it could not publish until it succeeds, or until the executor stops and its grace is over, or
// for ExecutorSpec.Patience while the server is connected but does not accept it.
type Executor struct {
	fleet *Fleet
	spec  ExecutorSpec

	// working ends, with ErrShutdown as its cause, when Serve's ctx does; finishing ends when the executor gives up
	// publishing.
	working, finishing context.Context //nolint:containedctx // the executor's own life
	shut               context.CancelCauseFunc
	giveUp             context.CancelFunc
	// freed wakes the claim loop after a run was released.
	freed chan struct{}

	mu      sync.Mutex
	serving bool
	over    bool
	driven  map[*drive]struct{}
	left    []error
	// unanswered is the run that was given back last because the fleet did not answer its work; empty after a claim.
	unanswered string
	// refused counts the latest runs that failed because the provider refused the credentials.
	refused int
}

// drive is one run driven by an executor.
type drive struct {
	executor *Executor
	run      *Run
	// taken: the drive is being finished, by its own goroutine or because its grace is over. Under Executor.mu.
	taken bool
	// raised: the log has the reason why this executor cannot continue the run.
	raised bool
	// done is closed when the executor has finished with the run.
	done chan struct{}
}

// NewExecutor creates an executor of the fleet. It does nothing before [Executor.Serve]. It returns [ErrConfig].
func (f *Fleet) NewExecutor(spec ExecutorSpec) (*Executor, error) {
	spec.Agents, spec.Labels = maps.Clone(spec.Agents), maps.Clone(spec.Labels)
	spec.Contracts = maps.Clone(spec.Contracts)
	if spec.Capacity == 0 {
		spec.Capacity = defaultCapacity
	}
	if spec.Grace == 0 {
		spec.Grace = defaultGrace
	}
	if spec.Patience == 0 {
		spec.Patience = defaultPatience
	}
	if len(spec.Agents)+len(spec.Loops) == 0 {
		return nil, configError("Agents", "empty", "name at least one agent with the function that makes its work, or a loop in Loops")
	}
	if err := spec.addLoops(); err != nil {
		return nil, err
	}
	if err := f.readableLabels(spec.Labels); err != nil {
		return nil, err
	}
	for agent, factory := range spec.Agents {
		if err := schema.CheckName("agent", agent); err != nil {
			return nil, fmt.Errorf("%w: Agents: %w", ErrConfig, err)
		}
		if factory == nil {
			return nil, configError("Agents", agent+" without a function", "set the function that makes its work")
		}
	}
	for agent, contract := range spec.Contracts {
		if spec.Agents[agent] == nil {
			return nil, configError("Contracts", agent, "name an agent of Agents or Loops")
		}
		if err := contract.validate("Contracts"); err != nil {
			return nil, fmt.Errorf("agent %s: %w", agent, err)
		}
	}
	if spec.Patience < 0 {
		return nil, configError("Patience", spec.Patience, "use a duration above 0")
	}
	if spec.Grace < 0 {
		return nil, configError("Grace", spec.Grace, "use a duration above 0")
	}
	f.versions.add(spec.Loops, f.secrets == nil) // names of tools are content
	e := &Executor{fleet: f, spec: spec, freed: make(chan struct{}, 1), driven: make(map[*drive]struct{})}
	e.working, e.shut = context.WithCancelCause(context.Background())
	e.finishing, e.giveUp = context.WithCancel(context.Background())
	return e, nil
}

// addLoops turns the loops into agents.
func (s *ExecutorSpec) addLoops() error {
	if s.Agents == nil {
		s.Agents = make(map[string]func(context.Context, *Run) (Work, error), len(s.Loops))
	}
	for agent, loop := range s.Loops {
		if s.Agents[agent] != nil {
			return configError("Loops", agent, "use this name only once, in Agents or in Loops")
		}
		if err := loop.prepare(); err != nil {
			return fmt.Errorf("agent %s: %w", agent, err)
		}
		// A run that the loop cannot complete is given back at once, not begun and then failed.
		s.Agents[agent] = func(_ context.Context, run *Run) (Work, error) { return loop.Work, loop.completes(run) }
	}
	return nil
}

// Start starts a run, as [Fleet.Start] does, and drives it. If Serve has not been called, the work begins with Serve.
// After [ErrUnresolved] and [ErrUnavailable] call Start again: it resumes a run that an earlier call of this process
// did start, because no other executor gets that run while this process lives. It returns [ErrStopped] once Serve has
// ended, and [ErrConfig] for an agent that the executor does not have.
func (e *Executor) Start(ctx context.Context, spec RunSpec) (*Run, error) {
	if spec.Agent == "" {
		spec.Agent = e.fleet.cfg.Agent
	}
	if err := e.knows(spec.Agent); err != nil {
		return nil, fmt.Errorf("start of run %s: %w", spec.ID, err)
	}
	if e.stopping() {
		return nil, fmt.Errorf("start of run %s: executor: %w", spec.ID, ErrStopped)
	}
	run, err := e.begun(ctx, spec)
	if err != nil {
		return nil, err
	}
	if !e.take(run) { //nolint:contextcheck // work outlives the call
		err := fmt.Errorf("start of run %s: executor: %w", spec.ID, ErrStopped)
		return nil, errors.Join(err, run.publishLast(ctx, err, draft{data: &schema.RunInterruptedData{Reason: schema.InterruptedShutdown}}))
	}
	return run, nil
}

// begun starts a run, or resumes the one that an earlier call started without an answer.
func (e *Executor) begun(ctx context.Context, spec RunSpec) (*Run, error) {
	alone, done := e.fleet.hand.begin(spec.ID)
	defer done()
	if !alone {
		return nil, fmt.Errorf("start of run %s: %w: another call is starting it", spec.ID, ErrRunExists)
	}
	run, err := e.fleet.Start(ctx, spec)
	if !errors.Is(err, ErrRunExists) || e.fleet.instance == "" || len(e.fleet.hand.of(spec.ID)) > 0 {
		return run, err
	}
	head, headErr := e.fleet.Head(ctx, spec.ID)
	switch {
	case headErr != nil:
		return nil, errors.Join(err, headErr)
	case !e.fleet.startedUnheard(&head) || head.Agent != spec.Agent:
		return nil, err
	}
	return e.fleet.resume(ctx, spec.ID, ResumeSpec{Reason: schema.TakeoverRestart, Agent: spec.Agent})
}

// Adopt drives a run whose handle another part of this process has: the program itself, or another executor, whose work
// may return afterwards. The run keeps its handle and its epoch, and nothing is published. It returns [ErrStopped],
// [ErrConfig], [ErrRunEnded], and the error that ended the handle.
func (e *Executor) Adopt(run *Run) error {
	head := run.Head()
	err := run.Err()
	switch {
	case run.fleet != e.fleet:
		err = configError("run", run.id, "use a run of this executor's fleet handle")
	case err != nil && !errors.Is(err, ErrUnresolved):
	case head.Status.Terminal():
		err = ErrRunEnded
	default:
		err = e.knows(head.Agent)
	}
	if err != nil {
		return fmt.Errorf("adoption of run %s: %w", run.id, err)
	}
	if !e.take(run) {
		return fmt.Errorf("adoption of run %s: executor: %w", run.id, ErrStopped)
	}
	return nil
}

func (e *Executor) knows(agent string) error {
	if e.spec.Agents[agent] != nil {
		return nil
	}
	return configError("agent", fmt.Sprintf("%.80q", agent), fmt.Sprintf("this executor has %v", slices.Sorted(maps.Keys(e.spec.Agents))))
}

func (e *Executor) stopping() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.over
}

// take begins to drive a run, or returns false if the executor has stopped.
func (e *Executor) take(run *Run) bool {
	d := &drive{executor: e, run: run, done: make(chan struct{})}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over {
		return false
	}
	run.driver.Store(d)
	e.driven[d] = struct{}{}
	if e.serving {
		go e.drive(d)
	}
	return true
}

// Serve claims and drives runs, and drives those given to Start and Adopt, until ctx ends, the fleet is closed or its
// connection is: by [ErrNotPermitted] if the server revoked its key, else by [ErrUnavailable]. Then it claims no more
// runs, and the contexts of all work end with the cause [ErrShutdown]. Work that has not returned within the grace is
// abandoned: its run is left to others, and its handle ends, so that it can publish nothing more.
// Serve returns once all runs are finished: nil, or an error that names the runs whose outcome could not be published.
// Only abandoned work may still be running then. Serve may be called once. Close the fleet after it.
func (e *Executor) Serve(ctx context.Context) error {
	if err := e.begin(); err != nil { //nolint:contextcheck // work ends with a cause and a grace of its own
		return fmt.Errorf("executor %s: %w", e.fleet.cfg.Executor, err)
	}
	defer e.giveUp()
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	claiming, stopClaiming := context.WithCancel(context.WithoutCancel(ctx))
	defer stopClaiming()
	claimed := make(chan struct{})
	go func() {
		defer close(claimed)
		e.claimRuns(asking, claiming)
	}()
	nc := e.fleet.Conn()
	closed := nc.StatusChanged(nats.CLOSED)
	defer nc.RemoveStatusListener(closed)
	if nc.IsClosed() { // before the listener was there
		c := make(chan nats.Status)
		close(c)
		closed = c
	}
	var err error
	select {
	case <-ctx.Done():
	case <-e.fleet.life.Done():
		err = ErrStopped
	case <-closed:
		switch last := nc.LastError(); {
		case e.fleet.isStopped():
			err = ErrStopped
		case natsconn.Unauthorized(last):
			err = fmt.Errorf("%w: the server closed the connection for good, for example because the key was revoked: %w", ErrNotPermitted, last)
		default:
			err = fmt.Errorf("%w: %w", ErrUnavailable, cmp.Or(last, nats.ErrConnectionClosed))
		}
	}
	stopAsking()
	e.shut(ErrShutdown)
	grace := time.NewTimer(e.spec.Grace)
	defer grace.Stop()
	over := false
	wait := func(done <-chan struct{}) {
		if over {
			return
		}
		select {
		case <-done:
		case <-grace.C:
			over = true
		}
	}
	// A claim in progress may bring a run: wait for it, to give the run back.
	wait(claimed)
	stopClaiming()
	<-claimed
	e.fleet.presence.claimsNone()
	for _, d := range e.close() {
		wait(d.done)
	}
	e.abandon()
	last := time.AfterFunc(e.spec.Grace, e.giveUp)
	defer last.Stop()
	for _, d := range e.inHand() {
		<-d.done
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return errors.Join(append([]error{err}, e.left...)...) // the cause first
}

func (e *Executor) begin() error {
	// Runs of Start and Adopt are finished even if the fleet was closed before Serve: their outcome is reported nowhere
	// else.
	if err := e.fleet.appear(); err != nil && !errors.Is(err, ErrStopped) {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.serving {
		return configError("Serve", "called again", "create another executor")
	}
	e.serving = true
	for d := range e.driven {
		go e.drive(d)
	}
	return nil
}

// close stops the executor from accepting runs, and returns the active ones.
func (e *Executor) close() []*drive {
	e.mu.Lock()
	e.over = true
	e.mu.Unlock()
	return e.inHand()
}

func (e *Executor) inHand() []*drive {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Collect(maps.Keys(e.driven))
}

// claimRuns claims runs while there is capacity. A claim in progress when ctx ends continues until claiming ends.
func (e *Executor) claimRuns(ctx, claiming context.Context) {
	spec := ClaimSpec{Agents: slices.Sorted(maps.Keys(e.spec.Agents)), Labels: e.spec.Labels}
	var pause, unanswered claimPauses
	for {
		room, ok := e.mayClaim(ctx)
		if !ok {
			return
		}
		e.mu.Lock()
		run := e.unanswered
		e.unanswered = ""
		e.mu.Unlock()
		// Otherwise executors would claim it and give it back many times a second.
		if run != "" && !unanswered.after(ctx, &ClaimedRunError{Run: run, Err: ErrUnavailable}, nil) {
			return
		}
		// Otherwise an executor with a wrong key would fail one run of the fleet after the other.
		if d := e.refusedPause(); d > 0 && !sleep(ctx, d, nil) {
			return
		}
		called := e.fleet.calls.next()
		claimed, err := e.fleet.claimOnce(claiming, spec, room)
		switch {
		case err == nil:
			e.take(claimed) //nolint:contextcheck // work outlives the call
		case !errors.Is(err, ErrNothing):
			e.fleet.cfg.Logger.Warn().Err(err).Str("executor", e.fleet.cfg.Executor).Msg("claim failed")
		}
		if !pause.after(ctx, err, called) {
			return
		}
	}
}

// refusedPause is the pause before the next claim after runs whose model calls were refused; 0 for none.
func (e *Executor) refusedPause() time.Duration {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refused == 0 {
		return 0
	}
	return min(claimPause<<min(e.refused, 10), mostRefusedPause)
}

// authorized reports that a model has answered.
func (r *Run) authorized() {
	if d := r.driver.Load(); d != nil {
		d.executor.mu.Lock()
		defer d.executor.mu.Unlock()
		d.executor.refused = 0
	}
}

// mayClaim waits until there is capacity for more runs and returns how many. It returns false if ctx ends first.
func (e *Executor) mayClaim(ctx context.Context) (room int, ok bool) {
	for {
		e.mu.Lock()
		room = e.spec.Capacity - len(e.driven)
		e.mu.Unlock()
		if room > 0 {
			return room, ctx.Err() == nil && !e.fleet.isStopped()
		}
		select {
		case <-e.freed:
		case <-ctx.Done():
			return 0, false
		case <-e.fleet.life.Done():
			return 0, false
		}
	}
}

// abandon finishes the runs whose work did not stop.
func (e *Executor) abandon() {
	for _, d := range e.inHand() {
		if e.finishes(d) {
			go e.finish(d, executorStops, fmt.Errorf("work on run %s did not stop within %s: %w", d.run.id, e.spec.Grace, ErrShutdown))
		}
	}
}

// finishes reports, once, that the caller must finish the drive.
func (e *Executor) finishes(d *drive) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if d.taken {
		return false
	}
	d.taken = true
	return true
}
