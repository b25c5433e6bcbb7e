package transcriptcheck

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// claude reads a session: the main thread, then threads inside the file, then the sub-agents' files.
func (s *Source) claude(path string) error {
	main := &Conversation{Format: ClaudeCode, Name: base(path)}
	inside := make(map[string]*Conversation)
	var order []string
	roots := make(map[string]string)
	folder := filepath.Join(strings.TrimSuffix(path, filepath.Ext(path)), "subagents")
	files, err := filepath.Glob(filepath.Join(folder, "agent-*.jsonl"))
	if err != nil {
		return err
	}
	slices.Sort(files)
	hasFile := func(agent string) bool {
		return slices.Contains(files, filepath.Join(folder, "agent-"+agent+".jsonl"))
	}
	child := func(agent string) *Conversation {
		c := inside[agent]
		if c == nil {
			c = &Conversation{Format: ClaudeCode, Name: base(path) + "-agent-" + agent, Agent: agent}
			inside[agent] = c
			order = append(order, agent)
		}
		return c
	}
	own := strings.HasPrefix(base(path), "agent-")
	err = s.lines(path, func(n int, b []byte) {
		o, ok := s.value(path, n, b)
		if !ok {
			return
		}
		typ := str(o, "type")
		data := object(o["data"])
		switch {
		case (typ == "user" || typ == "assistant") && (o["isSidechain"] != true || own):
			main.line(o)
		case typ == "user" || typ == "assistant":
			agent := str(o, "agentId")
			if agent == "" {
				var ok bool
				if agent, ok = roots[str(o, "parentUuid")]; !ok {
					agent = str(o, "uuid")[:min(8, len(str(o, "uuid")))]
				}
				roots[str(o, "uuid")] = agent
			}
			if hasFile(agent) {
				s.Skipped[typ+" (copy)"]++
				return
			}
			child(agent).line(o)
		case typ == "progress" && str(data, "type") == "agent_progress" && !hasFile(str(data, "agentId")):
			line := object(data["message"])
			for _, name := range []string{"sessionId", "cwd", "version", "gitBranch"} {
				if _, has := line[name]; !has && o[name] != nil {
					line[name] = o[name]
				}
			}
			child(str(data, "agentId")).line(line)
		case str(o, "subtype") == "compact_boundary" && typ == "system":
			main.lines = append(main.lines, o)
		case data != nil:
			s.Skipped[typ+"/"+str(data, "type")]++
		case str(o, "subtype") != "":
			s.Skipped[typ+"/"+str(o, "subtype")]++
		default:
			s.Skipped[typ]++
		}
	})
	if err != nil {
		return err
	}
	if len(main.lines) > 0 {
		s.Conversations = append(s.Conversations, main)
	}
	for _, agent := range order {
		s.Conversations = append(s.Conversations, inside[agent])
	}
	for _, file := range files {
		agent := strings.TrimPrefix(base(file), "agent-")
		c := &Conversation{Format: ClaudeCode, Name: base(path) + "-agent-" + agent, Agent: agent}
		err := s.lines(file, func(n int, b []byte) {
			o, ok := s.value(file, n, b)
			if !ok {
				return
			}
			if typ := str(o, "type"); typ == "user" || typ == "assistant" {
				c.line(o)
			} else if typ == "system" && str(o, "subtype") == "compact_boundary" {
				c.lines = append(c.lines, o)
			} else {
				s.Skipped["sub-agent "+typ]++
			}
		})
		if err != nil {
			return err
		}
		s.Conversations = append(s.Conversations, c)
	}
	for _, c := range s.Conversations {
		c.Whole = c.lines
	}
	return nil
}

// line adds the message of a line.
func (c *Conversation) line(o map[string]any) {
	m := object(o["message"])
	if m == nil {
		return
	}
	c.lines = append(c.lines, o)
	c.Messages++
	if str(o, "type") == "assistant" {
		if key := str(m, "id"); key == "" || key != c.lastKey || c.turns == 0 {
			c.turns++
			c.lastKey = key
			c.Usage = append(c.Usage, [4]int64{})
		}
		// The last line of the turn has the whole call's tokens.
		c.Usage[len(c.Usage)-1] = claudeUsage(object(m["usage"]))
	}
	for _, b := range list(m["content"]) {
		block := object(b)
		switch {
		case str(block, "type") == "tool_use" && str(o, "type") == "assistant":
			c.call(block["id"], str(block, "name"), block["input"], false)
		case str(block, "type") == "tool_result" && str(o, "type") == "user":
			c.result(block["tool_use_id"], "", block["content"], block["is_error"])
		}
	}
}

func claudeUsage(u map[string]any) [4]int64 {
	n := func(name string) int64 {
		v, _ := u[name].(json.Number)
		i, _ := v.Int64()
		return i
	}
	return [4]int64{n("input_tokens"), n("output_tokens"), n("cache_read_input_tokens"), n("cache_creation_input_tokens")}
}

// sweAgent reads a trajectory document.
func (s *Source) sweAgent(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	doc, ok := s.value(path, 1, []byte(strings.TrimPrefix(string(b), "\ufeff")))
	if !ok {
		return nil
	}
	history, ok := doc["history"].([]any)
	if !ok {
		return errors.New("no history")
	}
	c := &Conversation{Format: SWEAgent, Name: base(path), Whole: doc, Messages: len(history)}
	var actions []string
	prev := ""
	for _, h := range history {
		m := object(h)
		if m["is_demo"] == true {
			prev = ""
			continue
		}
		role := str(m, "role")
		switch role {
		case "assistant":
			c.turns++
			c.Usage = append(c.Usage, chatUsage(object(m["usage"])))
			actions = append(actions, str(m, "action"))
			calls := list(m["tool_calls"])
			for _, t := range calls {
				call := object(t)
				fn := object(call["function"])
				c.call(call["id"], str(fn, "name"), fn["arguments"], false)
			}
			if _, has := m["tool_calls"]; !has && str(m, "action") != "" {
				action := str(m, "action")
				c.call(nil, append(strings.Fields(action), action)[0], action, false)
			}
		case "tool", "user":
			ids := list(m["tool_call_ids"])
			switch {
			case len(ids) > 0:
				for i, id := range ids {
					content := m["content"]
					if i > 0 {
						content = nil
					}
					c.result(id, "", content, nil)
				}
			case m["tool_call_id"] != nil:
				c.result(m["tool_call_id"], "", m["content"], nil)
			case role == "tool" || prev == "assistant":
				c.result(nil, "", m["content"], nil)
			}
		}
		prev = role
	}
	c.trajectory(list(doc["trajectory"]), actions)
	s.Conversations = append(s.Conversations, c)
	return nil
}

// trajectory gives the first unanswered call of each turn the trajectory's observation.
func (c *Conversation) trajectory(steps []any, actions []string) {
	last := 0
	for i := range c.Calls {
		o := &c.Calls[i]
		if o.HasResult || o.Turn == last {
			continue
		}
		last = o.Turn
		k := o.Turn - 1
		for _, j := range append([]int{k}, reverse(len(steps))...) {
			if j >= len(steps) {
				continue
			}
			step := object(steps[j])
			if obs, has := step["observation"]; has && obs != nil && step["action"] == any(actions[k]) {
				o.HasResult, o.Result = true, obs
				break
			}
		}
	}
}

func reverse(n int) []int {
	out := make([]int, 0, n)
	for i := n - 1; i >= 0; i-- {
		out = append(out, i)
	}
	return out
}
