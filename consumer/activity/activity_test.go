package activity_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/schema"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// played is a run written by a test, with the counters that follow it.
type played struct {
	tb       testing.TB
	counters *activity.Counters
	watch    activity.Watch
	batch    activity.Batch
	head     schema.Head
	overview schema.Overview
	alone    string
	w        schema.Writer
	n        schema.StreamSequence
	now      time.Time
	// kept gets the records; nil for none.
	kept *[]schema.Prepared
}

func newRun(tb testing.TB, counters *activity.Counters, run string) *played {
	tb.Helper()
	return &played{
		tb: tb, counters: counters, head: schema.NewHead("default", run), now: noon,
		w: schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1},
	}
}

func (p *played) put(e *schema.Event) schema.Verdict {
	p.tb.Helper()
	header, body := e.Encode()
	p.n++
	p.watch.Before(&p.head, &p.overview)
	prepared := schema.Prepare(schema.NoKeys, &schema.Record{Stream: p.n, Header: header, Body: body})
	if p.kept != nil {
		*p.kept = append(*p.kept, prepared)
	}
	v := p.head.ApplyPrepared(&prepared)
	turns := p.overview.Apply(&p.head, &v)
	require.Contains(p.tb, []schema.VerdictKind{schema.Applied, schema.Evidence}, v.Kind, "%s: %s %s", e.Name(), v.Reason, v.Detail)
	p.watch.Accepted(&p.batch, &p.head, &v, turns, &p.alone)
	p.counters.Add(&p.batch)
	return v
}

// write writes events of the executor, a second apart.
func (p *played) write(turn int32, data ...schema.Data) {
	p.tb.Helper()
	for _, d := range data {
		p.now = p.now.Add(time.Second)
		e, err := p.w.Event(d, turn, p.now, 0)
		require.NoError(p.tb, err)
		p.put(e)
		require.NoError(p.tb, p.w.Commit(e))
	}
}

func (p *played) control(epoch schema.Epoch, d schema.Data) {
	p.tb.Helper()
	e, err := schema.NewControl("default", "daemon-1", p.head.Run, epoch, fmt.Sprint("nonce-", p.n), d, p.now)
	require.NoError(p.tb, err)
	p.put(e)
}

// takeOver opens an epoch.
func (p *played) takeOver(reason string) {
	p.tb.Helper()
	p.control(p.head.Epoch+1, &schema.RunResumedData{
		Executor: "executor-2", Reason: reason, RequestID: fmt.Sprint("request-", p.n),
		From: schema.From{Epoch: p.head.Epoch, Sequence: p.head.Sequence, Digest: p.head.Digest},
	})
	p.w = schema.Writer{Fleet: "default", Run: p.head.Run, Executor: "executor-2", Epoch: p.head.Epoch}
}

func started(agent, tier string) *schema.RunStartedData {
	return &schema.RunStartedData{Agent: agent, Executor: "executor-1", ModelTier: tier}
}

// answer is an answer to turn 1 that calls tools, with the ids c1, c2 and so on.
func answer(tools ...string) *schema.TurnAnsweredData {
	d := &schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("I look")}}}
	for i, tool := range tools {
		d.Calls = append(d.Calls, schema.RequestedCall{ToolCallID: fmt.Sprint("c", i+1), Name: tool})
	}
	return d
}

func begun(id, tool string) *schema.ToolCalledData {
	return &schema.ToolCalledData{ToolCallID: id, Name: tool}
}

// series is the value of one series.
type series struct {
	activity.Description
	labels []string
	// n of a counter; count, sum and buckets of a histogram.
	n, sum         float64
	count, buckets int
}

// allSeries are those of the counters, in the order of the descriptions and their labels.
func allSeries(tb testing.TB, c *activity.Counters) (list []series) {
	tb.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(tb, err)
	for _, d := range activity.Descriptions() {
		for _, f := range families {
			if f.GetName() != "waymark_agent_"+d.Name {
				continue
			}
			from := len(list)
			for _, m := range f.GetMetric() {
				one := series{
					Description: d, n: m.GetCounter().GetValue(), sum: m.GetHistogram().GetSampleSum(),
					count: int(m.GetHistogram().GetSampleCount()), buckets: len(m.GetHistogram().GetBucket()), //nolint:gosec // small
				}
				for _, name := range slices.Concat(d.By.Labels(), d.Labels) {
					for _, l := range m.GetLabel() {
						if l.GetName() == name {
							one.labels = append(one.labels, l.GetValue())
						}
					}
				}
				list = append(list, one)
			}
			slices.SortFunc(list[from:], func(a, b series) int { return slices.Compare(a.labels, b.labels) })
		}
	}
	return list
}

