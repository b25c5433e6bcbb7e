package fold

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/assign"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ended are the entries of the index of ended runs, of any run.
func (w *lifeWorld) ended() []string {
	w.TB.Helper()
	page, err := w.Shard.Checkpoints.Ended(w.TB.Context(), kvstore.EndedQuery{Before: 1 << 20, Limit: 100})
	require.NoError(w.TB, err)
	keys := []string{}
	for i := range page.Runs {
		keys = append(keys, schema.EndedKey(&schema.Head{
			Run: page.Runs[i].Run, Agent: page.Runs[i].Agent, Status: page.Runs[i].Status, Position: schema.Position{Stream: page.Runs[i].Position},
		})+fmt.Sprintf("@%d", page.Runs[i].Position))
	}
	return keys
}

// key is the run's entry in ended that matches its checkpoint.
func (r *lifeRun) key() string {
	h := r.Checkpoint().Head
	return schema.EndedKey(&h) + fmt.Sprintf("@%d", h.Position.Stream)
}

func TestIndexes_EndedRun_ListedUntilReopened(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	require.Empty(t, w.ended())
	r.Own(&schema.RunEndedData{Status: "completed"})
	require.Equal(t, []string{r.key()}, w.ended())
	r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
	require.Empty(t, w.ended())
	r.Own(&schema.RunEndedData{Status: "cancelled"})
	require.Equal(t, []string{r.key()}, w.ended())
	other := w.begin("run-2", "executor-1", "i1")
	other.Own(&schema.HandoffOfferedData{HandoffID: "h1", Kind: "transfer", Reason: "task_complete", NextAgent: "agent-2"})
	other.Own(&schema.RunEndedData{Status: "completed"})
	require.Equal(t, []string{r.key()}, w.ended(), "a run with a hand-off on offer is in the live index instead")
	other.Control(&schema.HandoffDeclinedData{HandoffID: "h1", By: "me"})
	require.Equal(t, []string{other.key(), r.key()}, w.ended())
}

// A worker stores a run's new state in steps. Wherever it stops, the run is in the live index or among the ended
// ones, and the next worker makes both match the checkpoint.
func TestIndexes_CrashBetweenSteps_KeepEveryRun(t *testing.T) {
	t.Parallel()
	changes := map[string]func(*lifeRun){
		"end": func(r *lifeRun) { r.Publish(&schema.RunEndedData{Status: "completed"}) },
		"reopen": func(r *lifeRun) {
			r.Own(&schema.RunEndedData{Status: "completed"})
			r.w.stop()
			c := r.Checkpoint()
			e, err := schema.NewControl("default", "service-1", r.Out.Run, 2, "n1", &schema.RunResumedData{
				Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1",
				From: schema.From{Epoch: c.Epoch, Sequence: c.Sequence, Digest: c.Digest},
			}, r.w.Clock.Now())
			require.NoError(r.w.TB, err)
			r.Send(e)
		},
		"written to after its end": func(r *lifeRun) {
			r.Own(&schema.RunEndedData{Status: "completed"})
			r.w.stop()
			r.Publish(&schema.TurnStartedData{Turn: 1})
		},
	}
	for name, change := range changes {
		for done := range 6 {
			t.Run(fmt.Sprintf("%s, %d steps", name, done), func(t *testing.T) {
				t.Parallel()
				w := newLifeWorld(t)
				r := w.begin("run-1", "executor-1", "i1")
				if name == "end" {
					w.stop()
				}
				change(r)
				was := r.Checkpoint()

				lease, err := w.worker.acquire(t.Context())
				require.NoError(t, err)
				s, err := w.worker.begin(t.Context(), lease)
				require.NoError(t, err)
				rec, found, err := eventlog.Next(t.Context(), w.JS, w.Names, "run-1", was.Position.Stream+1)
				require.NoError(t, err)
				require.True(t, found)
				b := batch{touched: make(map[string]*run), signs: make(map[assign.Seen]struct{})}
				require.NoError(t, s.take(t.Context(), &b, &message{
					Arrived: eventlog.Arrived{Subject: w.Names.EventSubject("run-1"), Record: rec}, run: "run-1", size: rec.Size(), prepared: schema.Prepare(schema.NoKeys, &rec),
				}, s.now()))
				x := b.touched["run-1"]
				require.NotNil(t, x)
				before := x.index
				var erase []kvstore.LiveAt
				for _, step := range []func() error{
					func() error { return s.live.put(t.Context(), []*run{x}) },
					func() error {
						_, err := s.index.putEntries(t.Context(), appendIndexPuts(nil, &x.head, &before))
						return err
					},
					func() error { return s.index.put(t.Context(), []*run{x}) },
					func() (err error) {
						erase, err = s.live.end(t.Context(), []*run{x})
						if err == nil {
							_, err = w.Shard.Checkpoints.Put(t.Context(), x.checkpoint(s.incarnation, 0), x.revision)
						}
						return err
					},
					func() error { return s.live.erase(t.Context(), erase) },
				}[:done] {
					require.NoError(t, step())
				}
				e, err := w.Shard.Checkpoints.LiveOf(t.Context(), "run-1")
				require.True(t, err == nil && e.Live != nil || len(w.ended()) > 0, "it is in one of the indexes")

				require.NoError(t, lease.Release(t.Context()))
				cfg := w.config()
				cfg.SweepEvery, cfg.Silence = time.Millisecond, 3*time.Hour
				w.stop = w.fold(cfg)
				r.Settled(func(c *schema.Checkpoint) bool { return c.Position.Stream >= r.Last })
				if r.Checkpoint().Live() {
					require.Eventually(t, func() bool { return len(w.ended()) == 0 }, time.Minute, 10*time.Millisecond)
				} else {
					require.Eventually(t, func() bool { return slices.Equal([]string{r.key()}, w.ended()) }, time.Minute, 10*time.Millisecond)
				}
			})
		}
	}
}

