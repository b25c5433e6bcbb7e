package publisher

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// Errors of publishing. An error that ends the handle says so: the handle then returns the same error for every later
// call, and only [Fleet.Resume] continues the run.
var (
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
	ErrFleetFull = errors.New("fleet is full")
	// ErrPayloadTooLarge is returned for an event that exceeds the message limit even after its large fields were moved
	// to the blob store; see [PayloadTooLargeError].
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
	// ErrStopped is returned after Close of the fleet.
	ErrStopped = errors.New("fleet handle is closed")
	// ErrUnrecorded is returned on a run of [Unrecorded] by methods that need a fleet: waits for an answer, other runs,
	// and blobs. Use a recorded run for them; see [Connect].
	ErrUnrecorded = errors.New("run is not recorded")
)

// Errors about runs.
var (
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
	ErrEncrypted = errors.New("the content is encrypted")
)

// Errors of tool calls.
var (
	// ErrHeld is returned by Tool for a call whose outcome is unknown and whose policy forbids running it again;
	// see [HeldError].
	ErrHeld = errors.New("call is held")
	// ErrDiverged is returned by Tool when the caller asks for another call than the recorded one; see [DivergedError].
	ErrDiverged = errors.New("run diverged from its record")
	// ErrToolFailed is returned by Tool for a tool that failed, now or as recorded; see [ToolError].
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
)

// Errors of configuration and blobs.
var (
	// ErrConfig is returned for a configuration or argument that is out of range. The message names the field.
	ErrConfig = errors.New("invalid configuration")
	// ErrNotProvisioned is returned by Connect and Start when the fleet's event stream or its settings do not exist.
	// Start the fleet's daemon, which creates them: waymark serve --fleet NAME.
	ErrNotProvisioned = errors.New("fleet is not provisioned")
	// ErrBlob is returned for a blob that is missing, too large, or does not match its name.
	ErrBlob = errors.New("blob cannot be loaded")
)

// FullError names the quota that is used up.
type FullError struct {
	// Fleet and the stream of the shard that is full.
	Fleet, Stream string
	// Quota and Used in bytes; 0 if the server did not tell.
	Quota, Used int64
	// Waited is how long the event waited for space. Relieved reports that events were moved out of the stream
	// meanwhile: the daemon is freeing space, and a later try may succeed.
	Waited   time.Duration
	Relieved bool
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
	if e.Relieved {
		return s + fmt.Sprintf("; space was freed during its wait of %s, but others used it: publish again, or raise the quota", e.Waited.Round(time.Millisecond))
	}
	return s + fmt.Sprintf("; no space was freed during its wait of %s: check that the fleet's daemon runs and purges, or raise the quota, then publish again",
		e.Waited.Round(time.Millisecond))
}

// Unwrap returns [ErrFleetFull].
func (e *FullError) Unwrap() error { return ErrFleetFull }

// PayloadTooLargeError names the largest field of an oversized event.
type PayloadTooLargeError struct {
	// Event is the event's name.
	Event string
	// Field is the JSON Pointer of its largest field, and Size the bytes of that field's JSON.
	Field string
	Size  int
	// Total is the size of the event, and Limit the maximum.
	Total, Limit int
}

// Error names event, field, sizes and the next step.
func (e *PayloadTooLargeError) Error() string {
	return fmt.Sprintf("%s: %s has %d bytes, the limit is %d; its largest field %s has %d bytes: shorten it, or publish it as an artifact",
		ErrPayloadTooLarge, e.Event, e.Total, e.Limit, e.Field, e.Size)
}

// Unwrap returns [ErrPayloadTooLarge].
func (e *PayloadTooLargeError) Unwrap() error { return ErrPayloadTooLarge }

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

// Unwrap returns [ErrRejected], and for some reasons also [ErrRunEnded], [ErrNotAllowed], [ErrNotInDoubt],
// [ErrUnknownHandoff] or [ErrHandoffTaken].
func (e *RejectedError) Unwrap() []error {
	// A closed call is not in doubt: a settlement of it comes too late.
	about := e.Event == schema.RunWaiting || e.Event == schema.ToolSettled
	if e.Reason == schema.ReasonUnknownCall && about {
		return []error{ErrRejected, ErrNotInDoubt}
	}
	switch e.Reason {
	case schema.ReasonRunEnded:
		return []error{ErrRejected, ErrRunEnded}
	case schema.ReasonNotAllowed:
		return []error{ErrRejected, ErrNotAllowed}
	case schema.ReasonNotInDoubt:
		return []error{ErrRejected, ErrNotInDoubt}
	case schema.ReasonHandoffTaken:
		return []error{ErrRejected, ErrHandoffTaken}
	case schema.ReasonUnknownHandoff:
		return []error{ErrRejected, ErrUnknownHandoff}
	default:
		return []error{ErrRejected}
	}
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

// DivergedError has both sides of a divergence.
type DivergedError struct {
	// Key of the call.
	Key schema.CallKey
	// Recorded is the call in the record, Asked the call that the caller asks for.
	Recorded, Asked CallContent
}

// CallContent is a tool and its arguments as JSON text.
type CallContent struct {
	Name      string
	Arguments string
}

// Error shows both sides, shortened, and the next step.
func (e *DivergedError) Error() string {
	return fmt.Sprintf("%s: call %s of turn %d was recorded as %s(%.200s) and is now requested as %s(%.200s): request the recorded call, "+
		"as the recorded messages of the turn do; a new call needs its own call id", ErrDiverged,
		e.Key.ToolCallID, e.Key.Turn, e.Recorded.Name, e.Recorded.Arguments, e.Asked.Name, e.Asked.Arguments)
}

// Unwrap returns [ErrDiverged].
func (e *DivergedError) Unwrap() error { return ErrDiverged }

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

func configError(field string, value any, rule string) error {
	return fmt.Errorf("%w: %s is %v: %s", ErrConfig, field, value, rule)
}
