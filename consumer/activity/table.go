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

// Owner is what a metric counts by.
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

// Description says what a metric means.
type Description struct {
	Name, Help string
	By         Owner
	// Labels beside those of the owner, and Values of them: all combinations, of which each has a series from the beginning.
	Labels []string
	Values [][]string
	// Buckets of a histogram, in seconds; nil for a counter.
	Buckets []float64
}

// Outcomes of a tool's call.
const (
	outcomeReturned = iota
	outcomeError
	outcomeFailed
	outcomeDenied
	outcomeSettled
	outcomeAbandoned
)

// Kinds of tokens.
const (
	tokensInput = iota
	tokensOutput
	tokensCacheRead
	tokensCacheCreation
	tokensReasoning
)

// What a takeover comes after.
const (
	afterSilence = iota
	afterStop
)

// What names are left out of.
const (
	leftOutAgent = iota
	leftOutTool
)

// descriptions are in the order of the metrics.
var descriptions = [...]Description{
	RunsStarted: {Name: "runs_started_total", By: ByAgent, Help: "Runs that began, forks included."},
	RunsEnded: {
		Name: "runs_ended_total", By: ByAgent, Help: "Ends of runs, by outcome. A run that was reopened ends once more.",
		Labels: []string{"outcome"}, Values: each(string(schema.StatusCompleted), string(schema.StatusFailed), string(schema.StatusCancelled)),
	},
	RunsOrphaned: {Name: "runs_orphaned_total", By: ByAgent, Help: "Times that the executor of a run was silent for too long."},
	Takeovers: {
		Name: "takeovers_total", By: ByAgent, Help: "Takeovers of runs by an executor, by reason.", Labels: []string{"reason"},
		Values: each(schema.TakeoverClaim, schema.TakeoverRequest, schema.TakeoverRestart, schema.TakeoverInput, schema.TakeoverReopen, schema.TakeoverRewind),
	},
	LimitsReached: {
		Name: "limits_reached_total", By: ByAgent, Help: "Limits that runs reached.", Labels: []string{"limit"},
		Values: each(schema.LimitTurns, schema.LimitTokens, schema.LimitTime, schema.LimitContext, schema.LimitBudget),
	},
	TurnsEnded: {
		Name: "turns_ended_total", By: ByAgent, Help: "Ends of turns, by outcome; superseded: a later turn began, or a rewind left the turn behind.", Labels: []string{"outcome"},
		Values: each(string(schema.TurnStatusCompleted), string(schema.TurnStatusFailed), string(schema.TurnStatusCancelled), string(schema.TurnStatusSuperseded)),
	},
	TurnsRepeated: {Name: "turns_repeated_total", By: ByAgent, Help: "Times that another executor started a turn again that had no answer."},
	TurnDuration: {
		Name: "turn_duration_seconds", By: ByAgent,
		Help:    "How long turns took, from their start to their end by the clocks of executors, waiting for people and takeovers included; without superseded ones.",
		Buckets: []float64{0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 900, 3600},
	},
	Tokens: {
		Name: "tokens_total", By: ByAgent, Help: "Tokens that answers of models used, as recorded. Providers differ in whether input has the cached ones.",
		Labels: []string{"kind"}, Values: each("input", "output", "cache_read", "cache_creation", "reasoning"),
	},
	ToolCalls: {
		Name: "tool_calls_total", By: ByTool,
		Help:   "Calls of tools that have an outcome, each once: returned, error (returned as one), failed, denied, settled (with a result), abandoned (not begun, or settled without a result).",
		Labels: []string{"outcome"}, Values: each("returned", "error", "failed", "denied", "settled", "abandoned"),
	},
	ToolDecisions: {
		Name: "tool_decisions_total", By: ByTool, Help: "Decisions of policies and people about calls, by whether they bind.", Labels: []string{"decision", "mode"},
		Values: [][]string{
			{schema.DecisionAllow, schema.ModeEnforce},
			{schema.DecisionDeny, schema.ModeEnforce},
			{schema.DecisionAsk, schema.ModeEnforce},
			{schema.DecisionAllow, schema.ModeObserve},
			{schema.DecisionDeny, schema.ModeObserve},
			{schema.DecisionAsk, schema.ModeObserve},
		},
	},
	ToolRetries: {Name: "tool_retries_total", By: ByTool, Help: "Runs of tools beyond the first one of their call, as outcomes tell."},
	ToolInDoubt: {Name: "tool_in_doubt_total", By: ByTool, Help: "Calls that a takeover found without an outcome and that may have run."},
	ToolSettlements: {
		Name: "tool_settlements_total", By: ByTool, Help: "Settlements of calls in doubt, by how.", Labels: []string{"how"},
		Values: each(string(schema.SettledRerun), string(schema.SettledVerified), string(schema.SettledAdopted), string(schema.SettledDecided), string(schema.SettledAbandoned)),
	},
	ToolDuration: {
		Name: "tool_duration_seconds", By: ByTool,
		Help:    "How long tools ran, retries included, as executors record it; without calls of which they do not.",
		Buckets: []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
	},
	TakeoverDuration: {
		Name: "takeover_duration_seconds", By: ByFleet,
		Help:   "How long a run had no executor, from its last sign of life (silence) or its word that it stopped (stop) to the takeover.",
		Labels: []string{"after"}, Values: each("silence", "stop"),
		Buckets: []float64{0.25, 0.5, 1, 2.5, 5, 7.5, 10, 12.5, 15, 20, 30, 60, 120, 300, 900, 3600},
	},
	NamesLeftOut: {
		Name: "names_left_out_total", By: ByFleet, Help: "Times that something counted as other, because its name cannot be a label or there are too many names.",
		Labels: []string{"kind"}, Values: each("agent", "tool"),
	},
}

// Descriptions are those of all metrics.
func Descriptions() []Description { return descriptions[:] }

// each makes of values of one label combinations of one.
func each(values ...string) [][]string {
	all := make([][]string, len(values))
	for i, v := range values {
		all[i] = []string{v}
	}
	return all
}

// of returns the place of a combination. Every value of an accepted event has one, because schema.Validate knows the same lists.
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
