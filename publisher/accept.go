package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// Offer is an open hand-off: offered or accepted, and not yet declined or closed.
type Offer struct {
	// Run that made the offer, and its agent.
	Run, Agent string
	// HandoffID identifies the offer within the run. Hash is the content hash of the offer. An acceptance names both,
	// so that both sides mean the same text.
	HandoffID, Hash string
	// Status is offered or accepted.
	Status string
	// By and ChildRun of an accepted offer: the executor that accepted it, and the run that carries out the work.
	By, ChildRun string
	// Since is the time of the offer, RFC 3339.
	Since string
	// Data is the context for the next agent.
	Data schema.HandoffOfferedData
	// State is the application state of the offering run, read together with the offer. The child run starts with it.
	State []schema.StateValue
}

// Offers returns the open hand-offs of a run, oldest first: those offered, and those accepted but not closed. For a run
// with missing events it returns the hand-offs that it found and an [*IncompleteError]. It returns [ErrEncrypted] if an
// offer is encrypted with a key that this process does not have.
func (r *Reader) Offers(ctx context.Context, run string) ([]Offer, error) {
	s, err := r.Get(ctx, run)
	if s == nil {
		return nil, err
	}
	offers := offersOf(s)
	for i := range offers {
		if unread := offers[i].unread(); unread != nil {
			return nil, unread
		}
	}
	return offers, err
}

// unread returns an error if the text of an offer is still encrypted, otherwise nil.
func (o *Offer) unread() error {
	for _, ref := range o.Data.Refs {
		if ref.KeyID != "" && ref.DataRef == "" {
			return keyError(fmt.Sprintf("hand-off %s of run %s", o.HandoffID, o.Run), ref.KeyID, nil)
		}
	}
	return nil
}

func offersOf(s *schema.State) []Offer {
	var offers []Offer
	for i := range s.Head.Handoffs {
		o := &s.Head.Handoffs[i]
		offer := Offer{
			Run: s.Head.Run, Agent: s.Head.Agent, HandoffID: o.HandoffID, Hash: o.OfferHash, Status: o.Status, By: cmp.Or(o.Claimed, o.By), ChildRun: o.ChildRun,
			Since: o.Since, State: slices.Clone(s.Values),
		}
		for j := range slices.Backward(s.Handoffs) {
			if d := &s.Handoffs[j]; d.HandoffID == o.HandoffID && d.Offered != nil {
				offer.Data = *d.Offered
				break
			}
		}
		offers = append(offers, offer)
	}
	return offers
}

// childID is the default id of the child run. It depends on the offer alone, so every executor derives the same id. An
// offer under the id of an abandoned or closed one has a child of its own.
func (o *Offer) childID() string {
	tail := "-" + digestOf(o.Run + "\n" + o.HandoffID + "\n" + o.Hash)[:8]
	return o.Run[:min(len(o.Run), schema.MaxName-len(tail))] + tail
}

