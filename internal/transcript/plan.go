package transcript

import (
	"time"

	"github.com/waymarkio/waymark/schema"
)

// step is one event of the plan.
type step struct {
	data schema.Data
	turn int32
	at   time.Time
	// call of tool.called and tool.returned.
	call *Call
	// answer of turn.answered.
	answer *Answer
}

// maxEventMessages bounds the messages of one event, in bytes: further ones are published in events of their own.
const maxEventMessages = 128 << 10

// maxUnanswered bounds a run's calls without a result that are begun. Further ones are abandoned when their turn ends.
const maxUnanswered = 256

// planner lists steps.
type planner struct {
	steps      []step
	unanswered int
	// open is the latest turn if one of its calls has no result, otherwise 0.
	open int32
}

func (p *planner) add(data schema.Data, turn int32, at time.Time) {
	p.steps = append(p.steps, step{data: data, turn: turn, at: at})
}

// plan lists the events to publish for a run, in order. [Events] and [Replay] share it.
func plan(run *Run, executor string) []step {
	p := new(planner)
	p.add(startData(run, executor), 0, run.StartedAt)
	for _, s := range run.Steps {
		switch {
		case s.Message != nil:
			p.message(s.Message, 0)
		case s.Compaction != nil:
			d := s.Compaction.ContextCompactedData
			p.add(&d, 0, s.Compaction.At)
		case s.Turn != nil:
			p.planTurn(s.Turn)
		}
	}
	p.add(endData(run), 0, run.End.At)
	// An item without a time in the source gets the time of the previous item.
	for i := 1; i < len(p.steps); i++ {
		if p.steps[i].at.IsZero() {
			p.steps[i].at = p.steps[i-1].at
		}
	}
	return p.steps
}

func (p *planner) message(m *Message, turn int32) {
	if turn == 0 && p.open > 0 {
		// A message outside of turns would count as part of the open one.
		p.add(&schema.TurnEndedData{Turn: p.open}, p.open, m.At)
		p.open = 0
	}
	p.add(&schema.MessageAddedData{Message: m.Message}, turn, m.At)
}

func (p *planner) planTurn(t *Turn) {
	before, with := split(t.New)
	for i := range before {
		p.message(&before[i], 0)
	}
	if len(with) > 0 {
		p.add(&schema.TurnStartedData{Turn: t.Number, Messages: bare(with)}, t.Number, t.At)
	}
	p.add(answeredData(t), t.Number, t.Answer.At)
	p.steps[len(p.steps)-1].answer = &t.Answer
	p.open = 0
	for _, c := range t.Answer.Calls {
		if !c.Answered {
			p.open = t.Number
		}
		if !c.Answered && p.unanswered < maxUnanswered {
			p.unanswered++
			p.call(&schema.ToolCalledData{
				ToolCallID: c.Key.ToolCallID, Occurrence: t.occurrence(c), Name: c.Name, VerifySubject: schema.VerifyTranscript,
			}, c, t.Answer.At)
		}
	}
	for _, it := range t.Items {
		if it.Message != nil {
			p.message(it.Message, t.Number)
		} else {
			p.call(returnedData(it.Result, t.occurrence(it.Result)), it.Result, it.Result.ResultAt)
		}
	}
}

func (p *planner) call(data schema.Data, c *Call, at time.Time) {
	p.add(data, c.Key.Turn, at)
	p.steps[len(p.steps)-1].call = c
}

// occurrence is the occurrence that an event about a call must have: 0 if no other call of the answer has its id.
func (t *Turn) occurrence(c *Call) int {
	for _, other := range t.Answer.Calls {
		if other != c && other.Key.ToolCallID == c.Key.ToolCallID {
			return c.Key.Occurrence
		}
	}
	return 0
}

// split keeps the last messages that fit into one event, and returns the earlier ones separately.
func split(ms []Message) (before, with []Message) {
	total := 0
	for i := len(ms) - 1; i >= 0; i-- {
		total += size(&ms[i].Message)
		if total > maxEventMessages && i < len(ms)-1 {
			return ms[:i+1], ms[i+1:]
		}
	}
	return nil, ms
}

// size is the approximate size of a message in an event, in bytes.
func size(m *schema.Message) int {
	n := 64 + len(m.Source)
	for i := range m.Parts {
		p := &m.Parts[i]
		n += 64 + len(p.Source) + len(p.Response) + len(p.Arguments) + len(p.URI)
		if p.Content != nil {
			n += len(*p.Content)
		}
	}
	return n
}

func bare(ms []Message) []schema.Message {
	if len(ms) == 0 {
		return nil
	}
	out := make([]schema.Message, len(ms))
	for i := range ms {
		out[i] = ms[i].Message
	}
	return out
}

// startData is the data of run.started.
func startData(run *Run, executor string) *schema.RunStartedData {
	return &schema.RunStartedData{
		Agent: run.Agent, Executor: executor, ThreadID: run.ThreadID, Model: run.Model, Parent: run.Parent,
		Labels: labels(run), Source: run.Source,
	}
}

// answeredData is the data of turn.answered.
func answeredData(t *Turn) *schema.TurnAnsweredData {
	a := &t.Answer
	d := &schema.TurnAnsweredData{
		Turn: t.Number, Message: a.Message, FinishReasons: a.FinishReasons, ResponseID: a.ResponseID, Model: a.Model, Usage: a.Usage,
	}
	if !t.At.IsZero() && a.At.After(t.At) {
		d.DurationMS = a.At.Sub(t.At).Milliseconds()
	}
	for _, c := range a.Calls {
		d.Calls = append(d.Calls, requested(c))
	}
	return d
}

// requested is a call in the form of the answer. A call with a result in the transcript counts as pure, because an
// import runs no tool. For a call without a result it is unknown whether it had its effect. So it is begun right after
// the answer: it is then in doubt for the executor that takes the run over, and a later import whose transcript has the
// result settles it.
func requested(c *Call) schema.RequestedCall {
	r := schema.RequestedCall{ToolCallID: c.Key.ToolCallID, Name: c.Name, Arguments: c.Arguments, Replay: schema.ReplayPure, Source: c.Source}
	if !c.Answered {
		r.Replay, r.VerifySubject = schema.ReplayVerify, schema.VerifyTranscript
	}
	return r
}

// endData is the data of run.ended.
func endData(run *Run) *schema.RunEndedData {
	e := run.End
	return &schema.RunEndedData{
		Status: string(e.Status), Output: e.Output, Summary: e.Summary, Error: e.Error, Usage: e.Usage, Source: e.Source,
	}
}

// returnedData is the data of tool.returned.
func returnedData(c *Call, occurrence int) *schema.ToolReturnedData {
	d := &schema.ToolReturnedData{
		ToolCallID: c.Key.ToolCallID, Occurrence: occurrence, Result: c.Result, IsError: c.IsError, Source: c.ResultSource,
	}
	if !c.At.IsZero() && c.ResultAt.After(c.At) {
		d.DurationMS = c.ResultAt.Sub(c.At).Milliseconds()
	}
	return d
}

// settlement settles a call in doubt by the transcript's result, which is the only evidence.
func settlement(d *schema.ToolReturnedData) *schema.ToolSettledData {
	return &schema.ToolSettledData{
		ToolCallID: d.ToolCallID, Occurrence: d.Occurrence, How: schema.SettledVerified, Result: d.Result, IsError: d.IsError, Source: d.Source,
	}
}
