package story

import (
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

// Told is a story, summed up.
type Told struct {
	Run    string        `json:"run"`
	Agent  string        `json:"agent,omitzero"`
	Status schema.Status `json:"status"`
	// DurationMS is from the run's start to its last event.
	DurationMS int64        `json:"duration_ms"`
	Usage      schema.Usage `json:"usage,omitzero"`
	Turns      int64        `json:"turns"`
	Calls      int64        `json:"tool_calls"`
	Takeovers  int          `json:"takeovers"`
	// Model, ModelTier and Provider as the run's start named them.
	Model     string `json:"model,omitzero"`
	ModelTier string `json:"model_tier,omitzero"`
	Provider  string `json:"provider,omitzero"`
	// Build is the latest recorded one of the agent.
	Build string `json:"build,omitzero"`
	// Decisions about calls, compactions and artifacts are counted. Limits are those that were reached.
	Decisions   Decisions                 `json:"decisions,omitzero"`
	Compactions int64                     `json:"compactions,omitzero"`
	Artifacts   int64                     `json:"artifacts,omitzero"`
	Limits      []schema.LimitReachedData `json:"limits,omitzero"`
	// WaitedMS is how long it waited. Waits at the same time count once.
	WaitedMS int64 `json:"waited_ms"`
	// Signals are those that are not consumed.
	Signals []schema.OpenSignal `json:"signals,omitzero"`
	Story   []*Beat             `json:"story"`
	// Omitted counts the lines that --turns left out.
	Omitted int `json:"omitted,omitzero"`
}

// DurationMS is the time from the start of a run to its last event, or to now if it has not ended, in milliseconds.
func DurationMS(h *schema.Head, now time.Time) int64 {
	last := schema.ParseTime(h.UpdatedAt)
	if !h.Status.Terminal() {
		last = now
	}
	begun := schema.ParseTime(h.StartedAt)
	if begun.IsZero() || !last.After(begun) {
		return 0
	}
	return last.Sub(begun).Milliseconds()
}

// Until returns the beat with its duration until now if it is open: a copy, because other readers may have the beat.
func (b *Beat) Until(now time.Time) *Beat {
	begun := schema.ParseTime(b.At)
	if !b.Open || b.Detail == CallRequested || begun.IsZero() || !now.After(begun) {
		return b
	}
	open, took := *b, now.Sub(begun).Milliseconds()
	open.DurationMS = &took
	return &open
}

// Tell sums the story up, and keeps the last turns of it.
func (s *Story) Tell(turns int, now time.Time) *Told {
	h := &s.State.Head
	t := &Told{
		Run: h.Run, Agent: h.Agent, Status: h.Status, Usage: h.Usage, Turns: h.Counts.Turns, Calls: h.Counts.ToolCalls,
		Takeovers: len(s.State.Takeovers), Signals: h.Signals,
		Decisions: decisionsOf(s.State), Compactions: h.Counts.Compactions, Artifacts: h.Counts.Artifacts, Limits: s.State.Limits,
	}
	if d := s.State.Started; d != nil {
		if s.version != nil {
			t.Build = s.version.Build
		}
		t.Model, t.ModelTier, t.Provider = d.Model, d.ModelTier, d.Provider
	}
	if s.submitted && t.Takeovers > 0 {
		t.Takeovers-- // the first is the claim of a run that no executor had
	}
	t.DurationMS = DurationMS(h, now)
	t.Story = slices.Clone(s.beats)
	var counted time.Time // the end of the waits that are counted
	for i, b := range t.Story {
		b = b.Until(now)
		t.Story[i] = b
		if b.Kind == KindWait && b.DurationMS != nil {
			if ends := schema.ParseTime(b.At).Add(time.Duration(*b.DurationMS) * time.Millisecond); ends.After(counted) {
				t.WaitedMS += min(*b.DurationMS, ends.Sub(counted).Milliseconds())
				counted = ends
			}
		}
	}
	if first := h.Turn - int32(turns) + 1; turns > 0 && first > 1 { //nolint:gosec // a number of lines
		at := slices.IndexFunc(t.Story, func(b *Beat) bool { return b.Turn >= first })
		if at > 0 {
			t.Story, t.Omitted = t.Story[at:], at
		}
	}
	return t
}

// ModelText is the model that a run began with.
func (t *Told) ModelText() string {
	tier := ""
	if t.ModelTier != "" {
		tier = "tier " + t.ModelTier
	}
	return output.Words(t.Model, tier, t.Provider)
}

// Decisions counts the decisions about a run's calls.
type Decisions struct {
	Allowed int `json:"allowed,omitzero"`
	Asked   int `json:"asked,omitzero"`
	Denied  int `json:"denied,omitzero"`
	// Observed counts the asks and denials that were only recorded: the calls ran.
	Observed int `json:"observed,omitzero"`
}

func decisionsOf(s *schema.State) (n Decisions) {
	for i := range s.Decisions {
		d := &s.Decisions[i]
		switch {
		case d.Decision == schema.DecisionAllow:
			n.Allowed++
		case d.Mode == schema.ModeObserve:
			n.Observed++
		case d.Decision == schema.DecisionAsk:
			n.Asked++
		case d.Decision == schema.DecisionDeny:
			n.Denied++
		}
	}
	return n
}

// Text says it for people.
func (n Decisions) Text() string {
	var list []string
	for _, d := range []struct {
		count int
		what  string
	}{{n.Allowed, "allowed"}, {n.Asked, "asked a person"}, {n.Denied, "denied"}, {n.Observed, "denied or asked about in observe mode"}} {
		if d.count > 0 {
			list = append(list, fmt.Sprint(d.count, " ", d.what))
		}
	}
	return output.Words(list...)
}
