package transcriptgen

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/transcript"
)

// Spec describes the output.
type Spec struct {
	// Seed chooses the shapes.
	Seed uint64
	// Runs in the file; only openai-chat can have more than one. Zero means 1.
	Runs int
	// Turns of a run; zero means 8.
	Turns int
	// Text is the size of a text or result in bytes, on average; zero means 40.
	Text int
	// Result is the size in bytes of one large result in the middle; zero means none.
	Result int
	// Plain leaves out unusual shapes, missing ids, and unanswered calls.
	Plain bool
}

// ErrFormat is returned for a format that cannot be written.
var ErrFormat = errors.New("no generator for this format")

// Write writes a transcript.
func Write(w io.Writer, f transcript.Format, s Spec) error {
	if s.Runs < 1 {
		s.Runs = 1
	}
	if s.Turns < 1 {
		s.Turns = 8
	}
	if s.Text < 1 {
		s.Text = 40
	}
	g := &generator{r: rand.New(rand.NewPCG(s.Seed, 0x9e3779b97f4a7c15)), s: s, w: w}
	switch f {
	case transcript.OpenAIChat:
		for i := range s.Runs {
			g.line(g.openAI(i))
		}
	case transcript.ClaudeCode:
		g.claude()
	case transcript.SWEAgent:
		g.line(g.sweAgent())
	default:
		return fmt.Errorf("%w: %.60q", ErrFormat, f)
	}
	return g.err
}

type obj = map[string]any

type generator struct {
	r     *rand.Rand
	s     Spec
	w     io.Writer
	err   error
	lines int
	calls int
}

func (g *generator) line(v any) {
	if g.err != nil {
		return
	}
	b, err := json.Marshal(v, json.Deterministic(true))
	if err == nil {
		_, err = g.w.Write(append(b, '\n'))
	}
	g.err = err
	g.lines++
}

// odd is true once in n times, never in plain transcripts.
func (g *generator) odd(n int) bool { return !g.s.Plain && g.r.IntN(n) == 0 }

var words = strings.Fields("gate wheel quay lamp tide mill rope berth ledger grain storm keel pump valve " +
	"Übergabe 港口 🚢 \"quoted\" back\\slash tab\tbed line\nfeed </script> \u2028 C:\\dir\\file null 0")

func (g *generator) text() string {
	size := g.r.IntN(2*g.s.Text + 1)
	var b strings.Builder
	b.Grow(size + 16)
	for b.Len() < size {
		b.WriteString(words[g.r.IntN(len(words))])
		b.WriteByte(' ')
	}
	return b.String()
}

// big is the text of the one large result.
func (g *generator) big() string {
	return strings.Repeat("0123456789abcdef", g.s.Result/16+1)[:g.s.Result]
}

func (g *generator) result(turn int) string {
	if g.s.Result > 0 && turn == g.s.Turns/2 {
		return g.big()
	}
	return g.text()
}

func (g *generator) id() string {
	g.calls++
	if g.odd(4) {
		return fmt.Sprintf("call_%d", g.r.IntN(3))
	}
	return fmt.Sprintf("call_%d", g.calls)
}

func (g *generator) args() string {
	switch {
	case g.odd(8):
		return ""
	case g.odd(8):
		return "{ not json"
	default:
		return fmt.Sprintf("{ \"n\":  %d,\n\t\"text\": %q }", g.r.IntN(1000), fmt.Sprint("v", g.r.IntN(9)))
	}
}

// content is a text in one of the shapes that a message may have.
func (g *generator) content(m obj, empty bool) {
	switch {
	case empty && g.odd(3):
	case empty && g.odd(2):
		m["content"] = ""
	case empty:
		m["content"] = nil
	case g.odd(10):
		m["content"] = []any{}
	case g.odd(10):
		m["content"] = []any{obj{"type": "text", "text": g.text()}, obj{"type": "thing", "x": g.r.IntN(9)}}
	case g.odd(10):
		m["content"] = []any{obj{"type": "text", "text": g.text(), "cache_control": obj{"type": "ephemeral"}}}
	default:
		m["content"] = g.text()
	}
}

