package transcript_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// sharedData is a directory outside the repository that may have real transcripts.
const sharedData = "../../../shared/data"

// foreignEnv names a folder of further transcripts to prove the round trip on.
const foreignEnv = "WAYMARK_TRANSCRIPTS"

// fold folds events in the order of a log.
func fold(tb testing.TB, run string, events []*schema.Event) *schema.State {
	tb.Helper()
	s := schema.NewState("default", run)
	for i, e := range events {
		header, body := e.Encode()
		rec := schema.NewRecord(schema.StreamSequence(i+1), header, body)
		v := s.Apply(schema.NoKeys, &rec)
		require.Equal(tb, schema.Applied, v.Kind, "event %d %s: %s %s", i, e.Type, v.Reason, v.Detail)
	}
	return s
}

// open reads a whole file.
func open(tb testing.TB, path string, opts transcript.Options) ([]*transcript.Run, *transcript.Report) {
	tb.Helper()
	f, err := transcript.Open(path, opts)
	require.NoError(tb, err)
	var runs []*transcript.Run
	for run := range f.Runs() {
		runs = append(runs, run)
	}
	require.NoError(tb, f.Err())
	return runs, f.Report()
}

func events(tb testing.TB, run *transcript.Run) []*schema.Event {
	tb.Helper()
	list, err := transcript.Events(run, transcript.EventOptions{Fleet: "default", Executor: "importer"})
	require.NoError(tb, err)
	return list
}

func export(tb testing.TB, s *schema.State, f transcript.Format) []byte {
	tb.Helper()
	var out bytes.Buffer
	require.NoError(tb, transcript.Export(&out, s, f))
	return out.Bytes()
}

// prove imports, folds and exports a file and compares with what separate code reads from it.
func prove(tb testing.TB, path string) (*transcript.Report, *transcriptcheck.Source) {
	tb.Helper()
	runs, rep := open(tb, path, transcript.Options{})
	want, err := transcriptcheck.Read(path, string(rep.Format))
	require.NoError(tb, err)
	require.Len(tb, runs, len(want.Conversations), "problems: %v", rep.Problems)
	for i, run := range runs {
		c := want.Conversations[i]
		s := fold(tb, run.ID, events(tb, run))
		require.NoError(tb, c.State(s), path)
		require.NoError(tb, c.Export(export(tb, s, run.Format)), path)
		if c.Agent != "" {
			require.NotNil(tb, run.Parent)
		}
		if s.Head.Status == schema.StatusCompleted {
			require.True(tb, s.Head.Clean(), "a completed run is at a clean boundary")
		}
	}
	return rep, want
}

// transcripts lists the transcript files below a folder, without the sub-agents' of a session that is there.
func transcripts(tb testing.TB, folder string) []string {
	tb.Helper()
	var files []string
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch filepath.Ext(path) {
		case ".jsonl", ".json", ".traj":
			if !strings.Contains(filepath.ToSlash(path), "/subagents/") {
				files = append(files, path)
			}
		}
		return nil
	})
	require.NoError(tb, err)
	return files
}
