package publisher

import (
	"maps"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// callBook knows what this handle did with each call, in addition to the log. Folded events and the calls of Turn.Tool
// update it. It depends on neither log nor fold, and is part of the [ledger].
type callBook struct {
	calls map[schema.CallKey]*knownCall
	// taken is when this handle learned that it took the run over.
	taken time.Time
}

// knownCall is what a handle knows of one call.
type knownCall struct {
	stage callStage
	// reserved: a Tool call is working on it.
	reserved bool
	// tries counts how often this handle began it.
	tries int
	// outcome of its tool, in the stage callRan.
	outcome *outcome
	// question is the approval question about it.
	question *schema.RunWaitingData
	// unruled: the policy has no rule for it.
	unruled bool
}

// look returns what is known of a call.
func (b *callBook) look(key schema.CallKey) knownCall {
	if c := b.calls[key]; c != nil {
		return *c
	}
	return knownCall{}
}

// known is the entry of a call.
func (b *callBook) known(key schema.CallKey) *knownCall {
	if b.calls[key] == nil {
		b.calls[key] = new(knownCall)
	}
	return b.calls[key]
}

// on moves a call to its next stage.
func (b *callBook) on(key schema.CallKey, event callEvent) *knownCall {
	c := b.known(key)
	if c.stage = c.stage.after(event); !c.stage.open() {
		c.tries, c.question, c.outcome = 0, nil, nil
	}
	return c
}

// note applies an event that the fold accepted. foreign: another process wrote it.
func (b *callBook) note(v schema.Verdict, foreign bool) {
	if v.Kind != schema.Applied {
		return
	}
	own := func(mine, other callEvent) callEvent {
		if foreign {
			return other
		}
		return mine
	}
	for _, key := range v.Abandoned {
		if v.Superseded {
			b.on(key, callSuperseded)
		} else {
			b.on(key, callOverByOther)
		}
	}
	switch d := v.Data.(type) {
	case *schema.TurnAnsweredData:
		for _, key := range v.Calls {
			if !foreign {
				b.on(key, callRecorded)
			}
		}
		b.forget(d.Turn)
	case *schema.ToolCalledData:
		if !foreign {
			b.on(v.Call, callRecorded)
		}
	case *schema.ToolReturnedData, *schema.ToolFailedData:
		b.on(v.Call, own(callOver, callOverByOther))
	case *schema.ToolSettledData:
		if d.How == schema.SettledRerun {
			b.on(v.Call, own(callRerun, callRerunByOther))
		} else {
			b.on(v.Call, callOverByOther)
		}
	case *schema.TurnStartedData:
		b.forget(d.Turn)
	}
}

// takeOver notes the calls of a run, of whose takeover the handle learns now.
func (b *callBook) takeOver(state *schema.State, now time.Time) {
	head := &state.Head
	b.taken = now
	for i := range state.Calls {
		// The start of the turn abandoned it, not a person: the model may use the id again.
		if c := &state.Calls[i]; head.TurnOpen && c.Turn == head.Turn && c.Outcome == schema.OutcomeAbandoned && len(c.Settlements) == 0 {
			b.on(c.CallKey, callSuperseded)
		}
	}
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		if call := state.Call(c.CallKey); c.State.Requested() && call != nil && len(call.Settlements) == 0 {
			continue // never begun
		}
		b.on(c.CallKey, callTakenOver)
	}
}

// left returns how long the previous executor may still begin the call, given that it may for outwait after the
// takeover.
func (b *callBook) left(key schema.CallKey, outwait time.Duration, now time.Time) time.Duration {
	if !b.look(key).stage.waits() {
		return 0
	}
	return b.taken.Add(outwait).Sub(now)
}

// forget drops the closed calls of turns before turn.
func (b *callBook) forget(turn int32) {
	maps.DeleteFunc(b.calls, func(key schema.CallKey, c *knownCall) bool {
		return key.Turn < turn && !c.reserved && (c.stage == callUnknown || !c.stage.open())
	})
}

