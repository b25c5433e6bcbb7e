package publisher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Handoff collects the context for the next agent, in the order in which it is added. It is not safe for concurrent
// use.
type Handoff struct {
	run  *Run
	data schema.HandoffOfferedData
}

// Handoff begins a hand-off of the run's work. reason is threshold_critical, task_complete or error. [Handoff.Offer]
// publishes it.
func (r *Run) Handoff(reason string) *Handoff {
	return &Handoff{run: r, data: schema.HandoffOfferedData{
		Reason: reason, Context: new(schema.HandoffContext), CreatedAt: schema.FormatTime(r.fleet.cfg.Now()),
	}}
}

// HandoffOf begins a hand-off with data of another tool, such as a document from [schema.ParseHandoff]. Missing parts
// are added as for [Run.Handoff].
func (r *Run) HandoffOf(data schema.HandoffOfferedData) *Handoff {
	h := r.Handoff(data.Reason)
	completed, context, created := data.Completed, h.data.Context, h.data.CreatedAt
	if data.Context != nil {
		*context = *data.Context
	}
	// Do not change the caller's document.
	context.Decisions, context.Patterns, context.Issues = slices.Clone(context.Decisions), slices.Clone(context.Patterns), slices.Clone(context.Issues)
	context.FilesModified = schema.DistinctPaths(context.FilesModified)
	h.data = data
	h.data.Completed, h.data.Remaining, h.data.Lineage = nil, slices.Clone(data.Remaining), nil
	h.data.Context, h.data.CreatedAt = context, cmp.Or(data.CreatedAt, created)
	for _, c := range completed {
		h.Completed(c)
	}
	return h
}

// ID sets the hand-off's id. The default is derived from the turn and the next agent. So an executor that repeats the
// turn after a crash repeats the offer and does not make a second one. Behind a rewind it is another one.
func (h *Handoff) ID(id string) *Handoff { h.data.HandoffID = id; return h }

// Kind sets continuation (the default) or transfer.
func (h *Handoff) Kind(kind string) *Handoff { h.data.Kind = kind; return h }

// NextAgent names the agent that should take over.
func (h *Handoff) NextAgent(agent string) *Handoff { h.data.NextAgent = agent; return h }

// AgentID names the agent that hands over; the default is the run's agent.
func (h *Handoff) AgentID(id string) *Handoff { h.data.AgentID = id; return h }

// CreatedAt sets the time at which the hand-off was written; the default is the time at which it was begun.
func (h *Handoff) CreatedAt(at time.Time) *Handoff {
	h.data.CreatedAt = schema.FormatTime(at)
	return h
}

// Completed adds a finished or partly finished file. Each file is listed once, at its first position, with its latest
// state; see [schema.PathKey] for the comparison of paths.
func (h *Handoff) Completed(c schema.HandoffCompleted) *Handoff {
	key := schema.PathKey(c.File)
	at := slices.IndexFunc(h.data.Completed, func(o schema.HandoffCompleted) bool { return schema.PathKey(o.File) == key })
	if at < 0 || key == "" {
		h.data.Completed = append(h.data.Completed, c)
		return h
	}
	c.File = h.data.Completed[at].File
	h.data.Completed[at] = c
	return h
}

// Remaining adds an open piece of work.
func (h *Handoff) Remaining(r schema.HandoffRemaining) *Handoff {
	h.data.Remaining = append(h.data.Remaining, r)
	return h
}

// Decisions adds decisions that remain valid.
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

// FilesModified adds changed files. Each file is listed once, at its first position, in whatever spelling: see
// [schema.PathKey].
func (h *Handoff) FilesModified(list ...string) *Handoff {
	h.data.Context.FilesModified = schema.DistinctPaths(append(h.data.Context.FilesModified, list...))
	return h
}

// Check validates the hand-off as [Handoff.Offer] would, and returns its length; it publishes nothing. The error is a
// [*schema.DataError], which names the field.
func (h *Handoff) Check() (schema.HandoffCheck, error) {
	d := h.Data()
	return schema.CheckHandoff(&d)
}

// Data returns the data that Offer would publish. It includes data from the run's log: the tools used, the usage, the
// runs that this one continues, and the artifacts among the files. The result changes as the run
// continues.
func (h *Handoff) Data() schema.HandoffOfferedData {
	d := h.data
	files := slices.Clone(d.Context.FilesModified)
	h.run.View(func(s *schema.State) {
		d.AgentID = cmp.Or(d.AgentID, s.Head.Agent)
		if d.HandoffID == "" {
			d.HandoffID = s.Head.DerivedID("handoff.", strings.TrimSuffix(fmt.Sprintf("%d.%s", s.Head.Turn, d.NextAgent), "."))
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
	context.FilesModified = schema.DistinctPaths(files)
	d.Context = &context
	if len(context.Decisions)+len(context.Patterns)+len(context.Issues)+len(context.FilesModified)+len(context.Extra) == 0 {
		d.Context = nil
	}
	d.SizeChars = d.Size()
	return d
}

// maxLineage bounds the runs named in a hand-off; the oldest are left out.
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

// Offer publishes handoff.offered with [Handoff.Data]. An offer under the same id
// replaces the earlier one, unless that was accepted; then Offer returns [ErrHandoffTaken]. A hand-off longer than
// [schema.HandoffSizeWarning] characters is offered, with a warning in the log.
func (h *Handoff) Offer(ctx context.Context) (Offer, error) {
	r := h.run
	if err := r.ledger.ended(); err != nil {
		return Offer{}, err
	}
	d := h.Data()
	d.CreatedAt = with(r.ledger, func(l *ledger) string { return l.flight.offeredAt(d.HandoffID, d.CreatedAt) })
	if check, err := schema.CheckHandoff(&d); err == nil && check.Warning != "" { // publish refuses an invalid one and names the field
		r.fleet.cfg.Logger.Warn().Str("run", r.id).Str("handoff", d.HandoffID).Int64("size_chars", check.SizeChars).
			Msg("hand-off is long: it may cost its reader more context than it saves")
	}
	verdicts, err := r.publish(ctx, draft{data: &d})
	if err != nil {
		return Offer{}, err
	}
	e := verdicts[0].Event
	var state []schema.StateValue
	r.View(func(s *schema.State) { state = slices.Clone(s.Values) })
	return Offer{
		Run: r.id, Agent: r.Head().Agent, HandoffID: d.HandoffID, Hash: e.ContentHash().String(), Status: schema.HandoffStatusOffered,
		Since: e.Time, Data: d, TooLong: d.TooLong(), State: state,
	}, nil
}
