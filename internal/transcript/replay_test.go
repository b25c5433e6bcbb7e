package transcript_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// replayFiles imports files through a server and proves each run against its source.
func replayFiles(t *testing.T, w *world, files []string) {
	t.Helper()
	f := w.fleet("importer")
	for _, path := range files {
		runs, rep := open(t, path, transcript.Options{})
		want, err := transcriptcheck.Read(path, string(rep.Format))
		require.NoError(t, err)
		require.Len(t, runs, len(want.Conversations))
		for i, run := range runs {
			executed := make(map[schema.CallKey]int)
			out, err := transcript.Replay(t.Context(), f, run, transcript.ReplayOptions{
				Execute: func(_ context.Context, c *transcript.Call) error {
					executed[c.Key]++
					return nil
				},
			})
			require.NoError(t, err, run.ID)
			require.False(t, out.Resumed)
			for c := range run.Calls {
				if c.Answered {
					require.Equal(t, 1, executed[c.Key], "%s: %v", run.ID, c.Key)
				}
			}
			s := w.recovered(f, run.ID)
			requireEqual(t, want.Conversations[i], s, run.Format)
			planned := fold(t, run.ID, events(t, run))
			require.Equal(t, essence(planned), essence(s), "the SDK publishes what the plan says")
			if !run.StartedAt.IsZero() {
				require.Equal(t, outcome(planned), outcome(s))
			}
		}
	}
}

func TestReplay_OwnTranscripts_ThroughServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	files := transcripts(t, "testdata")
	if testing.Short() {
		t.Logf("short: 2 of %d files", len(files))
		files = files[:2]
	}
	replayFiles(t, w, files)
}

func TestReplay_RealTranscripts_ThroughServer(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat(sharedData); err != nil {
		t.Skipf("no real transcripts at %s: their replay is not proven by this run", sharedData)
	}
	if testing.Short() {
		t.Skip("short: the real transcripts are replayed without a server only")
	}
	w := newWorld(t)
	replayFiles(t, w, transcripts(t, sharedData))
}

// A crash after any boundary and in any tool: another executor takes the run over and ends it equal.
func TestReplay_DiesAnywhere_Continued(t *testing.T) {
	t.Parallel()
	runs, _ := open(t, "testdata/mill-session.jsonl", transcript.Options{})
	want, err := transcriptcheck.Read("testdata/mill-session.jsonl", transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	w := newWorld(t)
	fleets := []*publisher.Fleet{w.fleet("exec-0"), w.fleet("exec-1")}
	steps := len(events(t, runs[0]))
	stride := 1
	if testing.Short() {
		stride = 21
		t.Log("short: each 21st place")
	}
	for _, inTool := range []bool{false, true} {
		for k := 1; k < steps; k += stride {
			run := *runs[0]
			run.ID = fmt.Sprintf("die-%d-%t", k, inTool)
			executed := make(map[schema.CallKey]int)
			interrupted := make(map[schema.CallKey]bool)
			acknowledged := 0
			attempt := func(n, most int) error {
				ctx, die := context.WithCancel(t.Context())
				defer die()
				done := 0
				_, err := transcript.Replay(ctx, fleets[n%2], &run, transcript.ReplayOptions{
					TakeOver: true,
					OnBoundary: func(b transcript.Boundary) {
						require.Greater(t, b.Step, acknowledged, "nothing acknowledged is published again")
						acknowledged = b.Step
						if done++; done >= most && !inTool {
							die()
						}
					},
					Execute: func(ctx context.Context, c *transcript.Call) error {
						executed[c.Key]++
						if inTool && done >= most {
							interrupted[c.Key] = true
							die()
						}
						return ctx.Err()
					},
				})
				return err
			}
			err := attempt(0, k)
			for n := 1; err != nil; n++ {
				require.ErrorIs(t, err, context.Canceled, "attempt %d after step %d", n-1, acknowledged)
				require.Less(t, n, 2*steps)
				err = attempt(n, max(k, 3))
			}
			s := w.recovered(fleets[0], run.ID)
			requireEqual(t, want.Conversations[0], s, run.Format)
			for key, n := range executed {
				if !interrupted[key] {
					require.Equal(t, 1, n, "%s: a recorded result was asked for again: %v", run.ID, key)
				}
			}
		}
	}
}

func TestImport_ExistingRun_Untouched(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet("importer")
	runs, _ := open(t, "testdata/harbour.jsonl", transcript.Options{})
	_, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	out, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, out.Steps, out.Done)
	require.False(t, out.Resumed)

	// A run that has ended is not reopened for another transcript, also with TakeOver.
	before := w.recovered(f, runs[0].ID).Head.Digest
	other := *runs[1]
	other.ID = runs[0].ID
	_, err = transcript.Replay(t.Context(), f, &other, transcript.ReplayOptions{TakeOver: true})
	require.ErrorIs(t, err, transcript.ErrDiverged)
	require.Equal(t, before, w.recovered(f, runs[0].ID).Head.Digest)

	// Another executor's live run under the id: it is neither fenced nor written to.
	live, err := f.Start(t.Context(), publisher.RunSpec{ID: runs[1].ID, Agent: "coder"})
	require.NoError(t, err)
	_, err = transcript.Replay(t.Context(), w.fleet("other"), runs[1], transcript.ReplayOptions{})
	require.ErrorIs(t, err, transcript.ErrDiverged)
	require.NoError(t, live.Mark(t.Context(), "still mine"))
}

