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

// Offer is a hand-off that was offered and neither declined nor closed.
type Offer struct {
	// Run that offers, and its agent.
	Run, Agent string
	// HandoffID of the offer within the run, and the content hash of the offer: who accepts says both, so that both
	// sides mean the same words.
	HandoffID, Hash string
	// Status is offered or accepted.
	Status string
	// By and ChildRun of an accepted offer: the executor that took it, and the run that carries it out.
	By, ChildRun string
	// Since is the time of the offer, RFC 3339.
	Since string
	// Data is what the next agent must know.
	Data schema.HandoffOfferedData
	// State is the application's own state of the run that offers, as it was read with the offer. The run that carries the offer out
	// begins with it.
	State []schema.StateValue
	// TooLong: the text passes [schema.HandoffSizeWarning] characters. Its reader may lose more context by it than it
	// saves; the run is flagged.
	TooLong bool
}

// HandoffTakenError says who took a hand-off.
type HandoffTakenError struct {
	// Run and HandoffID of the offer.
	Run, HandoffID string
	// By and ChildRun are who took it and the run that carries it out. Empty when nobody did: the offer was replaced by
	// another, to be read before it is accepted.
	By, ChildRun string
	// Instance of By that drives the child, when it is another of this executor's own name; else empty.
	Instance string
	// Cause is the daemon's answer; nil when the child run itself says it.
	Cause error
}

// Error names the offer, who took it, and the next step.
func (e *HandoffTakenError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("%s: hand-off %s of run %s is another offer now: read it again with Offers, and accept that", ErrHandoffTaken, e.HandoffID, e.Run)
	}
	if e.Instance != "" {
		return fmt.Sprintf("%s: hand-off %s of run %s was accepted by %s for run %s, which its instance %s drives: leave it to them; if they died, accept it again once the run is orphaned",
			ErrHandoffTaken, e.HandoffID, e.Run, e.By, e.ChildRun, e.Instance)
	}
	return fmt.Sprintf("%s: hand-off %s of run %s was accepted by %s for run %s: leave it to them; if they never start it, read it again with Offers and accept that",
		ErrHandoffTaken, e.HandoffID, e.Run, e.By, e.ChildRun)
}

// Unwrap is [ErrHandoffTaken] and the daemon's answer.
func (e *HandoffTakenError) Unwrap() []error {
	if e.Cause == nil {
		return []error{ErrHandoffTaken}
	}
	return []error{ErrHandoffTaken, e.Cause}
}

// Offers returns the open hand-offs of a run, oldest first: offered ones, and accepted ones that nobody closed. For a run
// that misses events it returns what there is and an [*IncompleteError]; where one of them cannot be read without its key, [ErrEncrypted].
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

// unread is why the words of an offer cannot be read; nil where they can.
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
		offer.TooLong = offer.Data.TooLong()
		offers = append(offers, offer)
	}
	return offers
}

// childID is the run that carries a hand-off out when nobody names one: the same whoever accepts, and whenever.
func childID(run, handoff string) string {
	tail := "-" + digestOf(run + "\n" + handoff)[:8]
	return run[:min(len(run), schema.MaxName-len(tail))] + tail
}

