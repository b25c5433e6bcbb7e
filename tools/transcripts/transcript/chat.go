package transcript

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// chatMessage is a message of Chat Completions, or an entry of SWE-agent's history, which has more members.
type chatMessage struct {
	Role         string         `json:"role"`
	Name         string         `json:"name"`
	Content      jsontext.Value `json:"content"`
	Reasoning    string         `json:"reasoning_content"`
	Refusal      string         `json:"refusal"`
	ToolCalls    []chatCall     `json:"tool_calls"`
	FunctionCall *chatFunction  `json:"function_call"`
	ToolCallID   string         `json:"tool_call_id"`

	// Of SWE-agent.
	Thought     string   `json:"thought"`
	Action      string   `json:"action"`
	IsDemo      bool     `json:"is_demo"`
	ToolCallIDs []string `json:"tool_call_ids"`
}

type chatCall struct {
	ID       string       `json:"id"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments"`
}

// message converts the message without its content if that is a result.
func (c *chatMessage) message() (*message, error) {
	m := &message{Message: schema.Message{Role: c.Role, Name: c.Name}}
	switch c.Role {
	case "":
		return nil, fmt.Errorf("a message has no role")
	case schema.RoleSystem, schema.RoleUser, schema.RoleAssistant, schema.RoleTool:
	case "developer":
		m.Role = schema.RoleSystem
	case "function":
		m.Role = schema.RoleTool
	default:
		m.Role = schema.RoleUser
	}
	if c.Reasoning != "" {
		m.Parts = append(m.Parts, schema.Reasoning(c.Reasoning))
	}
	if m.Role == schema.RoleTool && len(c.ToolCallIDs) == 0 {
		m.result(c.ToolCallID, c.Content, nil)
	}
	for _, id := range c.ToolCallIDs {
		m.result(id, c.Content, nil)
	}
	if len(m.results) == 0 {
		if err := m.content(c.Content); err != nil {
			return nil, err
		}
	}
	if c.Refusal != "" {
		m.text(c.Refusal)
	}
	if m.Role == schema.RoleAssistant {
		for _, t := range c.ToolCalls {
			m.call(t.ID, t.Function.Name, t.Function.Arguments)
		}
		if f := c.FunctionCall; f != nil {
			m.call("", f.Name, f.Arguments)
		}
	}
	return m, nil
}

// chatRuns reads conversations: objects with messages, or a list of one conversation's messages.
func chatRuns(name string, values []jsontext.Value) ([]*Run, error) {
	var runs []*Run
	for i, v := range values {
		var chat struct {
			ID       string        `json:"id"`
			Model    string        `json:"model"`
			Messages []chatMessage `json:"messages"`
			Usage    *chatUsage    `json:"usage"`
		}
		into := any(&chat)
		if v.Kind() == '[' {
			into = &chat.Messages
		}
		if err := json.Unmarshal(v, into); err != nil {
			return nil, fmt.Errorf("conversation %d: %w", i+1, err)
		}
		id := chat.ID
		if id == "" && len(values) == 1 {
			id = name
		} else if id == "" {
			id = fmt.Sprintf("%s-%d", name, i+1)
		}
		run := &Run{ID: safe(id), Agent: OpenAIChat, Format: OpenAIChat, Model: chat.Model, End: publisher.RunEnd{Usage: chat.Usage.usage()}}
		b := newBuilder(run)
		for j := range chat.Messages {
			m, err := chat.Messages[j].message()
			if err != nil {
				return nil, fmt.Errorf("conversation %d, message %d: %w", i+1, j+1, err)
			}
			b.add(m)
		}
		runs = append(runs, b.finish())
	}
	return runs, nil
}

// chatUsage counts tokens, under the names of two APIs.
type chatUsage struct {
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	Read       int64 `json:"cache_read_input_tokens"`
	Created    int64 `json:"cache_creation_input_tokens"`
}

