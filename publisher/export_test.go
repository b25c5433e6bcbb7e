package publisher

import (
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// SetWaitPoll sets how often waits look by themselves. Call it before the first.
func SetWaitPoll(f *Fleet, d time.Duration) { f.waitPoll = d }

// SetPublishTimeout sets the deadline of one event. Call it while nothing is published: what has to succeed before was given its time.
func SetPublishTimeout(f *Fleet, d time.Duration) { f.cfg.PublishTimeout = d }

// SetOutwait sets how long the executor of the epoch before may still begin a call. Call it before the first takeover.
func SetOutwait(f *Fleet, d time.Duration) { f.outwait = d }

// SetProofAge sets how old the proof of an epoch may be when a tool begins.
func SetProofAge(f *Fleet, d time.Duration) { f.proofAge = d }

// BeginTries bounds the events that are published for one proof.
const BeginTries = beginTries

// Outwait is how long that is.
const Outwait = beginWithin + beginGrace

// AgeProof makes the proof of the run's epoch older.
func AgeProof(r *Run, d time.Duration) {
	r.ledger.do(func(l *ledger) { l.provenAt = l.provenAt.Add(-d) })
}

// ClaimPausesAfter returns the pauses after claims that failed one after the other, without jitter.
func ClaimPausesAfter(errs ...error) []time.Duration {
	var p claimPauses
	var list []time.Duration
	for _, err := range errs {
		d, _ := p.due(err)
		list = append(list, d)
	}
	return list
}

// RedactValue is what a redaction makes of a value that is not Waymark's own.
func RedactValue(r *Redaction, in []byte) ([]byte, error) { return newRedactor(r).value(in) }

// Die ends a handle with an error, as what is found in its log does.
func Die(r *Run, err error) error { return r.ledger.die(err) }

// ConnOf is a fleet's connection.
func ConnOf(f *Fleet) *nats.Conn { return f.nc }

// Keep binds a handle to a contract of this process.
func Keep(r *Run, c Contract) error { return r.keep(c) }

// ContractOf is the contract that binds a run.
func ContractOf(r *Run) Contract { return r.contract() }

// legal has an x for each state of a call in the record, and each stage that a handle may know of it then: the table in
// ledgerstates.go.
var legal = [callStages][5]bool{
	//                unrecorded requested begun  in doubt closed
	callUnknown:   {true, true, false, true, true},
	callInherited: {false, true, true, true, false},
	callAwaited:   {false, true, true, true, false},
	callReady:     {false, true, true, false, true},
	callRunning:   {false, true, true, false, false},
	callRan:       {false, true, true, false, false},
	callDone:      {false, false, false, false, true},
	callHanded:    {false, false, false, false, true},
}

// IllegalCalls are the calls of which a handle knows what it cannot know.
func IllegalCalls(r *Run) (all []string) {
	r.ledger.do(func(l *ledger) {
		for key := range l.calls.calls {
			v, state := l.call(key), 0
			switch {
			case v.unrecorded():
			case v.open == nil:
				state = 4
			case v.open.State.Requested():
				state = 1
			case v.open.State.InDoubt():
				state = 3
			default:
				state = 2
			}
			if !legal[v.stage][state] {
				all = append(all, fmt.Sprintf("%+v: stage %d, state %d", key, v.stage, state))
			}
		}
	})
	return all
}
