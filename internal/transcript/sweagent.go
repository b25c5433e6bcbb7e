package transcript

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/form"
	"github.com/waymarkio/waymark/schema"
)

var (
	errNoHistory  = errors.New("no list of history entries")
	errNotAnEntry = errors.New("the history entry is not an object")
)

// sweRun reads one trajectory: history is the source; trajectory has the observations that are in no message.
func sweRun(v jsontext.Value, run *Run, rep *Report) (*Run, error) {
	run.Format = SWEAgent
	o, ok := form.ParseObject(v)
	if !ok {
		return nil, errNoHistory
	}
	raw, _ := o.Take("history")
	history, ok := form.ParseArray(raw)
	if !ok {
		return nil, at("/history", errNoHistory)
	}
	b := newBuilder(run, SWEAgent, rep)
	var actions []string
	answers := make(map[*Turn]int)
	var said []*sweAnswer
	for i, raw := range history {
		if err := rep.stopped(); err != nil {
			return nil, err
		}
		path := fmt.Sprintf("/history/%d", i)
		entry, ok := form.ParseObject(raw)
		if !ok {
			return nil, at(path, errNotAnEntry)
		}
		demo := isTrue(entry, "is_demo")
		action, hasAction := entry.Str(form.FieldAction)
		m, err := sweMessage(entry, b, demo)
		if err != nil {
			return nil, at(path, err)
		}
		switch {
		case demo:
			m.inline(SWEAgent)
			m.Source = m.d.source(SWEAgent)
			b.pending = append(b.pending, m.Message)
		case m.Role == schema.RoleAssistant:
			t := b.assistant(m, "", chatAnswer(m))
			answers[t] = len(actions)
			said = append(said, &sweAnswer{decoded: m, turn: t, entry: raw})
			if !hasAction {
				action = ""
			}
			actions = append(actions, action)
		default:
			b.other(m, len(m.responses) > 0)
		}
	}
	var d detail
	traj, hasTrajectory := o.Get("trajectory")
	steps, ok := form.ParseArray(traj)
	if len(history)+len(steps) == 0 {
		rep.noMessage(run)
	}
	if ok {
		o.Take("trajectory")
		b.fromTrajectory(steps, actions, answers)
		d.Steps = keepSteps(steps, said, history)
		if size := len(form.Marshal(d.Steps)); d.Steps != nil && size > maxRunSource {
			rep.drop("trajectory", size)
			d.Steps = nil
		}
	} else if !hasTrajectory {
		d.Lacking("trajectory")
	}
	if _, has := o.Get("info"); !has {
		d.Lacking("info")
	}
	sweEnd(o, run, rep)
	run.Source = runSource(o, SWEAgent, d, rep)
	return b.finish(), nil
}

// sweMessage decodes a history entry: a chat message with thought, action and the ids of the calls of an observation.
func sweMessage(o *form.Object, b *builder, demo bool) (*decoded, error) {
	c := chatDecoder(SWEAgent)
	thought, hasThought := o.TakeStr(fieldThought)
	content, contentIsText := o.Str("content")
	_, hasCalls := o.Get("tool_calls")
	action, hasAction := o.Str(form.FieldAction)
	ids, hasIDs := takeIDs(o)
	role, _ := o.Str("role")

	_, hasID := o.Get("tool_call_id")

	// Before function calling the action is the call, and its text the arguments.
	isCall := role == schema.RoleAssistant && hasAction && action != "" && !hasCalls && !demo
	if isCall {
		o.Take(form.FieldAction)
	}
	answers := role == schema.RoleTool || role == schema.RoleUser && len(b.pending) == 0 && b.awaits()
	var m *decoded
	var err error
	if !hasID && (hasIDs || answers && !demo) && (role == schema.RoleUser || role == schema.RoleTool) {
		m, err = sweObservation(c, o, ids, hasIDs)
	} else {
		if hasIDs {
			o.Put("tool_call_ids", idsValue(ids))
		}
		m, err = chatMessage(c, o)
	}
	if err != nil {
		return nil, err
	}
	if hasThought {
		if contentIsText && thought == content {
			m.d.Copy = map[string]string{fieldThought: "content"}
		} else {
			part := schema.Reasoning(thought)
			part.Source = (&form.Detail{Field: fieldThought}).Source(string(SWEAgent))
			m.Parts = append(m.Parts, part)
		}
	}
	if isCall {
		name := action
		if words := strings.Fields(action); len(words) > 0 {
			name = words[0]
		}
		m.calls = append(m.calls, form.Call{
			Part: len(m.Parts), Name: form.Quote(name), Arguments: form.Quote(action), Detail: form.Detail{Field: form.FieldAction},
		})
		m.Parts = append(m.Parts, schema.Part{})
	}
	return m, nil
}

