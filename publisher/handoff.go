package publisher

import (
	"context"
	"unicode/utf8"

	"github.com/waymarkio/waymark/schema"
)

// Handoff collects what the next agent must know, in the order in which it is added. It is no use to several
// goroutines at once.
type Handoff struct {
	run  *Run
	data schema.HandoffOfferedData
}

// Handoff begins the hand-off of the run's work. reason is threshold_critical, task_complete or error. Nothing is
// published before [Handoff.Offer].
func (r *Run) Handoff(reason string) *Handoff {
	return &Handoff{run: r, data: schema.HandoffOfferedData{Reason: reason, Context: new(schema.HandoffContext)}}
}

// ID sets the hand-off's id; without it the event's id serves.
func (h *Handoff) ID(id string) *Handoff { h.data.HandoffID = id; return h }

// Kind sets continuation (the default) or transfer.
func (h *Handoff) Kind(kind string) *Handoff { h.data.Kind = kind; return h }

// NextAgent names the agent that is to take over.
func (h *Handoff) NextAgent(agent string) *Handoff { h.data.NextAgent = agent; return h }

// Completed adds a finished or partly finished file.
func (h *Handoff) Completed(c schema.HandoffCompleted) *Handoff {
	h.data.Completed = append(h.data.Completed, c)
	return h
}

// Remaining adds an open piece of work.
func (h *Handoff) Remaining(r schema.HandoffRemaining) *Handoff {
	h.data.Remaining = append(h.data.Remaining, r)
	return h
}

// Decisions adds decisions that stand.
func (h *Handoff) Decisions(list ...string) *Handoff {
	h.data.Context.Decisions = append(h.data.Context.Decisions, list...)
	return h
}

// Patterns adds patterns to follow.
func (h *Handoff) Patterns(list ...string) *Handoff {
	h.data.Context.Patterns = append(h.data.Context.Patterns, list...)
	return h
}

// Issues adds open questions and known problems.
func (h *Handoff) Issues(list ...string) *Handoff {
	h.data.Context.Issues = append(h.data.Context.Issues, list...)
	return h
}

// FilesModified adds files that were changed; each is listed once, where it was named first.
func (h *Handoff) FilesModified(list ...string) *Handoff {
	seen := make(map[string]bool, len(h.data.Context.FilesModified)+len(list))
	for _, f := range h.data.Context.FilesModified {
		seen[f] = true
	}
	for _, f := range list {
		if !seen[f] {
			seen[f] = true
			h.data.Context.FilesModified = append(h.data.Context.FilesModified, f)
		}
	}
	return h
}

// Size is the number of characters of the hand-off's text.
func (h *Handoff) Size() int64 {
	n := 0
	add := func(list ...string) {
		for _, s := range list {
			n += utf8.RuneCountInString(s)
		}
	}
	for _, c := range h.data.Completed {
		add(c.File, c.Status, c.Notes)
	}
	for _, r := range h.data.Remaining {
		add(r.File, r.Description, r.ReferencePattern, r.Priority)
	}
	c := h.data.Context
	add(c.Decisions...)
	add(c.Patterns...)
	add(c.Issues...)
	add(c.FilesModified...)
	return int64(n)
}

// Data returns what would be published.
func (h *Handoff) Data() schema.HandoffOfferedData {
	d := h.data
	d.SizeChars = h.Size()
	if c := d.Context; len(c.Decisions)+len(c.Patterns)+len(c.Issues)+len(c.FilesModified) == 0 {
		d.Context = nil
	}
	return d
}

// Offer publishes handoff.offered. tooLong says that the text passes [schema.HandoffSizeWarning] characters: it is
// published and the run flagged, and its reader may lose more context by it than it saves.
func (h *Handoff) Offer(ctx context.Context) (tooLong bool, err error) {
	d := h.Data()
	tooLong = d.SizeChars > schema.HandoffSizeWarning
	_, err = h.run.publish(ctx, draft{data: &d})
	return tooLong, err
}