func (g *generator) openAI(n int) obj {
	var ms []any
	add := func(m obj) obj { ms = append(ms, m); return m }
	add(obj{"role": "system", "content": g.text()})
	for turn := range g.s.Turns {
		if turn == 0 || g.r.IntN(3) == 0 {
			role := "user"
			if g.odd(12) {
				role = "developer"
			}
			g.content(add(obj{"role": role}), false)
		}
		a := add(obj{"role": "assistant"})
		calls := g.r.IntN(4)
		if g.s.Result > 0 && turn == g.s.Turns/2 {
			calls = max(calls, 1)
		}
		g.content(a, calls > 0)
		if g.odd(6) {
			a["usage"] = obj{"prompt_tokens": g.r.IntN(999), "completion_tokens": g.r.IntN(99)}
		}
		if g.odd(9) {
			a["refusal"] = nil
		}
		if calls == 0 {
			continue
		}
		var list, results []any
		for range calls {
			c := obj{"type": "function", "id": g.id(), "function": obj{"name": "tool_" + words[g.r.IntN(6)], "arguments": g.args()}}
			r := obj{"role": "tool", "tool_call_id": c["id"], "content": g.result(turn)}
			if g.odd(12) {
				delete(c, "id")
				delete(r, "tool_call_id")
			}
			if g.odd(12) {
				r["content"] = nil
			}
			if g.odd(20) {
				delete(r, "content")
			}
			list = append(list, c)
			if !g.odd(15) {
				results = append(results, r)
			}
		}
		a["tool_calls"] = list
		if g.odd(2) {
			g.r.Shuffle(len(results), func(i, j int) { results[i], results[j] = results[j], results[i] })
		}
		ms = append(ms, results...)
		if g.odd(15) {
			add(obj{"role": "tool", "tool_call_id": "unknown", "content": g.text()})
		}
	}
	if g.r.IntN(2) == 0 {
		add(obj{"role": "user", "content": g.text()})
	}
	return obj{"id": fmt.Sprintf("gen-%d-%d", g.s.Seed, n), "messages": ms, "trial": n}
}

func (g *generator) claude() {
	session := fmt.Sprintf("gen-%d", g.s.Seed)
	version, folder := 0, `C:\work`
	around := func(typ string, message obj, more obj) {
		line := obj{
			"type": typ, "message": message, "sessionId": session, "uuid": fmt.Sprintf("u-%d", g.lines),
			"timestamp":   fmt.Sprintf("2026-05-%02dT%02d:%02d:%02d.%03dZ", 1+g.lines/86400%28, g.lines/3600%24, g.lines/60%60, g.lines%60, g.r.IntN(1000)),
			"isSidechain": false, "cwd": folder, "userType": "external", "version": fmt.Sprintf("2.1.%d", version),
		}
		maps.Copy(line, more)
		switch {
		case g.odd(8):
			folder += `\sub`
		case g.odd(8):
			version++ // the agent was updated, and the session went on
		case g.odd(12):
			delete(line, "version")
		}
		if g.lines > 6 && !g.s.Plain {
			line["slug"] = "quiet-tide" // a session gets its name on the way
		}
		g.line(line)
	}
	put := func(typ string, message obj) { around(typ, message, nil) }
	around("user", obj{"role": "user", "content": g.text()}, obj{
		"parentUuid": nil, "gitBranch": "main", "todos": []any{}, "thinkingMetadata": obj{"maxThinkingTokens": 31999}, "permissionMode": "default",
	})
	for turn := range g.s.Turns {
		if g.odd(4) {
			g.line(obj{"type": "progress", "data": obj{"type": "hook_progress"}, "uuid": fmt.Sprintf("p-%d", g.lines), "sessionId": session})
		}
		if g.odd(20) {
			g.line(obj{"type": "system", "subtype": "compact_boundary", "content": "Conversation compacted", "uuid": fmt.Sprintf("b-%d", g.lines), "sessionId": session})
			put("user", obj{"role": "user", "content": "Summary: " + g.text()})
		}
		if g.r.IntN(4) == 0 {
			put("user", obj{"role": "user", "content": []any{obj{"type": "text", "text": g.text()}}})
		}
		usage, input, cached := 0, g.r.IntN(999), g.r.IntN(99)
		answer := func(block obj) {
			usage++
			put("assistant", obj{
				"id": fmt.Sprintf("msg_%d", turn), "type": "message", "role": "assistant", "model": "gen-1",
				"content": []any{block}, "stop_reason": nil, "stop_sequence": nil,
				"usage": obj{"input_tokens": input, "output_tokens": usage, "cache_read_input_tokens": cached},
			})
		}
		if g.odd(3) {
			answer(obj{"type": "thinking", "signature": fmt.Sprintf("c2ln%d", turn)})
		}
		if g.r.IntN(2) == 0 {
			answer(obj{"type": "text", "text": g.text()})
		}
		var waiting []any
		result := func(id string) {
			r := obj{"type": "tool_result", "tool_use_id": id, "content": g.result(turn)}
			switch g.r.IntN(4) {
			case 0:
				r["is_error"] = true
			case 1:
				r["is_error"] = false
			case 2:
				if !g.s.Plain {
					r["content"] = []any{obj{"type": "text", "text": g.text()}}
				}
			}
			waiting = append(waiting, r)
		}
		flush := func() {
			for len(waiting) > 0 {
				n := 1 + g.r.IntN(len(waiting))
				around("user", obj{"role": "user", "content": waiting[:n]}, g.toolUseResult())
				waiting = waiting[n:]
			}
		}
		for range 1 + g.r.IntN(3) {
			g.calls++
			id := fmt.Sprintf("toolu_%d", g.calls)
			answer(obj{"type": "tool_use", "id": id, "name": "Tool", "input": obj{"n": g.calls, "text": g.text()}})
			if g.odd(15) {
				continue
			}
			result(id)
			if g.odd(3) {
				flush() // an early result
			}
		}
		flush()
	}
}

