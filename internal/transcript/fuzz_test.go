package transcript_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// FuzzTranscript reads arbitrary bytes as each format: nothing panics, what is read folds without a dead letter,
// and comes back equal to what separate code reads.
func FuzzTranscript(f *testing.F) {
	for _, path := range transcripts(f, "testdata") {
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for format := range transcript.Formats() {
			f.Add(uint8(format), b) //nolint:gosec // there are three
		}
	}
	f.Add(uint8(0), []byte(`{"messages":[{"role":"assistant","tool_calls":[{"id":"\u0000","function":{"name":"","arguments":null}}]}]}`))
	f.Add(uint8(0), []byte(`{"messages":[{"role":"","content":"a role that says nothing"}]}`))
	f.Add(uint8(1), []byte(`{"type":"user","uuid":"1","message":{"role":"","content":"a role that says nothing"}}`))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		format := transcript.Formats()[int(which)%len(transcript.Formats())]
		ext := ".jsonl"
		if format == transcript.SWEAgent {
			ext = ".traj"
		}
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
				if v := s.Apply(schema.NoKeys, &rec); v.Kind != schema.Applied && v.Reason != schema.ReasonTooMany {
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
	want, err := transcriptcheck.Read(path, transcriptcheck.OpenAIChat)
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
