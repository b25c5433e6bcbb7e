package transcriptcheck

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Formats that can be checked.
const (
	OpenAIChat = "openai-chat"
	ClaudeCode = "claude-code"
	SWEAgent   = "swe-agent"
)

// Source is the expected content of a file.
type Source struct {
	Conversations []*Conversation
	// Skipped counts lines that are no messages, by type. They are not proven.
	Skipped map[string]int
	// Unreadable are the lines that are not valid JSON, by file and number. They are not proven either.
	Unreadable []string
}

// Unproven is the number of lines that no comparison covers.
func (s *Source) Unproven() int {
	n := len(s.Unreadable)
	for _, c := range s.Skipped {
		n += c
	}
	return n
}

// Conversation is one run's messages as the source has them.
type Conversation struct {
	Format string
	// Name is the conversation's id or the file's name; for a sub-agent <file>-agent-<id>.
	Name string
	// Agent is a sub-agent's id; empty for the main thread.
	Agent string
	// Whole is the complete expected export: the document, or the lines of a session's thread.
	Whole any
	// Messages counts the messages in it.
	Messages int
	Calls    []Call
	// Usage has, for each turn, input, output, cache read and cache creation tokens.
	Usage [][4]int64

	lines   []any
	turns   int
	lastKey string
}

// Call is a tool call as the source has it.
type Call struct {
	Turn      int
	ID        string
	Name      string
	Arguments any
	HasResult bool
	Result    any
	IsError   any

	raw    any
	legacy bool
}

// Read walks a file.
func Read(path, format string) (*Source, error) {
	s := &Source{Skipped: make(map[string]int)}
	var err error
	switch format {
	case OpenAIChat:
		err = s.openAI(path)
	case ClaudeCode:
		err = s.claude(path)
	case SWEAgent:
		err = s.sweAgent(path)
	default:
		err = fmt.Errorf("unknown format %q", format)
	}
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", path, err)
	}
	return s, nil
}

