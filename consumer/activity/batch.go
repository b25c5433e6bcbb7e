package activity

import (
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// step is one thing to count, as small as possible: a fold keeps some per event for a moment.
type step struct {
	// first and tier form the name.
	first, tier string
	// n is the count, or of a histogram the seconds.
	n      float64
	metric uint8
	value  uint8
	// known: the name may have a series of its own.
	known bool
}

func (s *step) name() name { return name{descriptions[s.metric].By, s.first, s.tier} }

// Batch counts events of a run before they count for the daemon: the fold worker adds it to the counters once it has
// stored the events' effect, because it folds unstored events again. The zero value is empty.
type Batch struct{ steps []step }

// Watch counts events. [Watch.Before] looks at the run before the fold of each event, and [Watch.Accepted] after it,
// if the fold accepted the event. It is used by one goroutine.
type Watch struct {
	into *Batch
	// The run before the event: its status, the time of its latest event, its open calls, its turn, and whether that
	// had ended.
	status  schema.Status
	updated string
	calls   []schema.OpenCall
	turn    int32
	final   bool
}

// Before records the state of a run before an event.
func (w *Watch) Before(h *schema.Head, o *schema.Overview) {
	w.status, w.updated = h.Status, h.UpdatedAt
	w.calls = append(w.calls[:0], h.OpenCalls...)
	w.turn, w.final = o.Turn.Turn, o.Turn.Turn == 0 || o.Turn.Status.Final()
}

// Accepted adds an accepted event to a batch. h is the head after it, turns are the notices of its turns. alone is
// the time since when the run has no executor, which the caller keeps with the run; "" while it has one, or if
// unknown.
func (w *Watch) Accepted(into *Batch, h *schema.Head, v *schema.Verdict, turns []schema.TurnNotice, alone *string) {
	w.into = into
	if v.Kind != schema.Applied {
		return // a late result changes no outcome
	}
	agent := name{ByAgent, h.Agent, h.ModelTier}
	w.ends(agent, turns)
	w.abandoned(v)
	switch d := v.Data.(type) {
	case *schema.RunStartedData:
		w.count(RunsStarted, agent, 1)
	case *schema.RunResumedData:
		w.count(Takeovers, agent, 1, d.Reason)
		w.doubt(h)
		w.takenOver(v.Event, d.Reason, *alone)
	case *schema.RunOrphanedData:
		if !w.status.Claimable() {
			w.count(RunsOrphaned, agent, 1)
			*alone = d.LastSeen
		}
		return
	case *schema.RunInterruptedData:
		*alone = v.Event.Time
		return
	case *schema.RunEndedData:
		w.count(RunsEnded, agent, 1, d.Status)
	case *schema.LimitReachedData:
		w.count(LimitsReached, agent, 1, d.Limit)
	case *schema.TurnStartedData:
		if v.Superseded {
			w.count(TurnsRepeated, agent, 1)
		}
	case *schema.TurnAnsweredData:
		w.tokens(agent, d.Usage)
		for i := range d.Calls {
			if c := &d.Calls[i]; c.Error != nil {
				w.outcome(c.Name, "failed", false)
			}
		}
	case *schema.TurnEndedData:
		if !h.TurnAnswered {
			w.tokens(agent, d.Usage)
		}
	case *schema.ToolReturnedData:
		outcome := "returned"
		if d.IsError != nil && *d.IsError {
			outcome = "error"
		}
		if c := w.call(v.Call); c != nil {
			w.outcome(c.Name, outcome, true)
			w.ran(c.Name, d.Attempt, d.DurationMS)
		}
	case *schema.ToolFailedData:
		c := w.call(v.Call)
		switch {
		case c == nil:
		case c.Decision == schema.DecisionDeny:
			w.outcome(c.Name, "denied", true)
		default:
			w.outcome(c.Name, "failed", d.Attempt > 0 || d.DurationMS > 0)
			w.ran(c.Name, d.Attempt, d.DurationMS)
		}
	case *schema.ToolDecidedData:
		mode := schema.ModeEnforce
		if d.Mode == schema.ModeObserve {
			mode = schema.ModeObserve
		}
		if c := w.call(v.Call); c != nil && d.Policy != schema.BeginPolicy {
			w.count(ToolDecisions, tool(c.Name), 1, d.Decision, mode)
		}
	case *schema.ToolSettledData:
		if c := w.call(v.Call); c != nil {
			w.settled(c, d)
		}
	default:
	}
	if _, answered := v.Data.(*schema.RunInputData); answered || !v.Event.IsControl() || v.Event.Name() == schema.RunResumed {
		*alone = ""
	}
}

func tool(of string) name { return name{by: ByTool, first: of} }

// keptSteps is the capacity that a batch keeps for the next events of its run.
const keptSteps = 16

func (w *Watch) add(m Metric, of name, value int, n float64, known bool) {
	if w.into.steps == nil {
		w.into.steps = make([]step, 0, keptSteps)
	}
	w.into.steps = append(w.into.steps, step{of.first, of.tier, n, uint8(m), uint8(value), known}) //nolint:gosec // places in short tables
}

// count adds to a counter of a name.
func (w *Watch) count(m Metric, of name, n int64, values ...string) {
	at, ok := 0, true
	if len(values) > 0 {
		at, ok = m.of(values...)
	}
	if ok && n > 0 {
		w.add(m, of, at, float64(n), true)
	}
}

func (w *Watch) observe(m Metric, of name, value int, seconds float64) {
	w.add(m, of, value, seconds, true)
}

// outcome counts the outcome of a call. ran says that the tool is known to exist.
func (w *Watch) outcome(of, outcome string, ran bool) {
	at, _ := ToolCalls.of(outcome)
	w.add(ToolCalls, tool(of), at, 1, ran)
}

// ran counts how often and how long a tool ran, if the outcome has it.
func (w *Watch) ran(of string, attempt, ms int64) {
	w.count(ToolRetries, tool(of), attempt-1)
	if ms > 0 {
		w.observe(ToolDuration, tool(of), 0, float64(ms)/1000)
	}
}

// call returns a call as it was before the event; nil if it was not open.
func (w *Watch) call(key schema.CallKey) *schema.OpenCall {
	if i := slices.IndexFunc(w.calls, func(c schema.OpenCall) bool { return c.CallKey == key }); i >= 0 {
		return &w.calls[i]
	}
	return nil
}

// ends counts the turns that ended with the event. A notice about a turn that had ended before does not count.
func (w *Watch) ends(agent name, turns []schema.TurnNotice) {
	for i := range turns {
		t := &turns[i].Data
		if turns[i].Name != schema.TurnFinalized || t.Turn == w.turn && w.final {
			continue
		}
		w.count(TurnsEnded, agent, 1, string(t.Status))
		if seconds, ok := between(t.StartedAt, t.EndedAt); ok && t.Status != schema.TurnStatusSuperseded {
			w.observe(TurnDuration, agent, 0, seconds)
		}
	}
}

func (w *Watch) abandoned(v *schema.Verdict) {
	for _, key := range v.Abandoned {
		if c := w.call(key); c != nil {
			w.outcome(c.Name, "abandoned", false)
		}
	}
}

func (w *Watch) tokens(agent name, u *schema.Usage) {
	if u == nil {
		return
	}
	// In the order of the metric's values.
	for kind, n := range [...]int64{u.InputTokens, u.OutputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.ReasoningOutputTokens} {
		if n > 0 {
			w.add(Tokens, agent, kind, float64(n), true)
		}
	}
}

// doubt counts the calls that a takeover put in doubt.
func (w *Watch) doubt(h *schema.Head) {
	for i := range h.OpenCalls {
		c := &h.OpenCalls[i]
		if was := w.call(c.CallKey); c.State.InDoubt() && (was == nil || !was.State.InDoubt()) {
			w.count(ToolInDoubt, tool(c.Name), 1)
		}
	}
}

func (w *Watch) settled(c *schema.OpenCall, d *schema.ToolSettledData) {
	w.count(ToolSettlements, tool(c.Name), 1, string(d.How))
	switch d.How {
	case schema.SettledRerun:
	case schema.SettledAbandoned:
		w.outcome(c.Name, "abandoned", true)
	default:
		w.outcome(c.Name, "settled", true)
	}
}

// takenOver observes how long the run had no executor. A run that a person reopened or rewound is not counted.
func (w *Watch) takenOver(e *schema.Event, reason, alone string) {
	if reason == schema.TakeoverReopen || reason == schema.TakeoverRewind || !w.status.Claimable() {
		return
	}
	if alone == "" {
		alone = w.updated // the daemon took the shard over since, and has the time of the latest event
	}
	after := "silence"
	if w.status == schema.StatusInterrupted {
		after = "stop"
	}
	if seconds, ok := between(alone, e.Time); ok {
		at, _ := TakeoverDuration.of(after)
		w.observe(TakeoverDuration, name{by: ByFleet}, at, seconds)
	}
}

// between is the time between two times of events.
func between(from, to string) (seconds float64, ok bool) {
	began, err := time.Parse(time.RFC3339Nano, from)
	if err != nil {
		return 0, false
	}
	ended, err := time.Parse(time.RFC3339Nano, to)
	if err != nil {
		return 0, false
	}
	return ended.Sub(began).Seconds(), true
}
