package transcript_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// crashing folds a run whose executor dies after each of the given numbers of events, counted from the
// takeover before.
func crashing(tb require.TestingT, run *transcript.Run, cuts []int) *schema.State {
	s := schema.NewState("default", run.ID)
	stream := schema.StreamSequence(0)
	apply := func(e *schema.Event) {
		stream++
		header, body := e.Encode()
		rec := schema.NewRecord(stream, header, body)
		v := s.Apply(schema.NoKeys, &rec)
		require.Equal(tb, schema.Applied, v.Kind, "%s: %s %s", e.Type, v.Reason, v.Detail)
	}
	options := transcript.EventOptions{Fleet: "default", Executor: "first"}
	for i := 0; ; i++ {
		list, err := transcript.Events(run, options)
		require.NoError(tb, err)
		if i == len(cuts) || cuts[i] >= len(list) {
			for _, e := range list {
				apply(e)
			}
			return s
		}
		for _, e := range list[:cuts[i]] {
			apply(e)
		}
		h := &s.Head
		takeover, err := schema.NewControl("default", "daemon", run.ID, h.Epoch+1, fmt.Sprintf("n%d", i), &schema.RunResumedData{
			Executor: "next", Reason: "restart", RequestID: fmt.Sprintf("r%d", i),
			From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest},
		}, time.Unix(0, 0))
		require.NoError(tb, err)
		apply(takeover)
		options.Executor, options.After = "next", s
	}
}

// outcome is what must not depend on crashes.
func outcome(s *schema.State) []any {
	var turns []schema.StateTurn
	for _, t := range s.Turns {
		turns = append(turns, schema.StateTurn{Turn: t.Turn, Ended: t.Ended, StartedAt: t.StartedAt, EndedAt: t.EndedAt, Attempts: t.Attempts})
	}
	return []any{essence(s), turns, s.Head.Usage, s.Head.Status, s.Compactions, s.Ended, s.Head.Counts.Messages, s.Head.Counts.ToolResults}
}

func TestImport_CrashAnywhere_ChangesNothing(t *testing.T) {
	t.Parallel()
	for _, path := range transcripts(t, "testdata") {
		runs, _ := open(t, path, transcript.Options{})
		for _, run := range runs {
			whole := crashing(t, run, nil)
			for k := 1; k < len(events(t, run)); k++ {
				s := crashing(t, run, []int{k})
				require.Equal(t, outcome(whole), outcome(s), "%s after %d events", run.ID, k)
				require.Equal(t, export(t, whole, run.Format), export(t, s, run.Format))
			}
		}
	}
}

func TestImport_GeneratedCrashes_ChangeNothing(t *testing.T) {
	t.Parallel()
	for _, f := range transcript.Formats() {
		t.Run(string(f), func(t *testing.T) {
			folder := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				path := writeGenerated(rt, folder, f, transcriptgen.Spec{Seed: rapid.Uint64().Draw(rt, "seed"), Turns: rapid.IntRange(1, 6).Draw(rt, "turns")})
				runs, _ := open(t, path, transcript.Options{})
				// A crash may come right after the takeover, before anything was published.
				cuts := append([]int{rapid.IntRange(1, 8).Draw(rt, "first")}, rapid.SliceOfN(rapid.IntRange(0, 8), 0, 6).Draw(rt, "cuts")...)
				whole, s := crashing(rt, runs[0], nil), crashing(rt, runs[0], cuts)
				require.Equal(rt, outcome(whole), outcome(s))
				require.Equal(rt, export(t, whole, f), export(t, s, f))
			})
		})
	}
}

func TestImport_OtherRun_Refused(t *testing.T) {
	t.Parallel()
	runs, _ := open(t, "testdata/harbour.jsonl", transcript.Options{})
	mine, other := runs[0], runs[1]
	other.ID = mine.ID
	list := events(t, other)
	for k := 2; k < len(list); k++ {
		s := fold(t, mine.ID, list[:k])
		_, err := transcript.Events(mine, transcript.EventOptions{Fleet: "default", Executor: "x", After: s})
		require.ErrorIs(t, err, transcript.ErrDiverged, "after %d events", k)
	}
	_, err := transcript.Events(mine, transcript.EventOptions{Fleet: "default", Executor: "x", After: fold(t, mine.ID, list)})
	require.ErrorIs(t, err, transcript.ErrDiverged)
	left, err := transcript.Events(mine, transcript.EventOptions{Fleet: "default", Executor: "x", After: fold(t, mine.ID, events(t, mine))})
	require.NoError(t, err)
	require.Empty(t, left)
}