// lines calls f with every line of a file.
func (s *Source) lines(path string, f func(n int, b []byte)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	r := bufio.NewReader(file)
	for n := 1; ; n++ {
		b, err := r.ReadBytes('\n')
		if n == 1 {
			b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf"))
		}
		if b = bytes.TrimSpace(b); len(b) > 0 {
			f(n, b)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// value reads a line; lines that strict JSON readers refuse are unreadable here, too.
func (s *Source) value(path string, n int, b []byte) (map[string]any, bool) {
	v, err := parse(b)
	o, ok := v.(map[string]any)
	if err != nil || !ok || repeated(b) {
		s.Unreadable = append(s.Unreadable, fmt.Sprintf("%s:%d", path, n))
		return nil, false
	}
	return o, true
}

// repeated finds an object that has a member twice.
func repeated(b []byte) bool {
	d := json.NewDecoder(bytes.NewReader(b))
	var walk func() bool
	walk = func() bool {
		t, err := d.Token()
		if err != nil {
			return false
		}
		delim, ok := t.(json.Delim)
		if !ok {
			return false
		}
		seen := make(map[string]bool)
		for d.More() {
			if delim == '{' {
				k, err := d.Token()
				name, _ := k.(string)
				if err != nil || seen[name] {
					return true
				}
				seen[name] = true
			}
			if walk() {
				return true
			}
		}
		_, _ = d.Token()
		return false
	}
	return walk()
}

func base(path string) string {
	name := filepath.Base(path)
	return strings.TrimSuffix(name, filepath.Ext(name))
}

func str(o map[string]any, name string) string {
	s, _ := o[name].(string)
	return s
}

func object(v any) map[string]any {
	o, _ := v.(map[string]any)
	return o
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// openAI reads a conversation a line, or one document.
func (s *Source) openAI(path string) error {
	whole, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	whole = bytes.TrimPrefix(whole, []byte("\xef\xbb\xbf"))
	if v, err := parse(whole); err == nil && !repeated(whole) {
		switch v := v.(type) {
		case map[string]any:
			s.chat(v, base(path))
		case []any:
			if len(v) > 0 && object(v[0])["role"] != nil {
				s.chat(map[string]any{"messages": v}, base(path)).Whole = v
				return nil
			}
			for i, e := range v {
				switch e := e.(type) {
				case map[string]any:
					s.chat(e, fmt.Sprintf("%s-%d", base(path), i))
				case []any:
					s.chat(map[string]any{"messages": e}, fmt.Sprintf("%s-%d", base(path), i)).Whole = e
				}
			}
		}
		return nil
	}
	return s.lines(path, func(n int, b []byte) {
		if o, ok := s.value(path, n, b); ok {
			s.chat(o, fmt.Sprintf("%s-%d", base(path), n))
		}
	})
}

func (s *Source) chat(o map[string]any, name string) *Conversation {
	messages, ok := o["messages"].([]any)
	if !ok {
		s.Skipped["without messages"]++
		return new(Conversation)
	}
	if id := str(o, "id"); id != "" {
		name = id
	}
	c := &Conversation{Format: OpenAIChat, Name: name, Whole: o, Messages: len(messages)}
	for _, m := range messages {
		c.chatMessage(object(m))
	}
	s.Conversations = append(s.Conversations, c)
	return c
}

func (c *Conversation) chatMessage(m map[string]any) {
	switch str(m, "role") {
	case "assistant":
		c.turns++
		c.Usage = append(c.Usage, chatUsage(object(m["usage"])))
		for _, t := range list(m["tool_calls"]) {
			call := object(t)
			fn, args := object(call["function"]), "arguments"
			if custom, ok := call["custom"].(map[string]any); ok {
				fn, args = custom, "input"
			}
			c.call(call["id"], str(fn, "name"), fn[args], false)
		}
		if fn := object(m["function_call"]); fn != nil {
			c.call(nil, str(fn, "name"), fn["arguments"], true)
		}
	case "tool":
		c.result(m["tool_call_id"], "", m["content"], nil)
	case "function":
		c.result(nil, str(m, "name"), m["content"], nil)
	}
}

func chatUsage(u map[string]any) [4]int64 {
	n := func(names ...string) int64 {
		for _, name := range names {
			if v, ok := u[name].(json.Number); ok {
				i, _ := v.Int64()
				return i
			}
		}
		return 0
	}
	out := [4]int64{n("prompt_tokens", "input_tokens"), n("completion_tokens", "output_tokens"), n("cache_read_input_tokens"), n("cache_creation_input_tokens")}
	if d := object(u["prompt_tokens_details"]); d != nil {
		if v, ok := d["cached_tokens"].(json.Number); ok {
			out[2], _ = v.Int64()
		}
	}
	return out
}

// call adds a call. Without an id of its own, or with one that is taken in the turn, it is step-<turn>.
func (c *Conversation) call(raw any, name string, args any, legacy bool) {
	id, _ := raw.(string)
	taken := func(id string) bool {
		return slices.ContainsFunc(c.Calls, func(o Call) bool { return o.Turn == c.turns && o.ID == id })
	}
	open := slices.ContainsFunc(c.Calls, func(o Call) bool { return o.Turn == c.turns && o.ID == id && !o.HasResult })
	if id == "" || open {
		id = fmt.Sprintf("step-%d", c.turns)
		for i := 2; taken(id); i++ {
			id = fmt.Sprintf("step-%d-%d", c.turns, i)
		}
	}
	c.Calls = append(c.Calls, Call{Turn: c.turns, ID: id, Name: name, Arguments: args, raw: raw, legacy: legacy})
}

// result gives a result to the call it answers: of this turn first, then of the latest earlier one.
func (c *Conversation) result(raw any, function string, result, isError any) {
	matches := func(o *Call) bool {
		switch {
		case o.HasResult:
			return false
		case function != "":
			return o.legacy && o.Name == function
		case raw == nil:
			return o.Turn == c.turns
		default:
			return o.raw == raw || o.raw == nil && o.ID == raw
		}
	}
	set := func(o *Call) { o.HasResult, o.Result, o.IsError = true, result, isError }
	for i := range c.Calls {
		if o := &c.Calls[i]; o.Turn == c.turns && matches(o) {
			set(o)
			return
		}
	}
	for i := range slices.Backward(c.Calls) {
		if o := &c.Calls[i]; matches(o) {
			set(o)
			return
		}
	}
}
