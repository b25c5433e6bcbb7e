package transcript_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/internal/transcript/check"
	"github.com/waymarkio/waymark/schema"
)

// fuzzFormat reads arbitrary bytes as a format: nothing panics, what is read folds without a dead letter,
// and comes back equal to what separate code reads.
func fuzzFormat(f *testing.F, format transcript.Format, ext string) {
	f.Helper()
	for _, path := range transcripts(f, "testdata") {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"messages":[{"role":"assistant","tool_calls":[{"id":"\u0000","function":{"name":"","arguments":null}}]}]}`))
	f.Add([]byte(`{"messages":[{"role":"","content":"a role that says nothing"}]}`))
	f.Add([]byte(`{"type":"user","uuid":"1","message":{"role":"","content":"a role that says nothing"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "x"+ext)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := transcript.Open(path, transcript.Options{Format: format})
		if err != nil {
			return
		}
		for run := range file.Runs() {
			list, err := transcript.Events(run, transcript.EventOptions{Fleet: "default", Executor: "importer"})
			if err != nil {
				continue
			}
			s := schema.NewState("default", run.ID)
			for i, e := range list {
				header, body := e.Encode()
				rec := schema.NewRecord(schema.StreamSequence(i+1), header, body)
				if v := s.Apply(&rec); v.Kind != schema.Applied && v.Reason != schema.ReasonTooMany {
					t.Fatalf("event %d %s: %s %s", i, e.Type, v.Reason, v.Detail)
				}
			}
			var out bytes.Buffer
			if err := transcript.Export(&out, s, format); err != nil {
				t.Fatal(err)
			}
			for _, other := range transcript.Formats() {
				if err := transcript.Export(&bytes.Buffer{}, s, other); err != nil {
					t.Fatal(err)
				}
			}
			if format == transcript.OpenAIChat {
				compareFuzzed(t, path, run.Line, out.Bytes())
			}
		}
	})
}

// compareFuzzed finds the conversation among those that separate code reads.
func compareFuzzed(t *testing.T, path string, line int, export []byte) {
	t.Helper()
	want, err := check.Read(path, check.OpenAIChat)
	if err != nil || len(want.Unreadable) > 0 || len(want.Conversations) == 0 {
		return
	}
	var first error
	for _, c := range want.Conversations {
		err := c.Export(export)
		if err == nil {
			return
		}
		first = err
	}
	t.Fatalf("line %d is no conversation of the source: %v", line, first)
}

func FuzzOpenAIChat(f *testing.F) { fuzzFormat(f, transcript.OpenAIChat, ".jsonl") }

func FuzzClaudeCode(f *testing.F) { fuzzFormat(f, transcript.ClaudeCode, ".jsonl") }

func FuzzSWEAgent(f *testing.F) { fuzzFormat(f, transcript.SWEAgent, ".traj") }
