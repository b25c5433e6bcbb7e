package publisher

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/nats/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// Errors of this package. Each is a verdict, which stored data or the arguments of the call prove, or unknown
// (fleetclient.Unknown): the request has no answer yet. Only verdicts, and errors of the work's own, end a run as
// failed; see [Executor]. docs/sdk.md has the list.
//
// An error that ends the handle says so: the handle then returns the same error for every later call, and only
// [Fleet.Resume] continues the run.
var (
	// Publishing.

	// ErrFenced is returned when another executor took the run over: its epoch is above this handle's. Stop working on
	// the run. Ends the handle.
	ErrFenced = errors.New("run was taken over by another executor")
	// ErrForked is returned when another process writes with this handle's epoch. One of the two was restored from a
	// copy or started twice; find it before you resume. Ends the handle.
	ErrForked = errors.New("another writer uses this run's epoch")
	// ErrLogRegressed is returned when an event that was acknowledged to this handle is gone from the log: the server
	// was restored from an older copy, or the stream was purged or deleted. Resume the run to see what is left. Ends
	// the handle.
	ErrLogRegressed = errors.New("an acknowledged event is gone from the log")
	// ErrFleetFull is returned when the fleet's quota is used up and no space was freed in time; see [FullError] and
	// Config.FullPatience. The event was not stored and nothing was dropped: publish it again later, or raise the
	// quota.
	ErrFleetFull error = fleetclient.Unknown("fleet is full")
	// ErrPayloadTooLarge is returned for an event that exceeds the message limit even after its large fields were moved
	// to the blob store. The message names its largest field.
	ErrPayloadTooLarge = errors.New("event is too large")
	// ErrUnresolved is returned when no answer came before the deadline: the event may or may not be durable. No other
	// event may follow: repeat the call, call [Run.Resolve], or resume the run. A request that changes something may
	// have taken effect; its error wraps ErrUnavailable, too.
	ErrUnresolved = fleetclient.ErrUnresolved
	// ErrUnavailable is returned when the event or request could not be delivered before the deadline. Without
	// ErrUnresolved it had no effect; if one call publishes several events, earlier ones may be durable. Try again
	// later.
	ErrUnavailable = fleetclient.ErrUnavailable
	// ErrNotPermitted is returned when the server refuses the credentials or their permissions. Nothing was stored. The
	// message names the subject and the next step: other credentials, or the inbox prefix of their role.
	ErrNotPermitted = fleetclient.ErrNotPermitted
	// ErrRejected is returned for an event that the fold would refuse; see [RejectedError]. It was not published.
	ErrRejected = errors.New("event rejected: not valid in the run's state")
	// ErrCancelRequested is returned when a request to cancel the run was found while the handle published new work (a
	// turn, a phase, a call). That event was not published. Finish up and end the run as cancelled, or publish the
	// event again to continue anyway.
	ErrCancelRequested = errors.New("cancellation of the run was requested")
	// ErrPaused is returned when a pause of an operator selects the run: by methods that would begin a turn, a call or a
	// phase, or wait, and by a takeover. Nothing was begun. Calls that are under way may finish, and their results are
	// recorded. An [Executor] then gives the run back; other code calls [Run.Interrupt] with the reason
	// schema.InterruptedPaused. After the end of the pause the run can be claimed again.
	ErrPaused error = fleetclient.Unknown("run is paused")
	// ErrStopped is returned after Close of the fleet.
	ErrStopped error = fleetclient.Unknown("fleet handle is closed")
	// ErrUnrecorded is returned on a run of [Unrecorded] by methods that need a fleet: waits for an answer, other runs,
	// and blobs. Use a recorded run for them; see [Connect].
	ErrUnrecorded = errors.New("run is not recorded")

	// Runs.

	// ErrRunExists is returned by Start when the run id is taken. Resume that run, or choose another id.
	ErrRunExists = errors.New("run already exists")
	// ErrRunNotFound is returned when the fleet has no such run.
	ErrRunNotFound = errors.New("run not found")
	// ErrRunErased is returned for a run that was removed, and by Start for its id, which is never used again. A handle
	// of the run has ended.
	ErrRunErased = errors.New("run was removed")
	// ErrRunEnded is returned when the run has ended and the event or request is not allowed after the end. To continue
	// the run, resume it with reason reopen.
	ErrRunEnded = errors.New("run has ended")
	// ErrWrongAgent is returned by Resume when the run belongs to another agent than the one named.
	ErrWrongAgent = errors.New("run belongs to another agent")
	// ErrConflict is returned when the run changed during the request, or does not allow the request now.
	ErrConflict = errors.New("conflict")
	// ErrIncomplete is returned when events of the run are known to be missing; see [IncompleteError].
	ErrIncomplete = errors.New("run is incomplete")
	// ErrNoService is returned when no daemon answers for the fleet. Start one with: waymark serve.
	ErrNoService = fleetclient.ErrNoService
	// ErrBadAnswer is returned for an answer of the daemon that this version does not understand.
	ErrBadAnswer = fleetclient.ErrBadAnswer
	// ErrPointNotFound is returned for a point that is not in the run's history.
	ErrPointNotFound = errors.New("the run has no such point")
	// ErrPointAmbiguous is returned for a point that occurs more than once in the run's history: a sequence number in
	// several epochs. The daemon's answer names them.
	ErrPointAmbiguous = errors.New("the run has that point more than once")
	// ErrPointPurged is returned for a point whose events, or earlier ones, are no longer kept.
	ErrPointPurged = errors.New("the point is no longer kept")
	// ErrEncrypted is returned for content that is encrypted with a key that this process does not have; the error
	// names the key. Provide it in [Encryption].
	ErrEncrypted error = fleetclient.Unknown("the content is encrypted")

	// Tool calls.

	// ErrHeld is returned by Tool for a call whose outcome is unknown and whose policy forbids running it again;
	// see [HeldError].
	ErrHeld = errors.New("call is held")
	// ErrDiverged is returned by Tool when the caller asks for another call than the recorded one. The message has both.
	ErrDiverged = errors.New("run diverged from its record")
	// ErrToolFailed is returned by Tool for a tool that failed, once that is recorded; see [ToolError].
	ErrToolFailed = errors.New("tool failed")
	// ErrAbandoned is returned by Tool for a call that was settled without a result.
	ErrAbandoned = errors.New("call was abandoned")
	// ErrNotAllowed is returned when a call that neither the policy nor a person allowed would be begun, permitted, or
	// given a result. Nothing was published: ask with [Turn.Begin] before the tool runs, and record a denied call with
	// [Turn.Fail].
	ErrNotAllowed = errors.New("call is not allowed")
	// ErrLimit is returned by methods that begin a turn, for a run that has reached a limit of its contract; see
	// [LimitError]. Nothing was published: end the run with [Run.LimitReached].
	ErrLimit = errors.New("limit is reached")
	// ErrNotCompleted is returned when a run would be completed without its completion tool. Nothing was published: end
	// the run with [Run.Complete] after a call of that tool, or as failed. Work that returns nil without that call
	// fails with this error.
	ErrNotCompleted = errors.New("run is not completed as its contract requires")
	// ErrNotInDoubt is returned for the settlement of a call that is not in doubt.
	ErrNotInDoubt = errors.New("call is not in doubt")

	// Executors, waits, hand-offs and signals.

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
	// ErrUnauthorized is returned by a [Model] whose provider refuses the credentials of this process. The run fails, and
	// the executor waits before each further claim, longer after each such run, until a model answers.
	ErrUnauthorized = errors.New("the provider refuses the credentials")
	// ErrInputExpired is returned by Ask and AwaitInput when no answer came in time.
	ErrInputExpired = errors.New("question expired without an answer")
	// ErrPhaseDenied is returned by Phase when a person did not allow the phase. The message has the person and the
	// reason. End the run, or continue without the phase.
	ErrPhaseDenied = errors.New("phase was not allowed")
	// ErrUnknownHandoff is returned for a hand-off that is not open in the run.
	ErrUnknownHandoff = errors.New("run has no such open hand-off")
	// ErrHandoffTaken is returned when another executor accepted the hand-off, or when the offer was replaced after it
	// was read.
	ErrHandoffTaken = errors.New("hand-off was taken by another")
	// ErrDelegation is returned by Delegate for a run that may have no further child.
	ErrDelegation = errors.New("delegation limit reached")
	// ErrLost is returned by a tool or a model that runs in another program, when that program has gone. A tool's outcome
	// is then unknown: none is recorded, the run is given back, and the next executor decides by the tool's policy.
	ErrLost error = fleetclient.Unknown("the program that did the work is gone")
	// ErrShutdown is the cause with which the context of work ends when its executor shuts down.
	ErrShutdown = errors.New("executor is shut down")
	// ErrWaiting is returned by waits under an executor with WaitDetached, and by work that releases its run until an
	// answer comes.
	ErrWaiting = errors.New("run waits and was released")
	// ErrSignalsFull is returned for a signal to a run that already has schema.MaxSignals signals that are not
	// consumed. Send it again later, under its id.
	ErrSignalsFull error = fleetclient.Unknown("run has too many unconsumed signals")
	// ErrRunFull is returned for a signal, a mark or a rewind of a run that has taken schema.MaxRequests of them. Go on in
	// a new run by a hand-off.
	ErrRunFull = errors.New("run takes no more requests with an id")
	// ErrSignalled is returned by End with RunEnd.NoSignals for a run with a signal that is not consumed. Nothing was
	// published: act on the signal, then end the run.
	ErrSignalled = errors.New("run has an unconsumed signal")

	// Configuration, keys and blobs.

	// ErrConfig is returned for a configuration or argument that is out of range. The message names the field.
	ErrConfig = errors.New("invalid configuration")
	// ErrNotProvisioned is returned by Connect and Start when the fleet's event stream or its settings do not exist.
	// Start the fleet's daemon, which creates them: waymark serve --fleet NAME.
	ErrNotProvisioned error = fleetclient.Unknown("fleet is not provisioned")
	// ErrBlob is returned for a blob that is missing, too large for Config.MaxBlob, or does not match its name. It proves
	// nothing about the run, which goes on after a restore or with a larger limit. Without an answer of the blob store the
	// error is ErrUnavailable.
	ErrBlob error = fleetclient.Unknown("blob cannot be loaded")
	// ErrNoKey is what [Encryption].Key returns for a missing key.
	ErrNoKey = encryption.ErrNoKey
	// ErrNotDecrypted is returned for a value that its key does not open: the key is a different one under the same id,
	// or the value was changed or moved to another place. Provide the right key; if the key is right, do not trust the
	// run.
	ErrNotDecrypted = encryption.ErrNotOpened
	// ErrNotEncryptable is returned for content that would leave the process unencrypted: a member beyond the
	// vocabulary in an event without refs, or an event of an unknown type. Nothing was published; put the content into
	// a field that is encrypted.
	ErrNotEncryptable = encryption.ErrNoPlace
)

