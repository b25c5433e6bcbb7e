package publisher

import (
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// callPolicy is the Config's Policy as the ledger's gate knows it. All events of a handle, from every method, pass the
// gate: an event that it refuses is not published.
type callPolicy struct {
	// set: there is a policy. observes: its decisions are recorded without effect.
	set, observes bool
}

// counts reports whether a recorded decision applies in this process. An observed decision applies only while the
// policy is observed.
func (p callPolicy) counts(d *schema.StateDecision) bool { return d.Binds() || p.observes }

// permits reports whether a decision that counts lets the call run.
func permits(d *schema.StateDecision) bool {
	return d != nil && (d.Decision == schema.DecisionAllow || !d.Binds())
}

// gate refuses drafts that bypass the policy or the contract.
func (l *ledger) gate(drafts []draft, head *schema.Head) error {
	for i := range drafts {
		if d, ok := drafts[i].data.(*schema.RunWaitingData); ok && !drafts[i].own {
			if err := checkInterruptID(l.run, d.InterruptID); err != nil {
				return err
			}
		}
	}
	if err := l.permit(drafts, head); err != nil {
		return err
	}
	return l.keepContract(drafts, head)
}

// permit refuses drafts that record a call as begun or done without the policy's permission.
func (l *ledger) permit(drafts []draft, head *schema.Head) error {
	if !l.policy.set {
		return nil
	}
	for i := range drafts {
		d := &drafts[i]
		if err := l.bringsResult(d, head); err != nil {
			return err
		}
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
		key := schema.CallKey{Turn: d.turn, ToolCallID: id, Occurrence: occurrence}
		if at := head.FindOpen(d.turn, id, occurrence); at >= 0 {
			key = head.OpenCalls[at].CallKey
		} else if occurrence == 0 { // closed: its result would be added to its outcome
			key.Occurrence = max(1, head.CallsOf(d.turn, id))
		}
		if v := l.call(key); permits(v.decision) || v.decision == nil && l.calls.look(key).unruled {
			continue
		}
		return fmt.Errorf("run %s: call %s of turn %d: %w: %s, and no policy has allowed it: call Turn.Begin before its tool runs", l.run, id, d.turn, ErrNotAllowed, refused)
	}
	return nil
}

// bringsResult refuses messages that contain the result of a call without the policy's permission, as for
// tool.returned.
func (l *ledger) bringsResult(d *draft, head *schema.Head) error {
	for _, m := range messagesOf(d) {
		for j := range m.Parts {
			p := &m.Parts[j]
			if p.Type != schema.PartToolCallResponse || len(p.Response) == 0 && !hasRef(m.refs, fmt.Sprintf("%s/parts/%d/response", m.path, j)) {
				continue
			}
			for _, key := range callsOfPart(p, m.turn, head, l.fold.state) {
				if v := l.calls.view(l.fold.state, key); !permits(v.decision) {
					return fmt.Errorf("run %s: call %s of turn %d: %w: a message contains its result, but no policy has allowed the call: remove the response from the message",
						l.run, key.ToolCallID, key.Turn, ErrNotAllowed)
				}
			}
		}
	}
	return nil
}

// message is a message of a draft, with its turn and its path in the data.
type message struct {
	*schema.Message
	turn int32
	path string
	refs []schema.Ref
}

func messagesOf(d *draft) (list []message) {
	several := func(turn int32, messages []schema.Message, refs []schema.Ref) []message {
		for i := range messages {
			list = append(list, message{&messages[i], turn, fmt.Sprintf("/messages/%d", i), refs})
		}
		return list
	}
	switch data := d.data.(type) {
	case *schema.MessageAddedData:
		return []message{{&data.Message, d.turn, "/message", data.Refs}}
	case *schema.TurnAnsweredData:
		return []message{{&data.Message, data.Turn, "/message", data.Refs}}
	case *schema.TurnStartedData:
		return several(data.Turn, data.Messages, data.Refs)
	case *schema.TurnEndedData:
		return several(data.Turn, data.Messages, data.Refs)
	}
	return nil
}

func hasRef(refs []schema.Ref, place string) bool {
	return slices.ContainsFunc(refs, func(r schema.Ref) bool { return r.Path == place || strings.HasPrefix(r.Path, place+"/") })
}

// callsOfPart are the recorded calls that a part of a message may name: those with its id in the turn that it names,
// otherwise in the latest turn up to the message's own. It is empty for a call that is not recorded, such as one that a
// provider ran itself.
func callsOfPart(p *schema.Part, turn int32, head *schema.Head, state *schema.State) []schema.CallKey {
	var keys []schema.CallKey
	add := func(key schema.CallKey) {
		switch {
		case key.ToolCallID != p.ID, p.Occurrence != 0 && key.Occurrence != p.Occurrence, p.CallTurn != 0 && key.Turn != p.CallTurn:
		case turn != 0 && key.Turn > turn, len(keys) > 0 && key.Turn < keys[0].Turn, slices.Contains(keys, key):
		case len(keys) > 0 && key.Turn > keys[0].Turn:
			keys = []schema.CallKey{key}
		default:
			keys = append(keys, key)
		}
	}
	for i := range state.Calls {
		add(state.Calls[i].CallKey)
	}
	for i := range head.OpenCalls {
		add(head.OpenCalls[i].CallKey)
	}
	return keys
}