// AcceptHandoff takes an offer and starts the run that carries it out. What it wrote is a transaction of two steps: the
// acceptance in the log of the run that offers, which only one taker gets, and the start of the child, which cites it.
// After a crash or an error between the two, accept the same offer again: it goes on where it was, and returns the
// child resumed, or the handle that this process has of it.
//
// spec.ID names the child; empty means one that follows from the offer. Agent, Parent, ResumedFrom and State follow from the
// offer where they are empty; the agent is the offer's next one, or for a continuation the run's own. The words of the
// offer are in offer.Data; put them before the child's model.
//
// An offer that [Reader.Offers] shows as accepted is gone on with in the name of who took it, for one that died before it
// started the child. Whoever starts the child first has it, also among the instances of one executor's name; see
// [Config]. A child that another instance began and left (it is orphaned or interrupted) is gone on with. The child of an
// instance that died is orphaned after its silence, 10 seconds by default: until then it counts as driven.
//
// It returns [*HandoffTakenError], [ErrUnknownHandoff] when the hand-off is not open any more, [ErrRunExists] when the
// child's id is taken by a run that has nothing to do with the offer, [ErrRunEnded] when the child has ended, and the
// errors of Start and Resume.
func (f *Fleet) AcceptHandoff(ctx context.Context, offer Offer, spec RunSpec) (*Run, error) {
	source, spec, by, err := f.planHandoff(ctx, offer, spec)
	if err != nil {
		return nil, err
	}
	// An unrelated run under the child's id must be found before the acceptance names it.
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

// planHandoff checks an acceptance, and fills in what follows from the offer.
func (f *Fleet) planHandoff(ctx context.Context, offer Offer, spec RunSpec) (source *schema.HandoffSource, filled RunSpec, by string, err error) {
	if err := checkRun(offer.Run); err != nil {
		return nil, spec, "", err
	}
	if err := offer.unread(); err != nil {
		return nil, spec, "", err
	}
	if offer.HandoffID == "" || offer.Hash == "" {
		return nil, spec, "", configError("Offer", fmt.Sprintf("hand-off %q with hash %q", offer.HandoffID, offer.Hash), "take it from Offers, or from Offer")
	}
	by = f.cfg.Executor
	if offer.Status == schema.HandoffStatusAccepted {
		by = offer.By
		if spec.ID = cmp.Or(spec.ID, offer.ChildRun); spec.ID != offer.ChildRun {
			return nil, spec, "", &HandoffTakenError{Run: offer.Run, HandoffID: offer.HandoffID, By: offer.By, ChildRun: offer.ChildRun}
		}
	}
	spec.ID = cmp.Or(spec.ID, childID(offer.Run, offer.HandoffID))
	if spec.ID == offer.Run {
		return nil, spec, "", configError("ID", spec.ID, "the run that offers cannot carry its own offer out")
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
			return nil, spec, "", fmt.Errorf("state of hand-off %s of run %s: %w; give its key, or set RunSpec.State", offer.HandoffID, offer.Run, err)
		}
		spec.State = make(map[string]any, len(there.Values))
		for i := range there.Values {
			spec.State[there.Values[i].Key] = there.Values[i].Value
		}
	}
	source = &schema.HandoffSource{Run: offer.Run, HandoffID: offer.HandoffID, OfferHash: offer.Hash, Lineage: offer.Data.Lineage}
	spec.Handoff = source
	return source, spec, by, nil
}

// startedChild returns the child if it was started already and is this executor's, and nothing if it was not.
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
		return nil, fmt.Errorf("hand-off %s of run %s: %w: run %s has nothing to do with it; choose another id for the child", source.HandoffID, source.Run, ErrRunExists, spec.ID)
	case head.Status.Terminal():
		return nil, fmt.Errorf("hand-off %s of run %s: %w: run %s carried it out and is %s", source.HandoffID, source.Run, ErrRunEnded, spec.ID, head.Status)
	case head.Executor != f.cfg.Executor:
		return nil, &HandoffTakenError{Run: source.Run, HandoffID: source.HandoffID, By: head.Executor, ChildRun: spec.ID}
	case f.drivenByAnother(&head):
		return nil, &HandoffTakenError{Run: source.Run, HandoffID: source.HandoffID, By: head.Executor, ChildRun: spec.ID, Instance: head.Instance}
	}
	// An earlier start of this process began it, or another instance that is gone.
	return f.Resume(ctx, spec.ID, ResumeSpec{Reason: schema.TakeoverRestart, Agent: spec.Agent, HeadOnly: spec.HeadOnly, OnControl: spec.OnControl})
}

// drivenByAnother reports whether another instance of this executor's name has the run, and nobody said that it left it.
func (f *Fleet) drivenByAnother(h *schema.Head) bool {
	return h.Instance != "" && f.cfg.Instance != "" && h.Instance != f.cfg.Instance && !h.Status.Claimable() && h.Unattended == ""
}

// DeclineHandoff says that an offer is not taken; by is who says so, empty means this executor. It returns
// [ErrHandoffTaken] for an accepted one and [ErrUnknownHandoff] for one that is not open any more.
func (f *Fleet) DeclineHandoff(ctx context.Context, offer Offer, by, reason string) error {
	return f.endHandoff(ctx, offer, schema.HandoffDecline, by, reason)
}