// toolUseResult is a tool's result for its own program, besides the result for the model.
func (g *generator) toolUseResult() obj {
	if g.s.Plain {
		return nil
	}
	line := obj{"sourceToolAssistantUUID": fmt.Sprintf("u-%d", g.lines-1), "toolUseResult": obj{
		"stdout": g.text(), "stderr": "", "interrupted": false, "structuredPatch": []any{obj{"oldStart": 1, "lines": []any{"-" + g.text(), "+" + g.text()}}},
	}}
	switch {
	case g.odd(4):
		line["toolUseResult"] = "Error: " + g.text()
	case g.odd(4):
		line["toolUseResult"] = []any{obj{"type": "text", "text": g.text()}}
	case g.odd(4):
		delete(line, "toolUseResult")
	}
	return line
}

func (g *generator) sweAgent() obj {
	history := []any{obj{"role": "system", "content": g.text(), "agent": "main"}}
	if g.odd(2) {
		history = append(history, obj{"role": "user", "content": g.text(), "is_demo": true, "agent": "main"})
	}
	history = append(history, obj{"role": "user", "content": g.text(), "agent": "main"})
	var steps []any
	functions := g.r.IntN(2) == 0
	for turn := range g.s.Turns {
		action := fmt.Sprintf("edit %d:%d\n%s", turn, turn, g.text())
		thought := g.text()
		a := obj{"role": "assistant", "content": thought, "thought": thought, "action": action, "agent": "main"}
		o := obj{"role": "user", "content": g.result(turn), "agent": "main"}
		if g.odd(3) {
			a["content"] = thought + "\n```\n" + action + "```"
		}
		if functions {
			c := obj{"type": "function", "id": g.id(), "function": obj{"name": "edit", "arguments": g.args()}}
			o["role"], o["tool_call_ids"] = "tool", []any{c["id"]}
			a["tool_calls"] = []any{c}
		}
		asked := slices.Clone(history)
		history = append(history, a)
		last := turn == g.s.Turns-1
		if !last || g.r.IntN(2) == 0 {
			history = append(history, o)
		}
		step := obj{"action": action, "observation": g.result(turn), "response": a["content"], "thought": thought}
		if !g.s.Plain {
			step["state"] = obj{"open_file": "n/a", "working_dir": "/" + g.text()}
			step["execution_time"] = float64(g.r.IntN(999)) / 100
			if g.odd(3) && turn > 0 {
				// An older observation is omitted from the next request to the model.
				asked[g.r.IntN(len(asked))] = obj{"role": "user", "content": "Old environment output: (1 lines omitted)"}
			}
			step["messages"] = asked
		}
		if !g.odd(12) {
			steps = append(steps, step)
		}
		if g.odd(12) {
			steps = append(steps, obj{"action": "exit_format", "observation": nil, "response": g.text(), "state": `{"open_file": "n/a"}`})
		}
	}
	doc := obj{
		"environment": "main", "history": history, "trajectory": steps,
		"info": obj{"exit_status": "submitted", "submission": g.text(), "model_stats": obj{"tokens_sent": g.r.IntN(9999)}},
	}
	switch {
	case g.odd(12):
		delete(doc, "trajectory")
	case g.odd(12):
		delete(doc, "info")
	}
	return doc
}
