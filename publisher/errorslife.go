package publisher

import (
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// Errors about the executor of a run, and about its waits.
var (
	// ErrNothing is returned by Claim when no run waits for an executor; see [NothingError].
	ErrNothing = errors.New("no run to claim")
	// ErrQuarantined is returned for the claim of a run whose claims made no progress. Investigate the run, then resume
	// it with reason request.
	ErrQuarantined = errors.New("run is quarantined")
	// ErrUnknownInterrupt is returned for an interrupt that the run does not wait for, or no longer waits for.
	ErrUnknownInterrupt = errors.New("run does not wait for this")
	// ErrInvalidAnswer is returned for an answer that the run's response_schema does not allow; see
	// [InvalidAnswerError].
	ErrInvalidAnswer = errors.New("answer is not what the run asks for")
	// ErrInputCancelled is returned by Ask and AwaitInput when the question was cancelled.
	ErrInputCancelled = errors.New("question was cancelled")
	// ErrInputExpired is returned by Ask and AwaitInput when no answer came in time.
	ErrInputExpired = errors.New("question expired without an answer")
	// ErrPhaseDenied is returned by Phase when a person did not allow the phase; see [PhaseDeniedError]. End the run,
	// or continue without the phase.
	ErrPhaseDenied = errors.New("phase was not allowed")
	// ErrUnknownHandoff is returned for a hand-off that is not open in the run.
	ErrUnknownHandoff = errors.New("run has no such open hand-off")
	// ErrHandoffTaken is returned when another executor accepted the hand-off, or when the offer was replaced after it
	// was read.
	ErrHandoffTaken = errors.New("hand-off was taken by another")
	// ErrShutdown is the cause with which the context of work ends when its executor shuts down.
	ErrShutdown = errors.New("executor is shut down")
	// ErrWaiting is returned by waits under an executor with WaitDetached, and by work that releases its run until an
	// answer comes.
	ErrWaiting = errors.New("run waits and was released")
)

// InvalidAnswerError names the invalid places of an answer.
type InvalidAnswerError struct {
	// Places that are invalid; empty if the response_schema of the run accepts no answer at all.
	Places []InvalidPlace
	// Said is the daemon's error, with its hint.
	Said *schema.ServiceError
}

// InvalidPlace is one place in an answer that the run's response_schema does not allow.
type InvalidPlace struct {
	// Path is a JSON Pointer into the answer; empty for all of it.
	Path string `json:"path"`
	// Problem in words.
	Problem string `json:"problem"`
}

// Error returns the daemon's message.
func (e *InvalidAnswerError) Error() string { return fmt.Sprintf("%s: %s", ErrInvalidAnswer, e.Said) }

// Unwrap returns [ErrInvalidAnswer] and the daemon's error.
func (e *InvalidAnswerError) Unwrap() []error { return []error{ErrInvalidAnswer, e.Said} }

// invalidAnswer reads the places from the daemon's error. Details in another form stay in Said.
func invalidAnswer(said *schema.ServiceError) error {
	e := &InvalidAnswerError{Said: said}
	if err := json.Unmarshal(said.Details, &e.Places); err != nil {
		e.Places = nil
	}
	return e
}

// NothingError says when to ask for a run again.
type NothingError struct {
	// RetryAfter is the time to wait; add jitter.
	RetryAfter time.Duration
	// Claimable counts the runs that wait for an executor but may not be assigned now.
	Claimable int
}

// Error names the number of waiting runs, and the time of the next try.
func (e *NothingError) Error() string {
	why := "none is claimable"
	if e.Claimable > 0 {
		why = fmt.Sprintf("%d are claimable, but claims are rate-limited", e.Claimable)
	}
	return fmt.Sprintf("%s: %s; ask again in %s", ErrNothing, why, e.RetryAfter)
}

// Unwrap returns [ErrNothing].
func (e *NothingError) Unwrap() error { return ErrNothing }

// ClaimFate is the fate of a claimed run that could not be resumed.
type ClaimFate string

// Fates of a claimed run.
const (
	// ClaimGivenBack: other executors may claim it.
	ClaimGivenBack ClaimFate = "given_back"
	// ClaimDropped: the executor's heartbeats do not name it, so it is orphaned soon if it is still the executor's.
	// Without heartbeats, or with an instance that Config names, it stays under the executor's name until the executor
	// is silent or an operator releases it.
	ClaimDropped ClaimFate = "dropped"
)

// ClaimedRunError names a claimed run that could not be resumed, and its fate.
type ClaimedRunError struct {
	Run  string
	Fate ClaimFate
	// Err is the cause.
	Err error
}

// Error names the run, its fate, and the next step.
func (e *ClaimedRunError) Error() string {
	fate := ""
	switch e.Fate {
	case ClaimGivenBack:
		fate = "it was given back, and other executors may claim it"
	case ClaimDropped:
		fate = fmt.Sprintf("it was dropped and will be orphaned; if it is not, run: waymark release %s --force", e.Run)
	}
	return fmt.Sprintf("claimed run %s could not be resumed: %s: %s", e.Run, fate, e.Err)
}

// Unwrap returns Err.
func (e *ClaimedRunError) Unwrap() error { return e.Err }
