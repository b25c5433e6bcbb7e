package publisher

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// Errors about who drives a run, and what it waits for.
var (
	// ErrNothing is returned by Claim when no run waits for an executor; see [NothingError].
	ErrNothing = errors.New("no run to claim")
	// ErrQuarantined is returned for the claim of a run whose claims made no progress. Look into it, then resume it
	// with reason request.
	ErrQuarantined = errors.New("run is quarantined")
	// ErrUnknownInterrupt is returned for what the run does not wait for, or no longer.
	ErrUnknownInterrupt = errors.New("run does not wait for this")
	// ErrInvalidAnswer is returned for an answer that the run's response_schema does not allow; see
	// [InvalidAnswerError].
	ErrInvalidAnswer = errors.New("answer is not what the run asks for")
	// ErrInputCancelled is returned by Ask and AwaitInput when somebody called the question off.
	ErrInputCancelled = errors.New("question was cancelled")
	// ErrInputExpired is returned by Ask and AwaitInput when no answer came in time.
	ErrInputExpired = errors.New("question expired without an answer")
	// ErrPhaseDenied is returned by Phase when a person did not allow the phase; see [PhaseDeniedError]. End the run, or go on without it.
	ErrPhaseDenied = errors.New("phase was not allowed")
	// ErrUnknownHandoff is returned for a hand-off that the run has not open.
	ErrUnknownHandoff = errors.New("run has no such open hand-off")
	// ErrHandoffTaken is returned when another accepted the hand-off, or it is another offer than the one that was read.
	ErrHandoffTaken = errors.New("hand-off was taken by another")
	// ErrShutdown is the cause with which the context of work ends when its executor is shut down.
	ErrShutdown = errors.New("executor is shut down")
	// ErrWaiting is returned by waits under an executor with WaitDetached, and by work that lets its run go until it is
	// answered.
	ErrWaiting = errors.New("run waits, and is let go meanwhile")
)

// InvalidAnswerError names what is wrong with an answer.
type InvalidAnswerError struct {
	// Places that are wrong; empty when the run asked with a schema that lets nothing through.
	Places []InvalidPlace
	// Said is what the daemon said, with its hint.
	Said *schema.ServiceError
}

// InvalidPlace is one place in an answer that the run's response_schema does not allow.
type InvalidPlace struct {
	// Path is a JSON Pointer into the answer; empty for all of it.
	Path string `json:"path"`
	// Problem in words.
	Problem string `json:"problem"`
}

// Error is what the daemon said.
func (e *InvalidAnswerError) Error() string { return fmt.Sprintf("%s: %s", ErrInvalidAnswer, e.Said) }

// Unwrap is [ErrInvalidAnswer] and what the daemon said.
func (e *InvalidAnswerError) Unwrap() []error { return []error{ErrInvalidAnswer, e.Said} }

// invalidAnswer reads the places from what the daemon said. Details of another form are left to Said.
func invalidAnswer(said *schema.ServiceError) error {
	e := &InvalidAnswerError{Said: said}
	if err := json.Unmarshal(said.Details, &e.Places); err != nil {
		e.Places = nil
	}
	return e
}

// NothingError says when it is worth asking for a run again.
type NothingError struct {
	// RetryAfter is how long to wait; add jitter.
	RetryAfter time.Duration
	// Claimable counts the runs that wait for an executor but may not be given out now.
	Claimable int
}

// Error says how many runs wait, and when to ask again.
func (e *NothingError) Error() string {
	why := "none is claimable"
	if e.Claimable > 0 {
		why = fmt.Sprintf("%d are claimable, and claims are paced", e.Claimable)
	}
	return fmt.Sprintf("%s: %s; ask again in %s", ErrNothing, why, e.RetryAfter)
}

// Unwrap is [ErrNothing].
func (e *NothingError) Unwrap() error { return ErrNothing }

// ClaimFate is what becomes of a run that was claimed and could not be taken in hand.
type ClaimFate string

// Fates of a claimed run.
const (
	// ClaimRetried: it stays this executor's, and a later claim tries it again.
	ClaimRetried ClaimFate = "retried"
	// ClaimGivenBack: others may claim it.
	ClaimGivenBack ClaimFate = "given_back"
	// ClaimGone: it has ended, or another has it or may claim it.
	ClaimGone ClaimFate = "gone"
	// ClaimLeft: it is not tried again, and could not be given back. The executor's heartbeats give it up, and it is
	// orphaned; without heartbeats it lies under the executor's name until a person takes it away.
	ClaimLeft ClaimFate = "left"
)

// ClaimedRunError says which run was claimed and could not be taken in hand, and what becomes of it.
type ClaimedRunError struct {
	Run  string
	Fate ClaimFate
	// RetryAfter is when a claim tries a retried one again, at the earliest.
	RetryAfter time.Duration
	// Err is why.
	Err error
}

// Error names the run, what becomes of it, and the next step.
func (e *ClaimedRunError) Error() string {
	fate := ""
	switch e.Fate {
	case ClaimRetried:
		fate = fmt.Sprintf("a claim tries it again after %s", e.RetryAfter)
	case ClaimGivenBack:
		fate = "it was given back, and others may claim it"
	case ClaimGone:
		fate = "it is not this executor's any more"
	case ClaimLeft:
		fate = fmt.Sprintf("it is left as it stands and is orphaned by the heartbeats; if it is not: waymark release %s --force", e.Run)
	}
	return fmt.Sprintf("claimed run %s cannot be taken in hand: %s: %s", e.Run, fate, e.Err)
}

// Unwrap is Err.
func (e *ClaimedRunError) Unwrap() error { return e.Err }
