package transcript

import (
	"time"

	"github.com/waymarkio/waymark/schema"
)

// opKind says what a step of the plan publishes.
type opKind int

const (
	opStart opKind = iota + 1
	// opMessage adds a message outside any turn, opTurnMessage one inside the turn.
	opMessage
	opCompact
	opTurn
	// opAnswer publishes what the model said and the calls it asked for, before they run.
	opAnswer
	opTurnMessage
	opResult
	opTurnEnd
	opEnd
)

// op is one step of the plan: what is published together.
type op struct {
	kind opKind
	turn *Turn
	// messages of opMessage and opTurnMessage (one), opTurn, opAnswer, opTurnEnd.
	messages []Message
	calls    []*Call
	call     *Call
	compact  *Compaction
	at       time.Time
}

// maxEventMessages bounds the messages of one event, in bytes: more of them go out in events of their own.
const maxEventMessages = 128 << 10

// plan lists what is published for a run, in order. It is the one description that [Events] and [Replay]
// share.
func plan(run *Run) []op {
	ops := []op{{kind: opStart, at: run.StartedAt}}
	for _, s := range run.Steps {
		switch {
		case s.Message != nil:
			ops = append(ops, op{kind: opMessage, messages: []Message{*s.Message}, at: s.Message.At})
		case s.Compaction != nil:
			ops = append(ops, op{kind: opCompact, compact: s.Compaction, at: s.Compaction.At})
		case s.Turn != nil:
			ops = planTurn(ops, s.Turn)
		}
	}
	return append(ops, op{kind: opEnd, at: run.End.At})
}

func planTurn(ops []op, t *Turn) []op {
	before, with := split(t.New)
	for _, m := range before {
		ops = append(ops, op{kind: opMessage, messages: []Message{m}, at: m.At})
	}
	ops = append(ops, op{kind: opTurn, turn: t, messages: with, at: t.At})

	// Messages behind the last call and result need no event of their own: the turn's end brings them.
	tail := len(t.Items)
	for tail > 0 && t.Items[tail-1].Message != nil {
		tail--
	}
	for i := 0; i < tail; {
		it := t.Items[i]
		switch {
		case it.Result != nil:
			ops = append(ops, op{kind: opResult, turn: t, call: it.Result, at: it.Result.ResultAt})
			i++
		case it.Message != nil && it.Message.Role != schema.RoleAssistant:
			ops = append(ops, op{kind: opTurnMessage, turn: t, messages: []Message{*it.Message}, at: it.Message.At})
			i++
		default:
			a := op{kind: opAnswer, turn: t}
			for ; i < tail; i++ {
				it := t.Items[i]
				switch {
				case it.Call != nil:
					a.calls = append(a.calls, it.Call)
					continue
				case it.Message != nil && it.Message.Role == schema.RoleAssistant:
					a.messages = append(a.messages, *it.Message)
					a.at = it.Message.At
					continue
				}
				break
			}
			ops = append(ops, a)
		}
	}
	var rest []Message
	for _, it := range t.Items[tail:] {
		rest = append(rest, *it.Message)
	}
	before, with = split(rest)
	for _, m := range before {
		ops = append(ops, op{kind: opTurnMessage, turn: t, messages: []Message{m}, at: m.At})
	}
	return append(ops, op{kind: opTurnEnd, turn: t, messages: with, at: t.EndAt})
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
		Labels: map[string]string{"format": string(run.Format)}, Source: run.Source,
	}
}

// turnEndData is the data of turn.ended.
func turnEndData(o *op) *schema.TurnEndedData {
	t := o.turn
	d := &schema.TurnEndedData{
		Turn: t.Number, Messages: bare(o.messages), FinishReasons: t.FinishReasons, ResponseID: t.ResponseID,
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
func calledData(run *Run, c *Call) *schema.ToolCalledData {
	return &schema.ToolCalledData{
		ToolCallID: c.Key.ToolCallID, Name: c.Name, Arguments: c.Arguments, Replay: schema.ReplayPure,
		IdempotencyKey: c.Key.IdempotencyKey(run.ID), Source: c.Source,
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