// shown are the series that are not 0; of histograms the count and the sum.
func shown(tb testing.TB, c *activity.Counters) (lines []string) {
	tb.Helper()
	for _, s := range allSeries(tb, c) {
		line := s.Name + " " + strings.Join(s.labels, " ")
		switch {
		case s.count > 0:
			lines = append(lines, fmt.Sprintf("%s %d %g", line, s.count, s.sum))
		case s.n > 0:
			lines = append(lines, fmt.Sprintf("%s %.0f", line, s.n))
		}
	}
	return lines
}

func TestDescriptions_EachMetric_HasASeriesFromTheBeginning(t *testing.T) {
	t.Parallel()
	first := map[string]bool{}
	for _, s := range allSeries(t, activity.New("default")) {
		require.Len(t, s.labels, len(s.By.Labels())+len(s.Labels), s.Name)
		require.Equal(t, len(s.Buckets), s.buckets, s.Name)
		first[s.Name] = true
	}
	require.Len(t, first, len(activity.Descriptions()))
	for _, d := range activity.Descriptions() {
		require.True(t, slices.IsSorted(d.Buckets), d.Name)
		require.Equal(t, d.Buckets == nil, strings.HasSuffix(d.Name, "_total"), d.Name)
	}
}

func TestCounters_MoreNamesThanTheBound_CountAsOther(t *testing.T) {
	t.Parallel()
	c := activity.New("default")
	const names = 1000
	for i := range names {
		p := newRun(t, c, fmt.Sprint("run-", i))
		tool := fmt.Sprint("tool-", i)
		p.write(0, started(fmt.Sprint("agent-", i), fmt.Sprint("tier-", i%7)))
		p.write(1, answer(tool), begun("c1", tool), &schema.ToolReturnedData{ToolCallID: "c1", DurationMS: 250})
	}
	all := allSeries(t, c)
	agents, tools, left, returned := map[string]bool{}, map[string]bool{}, map[string]float64{}, 0.0
	for _, s := range all {
		switch s.By {
		case activity.ByAgent:
			agents[s.labels[0]+" "+s.labels[1]] = true
		case activity.ByTool:
			tools[s.labels[0]] = true
			if s.Name == "tool_calls_total" {
				returned += s.n
			}
		default:
			if s.Name == "names_left_out_total" {
				left[s.labels[0]] = s.n
			}
		}
	}
	require.Len(t, agents, activity.MaxAgents+1)
	require.Len(t, tools, activity.MaxTools+1)
	require.InDelta(t, names, returned, 0, "each is counted, if under another name")
	require.Positive(t, left["agent"])
	require.Positive(t, left["tool"])
	lineCount := 0
	for _, s := range all {
		if lineCount++; s.buckets > 0 {
			lineCount += s.buckets + 2 // with the bucket of all, the sum and the count
		}
	}
	require.LessOrEqual(t, lineCount, 10200, "docs/observability.md names the bound")
	lines := shown(t, c)
	require.Contains(t, lines, "runs_started_total agent-0 tier-0 1")
	require.Contains(t, lines, fmt.Sprint("runs_started_total other other ", names-activity.MaxAgents))
	require.Contains(t, lines, fmt.Sprint("tool_calls_total other returned ", names-activity.MaxTools))
	require.Contains(t, lines, fmt.Sprint("tool_duration_seconds other ", names-activity.MaxTools, " ", float64(names-activity.MaxTools)/4))
}

func TestCounters_NamesThatAreNoNames_CountAsOther(t *testing.T) {
	t.Parallel()
	for name, hostile := range map[string]string{
		"control characters": "look\x00\n", "escape": "\x1b[31mlook", "quotes": `look"} 1`, "text": "my secret is 4711", "not ASCII": "lösche",
		"too long": strings.Repeat("x", activity.MaxLabel+1), "far too long": strings.Repeat("x", 400), "dash first": "-look", "other": activity.Other,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := activity.New("default")
			p := newRun(t, c, "run-1")
			p.write(0, started("coder", hostile))
			tool := strings.Map(func(r rune) rune { return max(r, ' ') }, hostile) // no event has control characters in a tool's name
			if len(tool) > schema.MaxIdentifier {
				tool = tool[:schema.MaxIdentifier]
			}
			p.write(1, answer(tool), begun("c1", tool), &schema.ToolReturnedData{ToolCallID: "c1"})
			for _, s := range allSeries(t, c) {
				for _, label := range s.labels {
					require.Regexp(t, `^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$`, label)
				}
			}
			require.Contains(t, shown(t, c), "tool_calls_total other returned 1")
		})
	}
	c := activity.New("default")
	p := newRun(t, c, "run-1")
	long := strings.Repeat("x", activity.MaxLabel)
	p.write(0, started("coder", "anthropic/claude-4.5:large"))
	p.write(1, answer(long, "mcp__files.read"), begun("c1", long), &schema.ToolReturnedData{ToolCallID: "c1"}, begun("c2", "mcp__files.read"), &schema.ToolReturnedData{ToolCallID: "c2"})
	require.Contains(t, shown(t, c), "runs_started_total coder anthropic/claude-4.5:large 1")
	require.Contains(t, shown(t, c), "tool_calls_total "+long+" returned 1")
	require.Contains(t, shown(t, c), "tool_calls_total mcp__files.read returned 1")
}