// sweObservation decodes the message with a result.
func sweObservation(c *form.Decoder, o *form.Object, ids []string, hasIDs bool) (*decoded, error) {
	content, hasContent := o.Take("content")
	m, err := chatMessage(c, o)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		ids = []string{""}
	}
	// What is left are members that became parts.
	rest := m.Parts[len(m.responses):]
	m.Parts, m.responses, m.d.Content = nil, nil, ""
	field := ""
	if hasIDs && m.Role == schema.RoleUser {
		field = "tool_call_ids"
	}
	if !hasIDs {
		m.d.Lacking("tool_call_ids")
	}
	for i, id := range ids {
		p := form.Response{Part: i, Detail: form.Detail{Field: field}}
		if hasIDs && id != "" {
			p.ID = form.Quote(id)
		}
		switch {
		case i > 0:
			// One observation for several calls is stored with the first of them.
			p.Detail.From = fromFirst
		case !hasContent:
			p.Detail.Lacking("content")
		default:
			p.SetContent(content)
		}
		m.Parts = append(m.Parts, schema.Part{})
		m.responses = append(m.responses, p)
	}
	m.Parts = append(m.Parts, rest...)
	return m, nil
}

// awaits reports whether the current turn has a call without a result.
func (b *builder) awaits() bool {
	if b.cur == nil {
		return false
	}
	for _, c := range b.open {
		if c.Key.Turn == b.cur.Number {
			return true
		}
	}
	return false
}

// fromTrajectory gives calls without a message their observation.
func (b *builder) fromTrajectory(steps []jsontext.Value, actions []string, answers map[*Turn]int) {
	for _, s := range b.run.Steps {
		if s.Turn == nil {
			continue
		}
		k, known := answers[s.Turn]
		if !known {
			continue
		}
		for i := 0; i < len(b.open); i++ {
			c := b.open[i]
			if c.Key.Turn != s.Turn.Number {
				continue
			}
			obs, found := observationOf(steps, k, actions[k])
			if !found {
				break
			}
			b.open = append(b.open[:i], b.open[i+1:]...)
			c.Answered, c.Result = true, form.Compact(obs)
			c.ResultSource = (&detail{Detail: form.Detail{From: fromTrajectory}}).source(SWEAgent)
			s.Turn.source = append(s.Turn.source, sourceItem{result: c})
			break
		}
	}
}

// observationOf finds the trajectory's step of an action: the one at its place, else the last that matches.
func observationOf(steps []jsontext.Value, k int, action string) (jsontext.Value, bool) {
	match := func(i int) (jsontext.Value, bool) {
		o, ok := form.ParseObject(steps[i])
		if !ok {
			return nil, false
		}
		a, isText := o.Str(form.FieldAction)
		obs, has := o.Get(fieldObservation)
		return obs, has && isText && a == action && obs.Kind() != 'n'
	}
	if k < len(steps) {
		if obs, ok := match(k); ok {
			return obs, true
		}
	}
	for i := range slices.Backward(steps) {
		if obs, ok := match(i); ok {
			return obs, true
		}
	}
	return nil, false
}

// sweEnd reads info: how the agent came to its end, and what it handed in.
func sweEnd(o *form.Object, run *Run, rep *Report) {
	raw, has := o.Take("info")
	info, ok := form.ParseObject(raw)
	if !ok {
		if has {
			o.Put("info", raw)
		}
		return
	}
	if stats, ok := info.Get("model_stats"); ok {
		if s, ok := form.ParseObject(stats); ok {
			in, _ := s.Get("tokens_sent")
			out, _ := s.Get("tokens_received")
			u := schema.Usage{}
			if n, ok := form.Integer(in); ok && n > 0 {
				u.InputTokens = n
			}
			if n, ok := form.Integer(out); ok && n > 0 {
				u.OutputTokens = n
			}
			if !u.IsZero() {
				run.End.Usage = &u
			}
		}
	}
	d := detail{}
	if sub, ok := info.Get("submission"); ok && sub.Kind() == '"' {
		run.End.Output = form.Compact(sub)
		info.Take("submission")
	}
	status, hasStatus := info.Str("exit_status")
	if hasStatus && status != "" {
		run.End.Summary = status
		if !strings.HasPrefix(status, "submitted") {
			run.End.Status = schema.StatusFailed
			run.End.Error = &schema.Error{Type: status}
		}
	}
	d.Members = info.Rest()
	rep.within(d.Members, "info.")
	run.End.Source = d.source(SWEAgent)
}

func isTrue(o *form.Object, name string) bool {
	v, _ := o.Get(name)
	b, _ := form.Boolean(v)
	return b
}

// takeIDs removes tool_call_ids if it is a list of strings.
func takeIDs(o *form.Object) ([]string, bool) {
	v, _ := o.Get("tool_call_ids")
	values, ok := form.ParseArray(v)
	if !ok || len(values) == 0 {
		return nil, false
	}
	ids := make([]string, 0, len(values))
	for _, v := range values {
		s, ok := form.Unquote(v)
		if !ok {
			return nil, false
		}
		ids = append(ids, s)
	}
	o.Take("tool_call_ids")
	return ids, true
}

func idsValue(ids []string) jsontext.Value {
	values := make([]jsontext.Value, len(ids))
	for i, id := range ids {
		values[i] = form.Quote(id)
	}
	return form.Array(values)
}