// A worker that was paused between two steps continues with its old knowledge: another worker has the shard by then,
// and the run has ended again under the same key.
func TestIndexes_PausedWorker_KeepsOthersEntries(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"it did not put the entry itself": false, "it had put the entry itself": true} {
		t.Run("takes none out/"+name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			r := w.begin("run-1", "executor-1", "i1")
			r.Own(&schema.RunEndedData{Status: "completed"})
			s := w.paused()
			x := r.fetch(s)
			require.NotEmpty(t, x.index.ended)
			if known {
				revisions, err := w.Shard.Checkpoints.IndexRevisions(t.Context(), x.index.ended)
				require.NoError(t, err)
				x.index.rev = revisions[0]
			}
			r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
			x = r.fetch(s)
			require.True(t, x.head.Live())
			r.Own(&schema.RunEndedData{Status: "completed"})
			require.Equal(t, x.index.ended, indexedOf(&r.Checkpoint().Head).ended, "under the same key")
			if err := s.index.put(t.Context(), []*run{x}); !known {
				require.ErrorIs(t, err, errSuperseded)
			}
			require.Equal(t, []string{r.key()}, w.ended())
		})
		t.Run("puts none back/"+name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			r := w.begin("run-1", "executor-1", "i1")
			s := w.paused()
			if known {
				r.Own(&schema.RunEndedData{Status: "completed"})
			}
			r.fetch(s)
			r.Own(&schema.RunEndedData{Status: "completed"})
			x := r.fetch(s)
			if known {
				revisions, err := w.Shard.Checkpoints.IndexRevisions(t.Context(), x.index.ended)
				require.NoError(t, err)
				x.index.rev = revisions[0]
			}
			r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
			r.Own(&schema.RunEndedData{Status: "completed"})
			require.Equal(t, []string{r.key()}, w.ended())
			require.ErrorIs(t, s.index.put(t.Context(), []*run{x}), errSuperseded)
			require.Equal(t, []string{r.key()}, w.ended())
		})
	}
	t.Run("clears nothing", func(t *testing.T) {
		t.Parallel()
		w := newLifeWorld(t)
		w.begin("run-0", "executor-1", "i1")
		s := w.paused()
		latest, err := w.Shard.Checkpoints.Latest(t.Context())
		require.NoError(t, err)
		r := w.begin("run-1", "executor-1", "i1")
		r.Own(&schema.RunEndedData{Status: "completed"})
		require.ErrorIs(t, s.index.clear(t.Context()), errSuperseded)
		require.NoError(t, w.Shard.Checkpoints.ClearIndex(t.Context(), latest))
		require.Equal(t, []string{r.key()}, w.ended())
	})
}

