package activity

import "github.com/waymarkio/waymark/schema"

// Metric is one of [Descriptions].
type Metric int

// Metrics.
const (
	RunsStarted Metric = iota
	RunsEnded
	RunsOrphaned
	Takeovers
	LimitsReached
	TurnsEnded
	TurnsRepeated
	TurnDuration
	Tokens
	ToolCalls
	ToolDecisions
	ToolRetries
	ToolInDoubt
	ToolSettlements
	ToolDuration
	TakeoverDuration
	NamesLeftOut
)

// Owner says which names label a metric.
type Owner int

// Owners.
const (
	// ByAgent has the labels agent and tier.
	ByAgent Owner = iota
	// ByTool has the label tool.
	ByTool
	// ByFleet has none.
	ByFleet
)

// Labels are the names of an owner's labels.
func (o Owner) Labels() []string {
	switch o {
	case ByAgent:
		return []string{"agent", "tier"}
	case ByTool:
		return []string{"tool"}
	default:
		return nil
	}
}

// Description is the meaning of a metric.
type Description struct {
	Name, Help string
	By         Owner
	// Labels besides those of the owner, and Values of them: all combinations, each of which has a series from the
	// beginning.
	Labels []string
	Values [][]string
	// Buckets of a histogram, in seconds; nil for a counter.
	Buckets []float64
}

// descriptions are in the order of the metrics.
var descriptions = [...]Description{
	RunsStarted: {Name: "runs_started_total", By: ByAgent, Help: "Runs that began, forks included."},
	RunsEnded: {
		Name: "runs_ended_total", By: ByAgent, Help: "Ends of runs, by outcome. A reopened run ends again.",
		Labels: []string{"outcome"}, Values: each(string(schema.StatusCompleted), string(schema.StatusFailed), string(schema.StatusCancelled)),
	},
	RunsOrphaned: {Name: "runs_orphaned_total", By: ByAgent, Help: "Runs orphaned because their executor was silent for too long."},
	Takeovers: {
		Name: "takeovers_total", By: ByAgent, Help: "Takeovers of runs by an executor, by reason.", Labels: []string{"reason"},
		Values: each(schema.TakeoverClaim, schema.TakeoverRequest, schema.TakeoverRestart, schema.TakeoverInput, schema.TakeoverReopen, schema.TakeoverRewind),
	},
	LimitsReached: {
		Name: "limits_reached_total", By: ByAgent, Help: "Limits that runs reached.", Labels: []string{"limit"},
		Values: each(schema.LimitTurns, schema.LimitTokens, schema.LimitTime, schema.LimitContext, schema.LimitBudget),
	},
	TurnsEnded: {
		Name: "turns_ended_total", By: ByAgent, Help: "Ends of turns, by outcome; superseded: a later turn began, or a rewind abandoned the turn.", Labels: []string{"outcome"},
		Values: each(string(schema.TurnStatusCompleted), string(schema.TurnStatusFailed), string(schema.TurnStatusCancelled), string(schema.TurnStatusSuperseded)),
	},
	TurnsRepeated: {Name: "turns_repeated_total", By: ByAgent, Help: "Turns without an answer that another executor started again."},
	TurnDuration: {
		Name: "turn_duration_seconds", By: ByAgent,
		Help:    "Duration of turns by executors' clocks, waits for people and takeovers included; without superseded turns.",
		Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900, 3600},
	},
	Tokens: {
		Name: "tokens_total", By: ByAgent, Help: "Recorded tokens of model answers. Providers differ in whether input includes cached tokens.",
		Labels: []string{"kind"}, Values: each("input", "output", "cache_read", "cache_creation", "reasoning"),
	},
	ToolCalls: {
		Name: "tool_calls_total", By: ByTool,
		Help:   "Tool calls with an outcome, each once: returned, error (returned as one), failed, denied, settled (with a result), abandoned (without one).",
		Labels: []string{"outcome"}, Values: each("returned", "error", "failed", "denied", "settled", "abandoned"),
	},
	ToolDecisions: {
		Name: "tool_decisions_total", By: ByTool, Help: "Decisions of policies and people about calls, by mode: enforce or observe.", Labels: []string{"decision", "mode"},
		Values: [][]string{
			{schema.DecisionAllow, schema.ModeEnforce},
			{schema.DecisionDeny, schema.ModeEnforce},
			{schema.DecisionAsk, schema.ModeEnforce},
			{schema.DecisionAllow, schema.ModeObserve},
			{schema.DecisionDeny, schema.ModeObserve},
			{schema.DecisionAsk, schema.ModeObserve},
		},
	},
	ToolRetries: {Name: "tool_retries_total", By: ByTool, Help: "Executions of tools beyond the first one of their call, from the outcomes."},
	ToolInDoubt: {Name: "tool_in_doubt_total", By: ByTool, Help: "Calls in doubt after a takeover: without an outcome, and they may have run."},
	ToolSettlements: {
		Name: "tool_settlements_total", By: ByTool, Help: "Settlements of calls in doubt, by kind.", Labels: []string{"how"},
		Values: each(string(schema.SettledRerun), string(schema.SettledVerified), string(schema.SettledAdopted), string(schema.SettledDecided), string(schema.SettledAbandoned)),
	},
	ToolDuration: {
		Name: "tool_duration_seconds", By: ByTool,
		Help:    "Run time of tools, retries included, where executors record it.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
	},
	TakeoverDuration: {
		Name: "takeover_duration_seconds", By: ByFleet,
		Help:   "Time without an executor, from its last sign of life (silence) or its stop (stop) to the takeover.",
		Labels: []string{"after"}, Values: each("silence", "stop"),
		Buckets: []float64{0.25, 0.5, 1, 2.5, 5, 7.5, 10, 12.5, 15, 20, 30, 60, 120, 300, 900, 3600},
	},
	NamesLeftOut: {
		Name: "names_left_out_total", By: ByFleet, Help: "Counts under the label other, because a name cannot be a label or there are too many names.",
		Labels: []string{"kind"}, Values: each("agent", "tool"),
	},
}

// Descriptions are those of all metrics.
func Descriptions() []Description { return descriptions[:] }

// each turns the values of one label into combinations.
func each(values ...string) [][]string {
	all := make([][]string, len(values))
	for i, v := range values {
		all[i] = []string{v}
	}
	return all
}

// of returns the index of a combination. Every value of an accepted event has one, because schema.Validate has the
// same lists.
func (m Metric) of(values ...string) (int, bool) {
next:
	for i, v := range descriptions[m].Values {
		for j := range v {
			if v[j] != values[j] {
				continue next
			}
		}
		return i, true
	}
	return 0, false
}
