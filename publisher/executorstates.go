package publisher

import "github.com/waymarkio/waymark/schema"

// Outcome is where a run stands when its executor is done with it.
type Outcome string

// Outcomes.
const (
	// OutcomeCompleted, OutcomeFailed and OutcomeCancelled: the run has ended.
	OutcomeCompleted Outcome = "completed"
	OutcomeFailed    Outcome = "failed"
	OutcomeCancelled Outcome = "cancelled"
	// OutcomeInterrupted: the run was left to others, who may claim it at once.
	OutcomeInterrupted Outcome = "interrupted"
	// OutcomeWaiting: the run was let go until it is answered or its call is settled; then it is claimed again.
	OutcomeWaiting Outcome = "waiting"
	// OutcomeHandedOver: another executor of this process has adopted the handle.
	OutcomeHandedOver Outcome = "handed over"
	// OutcomeDropped: the handle ended, for another process has the run, or its log is not what it was. Nothing was
	// published, and the heartbeats give the run up.
	OutcomeDropped Outcome = "dropped"
	// OutcomeLeft: what had to be said could not be published. The run is orphaned: once this process falls silent, or
	// because its heartbeats give the run up.
	OutcomeLeft Outcome = "left"
)

// trigger is what ends the work on a run.
type trigger int

const (
	workDone trigger = iota + 1
	workEnded
	workLetGo
	workFailed
	workPanicked
	runCancelled
	callHeld
	runWaits
	executorStops
	graceOver
	notBegun
	notRecorded
	handleAdopted
	handleEnded
	serverAway
)

// transition is what an executor does with a run in hand when something happens: the only way on which the code of
// this package publishes the end of its work. The drawing in the documentation is made from it.
type transition struct {
	on trigger
	// when says in words what happened.
	when string
	to   Outcome
	// wait: run.waiting is published for the held call, once.
	wait bool
	// interrupted is the reason of the run.interrupted that is published; empty for none.
	interrupted string
	// ended is the status of the run.ended that is published; empty for none.
	ended schema.Status
}

// transitions of a run in hand. Every outcome ends what this executor does with the run.
var transitions = []transition{
	{on: workDone, when: "work returns nil", to: OutcomeCompleted, ended: schema.StatusCompleted},
	{on: workFailed, when: "work returns an error", to: OutcomeFailed, ended: schema.StatusFailed},
	{on: workPanicked, when: "work panics", to: OutcomeFailed, ended: schema.StatusFailed},
	{on: runCancelled, when: "work stops because the run's end was asked for", to: OutcomeCancelled, ended: schema.StatusCancelled},
	{on: callHeld, when: "work returns that a call is held, or nil over one in doubt", to: OutcomeWaiting, wait: true, interrupted: schema.InterruptedWaiting},
	{on: runWaits, when: "work returns that the run waits", to: OutcomeWaiting, interrupted: schema.InterruptedWaiting},
	{on: executorStops, when: "work stops because the executor does", to: OutcomeInterrupted, interrupted: schema.InterruptedShutdown},
	{on: graceOver, when: "work does not stop within the grace", to: OutcomeInterrupted, interrupted: schema.InterruptedShutdown},
	{on: notBegun, when: "no work can be made for the run", to: OutcomeInterrupted, interrupted: schema.InterruptedPreempted},
	{on: notRecorded, when: "work cannot record what it does", to: OutcomeInterrupted, interrupted: schema.InterruptedPreempted},
	{on: workEnded, when: "work ended the run itself"},
	{on: workLetGo, when: "work interrupted the run itself", to: OutcomeInterrupted},
	{on: handleAdopted, when: "another executor adopts the handle", to: OutcomeHandedOver},
	{on: handleEnded, when: "the handle is fenced, forked or its log regressed", to: OutcomeDropped},
	{on: serverAway, when: "nothing can be published until the grace or the patience is over", to: OutcomeLeft},
}

// transitionOn returns what follows.
func transitionOn(on trigger) transition {
	for _, t := range transitions {
		if t.on == on {
			return t
		}
	}
	panic("no transition") // a test goes through all triggers
}