// AcceptHandoff accepts an offer and starts the run that carries it out. It writes in two steps: first the acceptance,
// into the log of the offering run, where only one executor can win; then the start of the child, which cites the
// acceptance. After a crash or an error between the two steps, accept the same offer again. AcceptHandoff then
// continues after the last completed step, and returns the child resumed, or the handle that this process already has
// of it.
//
// spec.ID names the child; if it is empty, the id is derived from the offer. Empty fields Agent, Parent, ResumedFrom
// and State are filled from the offer. The agent is the offer's next agent, or for a continuation the agent of the
// offering run. The text of the offer is in offer.Data, and recorded in the child's start. [Loop] tells it to the child's
// model; an agent without a Loop puts it into the prompt by itself.
//
// If [Reader.Offers] shows the offer as accepted, AcceptHandoff continues in the name of the executor that accepted it,
// in case that executor died before it started the child. The first executor that starts the child owns it, also among
// the instances of one executor name; see [Fleet.Instance]. An orphaned or interrupted child of another instance is resumed.
// When an instance dies, its child is orphaned after the silence timeout, 10 seconds by default; until then the child
// counts as driven.
//
// It returns [*HandoffTakenError]; [ErrUnknownHandoff] when the hand-off is no longer open; [ErrRunExists] when an
// unrelated run has the child's id; [ErrRunEnded] when the child has ended; and the errors of Start and Resume.
func (f *Fleet) AcceptHandoff(ctx context.Context, offer Offer, spec RunSpec) (*Run, error) {
	source, spec, by, err := f.planHandoff(ctx, offer, spec)
	if err != nil {
		return nil, err
	}
	// Detect an unrelated run under the child's id before the acceptance names it.
	if child, err := f.startedChild(ctx, source, spec); child != nil || err != nil {
		return child, err
	}
	err = f.handoff(ctx, offer.Run, &schema.HandoffRequest{
		HandoffID: offer.HandoffID, Action: schema.HandoffAccept, By: by, ChildRun: spec.ID, OfferHash: offer.Hash,
	})
	if err != nil {
		return nil, err
	}
	child, err := f.Start(ctx, spec)
	if errors.Is(err, ErrRunExists) {
		if child, again := f.startedChild(ctx, source, spec); child != nil || again != nil {
			return child, again
		}
	}
	return child, err
}

// planHandoff validates an acceptance and fills empty fields from the offer.
func (f *Fleet) planHandoff(ctx context.Context, offer Offer, spec RunSpec) (source *schema.HandoffSource, filled RunSpec, by string, err error) {
	if err := checkRun(offer.Run); err != nil {
		return nil, spec, "", err
	}
	if err := offer.unread(); err != nil {
		return nil, spec, "", err
	}
	if offer.HandoffID == "" || offer.Hash == "" {
		return nil, spec, "", configError("Offer", fmt.Sprintf("hand-off %q with hash %q", offer.HandoffID, offer.Hash), "use an Offer that Reader.Offers or Handoff.Offer returned")
	}
	by = f.cfg.Executor
	if offer.Status == schema.HandoffStatusAccepted {
		by = offer.By
		if spec.ID = cmp.Or(spec.ID, offer.ChildRun); spec.ID != offer.ChildRun {
			return nil, spec, "", &HandoffTakenError{Run: offer.Run, HandoffID: offer.HandoffID, By: offer.By, ChildRun: offer.ChildRun}
		}
	}
	spec.ID = cmp.Or(spec.ID, offer.childID())
	if spec.ID == offer.Run {
		return nil, spec, "", configError("ID", spec.ID, "use another id: a run cannot carry out its own offer")
	}
	if spec.ResumedFrom = cmp.Or(spec.ResumedFrom, offer.Run); spec.ResumedFrom != offer.Run {
		return nil, spec, "", configError("ResumedFrom", spec.ResumedFrom, "leave it empty: the child continues "+offer.Run)
	}
	if spec.Parent == nil {
		spec.Parent = &schema.Parent{Run: offer.Run}
	}
	spec.Agent = cmp.Or(spec.Agent, offer.Data.NextAgent, offer.Agent)
	if spec.State == nil {
		there := &schema.State{Values: slices.Clone(offer.State)}
		if err := f.load(ctx, there); err != nil {
			return nil, spec, "", fmt.Errorf("state of hand-off %s of run %s: %w; provide its key, or set RunSpec.State", offer.HandoffID, offer.Run, err)
		}
		spec.State = make(map[string]any, len(there.Values))
		for i := range there.Values {
			spec.State[there.Values[i].Key] = there.Values[i].Value
		}
	}
	source = &schema.HandoffSource{Run: offer.Run, HandoffID: offer.HandoffID, OfferHash: offer.Hash}
	spec.Handoff = source
	if spec.offer, err = json.Marshal(offer.Data, json.Deterministic(true)); err != nil {
		return nil, spec, "", fmt.Errorf("hand-off %s of run %s: %w", offer.HandoffID, offer.Run, err)
	}
	return source, spec, by, nil
}

