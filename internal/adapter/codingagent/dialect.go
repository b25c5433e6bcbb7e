package codingagent

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/version"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/waymarkio/waymark/internal/look/failure"
)

// Dialect is what differs between the agents: names, versions, hooks and session files.
type Dialect struct {
	// Name of the agent: of its program, and of the agent whose runs it works on.
	Name string
	// oldest is the first version that is supported, and update how to get a newer one.
	oldest, update string
	// directory is the variable that names its directory, and settings the file of the hooks in it.
	directory, settings string
	// hooks are the events that the bridge answers or records.
	hooks []string
	// result is in the transcript if it has the result of a call, whose id is %s.
	result string
}

// Claude and Codex are the dialects.
var (
	Claude = &Dialect{
		Name: "claude", directory: "CLAUDE_CONFIG_DIR", settings: "settings.json", oldest: "2.1.240", result: `"tool_use_id":"%s"`,
		update: "get a newer one: npm install -g @anthropic-ai/claude-code with Node 22 or later, or the native installer, claude install",
		hooks: []string{
			sessionStart, userPromptSubmit, messageDisplay, preToolUse, postToolUse, postToolUseFailure, postToolBatch, subagentStop, stop,
		},
	}
	Codex = &Dialect{
		Name: "codex", directory: "CODEX_HOME", settings: "hooks.json", oldest: "0.169.0", result: `"call_id":"%s","output"`,
		update: "get a newer one: npm install -g @openai/codex",
		hooks:  []string{sessionStart, userPromptSubmit, preToolUse, postToolUse, subagentStop, stop},
	}
)

// home is the agent's directory of the user.
func (d *Dialect) home() string {
	home, _ := os.UserHomeDir()
	return cmp.Or(os.Getenv(d.directory), filepath.Join(home, "."+d.Name))
}

// Events of hooks, as both agents name them.
const (
	sessionStart       = "SessionStart"
	userPromptSubmit   = "UserPromptSubmit"
	messageDisplay     = "MessageDisplay"
	preToolUse         = "PreToolUse"
	postToolUse        = "PostToolUse"
	postToolUseFailure = "PostToolUseFailure"
	postToolBatch      = "PostToolBatch"
	subagentStop       = "SubagentStop"
	stop               = "Stop"
	sessionEnd         = "SessionEnd" // only where waymark has not started the agent
)

