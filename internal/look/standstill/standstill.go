package standstill

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Kinds of reasons.
const (
	Waiting     = "waiting"
	Held        = "held"
	Overdue     = "overdue"
	Orphaned    = "orphaned"
	Interrupted = "interrupted"
	Quarantined = "quarantined"
	Incomplete  = "incomplete"
	Handoff     = "handoff"
)

// Reason is a reason why a run is stuck.
type Reason struct {
	Run      string        `json:"run"`
	Agent    string        `json:"agent,omitzero"`
	Executor string        `json:"executor,omitzero"`
	Status   schema.Status `json:"status,omitzero"`
	// Kind is waiting, held, overdue, orphaned, interrupted, quarantined, incomplete or handoff.
	Kind string `json:"kind"`
	// Why in words.
	Why string `json:"why"`
	// Since when, RFC 3339.
	Since string `json:"since,omitzero"`
	// InterruptID of the wait, and the call in question.
	InterruptID string `json:"interrupt_id,omitzero"`
	Turn        int32  `json:"turn,omitzero"`
	ToolCallID  string `json:"tool_call_id,omitzero"`
	Occurrence  int    `json:"occurrence,omitzero"`
	Tool        string `json:"tool,omitzero"`
	// SideEffect and Arguments of the call in question, from the run's content; Encrypted has the key of arguments that
	// stay encrypted, and NoArguments says why there are none. [Of] leaves them out: a head has no content.
	SideEffect  string            `json:"side_effect,omitzero"`
	Arguments   jsontext.Value    `json:"arguments,omitzero"`
	NoArguments string            `json:"no_arguments,omitzero"`
	Encrypted   map[string]string `json:"encrypted,omitzero"`
	// HandoffID of the hand-off in question.
	HandoffID string `json:"handoff_id,omitzero"`
	// Wait and Head of the run. Both belong to the caller.
	Wait *schema.OpenInterrupt `json:"-"`
	Head *schema.Head          `json:"-"`
	// ID is unique in the fleet: a hash of the reason and the event that caused it, or the run's epoch.
	ID string `json:"id"`
}

// Key of the call in question.
func (r *Reason) Key() schema.CallKey {
	return schema.CallKey{Turn: r.Turn, ToolCallID: r.ToolCallID, Occurrence: r.Occurrence}
}