// Models call tools that do not exist, under any number of names.
func TestCounters_ToolsThatNeverRan_HaveNoSeries(t *testing.T) {
	t.Parallel()
	c := activity.New("default")
	p := newRun(t, c, "run-1")
	p.write(0, started("coder", ""))
	d := answer("made-up-1", "made-up-2", "made-up-3")
	d.Calls[0].Error = &schema.Error{Type: "unknown_tool"}
	p.write(1, d, &schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: "unknown_tool"}}, &schema.TurnEndedData{Turn: 1})
	require.Equal(t, []string{
		"runs_started_total coder none 1", "turns_ended_total coder none completed 1", "turn_duration_seconds coder none 1 2",
		"tool_calls_total other abandoned 1", "tool_calls_total other failed 2",
	}, shown(t, c))
}

func TestWatch_OutcomesOfCalls_AreCountedOnceEach(t *testing.T) {
	t.Parallel()
	yes := true
	c := activity.New("default")
	p := newRun(t, c, "run-1")
	p.write(0, started("coder", "large"))
	p.write(1, answer("a", "a", "a", "a", "a", "a"))
	p.write(1, begun("c1", "a"), &schema.ToolReturnedData{ToolCallID: "c1", IsError: &yes, DurationMS: 250, Attempt: 2})
	p.write(1, begun("c2", "a"), &schema.ToolFailedData{ToolCallID: "c2", Error: schema.Error{Type: "error"}, Attempt: 3, DurationMS: 1000})
	p.write(1, &schema.ToolDecidedData{ToolCallID: "c3", Decision: schema.DecisionDeny}, &schema.ToolFailedData{ToolCallID: "c3", Error: schema.Error{Type: schema.DeniedType}})
	p.write(1, &schema.ToolDecidedData{ToolCallID: "c4", Decision: schema.DecisionDeny, Mode: schema.ModeObserve},
		&schema.ToolDecidedData{ToolCallID: "c4", Decision: schema.DecisionAllow, Policy: schema.BeginPolicy}, begun("c4", "a"))
	p.write(1, begun("c5", "a"))
	p.control(1, &schema.RunOrphanedData{Executor: "executor-1", LastSeen: schema.FormatTime(p.now)})
	p.now = p.now.Add(30 * time.Second)
	p.takeOver(schema.TakeoverClaim)
	p.takeOver(schema.TakeoverRequest) // finds the same calls in doubt
	p.write(1, &schema.ToolSettledData{ToolCallID: "c4", How: schema.SettledRerun}, &schema.ToolReturnedData{ToolCallID: "c4", Result: jsontext.Value(`1`)})
	p.write(1, &schema.ToolSettledData{ToolCallID: "c5", How: schema.SettledVerified, Result: jsontext.Value(`1`)})
	p.write(1, &schema.TurnEndedData{Turn: 1}, &schema.TurnEndedData{Turn: 1, Error: &schema.Error{Type: "late"}})
	p.write(0, &schema.RunEndedData{Status: string(schema.StatusCompleted)})
	require.Equal(t, []string{
		"runs_started_total coder large 1", "runs_ended_total coder large completed 1", "runs_orphaned_total coder large 1",
		"takeovers_total coder large claim 1", "takeovers_total coder large request 1",
		"turns_ended_total coder large completed 1", "turn_duration_seconds coder large 1 44",
		"tool_calls_total a abandoned 1", "tool_calls_total a denied 1", "tool_calls_total a error 1", "tool_calls_total a failed 1",
		"tool_calls_total a returned 1", "tool_calls_total a settled 1",
		"tool_decisions_total a deny enforce 1", "tool_decisions_total a deny observe 1",
		"tool_retries_total a 3", "tool_in_doubt_total a 2", "tool_settlements_total a rerun 1", "tool_settlements_total a verified 1",
		"tool_duration_seconds a 2 1.25", "takeover_duration_seconds silence 1 30",
	}, shown(t, c))
}

