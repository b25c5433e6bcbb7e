package publisher

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// callStage is what the handle itself did with an open call.
type callStage int

const (
	// ready: recorded in this epoch, and not begun.
	ready callStage = iota + 1
	// running: begun by this handle.
	running
)

// callBook knows which calls this handle may run without a doubt: what it did itself with each open call, beside what the log says.
// It is filled by the events that are folded, and by the calls of Turn.Tool. It knows neither log nor fold.
type callBook struct {
	mu    sync.Mutex
	stage map[schema.CallKey]callStage
	// asked are the calls that this handle brought to an end.
	asked map[schema.CallKey]bool
	// reserved are the occurrences that a Tool call is busy with.
	reserved map[schema.CallKey]bool
	// tries counts how often this handle began a call.
	tries map[schema.CallKey]int
	// outcomes are those of tools that ran, until they are durable and Tool has returned them.
	outcomes map[schema.CallKey]*outcome
	// questions are what people are asked about calls.
	questions map[schema.CallKey]*schema.RunWaitingData
	// old are the calls that were open when the run was taken over: the executor before may be about to begin them.
	old map[schema.CallKey]bool
	// taken is when this handle had heard that it took the run over.
	taken time.Time
}

func newCallBook() *callBook {
	return &callBook{
		stage: make(map[schema.CallKey]callStage), asked: make(map[schema.CallKey]bool),
		reserved: make(map[schema.CallKey]bool), tries: make(map[schema.CallKey]int),
		outcomes:  make(map[schema.CallKey]*outcome),
		questions: make(map[schema.CallKey]*schema.RunWaitingData),
		old:       make(map[schema.CallKey]bool),
	}
}

// note follows an event that the fold accepted; foreign ones were written by others.
func (b *callBook) note(v schema.Verdict, foreign bool) {
	if v.Kind != schema.Applied {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, key := range v.Abandoned {
		b.close(key)
		if v.Superseded {
			b.asked[key] = true // the model may use the id again
		}
	}
	switch d := v.Data.(type) {
	case *schema.TurnAnsweredData:
		if !foreign {
			for _, key := range v.Calls {
				b.stage[key] = ready
			}
		}
		b.forget(d.Turn)
	case *schema.ToolCalledData:
		if !foreign && b.stage[v.Call] != running {
			b.stage[v.Call] = ready
		}
	case *schema.ToolReturnedData, *schema.ToolFailedData:
		o := b.outcomes[v.Call]
		b.close(v.Call)
		switch {
		case foreign:
		case o != nil:
			b.outcomes[v.Call] = o // its caller may have heard of an error only, and asks for this call again
		default:
			b.asked[v.Call] = true
		}
	case *schema.ToolSettledData:
		if d.How != schema.SettledRerun {
			b.close(v.Call)
			return
		}
		if b.stage[v.Call] != running {
			b.stage[v.Call] = ready
		}
		if !foreign {
			// Its tool may run again whatever became of it, or refuses the epochs before from now on.
			delete(b.old, v.Call)
		}
	case *schema.TurnStartedData:
		b.forget(d.Turn)
	}
}

// takeOver notes the calls that were open when the run was taken over. state is nil when only the head is kept.
func (b *callBook) takeOver(head *schema.Head, state *schema.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken = time.Now()
	if state != nil && head.TurnOpen {
		for i := range state.Calls {
			// A start of the turn abandoned it, and not a person: the model may use the id again.
			if c := &state.Calls[i]; c.Turn == head.Turn && c.Outcome == schema.OutcomeAbandoned && len(c.Settlements) == 0 {
				b.asked[c.CallKey] = true
			}
		}
	}
	for i := range head.OpenCalls {
		c := &head.OpenCalls[i]
		b.old[c.CallKey] = true
		if c.Requested && state != nil {
			if call := state.Call(c.CallKey); call != nil && len(call.Settlements) == 0 {
				delete(b.old, c.CallKey) // never begun
			}
		}
	}
}

// left returns how long the executor from whom the run was taken over may still begin the call, if it may for outwait.
func (b *callBook) left(key schema.CallKey, outwait time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.old[key] {
		return 0
	}
	return time.Until(b.taken.Add(outwait))
}

// forget drops what is only of use in turns before one.
func (b *callBook) forget(turn int32) {
	maps.DeleteFunc(b.asked, func(key schema.CallKey, _ bool) bool { return key.Turn < turn })
	maps.DeleteFunc(b.outcomes, func(key schema.CallKey, _ *outcome) bool { return key.Turn < turn && b.stage[key] != running })
}

func (b *callBook) close(key schema.CallKey) {
	delete(b.stage, key)
	delete(b.tries, key)
	delete(b.outcomes, key)
	delete(b.questions, key)
	delete(b.old, key)
}

// reserve returns the key of the call that is asked for. Without an occurrence it is the first of its id that
// this handle has not brought to an end and is not busy with.
func (b *callBook) reserve(turn int32, id string, occurrence int) (schema.CallKey, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	key := schema.CallKey{Turn: turn, ToolCallID: id, Occurrence: occurrence}
	if occurrence == 0 {
		for key.Occurrence = 1; b.asked[key] || b.reserved[key]; key.Occurrence++ {
		}
	}
	if b.reserved[key] {
		return key, false
	}
	b.reserved[key] = true
	return key, true
}

// release ends the reservation of a call. ended: the caller has its outcome. One that was not returned yet will be asked for again.
func (b *callBook) release(key schema.CallKey, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.reserved, key)
	if ended && b.outcomes[key] == nil {
		b.asked[key] = true
	}
}

