package transcript

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

var (
	errNoHistory  = errors.New("no list of history entries")
	errNotAnEntry = errors.New("the history entry is no object")
)

// sweRun reads one trajectory: history is the source; trajectory has the observations that no message tells.
func sweRun(v jsontext.Value, run *Run, rep *Report) (*Run, error) {
	run.Format = SWEAgent
	o, ok := parseObject(v)
	if !ok {
		return nil, errNoHistory
	}
	raw, _ := o.take("history")
	history, ok := parseArray(raw)
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
		entry, ok := parseObject(raw)
		if !ok {
			return nil, at(path, errNotAnEntry)
		}
		demo := isTrue(entry, "is_demo")
		action, hasAction := entry.str(fieldAction)
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
	traj, hasTrajectory := o.get("trajectory")
	steps, ok := parseArray(traj)
	if len(history)+len(steps) == 0 {
		rep.noMessage(run)
	}
	if ok {
		o.take("trajectory")
		b.fromTrajectory(steps, actions, answers)
		d.Steps = keepSteps(steps, said, history)
		if size := len(marshalValue(d.Steps)); d.Steps != nil && size > maxRunSource {
			rep.drop("trajectory", size)
			d.Steps = nil
		}
	} else if !hasTrajectory {
		d.absent("trajectory")
	}
	if _, has := o.get("info"); !has {
		d.absent("info")
	}
	sweEnd(o, run, rep)
	run.Source = runSource(o, SWEAgent, d, rep)
	return b.finish(), nil
}

// sweMessage decodes a history entry: a chat message with thought, action and the ids of the calls that an
// observation answers.
func sweMessage(o *object, b *builder, demo bool) (*decoded, error) {
	c := chat{SWEAgent}
	thought, hasThought := o.takeStr(fieldThought)
	content, contentIsText := o.str("content")
	_, hasCalls := o.get("tool_calls")
	action, hasAction := o.str(fieldAction)
	ids, hasIDs := takeIDs(o)
	role, _ := o.str("role")

	_, hasID := o.get("tool_call_id")

	// Before function calling the action is the call, and its text the arguments.
	isCall := role == schema.RoleAssistant && hasAction && action != "" && !hasCalls && !demo
	if isCall {
		o.take(fieldAction)
	}
	answers := role == schema.RoleTool || role == schema.RoleUser && len(b.pending) == 0 && b.awaits()
	var m *decoded
	var err error
	if !hasID && (hasIDs || answers && !demo) && (role == schema.RoleUser || role == schema.RoleTool) {
		m, err = sweObservation(c, o, ids, hasIDs)
	} else {
		if hasIDs {
			o.put("tool_call_ids", idsValue(ids))
		}
		m, err = c.message(o)
	}
	if err != nil {
		return nil, err
	}
	if hasThought {
		if contentIsText && thought == content {
			m.d.Copy = map[string]string{fieldThought: "content"}
		} else {
			c.field(m, schema.Reasoning(thought), fieldThought)
		}
	}
	if isCall {
		name := action
		if words := strings.Fields(action); len(words) > 0 {
			name = words[0]
		}
		m.calls = append(m.calls, pendingCall{
			part: len(m.Parts), name: quote(name), args: quote(action), d: detail{Field: fieldAction},
		})
		m.Parts = append(m.Parts, schema.Part{})
	}
	return m, nil
}

// sweObservation decodes the message that brings a result back.
func sweObservation(c chat, o *object, ids []string, hasIDs bool) (*decoded, error) {
	content, hasContent := o.take("content")
	m, err := c.message(o)
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
		m.d.absent("tool_call_ids")
	}
	for i, id := range ids {
		p := pendingResponse{part: i, d: detail{Field: field}}
		if hasIDs && id != "" {
			p.rawID = quote(id)
		}
		switch {
		case i > 0:
			// One observation for several calls is stored with the first of them.
			p.d.From = fromFirst
		case !hasContent:
			p.d.absent("content")
		default:
			p.setContent(content)
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
			c.Answered, c.Result = true, compact(obs)
			c.ResultSource = (&detail{From: fromTrajectory}).source(SWEAgent)
			s.Turn.source = append(s.Turn.source, sourceItem{result: c})
			break
		}
	}
}

// observationOf finds the trajectory's step of an action: the one at its place, else the last that matches.
func observationOf(steps []jsontext.Value, k int, action string) (jsontext.Value, bool) {
	match := func(i int) (jsontext.Value, bool) {
		o, ok := parseObject(steps[i])
		if !ok {
			return nil, false
		}
		a, isText := o.str(fieldAction)
		obs, has := o.get(fieldObservation)
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
func sweEnd(o *object, run *Run, rep *Report) {
	raw, has := o.take("info")
	info, ok := parseObject(raw)
	if !ok {
		if has {
			o.put("info", raw)
		}
		return
	}
	if stats, ok := info.get("model_stats"); ok {
		if s, ok := parseObject(stats); ok {
			in, _ := s.get("tokens_sent")
			out, _ := s.get("tokens_received")
			u := schema.Usage{}
			if n, ok := integer(in); ok && n > 0 {
				u.InputTokens = n
			}
			if n, ok := integer(out); ok && n > 0 {
				u.OutputTokens = n
			}
			if !u.IsZero() {
				run.End.Usage = &u
			}
		}
	}
	d := detail{}
	if sub, ok := info.get("submission"); ok && sub.Kind() == '"' {
		run.End.Output = compact(sub)
		info.take("submission")
	}
	status, hasStatus := info.str("exit_status")
	if hasStatus && status != "" {
		run.End.Summary = status
		if !strings.HasPrefix(status, "submitted") {
			run.End.Status = schema.StatusFailed
			run.End.Error = &schema.Error{Type: status}
		}
	}
	d.Members = info.rest()
	rep.within(d.Members, "info.")
	run.End.Source = d.source(SWEAgent)
}

func isTrue(o *object, name string) bool {
	v, _ := o.get(name)
	b, _ := boolean(v)
	return b
}

// takeIDs removes tool_call_ids if it is a list of strings.
func takeIDs(o *object) ([]string, bool) {
	v, _ := o.get("tool_call_ids")
	values, ok := parseArray(v)
	if !ok || len(values) == 0 {
		return nil, false
	}
	ids := make([]string, 0, len(values))
	for _, v := range values {
		s, ok := unquote(v)
		if !ok {
			return nil, false
		}
		ids = append(ids, s)
	}
	o.take("tool_call_ids")
	return ids, true
}

func idsValue(ids []string) jsontext.Value {
	values := make([]jsontext.Value, len(ids))
	for i, id := range ids {
		values[i] = quote(id)
	}
	return array(values)
}

func (o *object) put(name string, v jsontext.Value) {
	o.names = append(o.names, name)
	o.values = append(o.values, v)
}
