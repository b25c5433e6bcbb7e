package publisher

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/schema"
)

// Handoff is a hand-off of a run's work to the next agent.
type Handoff struct {
	run  *Run
	data schema.HandoffOfferedData
}

// Handoff begins a hand-off of the run's work. data is of the caller, or of another tool, such as a document from
// [schema.ParseHandoff]. Its Reason is required, and is threshold_critical, task_complete or error. [Handoff.Offer]
// publishes it.
//
// The default of HandoffID is derived from the turn and the next agent. So an executor that repeats the turn after a
// crash repeats the offer and does not make a second one. Behind a rewind it is another one. The default of AgentID is
// the run's agent, and that of CreatedAt is now. Each file of Completed is listed once, at its first position, with its
// latest state; see [schema.PathKey] for the comparison of paths.
func (r *Run) Handoff(data schema.HandoffOfferedData) *Handoff {
	data.CreatedAt = cmp.Or(data.CreatedAt, schema.FormatTime(r.fleet.cfg.Now()))
	data.Completed = distinctFiles(data.Completed)
	return &Handoff{run: r, data: data}
}

// distinctFiles lists each file once.
func distinctFiles(list []schema.HandoffCompleted) []schema.HandoffCompleted {
	var distinct []schema.HandoffCompleted
	for _, c := range list {
		key := schema.PathKey(c.File)
		at := slices.IndexFunc(distinct, func(o schema.HandoffCompleted) bool { return schema.PathKey(o.File) == key })
		if at < 0 || key == "" {
			distinct = append(distinct, c)
			continue
		}
		c.File = distinct[at].File
		distinct[at] = c
	}
	return distinct
}

// Check validates the hand-off as [Handoff.Offer] would, and returns its length; it publishes nothing. The error is a
// [*schema.DataError], which names the field.
func (h *Handoff) Check() (schema.HandoffCheck, error) {
	d := h.Data()
	return schema.CheckHandoff(&d)
}

// Data returns the data that Offer would publish. Its modified files include the run's artifacts, and each is
// listed once. The result changes as the run continues.
func (h *Handoff) Data() schema.HandoffOfferedData {
	d := h.data
	var about schema.HandoffContext
	if d.Context != nil {
		about = *d.Context
	}
	files := slices.Clone(about.FilesModified)
	h.run.View(func(s *schema.State) {
		d.AgentID = cmp.Or(d.AgentID, s.Head.Agent)
		if d.HandoffID == "" {
			d.HandoffID = s.Head.DerivedID("handoff.", strings.TrimSuffix(fmt.Sprintf("%d.%s", s.Head.Turn, d.NextAgent), "."))
		}
		for i := range s.Artifacts {
			if name := cmp.Or(s.Artifacts[i].Name, s.Artifacts[i].URI); name != "" {
				files = append(files, name)
			}
		}
	})
	about.FilesModified = schema.DistinctPaths(files)
	d.Context = &about
	if len(about.Decisions)+len(about.Patterns)+len(about.Issues)+len(about.FilesModified)+len(about.Extra) == 0 {
		d.Context = nil
	}
	d.SizeChars = d.Size()
	return d
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
		Since: e.Time, Data: d, State: state,
	}, nil
}
