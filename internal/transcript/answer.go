package transcript

import (
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// sourceItem is one item of a source's turn: exactly one field is set.
type sourceItem struct {
	said    *said
	message *Message
	result  *Call
}

// said is one message of the assistant. A Claude Code session has an answer as several messages, one line for each
// block.
type said struct {
	*Message
	calls []*Call
	// told is the source's data about the model call up to here.
	told answer
}

// Limits of one answer, below those of an event and of a turn: calls that were already open need space, too.
const (
	maxAnswerCalls = schema.MaxOpenCalls - maxUnanswered
	// maxAnswerBytes bounds an answer whose large fields are in the blob store.
	maxAnswerBytes = 400 << 10
	// maxAnswerNames bounds the ids and names of an answer's calls.
	maxAnswerNames = schema.MaxCallBytes / 2
	// partBytes and callBytes are the sizes of a part and a call without their fields, and refBytes the size of a
	// reference to a field in the blob store. The SDK moves no field smaller than leastBlob.
	partBytes, callBytes, refBytes, leastBlob = 80, 130, 200, 512
)

// load is the size of an answer.
type load struct{ calls, bytes, names int }

func (l *load) field(size int) {
	if size >= leastBlob {
		size = refBytes
	}
	l.bytes += size
}

func (l *load) add(s *said) {
	for i := range s.Parts {
		l.part(&s.Parts[i])
	}
	for _, c := range s.calls {
		l.call(len(c.Key.ToolCallID)+len(c.Name), len(c.Arguments), len(c.Source))
	}
}

func (l *load) part(p *schema.Part) {
	l.bytes += partBytes + len(p.ID) + len(p.Name)
	l.field(len(p.Source))
	if p.Content != nil {
		l.field(2 * len(*p.Content)) // characters may be escaped
	}
}

func (l *load) call(names, arguments, source int) {
	l.calls++
	l.names += names
	l.bytes += callBytes + names
	l.field(arguments)
	l.field(source)
}

func (l *load) full() bool {
	return l.calls > maxAnswerCalls || l.bytes > maxAnswerBytes || l.names > maxAnswerNames
}

// cutter splits a run into turns with one answer each.
type cutter struct {
	run *Run
	// has are the source message numbers of the recorded answers.
	has    []int
	number int32
	// keys, calls and turns map the source's numbers to those of the turns. They are empty while both are the same.
	keys  map[schema.CallKey]schema.CallKey
	calls map[*Call]*Call
	turns map[int32]int32
}

// cut returns the run with turns of one answer each. Usually a turn of the source is one turn. It is several if an
// earlier import ended in the middle of it (see has), or if it is too large for one event: an answered turn accepts no
// second answer, so the rest is a turn of its own.
func (r *Run) cut(has []int) *Run {
	if r.source == nil {
		return r
	}
	c := &cutter{run: r, has: has}
	out := *r
	out.Steps = make([]Step, 0, len(r.source))
	was := make([]int32, 0, len(r.source))
	for _, s := range r.source {
		if s.Turn == nil {
			out.Steps, was = append(out.Steps, s), append(was, 0)
			continue
		}
		for _, t := range c.turn(s.Turn) {
			out.Steps, was = append(out.Steps, Step{Turn: t}), append(was, s.Turn.Number)
		}
	}
	if n := len(out.Steps); n > len(r.source) {
		c.renumber(&out, was)
	}
	return &out
}

// turn splits a turn of the source.
func (c *cutter) turn(t *Turn) []*Turn {
	var list []*said
	var at []int
	for i, it := range t.source {
		if it.said != nil {
			list, at = append(list, it.said), append(at, i)
		}
	}
	at = append(at, len(t.source))
	var turns []*Turn
	owner := make(map[*Call]*Turn)
	for first := 0; first < len(list); {
		n := c.take(list[first:])
		c.number++
		piece := &Turn{Number: c.number, At: t.At}
		if first == 0 {
			piece.New = t.New
		}
		before := (*said)(nil)
		if first > 0 {
			before = list[first-1]
			piece.At = before.At
		}
		piece.Answer = c.answer(t.source[at[first]:at[first+n]], before)
		for _, call := range piece.Answer.Calls {
			owner[call] = piece
		}
		turns = append(turns, piece)
		for _, it := range t.source[at[first]:at[first+n]] {
			if it.message != nil {
				piece.Items = append(piece.Items, Item{Message: it.message})
			}
			if it.result != nil {
				// After its own answer, even if the source has it after a later one: a finished turn accepts no result.
				of := owner[it.result]
				of.Items = append(of.Items, Item{Result: it.result})
			}
		}
		first += n
	}
	return turns
}

// take returns how many messages go into the next answer.
func (c *cutter) take(list []*said) int {
	if len(c.has) > 0 {
		n := c.has[0]
		c.has = c.has[1:]
		return min(n, len(list))
	}
	var l load
	for i, s := range list {
		if l.add(s); l.full() && i > 0 {
			return i
		}
	}
	return len(list)
}

// answer makes one answer from the assistant's messages among items. before is the message of the model call with which
// an earlier answer ends.
func (c *cutter) answer(items []sourceItem, before *said) Answer {
	var a Answer
	var details []saidDetail
	last, between, answered := (*said)(nil), 0, false
	for _, it := range items {
		switch {
		case it.message != nil:
			between++
		case it.result != nil:
			answered = true
		default:
			last = it.said
			a.Calls = append(a.Calls, last.calls...)
			details = append(details, saidDetail{Parts: len(last.Parts), After: between, Source: last.Source})
			if len(details) == 1 {
				a.Message = last.Message.Message
			} else {
				a.Message.Parts = append(slices.Clip(a.Message.Parts), last.Parts...)
			}
			if !answered { // a call is never later than its result
				a.At = later(a.At, last.At)
			}
		}
	}
	if len(details) > 1 {
		a.Message.Source = (&detail{Said: details}).source(c.run.Format)
	}
	a.FinishReasons, a.ResponseID, a.Model, a.Usage = last.told.finishReasons, last.told.responseID, last.told.model, last.told.usage
	if before != nil {
		a.Usage = beyond(a.Usage, before.told.usage)
	}
	return a
}

// beyond returns a model call's tokens that were not counted before.
func beyond(u, counted *schema.Usage) *schema.Usage {
	if u == nil || counted == nil {
		return u
	}
	rest := &schema.Usage{
		InputTokens: max(0, u.InputTokens-counted.InputTokens), OutputTokens: max(0, u.OutputTokens-counted.OutputTokens),
		CacheReadInputTokens:     max(0, u.CacheReadInputTokens-counted.CacheReadInputTokens),
		CacheCreationInputTokens: max(0, u.CacheCreationInputTokens-counted.CacheCreationInputTokens),
		ReasoningOutputTokens:    max(0, u.ReasoningOutputTokens-counted.ReasoningOutputTokens),
	}
	if rest.IsZero() {
		return nil
	}
	return rest
}

// renumber gives calls and their references the numbers of their turns. was are the numbers of the source's turns.
func (c *cutter) renumber(out *Run, was []int32) {
	c.keys, c.calls, c.turns = make(map[schema.CallKey]schema.CallKey), make(map[*Call]*Call), make(map[int32]int32)
	for i := range out.Steps {
		t := out.Steps[i].Turn
		if t == nil {
			continue
		}
		c.turns[was[i]] = t.Number
		of := make(map[string]int)
		for j, call := range t.Answer.Calls {
			moved := *call
			of[call.Key.ToolCallID]++
			moved.Key = schema.CallKey{Turn: t.Number, ToolCallID: call.Key.ToolCallID, Occurrence: of[call.Key.ToolCallID]}
			c.keys[call.Key], c.calls[call] = moved.Key, &moved
			t.Answer.Calls[j] = &moved
		}
	}
	for i := range out.Steps {
		switch s := &out.Steps[i]; {
		case s.Message != nil:
			s.Message = &Message{Message: c.renamed(s.Message.Message, 0, 0), At: s.Message.At}
		case s.Compaction != nil:
			moved := *s.Compaction
			moved.ThroughTurn = c.turns[moved.ThroughTurn]
			s.Compaction = &moved
		default:
			t := s.Turn
			fresh := make([]Message, len(t.New))
			for j := range t.New {
				fresh[j] = Message{Message: c.renamed(t.New[j].Message, was[i], t.Number), At: t.New[j].At}
			}
			t.New = fresh
			t.Answer.Message = c.renamed(t.Answer.Message, was[i], t.Number)
			for j := range t.Items {
				it := &t.Items[j]
				if it.Result != nil {
					it.Result = c.calls[it.Result]
				} else {
					it.Message = &Message{Message: c.renamed(it.Message.Message, was[i], t.Number), At: it.Message.At}
				}
			}
		}
	}
}

// renamed moves a message from the source's turn was to the turn now, with the keys of its calls.
func (c *cutter) renamed(m schema.Message, was, now int32) schema.Message {
	m.Parts = slices.Clone(m.Parts)
	for i := range m.Parts {
		p := &m.Parts[i]
		if p.Type != schema.PartToolCall && p.Type != schema.PartToolCallResponse || p.Arguments != nil || p.Response != nil {
			continue
		}
		key := schema.CallKey{Turn: was, ToolCallID: p.ID, Occurrence: max(p.Occurrence, 1)}
		if p.CallTurn != 0 {
			key.Turn = p.CallTurn
		}
		to, ok := c.keys[key]
		if !ok {
			continue
		}
		p.Occurrence, p.CallTurn = 0, 0
		if to.Occurrence > 1 {
			p.Occurrence = to.Occurrence
		}
		if to.Turn != now {
			p.CallTurn = to.Turn
		}
	}
	return m
}
