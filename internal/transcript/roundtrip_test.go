package transcript_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

func proveFolder(t *testing.T, folder string) {
	t.Helper()
	files := transcripts(t, folder)
	require.NotEmpty(t, files)
	for _, path := range files {
		name, err := filepath.Rel(folder, path)
		require.NoError(t, err)
		t.Run(name, func(t *testing.T) {
			rep, src := prove(t, path)
			t.Logf("%s: %d runs, %d messages, %d turns, %d calls (%d unanswered), %d compactions; not proven: %d lines %v, unreadable %v, refused %v, notes %v",
				rep.Format, rep.Runs, rep.Messages, rep.Turns, rep.Calls, rep.Unanswered, rep.Compactions, src.Unproven(), src.Skipped, src.Unreadable, rep.Problems, rep.Notes)
			require.Len(t, rep.Problems, len(src.Unreadable), "what the check cannot read is what the import refused")
		})
	}
}

func TestTranscripts_Real_RoundTrip(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(sharedData); err != nil {
		t.Skipf("no real transcripts at %s: the round trip over them is not proven by this run", sharedData)
	}
	proveFolder(t, sharedData)
}

func TestTranscripts_Foreign_RoundTrip(t *testing.T) {
	t.Parallel()
	folder := os.Getenv(foreignEnv)
	if folder == "" {
		t.Skipf("%s is not set: no further transcripts to prove", foreignEnv)
	}
	proveFolder(t, folder)
}

func TestTranscripts_Own_RoundTrip(t *testing.T) {
	t.Parallel()
	proveFolder(t, "testdata")
}

// Deleting every source{} must leave texts, calls and results as they were.
func TestSource_Members_OnlyReplayDetail(t *testing.T) {
	t.Parallel()
	for _, path := range transcripts(t, "testdata") {
		runs, _ := open(t, path, transcript.Options{})
		for _, run := range runs {
			list := events(t, run)
			whole := fold(t, run.ID, list)
			without := fold(t, run.ID, withoutSource(t, list))
			require.Equal(t, essence(whole), essence(without), run.ID)
			for _, m := range without.Messages {
				require.Nil(t, m.Source)
			}
			// And what is left still exports in every format.
			for _, f := range transcript.Formats() {
				require.NotEmpty(t, export(t, without, f))
			}
		}
	}
}

// essence is what a run is about: texts, calls, results.
func essence(s *schema.State) []string {
	var out []string
	for _, m := range s.Joined() {
		for _, p := range m.Parts {
			content := "<none>"
			if p.Content != nil {
				content = *p.Content
			}
			out = append(out, fmt.Sprintf("%s %s %s %s %s %s %s %s", m.Role, p.Type, content, p.ID, p.Name, canonical(p.Arguments), canonical(p.Response), p.URI))
		}
	}
	for _, c := range s.Calls {
		out = append(out, fmt.Sprintf("%v %s %s %s %s", c.CallKey, c.Name, canonical(c.Arguments), c.Outcome, canonical(c.Result)))
	}
	return out
}

// canonical makes the order of members no difference.
func canonical(v jsontext.Value) string {
	c := v.Clone()
	if err := c.Canonicalize(); err != nil {
		return string(v)
	}
	return string(c)
}

// withoutSource publishes the same events again without any source{}.
func withoutSource(t *testing.T, list []*schema.Event) []*schema.Event {
	t.Helper()
	w := schema.Writer{Fleet: "default", Run: list[0].Subject, Executor: "importer", Epoch: 1}
	out := make([]*schema.Event, 0, len(list))
	for _, e := range list {
		var v any
		require.NoError(t, json.Unmarshal(e.Data, &v))
		body, err := json.Marshal(strip(v))
		require.NoError(t, err)
		data := schema.NewData(e.Name())
		require.NoError(t, json.Unmarshal(body, data))
		at, err := time.Parse(time.RFC3339Nano, e.Time)
		require.NoError(t, err)
		bare, err := w.Event(data, e.Turn, at, 0)
		require.NoError(t, err)
		require.NoError(t, w.Commit(bare))
		out = append(out, bare)
	}
	return out
}

func strip(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "source")
		for k := range v {
			if k != "arguments" && k != "result" {
				v[k] = strip(v[k])
			}
		}
	case []any:
		for i := range v {
			v[i] = strip(v[i])
		}
	}
	return v
}