// reserve returns the key of the requested call. Without an occurrence it picks the first one of the id that this
// handle has neither handed to its caller nor reserved.
func (b *callBook) reserve(turn int32, id string, occurrence int) (schema.CallKey, bool) {
	key := schema.CallKey{Turn: turn, ToolCallID: id, Occurrence: occurrence}
	if occurrence == 0 {
		for key.Occurrence = 1; b.look(key).stage == callHanded || b.look(key).reserved; key.Occurrence++ {
		}
	}
	if b.look(key).reserved {
		return key, false
	}
	b.known(key).reserved = true
	return key, true
}

// release ends the reservation of a call. delivered: the caller has its outcome. An outcome that was not returned is
// kept for the next request.
func (b *callBook) release(key schema.CallKey, delivered bool) {
	if c := b.calls[key]; c != nil {
		c.reserved = false
	}
	if delivered {
		b.on(key, callDelivered)
	}
}

// begin marks a call as run by this handle and returns how often it was.
func (b *callBook) begin(key schema.CallKey) int {
	c := b.on(key, callBegins)
	c.tries++
	return c.tries
}

// begins marks a call as run by this handle, unless it is.
func (b *callBook) begins(key schema.CallKey) {
	if b.look(key).stage != callRunning {
		b.begin(key)
	}
}

// ran keeps the outcome of a tool until it is durable and delivered.
func (b *callBook) ran(key schema.CallKey, o *outcome) {
	if c := b.on(key, callReturns); c.stage == callRan {
		c.outcome = o
	}
}

// unrecorded are the outcomes of tools that ran here, for which no Tool call is still publishing them.
func (b *callBook) unrecorded() (drafts []draft) {
	for _, c := range b.calls {
		if c.outcome != nil && !c.reserved {
			drafts = append(drafts, c.outcome.draft)
		}
	}
	return drafts
}

// ask keeps the approval question about a call unless there is one already, and returns the one that is kept: a repeated
// call repeats the same event.
func (b *callBook) ask(key schema.CallKey, question *schema.RunWaitingData) *schema.RunWaitingData {
	c := b.known(key)
	if c.question == nil {
		c.question = question
	}
	return c.question
}

// callView is the state of a call as this handle knows it.
type callView struct {
	// call is its record; nil if its event is missing.
	call *schema.Call
	// decision is the latest one about the call; nil if there is none.
	decision *schema.StateDecision
	// approving: an approval question is open.
	approving bool
	// open is its entry among the open calls; nil if it is closed.
	open  *schema.OpenCall
	stage callStage
	// mine: only this handle may begin it, or has begun it.
	mine bool
	// stricter is the caller's call, if its policy is stricter than the recorded one.
	stricter *ToolCall
	// arguments for the tool.
	arguments []byte
	// outcome of a tool that ran, if Tool has not returned it yet.
	outcome *outcome
	// question is the approval question that this handle asks.
	question *schema.RunWaitingData
}

// unrecorded reports whether the record has no such call. A closed call is recorded, and not open.
func (v *callView) unrecorded() bool { return v.open == nil && v.call == nil }

// view looks up a call.
func (b *callBook) view(state *schema.State, key schema.CallKey) callView {
	head := &state.Head
	known := b.look(key)
	v := callView{stage: known.stage, outcome: known.outcome, question: known.question}
	if c := openCall(head, key); c != nil {
		open := *c
		v.open = &open
		v.mine = v.stage.mine() || v.stage.begun() ||
			open.State.Requested() && (!open.Replay.Rerunnable() || open.Epoch < head.Epoch) // not begun in this epoch: only this executor may begin it
	}
	v.approving = slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolApproval && o.CallKey() == key
	})
	if c := state.Call(key); c != nil {
		call := *c
		v.call = &call
	}
	for i := range slices.Backward(state.Decisions) {
		if d := state.Decisions[i]; d.CallKey() == key && d.Policy != schema.BeginPolicy {
			v.decision = &d
			break
		}
	}
	if v.open != nil && v.open.Decision == "" && v.decision != nil && v.decision.Decision != schema.DecisionAllow && v.decision.Binds() {
		v.decision = nil // a person's rerun revoked it
	}
	return v
}