// Of returns the reasons why a run is stuck; none if it makes progress. A paused run lacks no executor, and full are the
// limits for whose places the run waits.
func Of(h *schema.Head, quarantined, paused bool, overdue []schema.Overdue, full ...schema.Limit) []Reason {
	var list []Reason
	add := func(kind, why, since string) *Reason {
		list = append(list, Reason{Run: h.Run, Agent: h.Agent, Executor: h.Executor, Status: h.Status, Kind: kind, Why: why, Since: since, Head: h})
		return &list[len(list)-1]
	}
	about := func(r *Reason, key schema.CallKey, tool string) {
		r.Turn, r.ToolCallID, r.Occurrence, r.Tool = key.Turn, key.ToolCallID, key.Occurrence, tool
	}
	for i := range h.Interrupts {
		w := &h.Interrupts[i]
		if w.Reason == schema.WaitToolInDoubt || h.Status.Terminal() {
			continue // the call is held
		}
		tool := ""
		if at := h.FindOpen(w.Turn, w.ToolCallID, w.Occurrence); w.ToolCallID != "" && at >= 0 {
			tool = h.OpenCalls[at].Name
		}
		r := add(Waiting, WaitText(w, tool), w.Since)
		r.InterruptID, r.Wait = w.InterruptID, w
		if w.ToolCallID != "" {
			about(r, w.CallKey(), tool)
		}
	}
	calls := h.HeldCalls()
	for i := range calls {
		c := &calls[i]
		why := fmt.Sprintf("held: %s may have run (turn %d, call %s)", c.Name, c.Turn, c.ToolCallID)
		if i := slices.IndexFunc(h.Interrupts, func(w schema.OpenInterrupt) bool {
			return w.Reason == schema.WaitToolInDoubt && w.CallKey() == c.CallKey && w.Message != ""
		}); i >= 0 {
			message := h.Interrupts[i].Message
			why += ": " + strings.TrimSpace(message[strings.Index(message, "? ")+1:]) // the question itself says the same as why
		}
		r := add(Held, why, c.Since)
		about(r, c.CallKey, c.Name)
	}
	for i := range overdue {
		o := &overdue[i]
		what := "the model has not answered"
		if o.ToolCallID != "" {
			what = "tool " + o.Tool + " has not returned"
		}
		r := add(Overdue, fmt.Sprintf("overdue: %s within %s", what, Limit(o)), o.Since)
		about(r, schema.CallKey{Turn: o.Turn, ToolCallID: o.ToolCallID, Occurrence: o.Occurrence}, o.Tool)
	}
	switch {
	case h.Status.Terminal():
	case paused && h.Complete():
	case quarantined && !paused:
		why := fmt.Sprintf("quarantined: %d claims in a row made no progress", h.Stalled)
		if h.LastError != nil {
			why += "; the last error: " + cmp.Or(h.LastError.Message, h.LastError.Type)
		}
		add(Quarantined, why, h.UpdatedAt)
	case !h.Complete():
		add(Incomplete, "incomplete: events of it are missing", h.UpdatedAt)
	case len(full) > 0 && h.Status.Claimable():
		add(Interrupted, schema.FullText(full)+"; see: waymark limit ls", h.UpdatedAt)
	case NeverBegun(h):
		add(Interrupted, "submitted: no executor has claimed it", h.UpdatedAt)
	case h.Status == schema.StatusInterrupted:
		add(Interrupted, "interrupted: no executor has claimed it"+first(h), h.UpdatedAt)
	case h.Status == schema.StatusOrphaned:
		add(Orphaned, "orphaned: its executor is gone"+first(h), h.UpdatedAt)
	}
	for i := range h.Handoffs {
		if o := &h.Handoffs[i]; o.Status == schema.HandoffStatusOffered {
			agent := o.NextAgent
			if agent == "" {
				agent = h.Agent
			}
			add(Handoff, fmt.Sprintf("offered: no executor of %s has taken hand-off %s", cmp.Or(agent, "its agent"), o.HandoffID), o.Since).HandoffID = o.HandoffID
		}
	}
	for i := range list {
		list[i].ID = idOf(h.Fleet, &list[i])
	}
	return list
}

// first names the build that goes on with a run first.
func first(h *schema.Head) string {
	if h.Build == "" {
		return ""
	}
	return "; it waits for build " + h.Build + " while one of its executors is alive"
}

// OfNotBegun is the reason of a run whose accepted hand-off no run carries out: the child named in the acceptance has
// no event.
func OfNotBegun(h *schema.Head, o *schema.OpenHandoff) Reason {
	r := Reason{
		Run: h.Run, Agent: h.Agent, Executor: h.Executor, Status: h.Status, Kind: Handoff, Since: o.Since, Head: h, HandoffID: o.HandoffID,
		Why: fmt.Sprintf("accepted: run %s, which carries out hand-off %s, has not started", o.ChildRun, o.HandoffID),
	}
	r.ID = idOf(h.Fleet, &r)
	return r
}

// idOf is stable while the reason lasts, in every process. It hashes the ids of calls and questions, because they are
// text from outside.
func idOf(fleet string, r *Reason) string {
	what := []string{fleet, r.Run, r.Kind, r.InterruptID, strconv.Itoa(int(r.Turn)), r.ToolCallID, strconv.Itoa(r.Occurrence)}
	switch r.Kind {
	case Waiting:
		what = append(what, r.Wait.Position.ID) // a question may be asked again under its id
	case Overdue:
		what = append(what, r.Since)
	case Handoff:
		for i := range r.Head.Handoffs {
			if o := &r.Head.Handoffs[i]; o.HandoffID == r.HandoffID {
				what = append(what, o.HandoffID, o.Status, o.OfferHash)
			}
		}
	case Held:
		what = append(what, attempt(r.Head, r.Key()))
	default:
		what = append(what, strconv.FormatUint(uint64(r.Head.Epoch), 10))
	}
	sum := sha256.Sum256([]byte(strings.Join(what, "\x00")))
	return r.Run + "." + r.Kind + "." + hex.EncodeToString(sum[:8])
}