func (u *chatUsage) usage() *schema.Usage {
	if u == nil {
		return nil
	}
	return &schema.Usage{
		InputTokens: max(u.Prompt, u.Input, 0), OutputTokens: max(u.Completion, u.Output, 0),
		CacheReadInputTokens: max(u.Read, 0), CacheCreationInputTokens: max(u.Created, 0),
	}
}

// sweRuns reads trajectories.
func sweRuns(name string, values []jsontext.Value) ([]*Run, error) {
	var runs []*Run
	for i, v := range values {
		id := name
		if len(values) > 1 {
			id = fmt.Sprintf("%s-%d", name, i+1)
		}
		run, err := sweRun(&Run{ID: safe(id), Agent: SWEAgent, Format: SWEAgent}, v)
		if err != nil {
			return nil, fmt.Errorf("trajectory %d: %w", i+1, err)
		}
		runs = append(runs, run)
	}
	return runs, nil
}

// sweRun reads one trajectory. Its history has the messages, its trajectory the observations that are in no message.
func sweRun(run *Run, v jsontext.Value) (*Run, error) {
	var t struct {
		History    []chatMessage `json:"history"`
		Trajectory []struct {
			Action      string         `json:"action"`
			Observation jsontext.Value `json:"observation"`
		} `json:"trajectory"`
		Info struct {
			ExitStatus string         `json:"exit_status"`
			Submission jsontext.Value `json:"submission"`
			Stats      struct {
				Sent     int64 `json:"tokens_sent"`
				Received int64 `json:"tokens_received"`
			} `json:"model_stats"`
		} `json:"info"`
	}
	if err := json.Unmarshal(v, &t); err != nil {
		return nil, err
	}
	b := newBuilder(run)
	var actions []string
	for i := range t.History {
		e := &t.History[i]
		observed := e.Role == schema.RoleUser && !e.IsDemo && len(e.ToolCallIDs) == 0 && b.awaits()
		m := &message{Message: schema.Message{Role: e.Role}}
		var err error
		switch {
		case e.IsDemo:
			m.text(textOf(e.Content))
			b.pending = append(b.pending, m.Message)
			continue
		case observed:
			m.result("", e.Content, nil)
		default:
			m, err = e.message()
		}
		if err != nil {
			return nil, fmt.Errorf("history entry %d: %w", i+1, err)
		}
		if m.Role == schema.RoleAssistant {
			if e.Thought != "" && e.Thought != textOf(e.Content) {
				m.Parts = append(m.Parts, schema.Reasoning(e.Thought))
			}
			if e.Action != "" && len(m.calls) == 0 {
				tool, _, _ := strings.Cut(strings.TrimSpace(e.Action), " ")
				m.call("", strings.TrimSpace(tool), quoted(e.Action))
			}
			actions = append(actions, e.Action)
		}
		b.add(m)
	}
	for _, o := range append([]openCall(nil), b.open...) {
		if k := o.turn - 1; k < len(t.Trajectory) && t.Trajectory[k].Action == actions[k] && t.Trajectory[k].Observation.Kind() == '"' {
			m := &message{Message: schema.Message{Role: schema.RoleTool}}
			m.result(o.id, t.Trajectory[k].Observation, nil)
			b.result(m, m.results[0])
		}
	}
	if t.Info.Stats.Sent > 0 || t.Info.Stats.Received > 0 {
		run.End.Usage = &schema.Usage{InputTokens: max(t.Info.Stats.Sent, 0), OutputTokens: max(t.Info.Stats.Received, 0)}
	}
	if t.Info.Submission.Kind() == '"' {
		run.End.Output = []byte(t.Info.Submission)
	}
	run.End.Summary = t.Info.ExitStatus
	if t.Info.ExitStatus != "" && !strings.HasPrefix(t.Info.ExitStatus, "submitted") {
		run.End.Error = &schema.Error{Type: t.Info.ExitStatus}
	}
	return b.finish(), nil
}
