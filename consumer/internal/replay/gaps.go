package replay

import (
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// LostSince returns the events of a head that a new fold of the same run lacks.
func LostSince(was, is *schema.Head) []schema.Gap {
	if is.Counts.Events >= was.Counts.Events {
		return nil
	}
	gap := schema.Gap{Epoch: was.Epoch, From: 1, To: was.Sequence, At: was.Position, Reason: schema.ReasonLost}
	if is.Epoch == was.Epoch {
		gap.From = min(is.Sequence+1, max(was.Sequence, 1))
	}
	return []schema.Gap{gap}
}

// StillLost returns the gaps of a checkpoint that remain at a head: without the gaps whose last message the fold
// reached, and without the events that it has. It does not change the list, which is shared.
func StillLost(lost []schema.Gap, at *schema.Head) []schema.Gap {
	for i := range lost {
		g := &lost[i]
		from := g.From
		if g.Epoch == at.Epoch {
			from = min(max(from, at.Sequence+1), g.To)
		}
		switch {
		case g.At.ID == at.Position.ID:
			if len(lost) == 1 {
				return nil
			}
			return slices.Delete(slices.Clone(lost), i, i+1)
		case from > g.From:
			lost = slices.Clone(lost)
			lost[i].From = from
		}
	}
	return lost
}

// ShowsGap reports whether the fold refused an event because an event before it is missing.
func ShowsGap(v *schema.Verdict) bool {
	if v.Kind != schema.Rejected {
		return false
	}
	switch v.Reason {
	case schema.ReasonGap, schema.ReasonEpochAhead, schema.ReasonStaleTakeover, schema.ReasonMisplaced:
		return true
	default:
		return false
	}
}