// allow notes that this handle may run the call.
func (b *callBook) allow(key schema.CallKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stage[key] != running {
		b.stage[key] = ready
	}
}

// begin marks a call as run by this handle and returns the number of the attempt.
func (b *callBook) begin(key schema.CallKey, earlier int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stage[key] = running
	b.tries[key]++
	return earlier + b.tries[key]
}

// ran keeps what became of a tool until it is durable and returned.
func (b *callBook) ran(key schema.CallKey, o *outcome) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.outcomes[key] = o
}

// returned drops the outcome of a call: its caller has it.
func (b *callBook) returned(key schema.CallKey) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.outcomes, key)
}

// begun reports whether this handle began a call and did not learn its outcome.
func (b *callBook) begun(key schema.CallKey) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stage[key] == running && b.outcomes[key] == nil
}

// question returns what a person is asked about a call, nil for none. Within a handle it stays the same, so that repeating the call
// repeats the event.
func (b *callBook) question(key schema.CallKey) *schema.RunWaitingData {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.questions[key]
}

// ask keeps a question about a call, unless there is one, and returns the one that counts.
func (b *callBook) ask(key schema.CallKey, question *schema.RunWaitingData) *schema.RunWaitingData {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.questions[key] == nil {
		b.questions[key] = question
	}
	return b.questions[key]
}

// callView is what is known about a call.
type callView struct {
	// known: the call was recorded.
	known bool
	// call is its record, nil when only the head is kept.
	call *schema.Call
	// decision is the latest about the call, nil when there is none or only the head is kept.
	decision *schema.StateDecision
	// approving: a person is asked whether it may run.
	approving bool
	// open is its entry among the open calls, nil when it is closed.
	open  *schema.OpenCall
	stage callStage
	// stricter is what the caller asks for, if its policy is stricter than the recorded one.
	stricter *ToolCall
	// arguments that the tool is given.
	arguments []byte
	// outcome of a tool that ran, if Tool has not returned it yet.
	outcome *outcome
}

// view looks a call up. state is nil when only the head is kept.
func (b *callBook) view(head *schema.Head, state *schema.State, key schema.CallKey) callView {
	b.mu.Lock()
	v := callView{stage: b.stage[key], outcome: b.outcomes[key]}
	b.mu.Unlock()
	if c := openCall(head, key); c != nil {
		open := *c
		v.known, v.open = true, &open
		if v.stage == 0 && open.Requested && (!open.Replay.Rerunnable() || open.Epoch < head.Epoch) {
			v.stage = ready // not begun in this epoch: only this executor may begin it
		}
	}
	v.approving = slices.ContainsFunc(head.Interrupts, func(o schema.OpenInterrupt) bool {
		return o.Reason == schema.WaitToolApproval && o.CallKey() == key
	})
	if state == nil {
		v.known = v.known || head.CallsOf(key.Turn, key.ToolCallID) >= key.Occurrence
		return v
	}
	if c := state.Call(key); c != nil {
		call := *c
		v.known, v.call = true, &call
	}
	for i := range slices.Backward(state.Decisions) {
		if d := state.Decisions[i]; d.CallKey() == key && d.Policy != schema.BeginPolicy {
			v.decision = &d
			break
		}
	}
	if v.open != nil && v.open.Decision == "" && v.decision != nil && v.decision.Decision != schema.DecisionAllow && v.decision.Binds() {
		v.decision = nil // a person's rerun took it back
	}
	return v
}