func TestReplay_Speed_DividesPauses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet("importer")
	runs, _ := open(t, "testdata/mill-document.json", transcript.Options{})
	var times []time.Time
	_, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{
		Speed:      20, // the answer came 4.25 s after the question
		OnBoundary: func(transcript.Boundary) { times = append(times, time.Now()) },
	})
	require.NoError(t, err)
	require.Greater(t, times[len(times)-1].Sub(times[0]), 200*time.Millisecond)
	_, err = transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{Speed: -1})
	require.ErrorContains(t, err, "speed -1")
}

// An import that dies goes on from the last boundary that it told, and ends equal.
func TestImport_Interrupted_Continued(t *testing.T) {
	t.Parallel()
	path := writeGenerated(t, t.TempDir(), transcript.ClaudeCode, transcriptgen.Spec{Seed: 11, Turns: 300})
	runs, _ := open(t, path, transcript.Options{RunID: "piped"})
	want, err := transcriptcheck.Read(path, transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	w := newWorld(t)
	f := w.fleet("importer")
	acknowledged := 0
	for die := 100; ; die += 700 {
		ctx, cancel := context.WithCancel(t.Context())
		executed := 0
		_, err := transcript.Replay(ctx, f, runs[0], transcript.ReplayOptions{
			OnBoundary: func(b transcript.Boundary) { acknowledged = b.Step },
			Execute: func(ctx context.Context, _ *transcript.Call) error {
				if executed++; executed == die/4 {
					cancel()
				}
				return ctx.Err()
			},
		})
		cancel()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, len(events(t, runs[0])), acknowledged)
	requireEqual(t, want.Conversations[0], w.recovered(f, "piped"), transcript.ClaudeCode)
}

func TestImport_Cancelled_EndsCancelled(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: 1,500 turns are imported")
	}
	path := writeGenerated(t, t.TempDir(), transcript.ClaudeCode, transcriptgen.Spec{Seed: 11, Turns: 1500, Plain: true})
	runs, _ := open(t, path, transcript.Options{RunID: "unwanted"})
	w := newWorld(t)
	f := w.fleet("importer")
	told, asked := 0, false
	out, err := transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{
		OnBoundary: func(b transcript.Boundary) { told = b.Step },
		Execute: func(ctx context.Context, _ *transcript.Call) error {
			if asked {
				return nil
			}
			asked = true
			return f.Cancel(ctx, "unwanted", "olga", "wrong file")
		},
	})
	require.ErrorIs(t, err, publisher.ErrCancelRequested)
	require.Less(t, told, out.Steps)
	s := w.recovered(f, "unwanted")
	require.Equal(t, schema.StatusCancelled, s.Head.Status)
	require.Zero(t, s.Head.Counts.Gaps)
	require.Less(t, int(s.Head.Sequence), out.Steps)
	_, err = transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.ErrorIs(t, err, transcript.ErrCancelled)
	_, err = transcript.Compare(t.Context(), f, runs[0], transcript.ReplayOptions{})
	require.ErrorIs(t, err, transcript.ErrCancelled)
	require.Equal(t, s.Head, w.recovered(f, "unwanted").Head, "nothing was written")
	out, err = transcript.Replay(t.Context(), f, runs[0], transcript.ReplayOptions{TakeOver: true})
	require.NoError(t, err)
	require.True(t, out.Reopened)
	s = w.recovered(f, "unwanted")
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	want, err := transcriptcheck.Read(path, transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	requireEqual(t, want.Conversations[0], s, transcript.ClaudeCode)
}