// unknown reports an error of this package that is no verdict.
func unknown(err error) bool {
	_, ok := errors.AsType[fleetclient.Unknown](err)
	said, bySaid := errors.AsType[*schema.ServiceError](err)
	return ok || bySaid && kinds[said.Code] == nil && said.Code != schema.CodeInvalidAnswer
}

// unavailable reports that something could not be asked: the same request may succeed later.
func unavailable(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNoService)
}

func configError(field string, value any, rule string) error {
	return fmt.Errorf("%w: %s is %v: %s", ErrConfig, field, value, rule)
}

// FullError names the quota that is used up.
type FullError struct {
	// Fleet and the stream of the shard that is full.
	Fleet, Stream string
	// Quota and Used in bytes; 0 if the server did not tell.
	Quota, Used int64
	// Waited is how long the event waited for space.
	Waited time.Duration
	// Answer of the server.
	Answer string
}

// Error names the fleet, the quota and the next step.
func (e *FullError) Error() string {
	s := fmt.Sprintf("%s: fleet %s, stream %s", ErrFleetFull, e.Fleet, e.Stream)
	if e.Quota > 0 {
		s += fmt.Sprintf(", %d of %d bytes used", e.Used, e.Quota)
	}
	s += fmt.Sprintf(" (%s): the event was not stored", e.Answer)
	return s + fmt.Sprintf("; it found no space during its wait of %s: check that the fleet's daemon runs and purges, or raise the quota, then publish again",
		e.Waited.Round(time.Millisecond))
}