// Of returns the dialect of a program, by the name of its file; nil if it is neither.
func Of(program string) *Dialect {
	base := program[strings.LastIndexAny(program, `/\`)+1:]
	for _, d := range []*Dialect{Claude, Codex} {
		if strings.TrimSuffix(base, ".exe") == d.Name {
			return d
		}
	}
	return nil
}

// Check fails unless the version is supported that the program printed for --version.
func (d *Dialect) Check(answer string) error {
	found := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(answer)
	switch {
	case found == "":
		return failure.New(failure.Usage, "", "%s --version printed no version: %.80q", d.Name, answer)
	case version.Compare("go"+found, "go"+d.oldest) < 0: // Go's versions have the same order
		return failure.New(failure.Usage, d.update, "%s %s is too old: waymark needs %s or later", d.Name, found, d.oldest)
	}
	return nil
}

// Endpoint is where the hooks of an agent reach their bridge.
type Endpoint struct {
	URL   string `json:"url"`
	Token string `json:"token"`
}

// Supervised is set in the environment of an agent that has a bridge: an MCP proxy of the session records no call then.
const Supervised = "WAYMARK_AGENT"

// hookTimeout is how long an agent waits for the answer to a hook, in seconds: a person may be asked.
const hookTimeout = 24 * 60 * 60

// hook and hookGroup are the form of hooks in the settings of both agents.
type hook struct {
	Type      string            `json:"type"`
	URL       string            `json:"url,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Command   string            `json:"command,omitempty"`
	OnFailure string            `json:"onFailure,omitempty"`
	Timeout   int               `json:"timeout"`
}

type hookGroup struct {
	Hooks []hook `json:"hooks"`
}

// hook is a hook that calls a command. Claude Code also refuses a tool whose hook was killed.
func (d *Dialect) hook(event, command string) hook {
	h := hook{Type: "command", Command: command, Timeout: hookTimeout}
	if event == sessionEnd {
		h.Timeout = 3 // the most that Codex allows
	}
	if d == Claude && event == preToolUse {
		h.OnFailure = "block"
	}
	return h
}

// Arguments are the arguments that give an agent its hooks. Those of Codex use command, and those of Claude Code make
// requests to the endpoint. A file that they need is written into dir.
func (d *Dialect) Arguments(at Endpoint, command, dir string) ([]string, error) {
	if d == Codex {
		args := []string{"--dangerously-bypass-hook-trust"}
		for _, event := range d.hooks {
			args = append(args, "-c", fmt.Sprintf("hooks.%s=[{hooks=[{type=\"command\",command=%q,timeout=%d}]}]", event, command, hookTimeout))
		}
		return args, nil
	}
	hooks := make(map[string][]hookGroup, len(d.hooks))
	for _, event := range d.hooks {
		h := d.hook(event, command)
		if event != sessionStart { // that hook makes no request
			h.Type, h.Command, h.URL, h.Headers = "http", "", at.URL, map[string]string{"Authorization": "Bearer " + at.Token}
		}
		if event == userPromptSubmit {
			h.OnFailure = "block"
		}
		hooks[event] = []hookGroup{{[]hook{h}}}
	}
	text, err := json.Marshal(map[string]any{"hooks": hooks})
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "settings.json")
	return []string{"--settings", file}, os.WriteFile(file, text, 0o600)
}

// event is what a hook sends, of either agent. Members that an event lacks are empty.
type event struct {
	Name      string          `json:"hook_event_name"`
	Session   string          `json:"session_id"`
	File      string          `json:"transcript_path"`
	Agent     string          `json:"agent_id"` // of a sub-agent
	AgentType string          `json:"agent_type"`
	Prompt    string          `json:"prompt"`
	Message   string          `json:"message_id"`
	Delta     string          `json:"delta"`
	Final     bool            `json:"final"`
	Tool      string          `json:"tool_name"`
	Input     json.RawMessage `json:"tool_input"`
	Call      string          `json:"tool_use_id"`
	Response  json.RawMessage `json:"tool_response"`
	Duration  int64           `json:"duration_ms"`
	Error     string          `json:"error"`
	Interrupt bool            `json:"is_interrupt"`
	Calls     []struct {
		Call     string          `json:"tool_use_id"`
		Response json.RawMessage `json:"tool_response"`
	} `json:"tool_calls"`
	LastMessage string `json:"last_assistant_message"`
	Background  []struct {
		Type   string `json:"type"`
		Status string `json:"status"`
	} `json:"background_tasks"`
}

// answer to a hook.
type answer struct {
	Continue   *bool     `json:"continue,omitempty"`
	StopReason string    `json:"stopReason,omitempty"`
	Specific   *specific `json:"hookSpecificOutput,omitempty"`
}

type specific struct {
	Event    string `json:"hookEventName"`
	Decision string `json:"permissionDecision,omitempty"`
	Reason   string `json:"permissionDecisionReason,omitempty"`
	Context  string `json:"additionalContext,omitempty"`
}

// deny refuses a tool.
func deny(reason string) *answer {
	return &answer{Specific: &specific{Event: preToolUse, Decision: "deny", Reason: "waymark: " + reason}}
}

// shown is the text of a tool's result, as far as its form is known; otherwise its JSON.
func shown(result json.RawMessage) string {
	var text string
	if json.Unmarshal(result, &text) == nil {
		return text
	}
	var known struct {
		Stdout  *string `json:"stdout"`
		Stderr  string  `json:"stderr"`
		Content string  `json:"content"`
		File    *struct {
			Content string `json:"content"`
		} `json:"file"`
	}
	if json.Unmarshal(result, &known) == nil {
		switch {
		case known.Stdout != nil:
			return strings.TrimPrefix(*known.Stdout+"\n"+known.Stderr, "\n")
		case known.File != nil:
			return known.File.Content
		case known.Content != "":
			return known.Content
		}
	}
	return string(result)
}