// CloseHandoff says that a hand-off is over: its child ended, or the offer is withdrawn. by is who says so, empty means
// this executor. It returns [ErrUnknownHandoff] for one that is not open any more.
func (f *Fleet) CloseHandoff(ctx context.Context, offer Offer, by, reason string) error {
	return f.endHandoff(ctx, offer, schema.HandoffClose, by, reason)
}

func (f *Fleet) endHandoff(ctx context.Context, offer Offer, action, by, reason string) error {
	if err := checkRun(offer.Run); err != nil {
		return err
	}
	return f.handoff(ctx, offer.Run, &schema.HandoffRequest{
		HandoffID: offer.HandoffID, Action: action, By: cmp.Or(by, f.cfg.Executor), ChildRun: offer.ChildRun, Reason: reason,
	})
}

// handoff asks the daemon to write into the log of the run that offers.
func (f *Fleet) handoff(ctx context.Context, run string, request *schema.HandoffRequest) error {
	_, err := askOne[schema.ControlReply](ctx, f.Reader, schema.VerbHandoff, run, request)
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

// Continue carries the run's work on in a child of its own, with a fresh context: it offers h, accepts the offer,
// starts the child and ends this run as completed. It returns the child; spec is as for [Fleet.AcceptHandoff].
//
// Each step is in the log before the next, and none is done twice: whoever resumes this run after a crash and calls
// Continue with the same hand-off (give it an ID if turns may have passed) goes on behind the last step. A child that
// another executor has in hand by then is left to it, and one that has ended is left alone: this run is ended all the
// same, and the error is [*HandoffTakenError], or [ErrRunEnded] of the child.
//
// A call without an outcome would be lost with this run: then it returns [ErrConflict], and nothing is done.
func (r *Run) Continue(ctx context.Context, h *Handoff, spec RunSpec) (*Run, error) {
	if h == nil || h.run != r {
		return nil, configError("Handoff", "another run's", "begin it with the Handoff method of the run that is continued")
	}
	if r.fleet.unrecorded() {
		return nil, fmt.Errorf("continuation of run %s: %w: no run can take it up", r.id, ErrUnrecorded)
	}
	if err := r.settled(ctx); err != nil {
		return nil, err
	}
	if head := r.Head(); len(head.OpenCalls) > 0 {
		c := &head.OpenCalls[0]
		return nil, fmt.Errorf("run %s: %w: call %s of tool %s in turn %d has no outcome: bring it to its end before the run is continued elsewhere",
			r.id, ErrConflict, c.ToolCallID, c.Name, c.Turn)
	}
	offer, err := r.offerOnce(ctx, h)
	if err != nil {
		return nil, err
	}
	if head := r.Head(); spec.contract() == (Contract{}) {
		spec.Complete, spec.MaxTurns, spec.MaxTokens = head.CompletionTool, head.MaxTurns, head.MaxTokens
	}
	child, err := r.fleet.AcceptHandoff(ctx, offer, spec)
	id := cmp.Or(offer.ChildRun, spec.ID, childID(r.id, offer.HandoffID))
	if taken, ok := errors.AsType[*HandoffTakenError](err); ok && taken.ChildRun != "" {
		id = taken.ChildRun
	} else if err != nil && !errors.Is(err, ErrRunEnded) {
		return nil, err
	}
	// However it stands with the child, it has the work, and this run is done.
	if end := r.endHandedOn(ctx, id); end != nil {
		return child, errors.Join(err, end)
	}
	return child, err
}

// offerOnce offers a hand-off, unless an earlier try got as far as its acceptance.
func (r *Run) offerOnce(ctx context.Context, h *Handoff) (Offer, error) {
	id := h.Data().HandoffID
	var accepted *Offer
	r.View(func(s *schema.State) {
		for _, offer := range offersOf(s) {
			if offer.HandoffID == id && offer.Status == schema.HandoffStatusAccepted {
				accepted = &offer
			}
		}
	})
	if accepted != nil {
		return *accepted, nil
	}
	return h.Offer(ctx)
}
