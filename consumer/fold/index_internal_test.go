package fold

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ended are the runs that lists show as ended: those whose entry agrees with the checkpoint.
func (w *lifeWorld) ended() []string {
	w.TB.Helper()
	page, err := w.Shard.Checkpoints.Ended(w.TB.Context(), kvstore.EndedQuery{Before: math.MaxInt64, Limit: 100})
	require.NoError(w.TB, err)
	require.Zero(w.TB, page.Next)
	keys := []string{}
	for i := range page.Runs {
		e := &page.Runs[i]
		c, _, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), e.Run)
		require.NoError(w.TB, err)
		if !c.Live() && c.Status == e.Status {
			keys = append(keys, fmt.Sprintf("%s %s@%d", e.Run, e.Status, e.Position))
		}
	}
	return keys
}

// key is the run's entry in ended that matches its checkpoint.
func (r *lifeRun) key() string {
	h := r.Checkpoint().Head
	return fmt.Sprintf("%s %s@%d", h.Run, h.Status, h.Position.Stream)
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
		for done := range 5 {
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
				s, err := w.worker.begin(t.Context())
				require.NoError(t, err)
				rec, found, err := eventlog.Next(t.Context(), w.JS, w.Names, "run-1", was.Position.Stream+1)
				require.NoError(t, err)
				require.True(t, found)
				b := batch{touched: make(map[string]*run)}
				require.NoError(t, s.take(t.Context(), &b, &message{
					Arrived: eventlog.Arrived{Subject: w.Names.EventSubject("run-1"), Record: rec}, run: "run-1", size: rec.Size(), prepared: schema.Prepare(schema.NoKeys, &rec),
				}))
				x := b.touched["run-1"]
				require.NotNil(t, x)
				var erase []kvstore.LiveAt
				for _, step := range []func() error{
					func() error { return s.live.put(t.Context(), []*run{x}) },
					func() error { return s.putIndex(t.Context(), []*run{x}) },
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
				page, pageErr := w.Shard.Checkpoints.Ended(t.Context(), kvstore.EndedQuery{Before: math.MaxInt64, Limit: 1})
				require.NoError(t, pageErr)
				require.True(t, err == nil && e.Live != nil || len(page.Runs) > 0, "it is in one of the indexes")

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
func TestIndexes_PausedWorker_TakesNoEntryOut(t *testing.T) {
	t.Parallel()
	t.Run("of a reopened run", func(t *testing.T) {
		t.Parallel()
		w := newLifeWorld(t)
		r := w.begin("run-1", "executor-1", "i1")
		r.Own(&schema.RunEndedData{Status: "completed"})
		s := w.paused()
		r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
		x := r.fetch(s)
		require.True(t, x.head.Live())
		r.Own(&schema.RunEndedData{Status: "completed"})
		require.NoError(t, s.putIndex(t.Context(), []*run{x}))
		require.Equal(t, []string{r.key()}, w.ended())
	})
	t.Run("of an ended run", func(t *testing.T) {
		t.Parallel()
		w := newLifeWorld(t)
		r := w.begin("run-1", "executor-1", "i1")
		s := w.paused()
		r.Own(&schema.RunEndedData{Status: "cancelled"})
		x := r.fetch(s)
		require.False(t, x.head.Live())
		r.Control(&schema.RunResumedData{Executor: "executor-2", Instance: "i2", Reason: "reopen", RequestID: "q1"})
		require.NoError(t, s.putIndex(t.Context(), []*run{x}))
		require.Empty(t, w.ended(), "the run is live again")
		r.Own(&schema.RunEndedData{Status: "completed"})
		require.NoError(t, s.putIndex(t.Context(), []*run{x}))
		require.Equal(t, []string{r.key()}, w.ended(), "its entry of another status is skipped")
	})
	t.Run("when it clears the index", func(t *testing.T) {
		t.Parallel()
		w := newLifeWorld(t)
		w.begin("run-0", "executor-1", "i1")
		s := w.paused()
		r := w.begin("run-1", "executor-1", "i1")
		r.Own(&schema.RunEndedData{Status: "completed"})
		s.rebuild = true
		require.ErrorIs(t, s.beginRebuild(t.Context()), errSuperseded, "its record comes first")
		require.NoError(t, w.Shard.Checkpoints.ClearIndex(t.Context(), s.markRev))
		require.Equal(t, []string{r.key()}, w.ended())
	})
}

// A run that is folded again, because its checkpoint is damaged, is listed as the fold says.
func TestIndexes_RefoldedRun_ListedAsFolded(t *testing.T) {
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
}

// A worker that folds everything again clears the index and may die at any moment before it is done. The next one
// finds checkpoints of runs that the cleared index lacks.
func TestIndexes_Rebuilt_HaveEveryRun(t *testing.T) {
	t.Parallel()
	for name, died := range map[string]struct{ cleared, folded bool }{
		"before the index was cleared": {},
		"before the first batch":       {cleared: true},
		"before the last batch":        {cleared: true, folded: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newLifeWorld(t)
			r := w.begin("run-1", "executor-1", "i1")
			r.Own(&schema.RunEndedData{Status: "completed"})
			w.stop()
			cps := w.Shard.Checkpoints
			stale := schema.Head{Run: "of-another-log", Status: schema.StatusFailed}
			e := schema.EndedOf(&stale)
			require.NoError(t, cps.PutIndex(t.Context(), kvstore.IndexPut{Key: schema.EndedKey(&stale), Ended: &e}))
			mark, markRev, err := cps.Watermark(t.Context())
			require.NoError(t, err)
			mark.RebuildTo, mark.Position = r.Last, schema.Position{}
			markRev, err = cps.PutWatermark(t.Context(), mark, markRev)
			require.NoError(t, err)
			if died.cleared {
				require.NoError(t, cps.ClearIndex(t.Context(), markRev))
			}
			if died.folded {
				first, found, err := eventlog.Next(t.Context(), w.JS, w.Names, "run-1", 1)
				require.NoError(t, err)
				require.True(t, found)
				mark.Position = schema.PositionOf(&first)
				_, err = cps.PutWatermark(t.Context(), mark, markRev)
				require.NoError(t, err)
			}
			w.stop = w.fold(w.config())
			require.Eventually(t, func() bool {
				mark, _, err := cps.Watermark(t.Context())
				return err == nil && mark.RebuildTo == 0
			}, time.Minute, 10*time.Millisecond)
			require.Equal(t, []string{r.key()}, w.ended())
			page, err := cps.Ended(t.Context(), kvstore.EndedQuery{Before: math.MaxInt64, Limit: 1})
			require.NoError(t, err)
			require.True(t, page.Runs[0].Rebuilt)
		})
	}
}

func TestIndexes_Origin_FindsItsRuns(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	r := w.unwritten("run-1")
	r.Own(&schema.RunStartedData{
		Agent: "agent-1", Executor: "executor-1", Instance: "i1", Parent: &schema.Parent{Run: "above"}, ResumedFrom: "before",
	})
	r.Own(&schema.TurnStartedData{Turn: 1})
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
