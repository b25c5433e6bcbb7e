package transcript_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

func writeGenerated(tb require.TestingT, folder string, f transcript.Format, s transcriptgen.Spec) string {
	path := filepath.Join(folder, "generated.jsonl")
	if f == transcript.SWEAgent {
		path = filepath.Join(folder, "generated.traj")
	}
	file, err := os.Create(path)
	require.NoError(tb, err)
	require.NoError(tb, transcriptgen.Write(file, f, s))
	require.NoError(tb, file.Close())
	return path
}

func TestTranscripts_Generated_RoundTrip(t *testing.T) {
	t.Parallel()
	for _, f := range transcript.Formats() {
		t.Run(string(f), func(t *testing.T) {
			folder := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				path := writeGenerated(rt, folder, f, transcriptgen.Spec{
					Seed: rapid.Uint64().Draw(rt, "seed"), Turns: rapid.IntRange(1, 12).Draw(rt, "turns"),
					Runs: rapid.IntRange(1, 3).Draw(rt, "runs"), Text: rapid.IntRange(1, 60).Draw(rt, "text"),
				})
				rep, _ := prove(t, path)
				require.Empty(rt, rep.Problems)
			})
		})
	}
}

// The same transcript with large texts: an event never grows beyond what a stream takes because several
// messages go out together.
func TestSplit_LongRun_EventsFit(t *testing.T) {
	t.Parallel()
	for _, f := range transcript.Formats() {
		path := writeGenerated(t, t.TempDir(), f, transcriptgen.Spec{Seed: 7, Turns: 40, Text: 20 << 10, Plain: true})
		runs, _ := open(t, path, transcript.Options{})
		for _, e := range events(t, runs[0]) {
			require.Less(t, len(e.Data), 400<<10, "%s %s", f, e.Type)
		}
	}
}

func TestGenerate_SameRun_SameEvents(t *testing.T) {
	t.Parallel()
	for _, path := range transcripts(t, "testdata") {
		first, _ := open(t, path, transcript.Options{})
		second, _ := open(t, path, transcript.Options{})
		for i := range first {
			require.Equal(t, ids(events(t, first[i])), ids(events(t, second[i])))
		}
	}
}

func ids(list []*schema.Event) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.ID
	}
	return out
}