func TestWatch_TimeWithoutAnExecutor_BeginsWhereItWasLost(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		lose func(p *played)
		want string
	}{
		"stopped": {func(p *played) {
			p.write(0, &schema.RunInterruptedData{Reason: schema.InterruptedShutdown})
			p.now = p.now.Add(9 * time.Second)
		}, "stop 1 9"},
		"silent": {func(p *played) {
			p.control(1, &schema.RunOrphanedData{LastSeen: schema.FormatTime(p.now.Add(-10 * time.Second))})
			p.now = p.now.Add(2 * time.Second)
			p.control(1, &schema.CheckpointMarkedData{Name: "here", By: "anna"}) // no event of the executor
			p.now = p.now.Add(3 * time.Second)
		}, "silence 1 15"},
		"silent, and another daemon folds since": {func(p *played) {
			p.control(1, &schema.RunOrphanedData{LastSeen: schema.FormatTime(p.now.Add(-10 * time.Second))})
			p.alone = ""
			p.now = p.now.Add(4 * time.Second)
		}, "silence 1 4"},
		"answered without an executor": {func(p *played) {
			p.write(0, &schema.RunWaitingData{InterruptID: "q1", Reason: schema.WaitHumanInput}, &schema.RunInterruptedData{Reason: schema.InterruptedWaiting})
			p.now = p.now.Add(72 * time.Hour)
			p.control(1, &schema.RunInputData{InterruptID: "q1"})
			p.now = p.now.Add(2 * time.Second)
		}, "stop 1 2"},
		"clocks that differ": {func(p *played) {
			p.control(1, &schema.RunOrphanedData{LastSeen: schema.FormatTime(p.now.Add(time.Hour))})
		}, "silence 1 0"},
		"taken from an executor that lives": {func(p *played) { p.now = p.now.Add(time.Minute) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := activity.New("default")
			p := newRun(t, c, "run-1")
			p.write(0, started("coder", "large"))
			tt.lose(p)
			p.takeOver(schema.TakeoverClaim)
			got := ""
			for _, line := range shown(t, c) {
				if rest, ok := strings.CutPrefix(line, "takeover_duration_seconds "); ok {
					got += rest
				}
			}
			require.Equal(t, tt.want, got)
		})
	}
}

func TestWatch_TurnThatIsRepeated_EndsOnce(t *testing.T) {
	t.Parallel()
	c := activity.New("default")
	p := newRun(t, c, "run-1")
	p.write(0, started("coder", "large"))
	p.write(1, &schema.TurnStartedData{Turn: 1})
	p.takeOver(schema.TakeoverRestart)
	p.write(1, &schema.TurnStartedData{Turn: 1}, answer())
	p.write(2, &schema.TurnStartedData{Turn: 2})
	p.write(3, &schema.TurnStartedData{Turn: 3}) // abandons turn 2
	p.write(0, &schema.LimitReachedData{Limit: schema.LimitBudget}, &schema.RunEndedData{Status: string(schema.StatusCancelled)})
	require.Equal(t, []string{
		"runs_started_total coder large 1", "runs_ended_total coder large cancelled 1", "takeovers_total coder large restart 1",
		"limits_reached_total coder large budget 1",
		"turns_ended_total coder large cancelled 1", "turns_ended_total coder large completed 1", "turns_ended_total coder large superseded 1",
		"turns_repeated_total coder large 1", "turn_duration_seconds coder large 2 3",
	}, shown(t, c))
}

func TestCounters_NumbersWithoutMeasure_AreBounded(t *testing.T) {
	t.Parallel()
	c := activity.New("default")
	p := newRun(t, c, "run-1")
	p.write(0, started("coder", "large"))
	for turn := range int32(3) {
		d := answer()
		d.Turn, d.Usage, d.DurationMS = turn+1, &schema.Usage{InputTokens: math.MaxInt64}, math.MaxInt64
		p.write(turn+1, d)
	}
	p.write(4, &schema.ToolCalledData{ToolCallID: "c1", Name: "look"}, &schema.ToolReturnedData{ToolCallID: "c1", DurationMS: math.MaxInt64, Attempt: math.MaxInt64})
	lines := shown(t, c)
	require.Contains(t, lines, fmt.Sprint("tokens_total coder large input ", int64(3)<<40))
	require.Contains(t, lines, fmt.Sprint("tool_retries_total look ", int64(1)<<40))
	require.Contains(t, lines, "tool_duration_seconds look 1 604800", "a week")
}