// Unwrap returns [ErrFleetFull].
func (e *FullError) Unwrap() error { return ErrFleetFull }

// RejectedError says why the fold would refuse an event.
type RejectedError struct {
	// Event is the event's name.
	Event string
	// Reason and Detail come from the fold.
	Reason schema.Reason
	Detail string
}

// Error names event, reason and detail.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("%s: %s: %s (%s); nothing was published", ErrRejected, e.Event, e.Detail, e.Reason)
}

// rejections are the errors that come with [ErrRejected], by the fold's reason.
var rejections = map[schema.Reason]error{
	schema.ReasonRunEnded: ErrRunEnded, schema.ReasonNotAllowed: ErrNotAllowed, schema.ReasonNotInDoubt: ErrNotInDoubt,
	schema.ReasonHandoffTaken: ErrHandoffTaken, schema.ReasonUnknownHandoff: ErrUnknownHandoff,
}

// Unwrap returns [ErrRejected], and for some reasons also [ErrRunEnded], [ErrNotAllowed], [ErrNotInDoubt],
// [ErrUnknownHandoff] or [ErrHandoffTaken].
func (e *RejectedError) Unwrap() []error {
	if also := rejections[e.Reason]; also != nil {
		return []error{ErrRejected, also}
	}
	if e.Reason == schema.ReasonUnknownCall && (e.Event == schema.RunWaiting || e.Event == schema.ToolSettled) {
		return []error{ErrRejected, ErrNotInDoubt} // a closed call is not in doubt
	}
	return []error{ErrRejected}
}

