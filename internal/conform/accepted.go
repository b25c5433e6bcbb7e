package conform

import (
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// accepted checks an event that the fold accepted.
func (r *run) accepted(a *moment) {
	if a.name == schema.RunResumed {
		r.missing = 0
		r.numbered, r.mixed, r.orphaned = 0, false, false
	}
	if !a.control {
		r.place(a)
	}
	r.callEvent(a)
	if d, ok := a.data.(*schema.TurnStartedData); a.limit != "" && r.head.Turn > a.turn && (!ok || d.Purpose != schema.PurposeRecovery) {
		r.found(ruleContractEnds, a, "", "a turn with the purpose recovery: the limit of "+a.limit+" is reached", fmt.Sprintf("turn %d", r.head.Turn))
	}
	switch d := a.data.(type) {
	case *schema.RunOrphanedData:
		r.orphaned = true
	case *schema.RunWaitingData:
		r.expires(a, d)
	case *schema.RunEndedData:
		r.ended(a, d)
	case *schema.HandoffAcceptedData:
		r.handed = true
	case *schema.ToolReturnedData:
		if a.open != nil && (d.IsError == nil || !*d.IsError) {
			r.returned[d.ToolCallID] = a.open.Name
		}
	case *schema.ToolSettledData:
		if a.open != nil && d.How != schema.SettledRerun && d.How != schema.SettledAbandoned && (d.IsError == nil || !*d.IsError) {
			r.returned[d.ToolCallID] = a.open.Name
		}
	case *schema.LimitReachedData:
		r.limit, r.summed = true, false
	case *schema.TurnStartedData, *schema.TurnAnsweredData, *schema.TurnEndedData, *schema.MessageAddedData:
		r.turnEvent(a)
	case *schema.PhaseStartedData:
		r.phases[d.Phase] = true
	case *schema.PhaseCompletedData:
		if !r.phases[d.Phase] && r.head.Base == nil {
			r.found(rulePhaseBegun, a, "/phase", "phase.started of "+d.Phase+" before", "phase.completed")
		}
	case *schema.HandoffOfferedData:
		if d.HandoffID == "" {
			r.found(ruleOfferID, a, "/handoff_id", "an id of the offer", "none")
		}
		if d.TooLong() {
			r.found(ruleOfferSize, a, "/size_chars", fmt.Sprintf("at most %d", schema.HandoffSizeWarning), fmt.Sprintf("%d", max(d.SizeChars, d.Size())))
		}
	}
	if len(r.phases) > maxTurnThings {
		clear(r.phases)
	}
	if len(r.returned) > maxTurnThings && a.turn != r.head.Turn {
		clear(r.returned) // the completion tool's call is in the latest turn
	}
}

// place checks the position of an executor's event.
func (r *run) place(a *moment) {
	e := a.e
	if a.events == 0 && a.name != schema.RunStarted {
		r.found(ruleStartFirst, a, "ce-type", schema.TypeOf(schema.RunStarted), e.Type)
	}
	if e.Epoch == 0 {
		r.found(ruleEpoch, a, "ce-epoch", fmt.Sprintf("%d", max(a.epoch, 1)), "no epoch")
	}
	how := 1
	if e.Sequence == 0 {
		how = 2
	}
	switch {
	case r.numbered == 0:
		r.numbered = how
	case r.numbered != how && !r.mixed:
		r.mixed = true
		has := map[int]string{1: "a sequence", 2: "no sequence"}
		r.found(ruleAllNumbered, a, "ce-sequence", has[r.numbered]+", as the events before it", has[how])
	}
	if r.orphaned {
		r.orphaned = false
		r.found(ruleBeatPace, a, "", "heartbeats, or events, more often than the fleet's silence", "the run was orphaned, and its executor wrote again")
	}
	r.c.beatsOf(r, a)
}

func (r *run) expires(a *moment, d *schema.RunWaitingData) {
	asked, err := time.Parse(time.RFC3339Nano, a.e.Time)
	if err != nil {
		return
	}
	if ends, err := time.Parse(time.RFC3339Nano, d.ExpiresAt); err == nil && !ends.After(asked) {
		r.found(ruleExpires, a, "/expires_at", "a time after "+a.e.Time, d.ExpiresAt)
	}
}

func (r *run) ended(a *moment, d *schema.RunEndedData) {
	if d.Status == string(schema.StatusCompleted) {
		if tool := r.head.CompletionTool; tool != "" && !r.handed && r.returned[d.CompletedBy] != tool {
			found := "no call"
			if d.CompletedBy != "" {
				found = fmt.Sprintf("call %s of tool %q", d.CompletedBy, r.returned[d.CompletedBy])
			}
			r.found(ruleContract, a, "/completed_by", "a call of "+tool+" that returned", found)
		}
		open := slices.Clone(a.verdict.Abandoned) // requested calls that the end closes
		for i := range r.head.OpenCalls {
			open = append(open, r.head.OpenCalls[i].CallKey)
		}
		for _, c := range open {
			r.found(ruleEndCalls, a, "/status", "an outcome of call "+c.ToolCallID+" of turn "+fmt.Sprint(c.Turn), "the call is open")
		}
		if r.head.TurnOpen {
			r.found(ruleEndTurn, a, "/status", fmt.Sprintf("turn.ended of turn %d", r.head.Turn), "the turn is open")
		}
	}
	if r.limit && d.Status != string(schema.StatusCancelled) {
		switch {
		case !r.summed:
			r.found(ruleLimit, a, "", "a turn with purpose recovery after limit.reached", "run.ended without one")
		case d.Summary == "" && !slices.ContainsFunc(d.Refs, func(ref schema.Ref) bool { return ref.Path == "/summary" }):
			r.found(ruleLimit, a, "/summary", "the summary of the recovery turn", "no summary")
		}
	}
	r.limit = false
}
