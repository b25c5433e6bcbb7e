package publisher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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

// ID sets the hand-off's id. Without it the turn and the next agent make one, so that an executor that goes on with the
// turn after a crash repeats the offer and does not make a second one.
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
	h.data.Context.FilesModified = once(append(h.data.Context.FilesModified, list...))
	return h
}

// Size is the number of characters of the hand-off's text, as far as the agent gave it.
func (h *Handoff) Size() int64 { return handoffSize(&h.data) }

func handoffSize(d *schema.HandoffOfferedData) int64 {
	n := 0
	add := func(list ...string) {
		for _, s := range list {
			n += utf8.RuneCountInString(s)
		}
	}
	for _, c := range d.Completed {
		add(c.File, c.Status, c.Notes)
	}
	for _, r := range d.Remaining {
		add(r.File, r.Description, r.ReferencePattern, r.Priority)
	}
	if c := d.Context; c != nil {
		add(c.Decisions...)
		add(c.Patterns...)
		add(c.Issues...)
		add(c.FilesModified...)
	}
	return int64(n)
}

// Data returns what would be published, with what the run's log adds to it: the tools that were used, the usage, the
// runs that this one continues, and the artifacts among the files. On a handle that keeps only the head there is less
// of it. It changes as the run goes on.
func (h *Handoff) Data() schema.HandoffOfferedData {
	d := h.data
	files := slices.Clone(d.Context.FilesModified)
	h.run.View(func(s *schema.State) {
		if d.HandoffID == "" {
			d.HandoffID = fmt.Sprintf("handoff.%d", s.Head.Turn)
			if d.NextAgent != "" {
				d.HandoffID += "." + d.NextAgent
			}
		}
		d.Tools = toolsOf(s)
		if usage := s.Head.Usage; !usage.IsZero() {
			d.Usage = &usage
		}
		if s.Head.ResumedFrom != "" {
			d.Lineage = append(d.Lineage, s.Head.ResumedFrom)
			if s.Started != nil && s.Started.Handoff != nil {
				d.Lineage = append(d.Lineage, s.Started.Handoff.Lineage...)
			}
			d.Lineage = d.Lineage[:min(len(d.Lineage), maxLineage)]
		}
		for i := range s.Artifacts {
			if name := cmp.Or(s.Artifacts[i].Name, s.Artifacts[i].URI); name != "" {
				files = append(files, name)
			}
		}
	})
	context := *d.Context
	context.FilesModified = once(files)
	d.Context = &context
	if len(context.Decisions)+len(context.Patterns)+len(context.Issues)+len(context.FilesModified) == 0 {
		d.Context = nil
	}
	d.SizeChars = handoffSize(&d)
	return d
}

// maxLineage bounds the runs named in a hand-off; the farthest are left out.
const maxLineage = 64

// toolsOf counts the calls of the run, by tool, in the order of first use.
func toolsOf(s *schema.State) []schema.HandoffTool {
	var tools []schema.HandoffTool
	at := make(map[string]int)
	for i := range s.Calls {
		c := &s.Calls[i]
		n, ok := at[c.Name]
		if !ok {
			n = len(tools)
			at[c.Name] = n
			tools = append(tools, schema.HandoffTool{Name: c.Name})
		}
		tools[n].Calls++
		if c.Outcome == schema.OutcomeFailed {
			tools[n].Failures++
		}
	}
	return tools
}

// once keeps of each value the first.
func once(list []string) []string {
	var kept []string
	seen := make(map[string]bool, len(list))
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			kept = append(kept, s)
		}
	}
	return kept
}

// Offer publishes handoff.offered with [Handoff.Data] and waits until it is durable. Offered again under its id, a
// hand-off replaces the one before, as long as nobody took that; else it returns [ErrHandoffTaken].
func (h *Handoff) Offer(ctx context.Context) (Offer, error) {
	r := h.run
	if err := r.settled(ctx); err != nil {
		return Offer{}, err
	}
	d := h.Data()
	verdicts, err := r.publish(ctx, draft{data: &d})
	if err == nil {
		err = r.Flush(ctx)
	}
	if err != nil {
		return Offer{}, err
	}
	e := verdicts[0].Event
	var state []schema.StateValue
	r.View(func(s *schema.State) { state = slices.Clone(s.Values) })
	return Offer{
		State: state,
		Run:   r.id, Agent: r.Head().Agent, HandoffID: d.HandoffID, Hash: e.ContentHash().String(), Status: schema.HandoffStatusOffered,
		Since: e.Time, Data: d, TooLong: d.SizeChars > schema.HandoffSizeWarning,
	}, nil
}
