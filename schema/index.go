package schema

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// The index of a shard's runs, in its checkpoint bucket: lists and trees read it instead of every checkpoint. It is
// derived from the checkpoints, and each entry's key can be computed from one. The removal of a run deletes
// [EndedKeys] and [ChildKeys] of its last checkpoint.
const (
	// EndedKeyPrefix begins the keys of the index of ended runs; see [EndedKey].
	EndedKeyPrefix = "_.ended."
	// ChildKeyPrefix begins the keys of the index of a run's children; see [ChildKeys].
	ChildKeyPrefix = "_.child."
	// NoAgent replaces an agent in an [EndedKey] that is missing, or no valid name.
	NoAgent = "-"
	// EndedFormat is the format version of entries of the index of ended runs.
	EndedFormat = 2
)

// Ended is a run's entry in the index of ended runs: its line in a list. Lists show the entries in the order of their
// puts, the last one first.
type Ended struct {
	Format int `json:"format"`
	// Position is the stream sequence of the run's last event.
	Position StreamSequence `json:"position"`
	// Rebuilt: the fold worker put it while it folded the shard again.
	Rebuilt bool `json:"rebuilt,omitzero"`
	RunSummary
	Extra jsontext.Value `json:",embed"`
}

// EndedOf returns the entry of a run that is not [Head.Live].
func EndedOf(h *Head) Ended {
	return Ended{Format: EndedFormat, Position: h.Position.Stream, RunSummary: SummaryOf(h)}
}

// PostedKey is the key of a shard's cursor over the index of ended runs: what the webhook's receiver has accepted.
const PostedKey = "_.posted"

// Posted is that cursor: the revision of the last accepted entry, and the highest position of accepted ones. A rebuild puts
// entries again, at later revisions and the same positions.
type Posted struct {
	Revision Revision       `json:"revision"`
	Position StreamSequence `json:"position"`
}

// FinishedID is the id of a post about the end of a run.
func FinishedID(r *RunSummary) string {
	return r.Run + ".finished." + strconv.FormatUint(uint64(r.Epoch), 10)
}

// EndedKey is the key of a run's entry in the index of ended runs: _.ended.<agent>.<status>.<run>, so that the server
// filters by agent and status.
func EndedKey(h *Head) string { return endedKey(h, h.Status) }

// EndedKeys are the keys of all entries that a run can have: one that was reopened and ended with another status has
// an older entry, too.
func EndedKeys(h *Head) []string {
	return []string{endedKey(h, StatusCompleted), endedKey(h, StatusFailed), endedKey(h, StatusCancelled)}
}

func endedKey(h *Head, status Status) string {
	return EndedKeyPrefix + AgentToken(h.Agent) + "." + string(status) + "." + h.Run
}

// AgentToken returns the token of an agent in a key.
func AgentToken(agent string) string {
	if ValidName(agent) {
		return agent
	}
	return NoAgent
}

// ChildKeys are the keys under which a run is found from its parents: _.child.<parent>.<run>. Its parents are the run
// whose call started it, the run that it continues, the run whose hand-off it carries out, and the run that it was forked
// from, which an executor without the SDK need not name as the one that it continues. Invalid run names are left out.
func ChildKeys(h *Head) []string {
	var keys []string
	for _, of := range h.parents() {
		if key := ChildKeyPrefix + of + "." + h.Run; ValidName(of) && !slices.Contains(keys, key) {
			keys = append(keys, key)
		}
	}
	return keys
}

// parents are the parents of a run, "" for none; see [ChildKeys].
func (h *Head) parents() [4]string {
	of := [4]string{1: h.ResumedFrom}
	if h.Parent != nil {
		of[0] = h.Parent.Run
	}
	if h.Handoff != nil {
		of[2] = h.Handoff.Run
	}
	if h.Base != nil {
		of[3] = h.Base.Run
	}
	return of
}

// SummaryOf is a run's line in a list, from its head. The caller sets Quarantined, as it knows the maximum of claims.
func SummaryOf(h *Head) RunSummary {
	of, failed := h.parents(), ""
	if h.Status == StatusFailed && h.LastError != nil {
		failed = cmp.Or(h.LastError.Message, h.LastError.Type)
	}
	return RunSummary{
		Error: failed,
		Run:   h.Run, Agent: h.Agent, Executor: h.Executor, Status: h.Status, Epoch: h.Epoch, Turn: h.Turn,
		OpenCalls: len(h.OpenCalls), InDoubt: len(h.InDoubt()), Held: len(h.HeldCalls()), Events: h.Counts.Events, ToolCalls: h.Counts.ToolCalls,
		Parent: of[0], ResumedFrom: of[1], HandoffOf: of[2], Waits: len(h.Interrupts), Handoffs: len(h.Handoffs), CompletedBy: h.CompletedBy, Limit: h.Limit,
		ModelTier: h.ModelTier, Completion: h.Completion(), Labels: h.Labels, Gapped: !h.Complete(), StartedAt: h.StartedAt, UpdatedAt: h.UpdatedAt, Usage: h.Usage,
	}
}

// SummaryOfLive is a run's line in a list from its live index entry, for a run whose checkpoint cannot be read.
func SummaryOfLive(l *Live) RunSummary {
	return RunSummary{
		Run: l.Run, Agent: l.Agent, Executor: l.Executor, Status: l.Status, Completion: l.Completion, Epoch: l.Epoch, ModelTier: l.ModelTier, Labels: l.Labels,
		StartedAt: l.StartedAt, UpdatedAt: l.Since,
	}
}
