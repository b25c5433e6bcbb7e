package transcript

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// line is a line of a session.
type line struct {
	Type           string         `json:"type"`
	Subtype        string         `json:"subtype"`
	AgentID        string         `json:"agentId"`
	Sidechain      bool           `json:"isSidechain"`
	CompactSummary bool           `json:"isCompactSummary"`
	Timestamp      string         `json:"timestamp"`
	Content        jsontext.Value `json:"content"`
	Message        jsontext.Value `json:"message"`
	// Call is the call that a progress line is of; Data has the copy of a sub-agent's line.
	Call string         `json:"parentToolUseID"`
	Data jsontext.Value `json:"data"`
	// Result tells of a sub-agent which call started it.
	Result  jsontext.Value `json:"toolUseResult"`
	Compact struct {
		Before int64 `json:"preTokens"`
		After  int64 `json:"postTokens"`
	} `json:"compactMetadata"`
}

// session is a session with its sub-agents.
type session struct {
	main *thread
	// agents are the threads of sub-agents whose lines are in the session's file, owned the ids of those with a file.
	agents map[string]*thread
	owned  map[string][]byte
	// startedBy names the call that started a sub-agent.
	startedBy map[string]string
}

// thread is the main thread or a sub-agent's.
type thread struct {
	*builder
	boundary *schema.ContextCompactedData
}

func newThread(id string) *thread {
	return &thread{builder: newBuilder(&Run{ID: safe(id), Agent: ClaudeCode, Format: ClaudeCode})}
}

// sessionRuns reads a session: the main thread first, then its sub-agents.
func sessionRuns(name string, values []jsontext.Value, owned map[string][]byte) ([]*Run, error) {
	s := &session{main: newThread(name), owned: owned, agents: make(map[string]*thread), startedBy: make(map[string]string)}
	alone := member(values[0], "isSidechain").Kind() == 't' // the file of one sub-agent
	for i, v := range values {
		t := s.main
		var l line
		err := json.Unmarshal(v, &l)
		if err == nil && !alone {
			t, err = s.threadOf(name, &l)
		}
		if err == nil && t != nil {
			err = t.line(&l)
		}
		if err != nil {
			return nil, fmt.Errorf("value %d: %w", i+1, err)
		}
	}
	runs := []*Run{s.main.finish()}
	for _, agent := range slices.Sorted(maps.Keys(owned)) {
		read, err := parse(name+"-agent-"+agent, owned[agent], func() (map[string][]byte, error) { return nil, nil })
		if err != nil {
			return nil, fmt.Errorf("sub-agent %s: %w", agent, err)
		}
		for _, run := range read {
			runs = append(runs, s.child(run, agent))
		}
	}
	for _, agent := range slices.Sorted(maps.Keys(s.agents)) {
		runs = append(runs, s.child(s.agents[agent].finish(), agent))
	}
	return slices.DeleteFunc(runs, func(r *Run) bool { return r.Messages() == 0 }), nil
}

// child names the parent of a sub-agent's run, and its kind.
func (s *session) child(run *Run, agent string) *Run {
	id := s.startedBy[agent]
	run.Parent, run.Agent = &schema.Parent{Run: s.main.run.ID}, "subagent"
	for i, t := range s.main.run.Turns {
		for _, c := range t.Answer.Calls {
			if id == "" || c.ID != id {
				continue
			}
			run.Parent.Turn, run.Parent.ToolCallID = int32(i+1), id //nolint:gosec // a number of messages
			if kind := textOf(member(jsontext.Value(c.Arguments), "subagent_type")); schema.ValidName(kind) {
				run.Agent = kind
			}
		}
	}
	return run
}

// threadOf returns the thread of a line, and the line itself if it is a copy; nil for a line that belongs to none.
func (s *session) threadOf(name string, l *line) (*thread, error) {
	if of := textOf(member(l.Result, "agentId")); of != "" {
		var m struct {
			Content []block `json:"content"`
		}
		if json.Unmarshal(l.Message, &m) == nil && len(m.Content) > 0 {
			s.startedBy[of] = m.Content[0].ToolUseID
		}
	}
	agent := ""
	switch {
	case l.Type == "progress":
		if agent = textOf(member(l.Data, "agentId")); agent == "" {
			return nil, nil
		}
		s.startedBy[agent] = cmp.Or(l.Call, s.startedBy[agent])
		copied := member(l.Data, "message")
		*l = line{}
		if copied.Kind() == '{' {
			if err := json.Unmarshal(copied, l); err != nil {
				return nil, err
			}
		}
	case l.Sidechain:
		agent = cmp.Or(l.AgentID, "sidechain")
	default:
		return s.main, nil
	}
	if _, owned := s.owned[agent]; owned {
		return nil, nil
	}
	if s.agents[agent] == nil {
		s.agents[agent] = newThread(name + "-agent-" + agent)
	}
	return s.agents[agent], nil
}

// line adds a line to its thread. Lines that are neither messages nor compactions are left out.
func (t *thread) line(l *line) error {
	if l.Type == "system" && l.Subtype == "compact_boundary" {
		t.boundary = &schema.ContextCompactedData{
			Summary: textOf(l.Content), ThroughTurn: int32(len(t.run.Turns)), //nolint:gosec // a number of messages
			TokensBefore: max(l.Compact.Before, 0), TokensAfter: max(l.Compact.After, 0),
		}
		t.compacted = t.boundary
	}
	if l.Type != schema.RoleUser && l.Type != schema.RoleAssistant {
		return nil
	}
	var in struct {
		ID         string         `json:"id"`
		Model      string         `json:"model"`
		Content    jsontext.Value `json:"content"`
		StopReason string         `json:"stop_reason"`
		Usage      *chatUsage     `json:"usage"`
	}
	if err := json.Unmarshal(l.Message, &in); err != nil {
		return err
	}
	m := &message{Message: schema.Message{Role: l.Type}}
	m.told.ResponseID, m.told.Model, m.told.Usage = in.ID, in.Model, in.Usage.usage()
	if in.StopReason != "" {
		m.told.FinishReasons = []string{in.StopReason}
	}
	if at, err := time.Parse(time.RFC3339, l.Timestamp); err == nil {
		m.told.Time = at
	}
	if err := m.content(in.Content); err != nil {
		return err
	}
	if l.CompactSummary && t.boundary != nil {
		t.boundary.Summary = textOf(in.Content)
	}
	t.add(m)
	return nil
}

// subagentFiles returns the files of a session's sub-agents, by agent id.
func subagentFiles(path string) (map[string][]byte, error) {
	files, err := filepath.Glob(filepath.Join(strings.TrimSuffix(path, filepath.Ext(path)), "subagents", "agent-*.jsonl"))
	if err != nil {
		return nil, err
	}
	owned := make(map[string][]byte, len(files))
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		owned[strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "agent-"), ".jsonl")] = b
	}
	return owned, nil
}