// A run that is folded again is listed as before until the fold changes that, and then not in two places.
func TestIndexes_RefoldedRun_LeavesNoStaleEntry(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunEndedData{Status: "completed"})
	c := r.Checkpoint()
	require.Len(t, w.ended(), 1)
	w.stop()
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	_, err = kv.PutString(t.Context(), "run-1", "junk")
	require.NoError(t, err)
	e, err := schema.NewControl("default", "service-1", "run-1", 2, "n1", &schema.RunResumedData{
		Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1",
		From: schema.From{Epoch: c.Epoch, Sequence: c.Sequence, Digest: c.Digest},
	}, w.Clock.Now())
	require.NoError(t, err)
	r.Send(e)
	w.stop = w.fold(w.config())
	require.Eventually(t, func() bool {
		c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
		return err == nil && c.Position.Stream == r.Last
	}, time.Minute, 10*time.Millisecond)
	require.True(t, r.Checkpoint().Live())
	require.Empty(t, w.ended())

	w.stop()
	s := w.paused()
	x := r.fetch(s)
	x.index.ended = "somewhere"
	require.NoError(t, s.refold(t.Context(), x, x.head.Position.Stream+1))
	require.Equal(t, "somewhere", x.index.ended, "the run in memory keeps its entry, however it is folded again")
}

// A worker that folds everything again clears the index and may die before it is done. The next one finds checkpoints
// of runs that the cleared index lacks.
func TestIndexes_Rebuilt_HaveEveryRun(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.begin("run-1", "executor-1", "i1")
	r.Own(&schema.RunEndedData{Status: "completed"})
	w.stop()
	cps := w.Shard.Checkpoints
	_, rev, err := cps.IndexState(t.Context())
	require.NoError(t, err)
	latest, err := cps.Latest(t.Context())
	require.NoError(t, err)
	require.NoError(t, cps.ClearIndex(t.Context(), latest))
	_, err = cps.PutIndexState(t.Context(), kvstore.IndexState{Folding: true}, rev)
	require.NoError(t, err)
	mark, markRev, err := cps.Watermark(t.Context())
	require.NoError(t, err)
	first, found, err := eventlog.Next(t.Context(), w.JS, w.Names, "run-1", 1)
	require.NoError(t, err)
	require.True(t, found)
	begun := schema.Prepare(schema.NoKeys, &first)
	mark.Position = begun.Position()
	_, err = cps.PutWatermark(t.Context(), mark, markRev)
	require.NoError(t, err)
	require.Empty(t, w.ended())

	w.stop = w.fold(w.config())
	require.Eventually(t, func() bool {
		st, _, err := cps.IndexState(t.Context())
		return err == nil && st.Complete
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, []string{r.key()}, w.ended())
}

func TestIndexes_Origin_FindsItsRuns(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.unwritten("run-1")
	r.Own(&schema.RunStartedData{
		Agent: "agent-1", Executor: "executor-1", Instance: "i1", Parent: &schema.Parent{Run: "above"}, ResumedFrom: "before",
	})
	puts := w.worker.stats.IndexPuts.Load()
	r.Own(&schema.TurnStartedData{Turn: 1})
	require.Equal(t, puts, w.worker.stats.IndexPuts.Load(), "it is named once")
	r.Own(&schema.RunEndedData{Status: "completed"})
	for _, of := range []string{"above", "before"} {
		runs, err := w.Shard.Checkpoints.Children(t.Context(), of)
		require.NoError(t, err)
		require.Equal(t, []string{"run-1"}, runs)
	}
	runs, err := w.Shard.Checkpoints.Children(t.Context(), "run-1")
	require.NoError(t, err)
	require.Empty(t, runs)
}
