package codingagent

import (
	"errors"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/schema"
)

// Tool is what happens to the calls of a tool.
type Tool struct {
	// Replay is what becomes of a call that was in the tool when its process died.
	Replay schema.Replay
	// Ask: a person must allow each call.
	Ask bool
}

// Tools are the policies of tools by name. A name that ends with * stands for all names with that beginning.
type Tools map[string]Tool

// builtin are the policies of tools whose effect is known. All others are hold.
var builtin = Tools{
	"Read": {Replay: schema.ReplayPure}, "Glob": {Replay: schema.ReplayPure}, "Grep": {Replay: schema.ReplayPure}, "LSP": {Replay: schema.ReplayPure},
	"WebFetch": {Replay: schema.ReplayPure}, "WebSearch": {Replay: schema.ReplayPure},
	"TodoWrite": {Replay: schema.ReplayPure}, "update_plan": {Replay: schema.ReplayPure},
	"Write": {Replay: schema.ReplayIdempotent},
}

// ReadTools reads a file of lines such as "Bash = pure" or "mcp__mail__* = hold ask". A line replaces the built-in
// policy. An empty name means no file.
func ReadTools(file string) (Tools, error) {
	tools := make(Tools)
	err := session.EachLine(file, func(line string) error {
		name, rest, _ := strings.Cut(line, "=")
		name, words := strings.TrimSpace(name), strings.Fields(rest)
		ask := len(words) == 2 && words[1] == "ask"
		if name == "" || len(words) == 0 || len(words) > 1 && !ask {
			return errors.New("write TOOL = pure, idempotent or hold, and after it ask if a person must allow each call")
		}
		switch replay := schema.Replay(words[0]); replay {
		case schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayHold:
			tools[name] = Tool{replay, ask}
		default:
			return fmt.Errorf("%.40q is not pure, idempotent or hold", words[0])
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return tools, nil
}

// Of returns the policy of a tool: its own line, else the longest line with a *, else the built-in one, else hold.
func (t Tools) Of(name string) Tool {
	if tool, ok := t[name]; ok {
		return tool
	}
	best := ""
	for pattern := range t {
		if beginning, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, beginning) && len(pattern) > len(best) {
			best = pattern
		}
	}
	if best != "" {
		return t[best]
	}
	if tool, ok := builtin[name]; ok {
		return tool
	}
	return Tool{Replay: schema.ReplayHold}
}
