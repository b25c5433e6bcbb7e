package agent_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// block is a part of a model's answer: a text, or a call of a tool.
type block struct {
	text, id, tool string
	input          map[string]any
}

func said(text string) block { return block{text: text} }

func bash(id, command string) block {
	return block{id: id, tool: "Bash", input: map[string]any{"command": command}}
}

// model is a scripted provider: the Messages API for Claude Code, the Responses API for Codex.
type model struct {
	*httptest.Server
	mu       sync.Mutex
	requests []string
	// answer gets the number of the model's earlier answers in the conversation, and the request.
	answer func(n int, body string) []block
}

func newModel(t *testing.T, answer func(n int, body string) []block) *model {
	t.Helper()
	m := &model{answer: answer}
	m.Server = httptest.NewServer(m)
	t.Cleanup(m.Close)
	return m
}

// asked reports whether a request has the text.
func (m *model) asked(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.requests {
		if strings.Contains(r, text) {
			return true
		}
	}
	return false
}

// last is the latest request.
func (m *model) last() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.requests[len(m.requests)-1]
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var request struct {
		Messages []struct {
			Role string `json:"role"`
		} `json:"messages"`
		Input []struct {
			Type string `json:"type"`
		} `json:"input"`
		Tools []any `json:"tools"`
	}
	if strings.Contains(r.URL.Path, "count_tokens") || json.Unmarshal(body, &request) != nil {
		_, _ = io.WriteString(w, `{"input_tokens":10}`)
		return
	}
	n := 0
	for _, message := range request.Messages {
		if message.Role == "assistant" {
			n++
		}
	}
	for _, item := range request.Input {
		if item.Type == "function_call_output" || item.Type == "custom_tool_call_output" {
			n++
		}
	}
	blocks := []block{said("ok")} // a title, or another request of its own
	if len(request.Tools) > 0 {
		m.mu.Lock()
		m.requests = append(m.requests, string(body))
		m.mu.Unlock()
		blocks = m.answer(n, string(body))
	}
	w.Header().Set("Content-Type", "text/event-stream")
	send := func(event string, data map[string]any) {
		data["type"] = event
		text, _ := json.Marshal(data)
		_, _ = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text)
	}
	if strings.HasSuffix(r.URL.Path, "/responses") {
		respond(send, blocks)
		return
	}
	stop, id := "end_turn", rand.Text() // the agent joins messages of one id
	send("message_start", map[string]any{"message": map[string]any{
		"id": id, "type": "message", "role": "assistant", "model": "scripted", "content": []any{}, "usage": map[string]int{"input_tokens": 1, "output_tokens": 1},
	}})
	for i, b := range blocks {
		start, delta := map[string]any{"type": "text", "text": ""}, map[string]any{"type": "text_delta", "text": b.text}
		if b.tool != "" {
			stop = "tool_use"
			input, _ := json.Marshal(b.input)
			start = map[string]any{"type": "tool_use", "id": b.id, "name": b.tool, "input": map[string]any{}}
			delta = map[string]any{"type": "input_json_delta", "partial_json": string(input)}
		}
		send("content_block_start", map[string]any{"index": i, "content_block": start})
		send("content_block_delta", map[string]any{"index": i, "delta": delta})
		send("content_block_stop", map[string]any{"index": i})
	}
	send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop}, "usage": map[string]int{"output_tokens": 1}})
	send("message_stop", map[string]any{})
}

// respond is the answer of the Responses API.
func respond(send func(string, map[string]any), blocks []block) {
	send("response.created", map[string]any{"response": map[string]any{"id": "r"}})
	for i, b := range blocks {
		item := map[string]any{"type": "message", "role": "assistant", "id": fmt.Sprint("m", i), "content": []any{map[string]any{"type": "output_text", "text": b.text}}}
		if b.tool != "" {
			arguments, _ := json.Marshal(map[string]any{"cmd": b.input["command"], "yield_time_ms": 30000})
			item = map[string]any{"type": "function_call", "id": fmt.Sprint("f", i), "name": "exec_command", "call_id": b.id, "arguments": string(arguments)}
		}
		send("response.output_item.added", map[string]any{"output_index": i, "item": item})
		send("response.output_item.done", map[string]any{"output_index": i, "item": item})
	}
	send("response.completed", map[string]any{"response": map[string]any{"id": "r", "usage": map[string]int{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}}})
}