// startedChild returns the child if it was already started and belongs to this executor, otherwise nil.
func (f *Fleet) startedChild(ctx context.Context, source *schema.HandoffSource, spec RunSpec) (*Run, error) {
	cites := func(h *schema.Head) bool {
		return h.Handoff != nil && h.Handoff.Run == source.Run && h.Handoff.HandoffID == source.HandoffID && h.Handoff.OfferHash == source.OfferHash
	}
	for _, r := range slices.Backward(f.hand.of(spec.ID)) {
		if head := r.Head(); cites(&head) && r.Err() == nil {
			return r, nil
		}
	}
	head, err := f.Head(ctx, spec.ID)
	switch {
	case errors.Is(err, ErrRunNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !cites(&head):
		return nil, fmt.Errorf("hand-off %s of run %s: %w: run %s is unrelated; choose another id for the child", source.HandoffID, source.Run, ErrRunExists, spec.ID)
	case head.Status.Terminal():
		return nil, fmt.Errorf("hand-off %s of run %s: %w: run %s carried it out and is %s", source.HandoffID, source.Run, ErrRunEnded, spec.ID, head.Status)
	case head.Executor != f.cfg.Executor:
		return nil, &HandoffTakenError{Run: source.Run, HandoffID: source.HandoffID, By: head.Executor, ChildRun: spec.ID}
	case f.drivenByAnother(&head):
		return nil, &HandoffTakenError{Run: source.Run, HandoffID: source.HandoffID, By: head.Executor, ChildRun: spec.ID, Instance: head.Instance}
	}
	// The child was begun by an earlier start of this process, or by another instance that has left it.
	return f.Resume(ctx, spec.ID, ResumeSpec{Reason: schema.TakeoverRestart, Agent: spec.Agent})
}

// drivenByAnother reports whether another instance under this executor's name has the run, and has neither released nor
// lost it.
func (f *Fleet) drivenByAnother(h *schema.Head) bool {
	return h.Instance != "" && f.instance != "" && h.Instance != f.instance && !h.Status.Claimable() && h.Unattended == ""
}

// DeclineHandoff declines an offer in the name of by; empty means this executor. It returns [ErrHandoffTaken] for an
// accepted offer and [ErrUnknownHandoff] for one that is no longer open.
func (f *Fleet) DeclineHandoff(ctx context.Context, offer Offer, by, reason string) error {
	return f.endHandoff(ctx, offer, schema.HandoffDecline, by, reason)
}

// CloseHandoff closes a hand-off in the name of by; empty means this executor. Close it when the child has ended or the
// offer is withdrawn. It returns [ErrUnknownHandoff] for a hand-off that is no longer open.
func (f *Fleet) CloseHandoff(ctx context.Context, offer Offer, by, reason string) error {
	return f.endHandoff(ctx, offer, schema.HandoffClose, by, reason)
}

func (f *Fleet) endHandoff(ctx context.Context, offer Offer, action, by, reason string) error {
	return f.handoff(ctx, offer.Run, &schema.HandoffRequest{
		HandoffID: offer.HandoffID, Action: action, By: cmp.Or(by, f.cfg.Executor), ChildRun: offer.ChildRun, Reason: reason,
	})
}

// handoff asks the daemon to write into the log of the offering run.
func (f *Fleet) handoff(ctx context.Context, run string, request *schema.HandoffRequest) error {
	err := f.control(ctx, schema.VerbHandoff, run, request)
	if !errors.Is(err, ErrHandoffTaken) {
		return err
	}
	taken := &HandoffTakenError{Run: run, HandoffID: request.HandoffID, Cause: err}
	if answer, ok := errors.AsType[*schema.ServiceError](err); ok && len(answer.Details) > 0 {
		var who struct {
			By       string `json:"by"`
			ChildRun string `json:"child_run"`
		}
		if err := json.Unmarshal(answer.Details, &who); err != nil {
			return errors.Join(taken, fmt.Errorf("%w: details: %w", ErrBadAnswer, err))
		}
		taken.By, taken.ChildRun = who.By, who.ChildRun
	}
	return taken
}

// Continue moves the run's work to a child run with a fresh context. It offers h, accepts the offer, starts the child,
// and ends this run as completed. It returns the child. For spec see [Fleet.AcceptHandoff].
//
// Each step is durable before the next begins, and no step is done twice. After a crash, resume the run and call
// Continue with the same hand-off: it continues after the last completed step. Give the hand-off an ID if turns may
// have passed in between. If another executor has the child by then, or the child has ended, the child is left alone.
// This run is ended all the same, and the error is [*HandoffTakenError], or [ErrRunEnded] of the child.
//
// If a call has no outcome, Continue returns [ErrConflict] and does nothing, because the call would be lost with this
// run.
func (r *Run) Continue(ctx context.Context, h *Handoff, spec RunSpec) (*Run, error) {
	if h == nil || h.run != r {
		return nil, configError("Handoff", "another run's", "create it with the Handoff method of the run to be continued")
	}
	if r.fleet.unrecorded() {
		return nil, fmt.Errorf("continuation of run %s: %w: no run can take it up", r.id, ErrUnrecorded)
	}
	if err := cmp.Or(r.ledger.ended(), with(r.ledger, (*ledger).paused)); err != nil {
		return nil, err
	}
	if head := r.Head(); len(head.OpenCalls) > 0 {
		c := &head.OpenCalls[0]
		return nil, fmt.Errorf("run %s: %w: call %s of tool %s in turn %d has no outcome: record its outcome first, then continue the run",
			r.id, ErrConflict, c.ToolCallID, c.Name, c.Turn)
	}
	offer, accepted := r.accepted(h.Data().HandoffID)
	if !accepted {
		var err error
		if offer, err = h.Offer(ctx); err != nil {
			return nil, err
		}
	}
	return r.giveAway(ctx, offer, spec, 0)
}

// giveAway accepts an offer, starts the child, and ends this run unless it has such signals.
func (r *Run) giveAway(ctx context.Context, offer Offer, spec RunSpec, unless signalGuard) (*Run, error) {
	if head := r.Head(); spec.contract() == (Contract{}) {
		spec.MaxTurns, spec.MaxTokens = head.MaxTurns, head.MaxTokens
		if cmp.Or(offer.Data.NextAgent, head.Agent) == head.Agent {
			spec.Complete = head.CompletionTool // another agent has tools of its own
		}
	}
	child, err := r.fleet.AcceptHandoff(ctx, offer, spec)
	id := cmp.Or(offer.ChildRun, spec.ID, offer.childID())
	if taken, ok := errors.AsType[*HandoffTakenError](err); ok && taken.ChildRun != "" {
		id = taken.ChildRun
	} else if err != nil && !errors.Is(err, ErrRunEnded) {
		return nil, err
	}
	// Whatever the child's state, it has the work: this run is done.
	ended := &schema.RunEndedData{Status: string(schema.StatusCompleted), Summary: "continued by run " + id}
	if _, end := r.publish(ctx, draft{data: ended, own: true, unless: unless}); end != nil {
		return child, errors.Join(err, end)
	}
	return child, err
}

// accepted returns an offer that an earlier try has already had accepted: the one with an id, or any for "".
func (r *Run) accepted(id string) (offer Offer, found bool) {
	r.View(func(s *schema.State) {
		for _, o := range offersOf(s) {
			if o.Status == schema.HandoffStatusAccepted && (id == "" || o.HandoffID == id) {
				offer, found = o, true
			}
		}
	})
	return offer, found
}