// IncompleteError lists the missing events of a run.
type IncompleteError struct {
	// Run that misses events.
	Run string
	// Gaps, as far as they are known.
	Gaps []schema.Gap
	// Detail explains more if there are no gaps to list.
	Detail string
}

// Error names the run and the gaps.
func (e *IncompleteError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: run %s", ErrIncomplete, e.Run)
	for _, g := range e.Gaps {
		if g.To < max(g.From, 1) { // events without sequences
			fmt.Fprintf(&b, ", epoch %d misses events (%s)", g.Epoch, g.Reason)
			continue
		}
		fmt.Fprintf(&b, ", epoch %d misses %d to %d (%s)", g.Epoch, g.From, g.To, g.Reason)
	}
	if e.Detail != "" {
		b.WriteString(", " + e.Detail)
	}
	return b.String()
}

// Unwrap returns [ErrIncomplete].
func (e *IncompleteError) Unwrap() error { return ErrIncomplete }

// HeldError names a call that a person must settle, and how.
type HeldError struct {
	// Run and Key of the call.
	Run string
	Key schema.CallKey
	// Epoch of the attempt at the call, which [schema.SettleRequest] names as CallEpoch.
	Epoch schema.Epoch
	// Name of the tool and its replay policy.
	Name   string
	Replay schema.Replay
	// Command settles the call: commands for a person, or method calls where no command can.
	Command string
	// Detail in words.
	Detail string
}

// Error names the call and the command that settles it.
func (e *HeldError) Error() string {
	return fmt.Sprintf("%s: call %s of tool %s in turn %d of run %s: %s; %s", ErrHeld, e.Key.ToolCallID, e.Name, e.Key.Turn, e.Run, e.Detail, e.Command)
}

// Unwrap returns [ErrHeld].
func (e *HeldError) Unwrap() error { return ErrHeld }

