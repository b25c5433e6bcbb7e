package checker

import (
	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/schema"
)

// Kind of an operation.
type Kind string

// Kinds.
const (
	// Publish is one event that an executor publishes.
	Publish Kind = "publish"
	// Takeover opens an epoch: a recovery, a resume, a claim.
	Takeover Kind = "takeover"
	// Read asks for a run without taking it over.
	Read Kind = "read"
	// Control is an operator's request to a run: an input, a cancellation, a settlement.
	Control Kind = "control"
	// Call requests a tool call, which publishes as many events as needed: its begin, its settlement if it is in
	// doubt, its result. They are those from Sequence to Last in Epoch, and later ones if it did not return.
	Call Kind = "call"
	// Execute is one run of a call's tool: of outcome ok when the tool returned, failed when it certainly had no effect.
	Execute Kind = "execute"
	// Fault is a fault. It is no operation on a run, and is shown in the timeline.
	Fault Kind = "fault"
)

// Outcome of an operation, as far as its actor can know.
type Outcome string

// Outcomes.
const (
	// OK: it had its effect before its end.
	OK Outcome = "ok"
	// Failed: it certainly had none, and never will.
	Failed Outcome = "failed"
	// Unknown: it had its effect at some time since its start, or will have it, or never has. An operation that did not
	// return is unknown.
	Unknown Outcome = "unknown"
)

// Op is one operation. Fields that do not apply to its kind are empty.
type Op struct {
	// ID is unique within a history; [Recorder] gives it.
	ID int64 `json:"id"`
	// Actor is the actor. An actor does one thing at a time.
	Actor string `json:"actor"`
	Kind  Kind   `json:"kind"`
	Run   string `json:"run,omitzero"`
	// Start and End are nanoseconds of the wall clock (Unix time), measured by a monotonic clock within one process.
	// End is 0 for an operation that did not return.
	Start int64 `json:"start"`
	End   int64 `json:"end,omitzero"`
	// Outcome is empty while it is under way, which counts as unknown.
	Outcome Outcome `json:"outcome,omitzero"`
	// Error of an operation that is not ok. Fenced: it failed because of a higher epoch.
	Error  string `json:"error,omitzero"`
	Fenced bool   `json:"fenced,omitzero"`
	// Detail is for the reader of a timeline: the event's name, a fault's parameters.
	Detail string `json:"detail,omitzero"`

	// Token of a publish is a text in the event's data that no other operation has. An operation is found by it in the
	// log whatever the id of the event is. Empty: it is found by Event.
	Token string `json:"token,omitzero"`
	// Event is the id of the event, Stream where it was acknowledged.
	Event  string                `json:"event,omitzero"`
	Stream schema.StreamSequence `json:"stream,omitzero"`
	// Epoch and Sequence of the event.
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`

	// Last is the sequence of the last event of a Call that was acknowledged; it is below Sequence when there was none.
	Last schema.Sequence `json:"last,omitzero"`
	// Tool of a Call or an Execute is the call's id, unique in its run, Replay its policy, and Result the result of a
	// run.
	Tool   string        `json:"tool,omitzero"`
	Replay schema.Replay `json:"replay,omitzero"`
	Result string        `json:"result,omitzero"`

	// Evidence: the late result of a fenced executor. Its acknowledgement says that it is in the log, not that it
	// counts.
	Evidence bool `json:"evidence,omitzero"`

	// Executor and Request of a takeover: its executor, and the request_id.
	Executor string `json:"executor,omitzero"`
	Request  string `json:"request,omitzero"`
	// Answer of a successful takeover or read. If the answer was that there is no such run, it is [Absent]: a read is
	// ok then, and a takeover failed.
	Answer *Answer `json:"answer,omitzero"`
}

// done reports whether the effect was certainly there at the end.
func (o *Op) done() bool { return o.Outcome == OK && o.End != 0 }

// maybe reports whether the effect may be there.
func (o *Op) maybe() bool { return o.Outcome != Failed }

// answered reports whether the actor got the run's state.
func (o *Op) answered() bool {
	return o.Answer != nil && o.End != 0 && (o.Outcome == OK || o.Outcome == Failed)
}

// Answer is some place's view of a run.
type Answer struct {
	Epoch    schema.Epoch    `json:"epoch"`
	Sequence schema.Sequence `json:"sequence"`
	// Events that it counts, and the digest over them.
	Events int64  `json:"events"`
	Digest string `json:"digest"`
	// Complete: it names no gap.
	Complete bool          `json:"complete"`
	Status   schema.Status `json:"status,omitzero"`
	// Calls are the open calls, and which of them are in doubt, in referencefold's form.
	Calls string `json:"calls,omitzero"`
}

// Absent is the answer that there is no such run: the state before its first event. It is judged like any other one, so that a run
// whose beginning was acknowledged must not be called unknown.
func Absent() *Answer { return &Answer{Complete: true} }

// AnswerOf is the answer for a head.
func AnswerOf(h *schema.Head, complete bool) Answer {
	return Answer{
		Epoch: h.Epoch, Sequence: h.Sequence, Events: h.Counts.Events, Digest: h.Digest, Complete: complete && h.Complete(), Status: h.Status,
		Calls: referencefold.OpenCallsOf(h),
	}
}

// Final is the state of one run after everything had healed and caught up.
type Final struct {
	Run string `json:"run"`
	// Log has the run's messages in the order of the log, as a read of its events answered them.
	Log []schema.Record `json:"-"`
	// Head is from the same answer.
	Head schema.Head `json:"head"`
	// Complete: nothing was called missing.
	Complete bool `json:"complete"`
	// Unread are the large fields of its events that could not be read completely, by reference, and why. A field is
	// stored before its event.
	Unread map[string]string `json:"unread,omitzero"`
	// Stored is the head of the stored checkpoint, and State the answered messages and results; nil if not read.
	Stored *schema.Head  `json:"-"`
	State  *schema.State `json:"-"`
	// Places are other views of the run, by place: the stored checkpoint, each replica of the service. A takeover's
	// answer is not one of them, because it changes the run.
	Places map[string]Answer `json:"places,omitzero"`
}
