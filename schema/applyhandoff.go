package schema

import "slices"

// handoffOffered opens an offer. Both sides of the transaction refer to its hash.
func (h *Head) handoffOffered(e *Event, p *place, d *HandoffOfferedData) Verdict {
	o := OpenHandoff{
		HandoffID: handoffID(e, d), Status: HandoffStatusOffered, Kind: d.Kind, Reason: d.Reason, NextAgent: d.NextAgent,
		OfferHash: p.content.String(), Since: e.Time,
	}
	if o.Kind == "" {
		o.Kind = HandoffContinuation
	}
	switch i := h.openHandoff(o.HandoffID); {
	case i >= 0 && h.Handoffs[i].Status == HandoffStatusAccepted:
		return rejected(ReasonHandoffTaken, "hand-off %.80q was accepted by %.80q and cannot be offered again", o.HandoffID, h.Handoffs[i].By)
	case i >= 0:
		h.Handoffs[i] = o
	case len(h.Handoffs) >= MaxHandoffs:
		return rejected(ReasonTooMany, "the run has %d open hand-offs already", MaxHandoffs)
	default:
		h.Handoffs = append(h.Handoffs, o)
	}
	h.Counts.Handoffs++
	h.SizeWarning = h.SizeWarning || d.TooLong()
	return Verdict{Kind: Applied, Boundary: true}
}

// handoffID is the offer's own id, or its event's.
func handoffID(e *Event, d *HandoffOfferedData) string {
	if d.HandoffID != "" {
		return d.HandoffID
	}
	return e.ID
}

func (h *Head) openHandoff(id string) int {
	return slices.IndexFunc(h.Handoffs, func(o OpenHandoff) bool { return o.HandoffID == id })
}

// handoffAccepted gives an offer to one accepting run.
func (h *Head) handoffAccepted(d *HandoffAcceptedData) Verdict {
	i := h.openHandoff(d.HandoffID)
	if i < 0 {
		return rejected(ReasonUnknownHandoff, "the run has no open hand-off %.80q", d.HandoffID)
	}
	o := &h.Handoffs[i]
	switch {
	case o.Status == HandoffStatusAccepted:
		return rejected(ReasonHandoffTaken, "hand-off %.80q was accepted by %.80q", d.HandoffID, o.By)
	case d.OfferHash != "" && d.OfferHash != o.OfferHash:
		return rejected(ReasonHandoffTaken, "hand-off %.80q is another offer than the one accepted: its hash is %s", d.HandoffID, o.OfferHash)
	}
	o.Status, o.By, o.Claimed, o.ChildRun = HandoffStatusAccepted, Cut(d.By, MaxBy), Cut(d.Claimed, MaxName), d.ChildRun
	return Verdict{Kind: Applied, Boundary: true}
}

// handoffDeclined withdraws an offer that was not accepted. An accepted offer can only be closed.
func (h *Head) handoffDeclined(id string) Verdict {
	if i := h.openHandoff(id); i >= 0 && h.Handoffs[i].Status == HandoffStatusAccepted {
		return rejected(ReasonHandoffTaken, "hand-off %.80q was accepted by %.80q and cannot be declined", id, h.Handoffs[i].By)
	}
	return h.handoffOver(id)
}

// handoffOver removes a declined or closed offer from the open ones.
func (h *Head) handoffOver(id string) Verdict {
	i := h.openHandoff(id)
	if i < 0 {
		return rejected(ReasonUnknownHandoff, "the run has no open hand-off %.80q", id)
	}
	h.Handoffs = nilIfEmpty(slices.Delete(h.Handoffs, i, i+1))
	return Verdict{Kind: Applied, Boundary: true}
}
