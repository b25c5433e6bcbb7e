package publisher

import (
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// callPolicy is what the gate of the ledger knows of the Config's Policy. The gate is the one place that all events of a handle pass, whichever
// method makes them: what it does not permit is not published.
type callPolicy struct {
	// set: there is a policy; observes: its decisions are only recorded.
	set, observes bool
}

// counts reports whether a recorded decision is one that this process goes by: one that was only observed is, as long as the policy is.
func (p callPolicy) counts(d *schema.StateDecision) bool { return d.Binds() || p.observes }

// permits reports whether a decision lets the call run.
func (p callPolicy) permits(d *schema.StateDecision) bool {
	return d != nil && p.counts(d) && (d.Decision == schema.DecisionAllow || !d.Binds())
}

// gate refuses drafts that pass by the policy or the contract. Under mu.
func (l *ledger) gate(drafts []draft, head *schema.Head) error {
	if err := l.permit(drafts, head); err != nil {
		return err
	}
	return l.keepContract(drafts, head)
}

// permit refuses drafts that would record as begun or done what the policy has not allowed. Under mu.
func (l *ledger) permit(drafts []draft, head *schema.Head) error {
	if !l.policy.set {
		return nil
	}
	for i := range drafts {
		d := &drafts[i]
		refused := ""
		id, occurrence := "", 0
		switch data := d.data.(type) {
		case *schema.ToolReturnedData:
			id, occurrence, refused = data.ToolCallID, data.Occurrence, "it has a result"
		case *schema.ToolCalledData:
			if !data.Requested {
				id, occurrence, refused = data.ToolCallID, data.Occurrence, "it begins"
			}
		case *schema.ToolSettledData:
			if !d.own && data.How != schema.SettledRerun && data.How != schema.SettledAbandoned {
				id, occurrence, refused = data.ToolCallID, data.Occurrence, "it is settled with a result"
			}
		case *schema.ToolDecidedData:
			if !d.own && data.Policy != schema.BeginPolicy && (data.Decision == schema.DecisionAllow || !data.Binds()) {
				return fmt.Errorf("run %s: decision about call %s of turn %d: %w: only the policy of the process allows calls: leave it to Turn.Tool or Turn.Begin",
					l.run, data.ToolCallID, d.turn, ErrNotAllowed)
			}
		}
		if refused == "" {
			continue
		}
		if l.fold.state == nil {
			return fmt.Errorf("run %s: call %s of turn %d: %w: the policy's decision is not known; start or resume the run with its content", l.run, id, d.turn, ErrNoContent)
		}
		key := schema.CallKey{Turn: d.turn, ToolCallID: id, Occurrence: occurrence}
		if at := head.FindOpen(d.turn, id, occurrence); at >= 0 {
			key = head.OpenCalls[at].CallKey
		} else if occurrence == 0 { // closed: its result would stand beside its outcome
			key.Occurrence = max(1, head.CallsOf(d.turn, id))
		}
		if v := l.calls.view(l.fold.head, l.fold.state, key); l.policy.permits(v.decision) {
			continue
		}
		return fmt.Errorf("run %s: call %s of turn %d: %w: %s, and no policy has allowed it: call Turn.Begin before its tool runs", l.run, id, d.turn, ErrNotAllowed, refused)
	}
	return nil
}
