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
	// answer numbers the steps that go out together: what the model said and the calls it asked for.
	answer int
}

// maxEventMessages bounds the messages of one event, in bytes: more of them go out in events of their own.
const maxEventMessages = 128 << 10

// planner lists steps.
type planner struct {
	steps   []step
	answers int
}

func (p *planner) add(data schema.Data, turn int32, at time.Time) {
	p.steps = append(p.steps, step{data: data, turn: turn, at: at})
}

// plan lists what is published for a run, event by event and in order. It is the one description that
// [Events] and [Replay] share.
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
	// What the source gives no time happened when the last thing before it did.
	for i := 1; i < len(p.steps); i++ {
		if p.steps[i].at.IsZero() {
			p.steps[i].at = p.steps[i-1].at
		}
	}
	return p.steps
}

func (p *planner) message(m *Message, turn int32) {
	p.add(&schema.MessageAddedData{Message: m.Message}, turn, m.At)
}

func (p *planner) planTurn(t *Turn) {
	before, with := split(t.New)
	for i := range before {
		p.message(&before[i], 0)
	}
	p.add(&schema.TurnStartedData{Turn: t.Number, Messages: bare(with)}, t.Number, t.At)

	// Messages behind the last call and result need no event of their own: the turn's end brings them.
	tail := len(t.Items)
	for tail > 0 && t.Items[tail-1].Message != nil {
		tail--
	}
	for i := 0; i < tail; {
		switch it := t.Items[i]; {
		case it.Result != nil:
			p.add(returnedData(it.Result), t.Number, it.Result.ResultAt)
			p.steps[len(p.steps)-1].call = it.Result
			i++
		case it.Message != nil && it.Message.Role != schema.RoleAssistant:
			p.message(it.Message, t.Number)
			i++
		default:
			i = p.planAnswer(t, i, tail)
		}
	}
	var rest []Message
	for _, it := range t.Items[tail:] {
		rest = append(rest, *it.Message)
	}
	before, with = split(rest)
	for i := range before {
		p.message(&before[i], t.Number)
	}
	p.add(turnEndData(t, with), t.Number, t.EndAt)
}

// planAnswer takes the assistant's messages and calls that follow one another: messages first, then calls.
func (p *planner) planAnswer(t *Turn, i, tail int) int {
	p.answers++
	first := len(p.steps)
	var calls []*Call
	for ; i < tail; i++ {
		it := t.Items[i]
		if it.Call != nil {
			calls = append(calls, it.Call)
		} else if it.Message != nil && it.Message.Role == schema.RoleAssistant {
			p.message(it.Message, t.Number)
		} else {
			break
		}
	}
	for _, c := range calls {
		p.add(calledData(c), t.Number, c.At)
		p.steps[len(p.steps)-1].call = c
	}
	for k := first; k < len(p.steps); k++ {
		p.steps[k].answer = p.answers
	}
	return i
}

// split keeps the last messages that fit one event together and returns those before them apart.
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

// size is about the number of bytes of a message in an event.
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

// turnEndData is the data of turn.ended.
func turnEndData(t *Turn, messages []Message) *schema.TurnEndedData {
	d := &schema.TurnEndedData{
		Turn: t.Number, Messages: bare(messages), FinishReasons: t.FinishReasons, ResponseID: t.ResponseID,
		Model: t.Model, Usage: t.Usage,
	}
	if !t.At.IsZero() && t.EndAt.After(t.At) {
		d.DurationMS = t.EndAt.Sub(t.At).Milliseconds()
	}
	return d
}

// endData is the data of run.ended.
func endData(run *Run) *schema.RunEndedData {
	e := run.End
	return &schema.RunEndedData{
		Status: string(e.Status), Output: e.Output, Summary: e.Summary, Error: e.Error, Usage: e.Usage, Source: e.Source,
	}
}

// calledData is the data of tool.called. Replaying a transcript has no side effect, so its calls may be run
// again freely.
func calledData(c *Call) *schema.ToolCalledData {
	return &schema.ToolCalledData{
		ToolCallID: c.Key.ToolCallID, Name: c.Name, Arguments: c.Arguments, Replay: schema.ReplayPure, Source: c.Source,
	}
}

// returnedData is the data of tool.returned.
func returnedData(c *Call) *schema.ToolReturnedData {
	d := &schema.ToolReturnedData{
		ToolCallID: c.Key.ToolCallID, Result: c.Result, IsError: c.IsError, Source: c.ResultSource,
	}
	if !c.At.IsZero() && c.ResultAt.After(c.At) {
		d.DurationMS = c.ResultAt.Sub(c.At).Milliseconds()
	}
	return d
}