// ToolError is the failure of a tool.
type ToolError struct {
	// Key of the call.
	Key schema.CallKey
	// Failure as recorded.
	Failure schema.Error
	// Replayed: the failure is the recorded one; the tool did not run now.
	Replayed bool
	// Cause is the error that the tool returned; nil for a replayed failure.
	Cause error
}

// Error names the call and the failure.
func (e *ToolError) Error() string {
	return fmt.Sprintf("%s: call %s of turn %d: %s: %s", ErrToolFailed, e.Key.ToolCallID, e.Key.Turn, e.Failure.Type, e.Failure.Message)
}

// Unwrap returns [ErrToolFailed] and the tool's own error.
func (e *ToolError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrToolFailed}
	}
	return []error{ErrToolFailed, e.Cause}
}

// LimitError names the limit that a run has reached.
type LimitError struct {
	// Run that has reached the limit.
	Run string
	// Limit that was reached: pass it to [Run.LimitReached].
	Limit Limit
	// SummedUp reports that the one turn allowed at the limit was already begun.
	SummedUp bool
}

// Error names the run, the limit and the next step.
func (e *LimitError) Error() string {
	next := "end the run with Run.LimitReached, which leaves one turn to sum up"
	if e.SummedUp {
		next = "its summary turn is used up: end the run"
	}
	return fmt.Sprintf("%s: run %s is at %v of %v %s, and no further turn may begin: %s", ErrLimit, e.Run, e.Limit.Value, e.Limit.Maximum, e.Limit.Kind, next)
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// HandoffTakenError names the executor that accepted a hand-off.
type HandoffTakenError struct {
	// Run and HandoffID of the offer.
	Run, HandoffID string
	// By is the executor that accepted, ChildRun the run that carries out the work. Both are empty when the offer was
	// replaced by another one: read the new offer before you accept it.
	By, ChildRun string
	// Instance of By that drives the child, if it is another instance under this executor's name; otherwise empty.
	Instance string
	// Cause is the daemon's answer; nil if the answer came from the child run's own record.
	Cause error
}

// Error names the offer, the executor that accepted it, and the next step.
func (e *HandoffTakenError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("%s: hand-off %s of run %s was replaced by another offer: read it again with Offers, then accept it", ErrHandoffTaken, e.HandoffID, e.Run)
	}
	if e.Instance != "" {
		return fmt.Sprintf("%s: hand-off %s of run %s was accepted by %s for run %s, driven by its instance %s: leave it to that instance; if it died, accept again once the run is orphaned",
			ErrHandoffTaken, e.HandoffID, e.Run, e.By, e.ChildRun, e.Instance)
	}
	return fmt.Sprintf("%s: hand-off %s of run %s was accepted by %s for run %s: leave it to that executor; if it never starts the run, read the offer again with Offers and accept it",
		ErrHandoffTaken, e.HandoffID, e.Run, e.By, e.ChildRun)
}

// Unwrap returns [ErrHandoffTaken] and the daemon's answer.
func (e *HandoffTakenError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrHandoffTaken}
	}
	return []error{ErrHandoffTaken, e.Cause}
}

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

// ClaimedRunError names a claimed run that could not be resumed.
type ClaimedRunError struct {
	Run string
	// GivenBack: other executors may claim the run. Otherwise the executor's heartbeats do not name it, so it is orphaned
	// soon if it is still the executor's. Without heartbeats it stays under the executor's name until the
	// executor is silent or an operator releases it.
	GivenBack bool
	// Err is the cause.
	Err error
}

// Error names the run, what becomes of it, and the next step.
func (e *ClaimedRunError) Error() string {
	fate := "it was given back, and other executors may claim it"
	if !e.GivenBack {
		fate = fmt.Sprintf("it was dropped and will be orphaned; if it is not, run: waymark release %s --force", e.Run)
	}
	return fmt.Sprintf("claimed run %s could not be resumed: %s: %s", e.Run, fate, e.Err)
}

// Unwrap returns Err.
func (e *ClaimedRunError) Unwrap() error { return e.Err }
