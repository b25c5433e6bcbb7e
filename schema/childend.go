package schema

import (
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	// UntoldKeyPrefix begins the keys that name, by child, the ends that its parent was not told of. They have no value.
	UntoldKeyPrefix = "_.untold."
	// ChildPrefix begins the ids of the signals that tell a run of its child's end, and those of the waits for one: see
	// [ChildWait]. Only the daemon sends such signals.
	ChildPrefix = "child."
	// StatusQuarantined is the status in a [ChildEnd] of a quarantined run.
	StatusQuarantined Status = "quarantined"
)

// ChildEnd is the payload of the signal that tells a run of its child's end.
type ChildEnd struct {
	Run string `json:"run"`
	// Status is completed, failed, cancelled, erased or quarantined.
	Status Status `json:"status"`
	Epoch  Epoch  `json:"epoch"`
	// ContinuedBy is the run that carries out the child's hand-off, and whose end the parent is told of, too.
	ContinuedBy string         `json:"continued_by,omitzero"`
	Summary     string         `json:"summary,omitzero"`
	Output      jsontext.Value `json:"output,omitzero"`
	Error       *Error         `json:"error,omitzero"`
	// Partial: only the child's log has its content, which is large or encrypted.
	Partial bool           `json:"partial,omitzero"`
	Extra   jsontext.Value `json:",embed"`
	// Parent is the run to tell.
	Parent string `json:"-"`
}

// EndOf is the end of a run that its parent is told of, without content; nil for none. maxClaims as in
// [Head.Quarantined].
func EndOf(h *Head, maxClaims int) *ChildEnd {
	e := &ChildEnd{Run: h.Run, Status: h.Status, Epoch: h.Epoch}
	switch {
	case h.Erased != nil:
		if e.Parent, e.Epoch = h.Erased.Parent, h.Erased.Epoch; h.Erased.Status.Terminal() {
			e.Status = h.Erased.Status
		}
	case h.Parent == nil:
	case h.Quarantined(maxClaims):
		e.Parent, e.Status = h.Parent.Run, StatusQuarantined
	case h.Status.Terminal():
		e.Parent = h.Parent.Run
		if i := slices.IndexFunc(h.Handoffs, func(o OpenHandoff) bool { return o.Status == HandoffStatusAccepted }); i >= 0 {
			e.ContinuedBy = h.Handoffs[i].ChildRun
		}
	}
	if !ValidName(e.Parent) {
		return nil
	}
	return e
}

// SignalID is the id of the signal. A run ends once in an epoch; its removal is no second end.
func (e *ChildEnd) SignalID() string {
	id := ChildWait(e.Run) + "." + strconv.FormatUint(uint64(e.Epoch), 10)
	if e.Status == StatusQuarantined {
		id += "." + string(e.Status)
	}
	return id
}

// ChildWait is the interrupt id of a wait, with the reason signal, for the end of a child: no other signal ends it.
func ChildWait(run string) string { return ChildPrefix + run }

// Hears reports whether a signal ends a wait, with the reason signal, under an interrupt id.
func Hears(interruptID, signalID string) bool {
	return !strings.HasPrefix(interruptID, ChildPrefix) || strings.HasPrefix(signalID, interruptID+".")
}
