package transcriptcheck_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// imported is a conversation with the state and export that it became.
type imported struct {
	want   *transcriptcheck.Conversation
	state  *schema.State
	export []byte
}

func load(t *testing.T, path string) imported {
	t.Helper()
	f, err := transcript.Open(path, transcript.Options{})
	require.NoError(t, err)
	want, err := transcriptcheck.Read(path, string(f.Report().Format))
	require.NoError(t, err)
	for run := range f.Runs() {
		list, err := transcript.Events(run, transcript.EventOptions{Fleet: "default", Executor: "x"})
		require.NoError(t, err)
		s := schema.NewState("default", run.ID)
		for i, e := range list {
			header, body := e.Encode()
			rec := schema.NewRecord(schema.StreamSequence(i+1), header, body)
			s.Apply(schema.NoKeys, &rec)
		}
		var out bytes.Buffer
		require.NoError(t, transcript.Export(&out, s, run.Format))
		return imported{want.Conversations[0], s, out.Bytes()}
	}
	t.Fatal("no run")
	return imported{}
}

// A check that cannot fail proves nothing.
func TestCompare_EveryChange_Found(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ file, from, to string }{
		{"harbour.jsonl", `Is berth 4 free tonight?`, `Is berth 4 free tonight!`},
		{"harbour.jsonl", `{ \"berth\":  4 }`, `{ \"berth\": 4 }`},
		{"harbour.jsonl", `"content":null`, `"content":""`},
		{"harbour.jsonl", `"content":null,`, ``},
		{"harbour.jsonl", `"type":"function",`, ``},
		{"harbour.jsonl", `,{"role":"user","content":"Bye"}`, ``},
		{"harbour.jsonl", `"tool_call_id":"call_b"`, `"tool_call_id":"call_a"`},
		{"mill-session.jsonl", `"signature":"c2lnbmF0dXJl"`, `"signature":"c2lnbmF0dXJm"`},
		{"mill-session.jsonl", `"stop_reason":null`, `"stop_reason":"end_turn"`},
		{"mill-session.jsonl", `"is_error":true`, `"is_error":false`},
		{"mill-session.jsonl", `"output_tokens":4`, `"output_tokens":40`},
		{"mill-session.jsonl", `"is_error":false`, `"is_error":null`},
		{"sum__fix-1.traj", `"is_demo":true`, `"is_demo":false`},
		{"sum__fix-1.traj", `"tool_call_ids":["call_1"]`, `"tool_call_ids":[]`},
		{"prod__fix-2.traj", `"action":"open prod.py\n"`, `"action":"open prod.py"`},
	} {
		t.Run(tt.from, func(t *testing.T) {
			in := load(t, filepath.Join("..", "..", "transcript", "testdata", tt.file))
			require.NoError(t, in.want.Export(in.export))
			changed := bytes.Replace(in.export, []byte(tt.from), []byte(tt.to), 1)
			require.NotEqual(t, in.export, changed, "the export does not have %s", tt.from)
			require.ErrorIs(t, in.want.Export(changed), transcriptcheck.ErrDifferent)
		})
	}
}

func TestCompare_EveryStateChange_Found(t *testing.T) {
	t.Parallel()
	yes := true
	for name, change := range map[string]func(s *schema.State){
		"a result":         func(s *schema.State) { s.Calls[0].Result = []byte(`"other"`) },
		"no result":        func(s *schema.State) { s.Calls[0].Result = nil },
		"an open call":     func(s *schema.State) { s.Calls[1].Outcome = schema.OutcomeOpen },
		"a name":           func(s *schema.State) { s.Calls[0].Name += "x" },
		"an id":            func(s *schema.State) { s.Calls[0].ToolCallID += "x" },
		"a turn":           func(s *schema.State) { s.Calls[0].Turn++ },
		"arguments":        func(s *schema.State) { s.Calls[0].Arguments = []byte(`{}`) },
		"the tool's word":  func(s *schema.State) { s.Calls[0].IsError = &yes },
		"a missing call":   func(s *schema.State) { s.Calls = s.Calls[1:] },
		"a doubled call":   func(s *schema.State) { s.Calls = append(s.Calls, s.Calls[0]) },
		"usage":            func(s *schema.State) { s.Turns[0].Usage().OutputTokens++ },
		"the sum of usage": func(s *schema.State) { s.Head.Usage.InputTokens++ },
		"a dead letter":    func(s *schema.State) { s.Head.Counts.DeadLetters++ },
		"the order":        func(s *schema.State) { s.Calls[0], s.Calls[1] = s.Calls[1], s.Calls[0] },
	} {
		t.Run(name, func(t *testing.T) {
			in := load(t, "../../transcript/testdata/mill-session.jsonl")
			require.NoError(t, in.want.State(in.state))
			change(in.state)
			require.ErrorIs(t, in.want.State(in.state), transcriptcheck.ErrDifferent)
		})
	}
}

func TestCompare_Unread_Counted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"type":"user","uuid":"1","message":{"role":"user","content":"a"}}
{"type":"progress","data":{"type":"hook_progress"}}
{"broken
{"type":"user","uuid":"2","message":{"role":"user","content":"\ud800"}}
{"type":"summary"}
`), 0o600))
	s, err := transcriptcheck.Read(path, transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"progress/hook_progress": 1, "summary": 1}, s.Skipped)
	require.Equal(t, []string{path + ":3"}, s.Unreadable)
	require.Equal(t, 3, s.Unproven())
}
