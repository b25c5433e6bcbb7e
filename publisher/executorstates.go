package publisher

import "github.com/waymarkio/waymark/schema"

// Outcome is the state of a run when its executor has finished with it.
type Outcome string

// Outcomes.
const (
	// OutcomeCompleted, OutcomeFailed and OutcomeCancelled: the run has ended.
	OutcomeCompleted Outcome = "completed"
	OutcomeFailed    Outcome = "failed"
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeInterrupted: the run was left to other executors, which may claim it at once.
	OutcomeInterrupted Outcome = "interrupted"
	// OutcomeWaiting: the run was released until it is answered or its call is settled; then it is claimed again.
	OutcomeWaiting Outcome = "waiting"
	// OutcomeHandedOver: another executor of this process has adopted the handle.
	OutcomeHandedOver Outcome = "handed over"
	// OutcomeDropped: the handle ended, because another process has the run or its log regressed. Nothing was
	// published, and the heartbeats report the run as abandoned.
	OutcomeDropped Outcome = "dropped"
	// OutcomeLeft: the outcome could not be published. The run is orphaned: when this process falls silent, or because
	// its heartbeats report the run as abandoned.
	OutcomeLeft Outcome = "left"
)

// trigger is the event that ends the work on a run.
type trigger int

const (
	workDone trigger = iota + 1
	workEnded
	workReleased
	workFailed
	runCancelled
	callHeld
	runWaits
	runPaused
	executorStops
	notContinued
	notAnswered
	handleAdopted
	handleEnded
	serverAway
)

// transition is the reaction of an executor to a trigger. It is the only way in which this package publishes the end of
// its work. The diagram in the documentation is generated from it.
type transition struct {
	on trigger
	// when describes the trigger in words.
	when string
	to   Outcome
	// wait: run.waiting is published for the held call, once.
	wait bool
	// interrupted is the reason of the published run.interrupted; empty for none.
	interrupted string
	// ended is the status of the published run.ended; empty for none.
	ended schema.Status
}

// raises reports whether the error of the work is recorded: it does not fail the run, and says why this executor cannot
// continue it.
func (t *transition) raises() bool { return t.interrupted == schema.InterruptedPreempted }

// transitions of an active run. After each of them the executor has finished with the run.
var transitions = []transition{
	{on: workDone, when: "work returns nil", to: OutcomeCompleted, ended: schema.StatusCompleted},
	{on: workFailed, when: "work returns an error, or panics", to: OutcomeFailed, ended: schema.StatusFailed},
	{on: runCancelled, when: "work stops because the run's end was asked for", to: OutcomeCancelled, ended: schema.StatusCancelled},
	{on: callHeld, when: "work returns that a call is held, or nil over one in doubt", to: OutcomeWaiting, wait: true, interrupted: schema.InterruptedWaiting},
	{on: runWaits, when: "work returns that the run waits", to: OutcomeWaiting, interrupted: schema.InterruptedWaiting},
	{on: runPaused, when: "work stops because the run is paused, whatever it returns", to: OutcomeInterrupted, interrupted: schema.InterruptedPaused},
	{on: executorStops, when: "the executor stops, and the work with it or not within the grace", to: OutcomeInterrupted, interrupted: schema.InterruptedShutdown},
	{on: notContinued, when: "no work can be made for the run, it diverges from the record, or the executor is not set up for it", to: OutcomeInterrupted, interrupted: schema.InterruptedPreempted},
	{on: notAnswered, when: "work gets no answer of the fleet", to: OutcomeInterrupted, interrupted: schema.InterruptedUnavailable},
	{on: workEnded, when: "work ended the run itself"},
	{on: workReleased, when: "work interrupted the run itself", to: OutcomeInterrupted},
	{on: handleAdopted, when: "another executor adopts the handle", to: OutcomeHandedOver},
	{on: handleEnded, when: "the handle is fenced, forked or its log regressed", to: OutcomeDropped},
	{on: serverAway, when: "nothing can be published until the grace or the patience is over", to: OutcomeLeft},
}

// transitionOn returns the transition of a trigger.
func transitionOn(on trigger) transition {
	for _, t := range transitions {
		if t.on == on {
			return t
		}
	}
	panic("no transition") // a test checks all triggers
}