// attempt distinguishes the attempts at a call: after a settlement as rerun the call has a later epoch, or another
// event asks about it.
func attempt(h *schema.Head, key schema.CallKey) string {
	at := []string{strconv.FormatUint(uint64(CallEpoch(h, key)), 10)}
	for i := range h.Interrupts {
		if w := &h.Interrupts[i]; w.Reason == schema.WaitToolInDoubt && w.CallKey() == key {
			at = append(at, w.Position.ID)
		}
	}
	return strings.Join(at, " ")
}

// CallEpoch is the epoch of an open call, in which it was begun or last settled as rerun; 0 for none.
func CallEpoch(h *schema.Head, key schema.CallKey) schema.Epoch {
	for i := range h.OpenCalls {
		if c := &h.OpenCalls[i]; c.CallKey == key {
			return c.Epoch
		}
	}
	return 0
}

// CallEpoch is that of the call in question.
func (r *Reason) CallEpoch() schema.Epoch {
	if r.Head == nil {
		return 0
	}
	return CallEpoch(r.Head, r.Key())
}

// WaitText describes a wait.
func WaitText(w *schema.OpenInterrupt, tool string) string {
	var what string
	child, delegated := w.Child()
	switch {
	case delegated:
		what = "for the end of run " + child
	case w.Reason == schema.WaitToolApproval:
		what = "for approval of " + cmp.Or(tool, "call "+w.ToolCallID)
	case w.OfVersion():
		what = "for approval of another version"
	case w.Approval():
		what = "for approval of a phase"
	case w.Reason == schema.WaitHumanInput:
		what = "for an answer"
	case w.Reason == schema.WaitExternalSystem:
		what = "for another system"
	case w.Reason == schema.WaitAuth:
		what = "for a login"
	case w.Reason == schema.WaitSignal:
		what = "for a message"
	case w.Retries() && w.ToolCallID == "":
		what = "for the provider until " + clockText(w)
	case w.Retries():
		what = "for another try of " + cmp.Or(tool, "call "+w.ToolCallID) + " until " + clockText(w)
	case w.Reason == schema.WaitTimer:
		what = "until " + clockText(w)
	default:
		what = "for " + w.Reason
	}
	if w.Message != "" {
		what += ": " + w.Message
	}
	return "waits " + what
}

// clockText is when a wait ends: the time, with the date if it is another day than that of its begin.
func clockText(w *schema.OpenInterrupt) string {
	ends, layout := schema.ParseTime(w.ExpiresAt).UTC(), "15:04 UTC"
	if begun := schema.ParseTime(w.Since).UTC(); begun.Truncate(24*time.Hour) != ends.Truncate(24*time.Hour) {
		layout = "2006-01-02 " + layout
	}
	return ends.Format(layout)
}

// NeedsPerson reports whether only a person can end the reason.
func (r *Reason) NeedsPerson() bool {
	switch r.Kind {
	case Waiting:
		return r.Wait != nil && r.Wait.NeedsPerson()
	case Held, Quarantined, Incomplete:
		return true
	}
	return false
}

// NeverBegun reports whether a run was submitted but not claimed yet: it was started and released, and has no other
// event.
func NeverBegun(h *schema.Head) bool {
	return h.Status == schema.StatusInterrupted && h.Epoch == 1 && h.Counts.Events == 2
}

// Limit is the maximum duration of the work.
func Limit(o *schema.Overdue) time.Duration {
	return time.Duration(min(o.LimitMS, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
}
