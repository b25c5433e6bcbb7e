package codingagent

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/base/durable"
	"github.com/waymarkio/waymark/schema"
)

// item is a step of a conversation: a message, or a call with its outcome.
type item struct {
	epoch schema.Epoch
	time  string
	role  string // of a message
	text  string
	call  *schema.Call
}

// conversation is what the main agent and its model said and did, in order. The state has its large fields loaded.
// Calls of sub-agents are left out.
func conversation(state *schema.State) (items []item) {
	for i := range state.Messages {
		m := &state.Messages[i]
		for _, part := range m.Parts {
			if part.Type == schema.PartText && part.Content != nil {
				items = append(items, item{epoch: m.Epoch, time: m.Time, role: m.Role, text: *part.Content})
			}
		}
	}
	for i := range state.Calls {
		if c := &state.Calls[i]; len(c.Source) == 0 {
			items = append(items, item{epoch: c.Epoch, time: c.CalledAt, call: c})
		}
	}
	slices.SortStableFunc(items, func(a, b item) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.time, b.time)) })
	return items
}

// sessionID is the id of a run's session: the run's own, if it is one, else one that is derived from it.
func sessionID(run string) string {
	if len(run) == 36 && strings.Count(run, "-") == 4 {
		return run
	}
	h := sha256.Sum256([]byte(run))
	h[6], h[8] = h[6]&0x0f|0x40, h[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}

// session are the arguments of a session without a terminal, which reads its prompt from standard input.
func (d *Dialect) session(args []string, id string, again bool) []string {
	switch {
	case d == Codex && again:
		return slices.Concat([]string{"exec"}, args, []string{"resume", id, "-"})
	case d == Codex:
		return slices.Concat([]string{"exec"}, args, []string{"-"})
	case again:
		return slices.Concat(args, []string{"-p", "--resume", id})
	}
	return slices.Concat(args, []string{"-p", "--session-id", id})
}

// sessionFile is where the agent looks for a session that it resumes.
func (d *Dialect) sessionFile(dir, session string) string {
	if d == Codex {
		sessions := filepath.Join(d.home(), "sessions")
		if found, _ := filepath.Glob(filepath.Join(sessions, "*", "*", "*", "rollout-*-"+session+".jsonl")); len(found) > 0 {
			return found[0]
		}
		return filepath.Join(sessions, "2000", "01", "01", "rollout-2000-01-01T00-00-00-"+session+".jsonl")
	}
	name := regexp.MustCompile(`[^0-9A-Za-z]`).ReplaceAllString(dir, "-")
	return filepath.Join(d.home(), "projects", name, session+".jsonl")
}

// writeSession writes the file from which the agent resumes a session. The state has its large fields loaded.
func (d *Dialect) writeSession(file, dir, session string, state *schema.State) error {
	lines := claudeLines
	if d == Codex {
		lines = codexLines
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	return durable.Replace(file, func(w io.Writer) error {
		for _, line := range lines(dir, session, conversation(state)) {
			if err := json.NewEncoder(w).Encode(line); err != nil {
				return err
			}
		}
		return nil
	})
}

type object = map[string]any

// claudeLines are the lines of Claude Code. Each names the one before: without that, only the last one is sent to the
// model.
func claudeLines(dir, session string, items []item) (lines []object) {
	parent := any(nil)
	add := func(role, at string, content any) {
		id := sessionID(fmt.Sprint(session, len(lines)))
		message := object{"role": role, "content": content}
		if role == schema.RoleAssistant {
			message["id"], message["type"] = id, "message"
		}
		lines = append(lines, object{
			"parentUuid": parent, "uuid": id, "sessionId": session, "type": role, "message": message,
			"timestamp": at, "cwd": dir, "isSidechain": false, "userType": "external", "version": Claude.oldest,
		})
		parent = id
	}
	for _, i := range items {
		if i.call == nil {
			add(i.role, i.time, []object{{"type": "text", "text": i.text}})
			continue
		}
		text, isError := outcome(i.call)
		add(schema.RoleAssistant, i.time, []object{{"type": "tool_use", "id": i.call.ToolCallID, "name": i.call.Name, "input": i.call.Arguments}})
		add(schema.RoleUser, cmp.Or(i.call.ClosedAt, i.time), []object{{"type": "tool_result", "tool_use_id": i.call.ToolCallID, "content": text, "is_error": isError}})
	}
	return lines
}

// codexLines are the lines of Codex's rollout.
func codexLines(dir, session string, items []item) []object {
	at := "2000-01-01T00:00:00.000Z"
	if len(items) > 0 {
		at = items[0].time
	}
	lines := []object{{"timestamp": at, "type": "session_meta", "payload": object{
		"id": session, "timestamp": at, "cwd": dir, "originator": "waymark", "cli_version": Codex.oldest, "source": "exec",
	}}}
	add := func(at string, payload object) {
		lines = append(lines, object{"timestamp": at, "type": "response_item", "payload": payload})
	}
	for _, i := range items {
		if i.call == nil {
			kind := "input_text"
			if i.role == schema.RoleAssistant {
				kind = "output_text"
			}
			add(i.time, object{"type": "message", "role": i.role, "content": []object{{"type": kind, "text": i.text}}})
			continue
		}
		text, _ := outcome(i.call)
		add(i.time, object{"type": "function_call", "call_id": i.call.ToolCallID, "name": i.call.Name, "arguments": string(i.call.Arguments)})
		add(cmp.Or(i.call.ClosedAt, i.time), object{"type": "function_call_output", "call_id": i.call.ToolCallID, "output": text})
	}
	return lines
}
