package fold_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// spender is a world whose runs have budgets, and whose writers say what they use.
type spender struct {
	*world
	limits []schema.Limit
	runs   []*foldtest.Writer
}

func newSpender(tb testing.TB) *spender {
	tb.Helper()
	return &spender{world: newWorld(tb), limits: []schema.Limit{{DayTokens: 1}, {Scope: schema.Scope{Agent: "agent-1"}, Each: "tenant", DayTokens: 1}}}
}

// hasty is the configuration of a fold worker that counts, seals and purges early.
func (w *spender) hasty(holder string) fold.Config {
	cfg := foldtest.Hasty()
	cfg.Holder, cfg.Limits = holder, func() []schema.Limit { return w.limits }
	return cfg
}

func (w *spender) start(run string) *foldtest.Writer {
	w.TB.Helper()
	x := w.Writer(run)
	x.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", Labels: map[string]string{"tenant": fmt.Sprint("t", len(w.runs)%3)}}, 0)
	w.runs = append(w.runs, x)
	return x
}

// use writes a turn that used tokens, and one whose model gave no answer.
func use(x *foldtest.Writer, tokens int64) {
	x.Turn++
	x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
	x.Publish(&schema.TurnAnsweredData{
		Turn: x.Turn, Usage: &schema.Usage{InputTokens: tokens, OutputTokens: 1},
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(string(foldtest.Noise(500, tokens)))}},
	}, x.Turn)
	x.Turn++
	x.Publish(&schema.TurnStartedData{Turn: x.Turn}, x.Turn)
	x.Publish(&schema.TurnEndedData{Turn: x.Turn, Usage: &schema.Usage{InputTokens: 1}, Error: &schema.Error{Type: "timeout"}}, x.Turn)
}

// requireExact waits until all is folded, and compares what was counted with the logs.
func (w *spender) requireExact(runs ...*foldtest.Writer) {
	w.TB.Helper()
	want, last := map[string]int64{}, uint64(0)
	for _, x := range runs {
		head := x.Model()
		want["--all"] += head.Usage.Tokens()
		want["--agent agent-1 --label tenant="+head.Labels["tenant"]] += head.Usage.Tokens()
		last = max(last, x.Last)
	}
	w.AwaitPassed(last)
	spent, _, err := w.Shard.Spent(w.TB.Context())
	require.NoError(w.TB, err)
	got := map[string]int64{}
	for i := range spent.Shares {
		got[spent.Shares[i].Flags()] = spent.Shares[i].Tokens
	}
	require.Equal(w.TB, want, got)
	require.Equal(w.TB, time.Now().UTC().Format(time.DateOnly), spent.Day, "the test ran over midnight")
}

// A fold worker that dies before or after any of its writes leaves counts with which the next one goes on.
func TestSpending_WorkerDiesAtAnyWrite_CountsEachTokenOnce(t *testing.T) {
	t.Parallel()
	every := int64(1)
	if testing.Short() {
		every = 6
		t.Log("short: each sixth write instead of each")
	}
	for _, when := range []string{"before", "after"} {
		t.Run(when+" a write", func(t *testing.T) {
			t.Parallel()
			w := newSpender(t)
			w.TB = t
			for k := int64(1); k <= 24; k += every {
				d := &foldtest.Tap{Prefixes: append(w.stepPrefixes(), "$KV."+schema.LeaseBucket+".spent."), After: when == "after"}
				var n atomic.Int64
				d.Set(func(string) {
					if n.Add(1) == k {
						d.Dead.Store(true)
					}
				})
				w.freeLease()
				_, end := w.FoldTapped(w.hasty(fmt.Sprintf("worker-%d-a", k)), d)
				x := w.start(fmt.Sprintf("run-%d", k))
				for i := range int64(4) {
					use(x, 100*k+i)
				}
				x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
				require.Eventually(t, func() bool { return d.Dead.Load() || len(w.Log(x.Run.Run)) == 1 }, time.Minute, 10*time.Millisecond)
				d.Dead.Store(true)
				w.freeLease()
				_, stop := w.Fold(w.hasty(fmt.Sprintf("worker-%d-b", k)))
				w.requireExact(w.runs...)
				stop()
				end() // what is left of the dead one only takes time from here on
			}
		})
	}
}

// A power cut undid the puts of checkpoints and of the watermark, which are not synced.
func TestSpending_PowerCutUndoesCheckpoints_CountsEachTokenOnce(t *testing.T) {
	t.Parallel()
	w := newSpender(t)
	_, stop := w.Fold(w.hasty("worker-1"))
	x := w.start("run-1")
	use(x, 10)
	w.requireExact(x)
	stop()
	mark, _, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	old, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	cfg := w.hasty("worker-2")
	cfg.SealBytes, cfg.SealEvents, cfg.SealMaxEvents, cfg.SealMaxBytes = 0, 0, 0, 0 // nothing is sealed
	_, stop = w.Fold(cfg)
	use(x, 20)
	y := w.start("run-2") // the power cut takes its only checkpoint
	use(y, 30)
	w.requireExact(x, y)
	stop()
	_, rev, err := w.Shard.Checkpoints.Watermark(t.Context())
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
	require.NoError(t, err)
	_, rev, err = w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
	require.NoError(t, err)
	_, err = w.Shard.Checkpoints.Put(t.Context(), old, rev)
	require.NoError(t, err)
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	require.NoError(t, kv.Purge(t.Context(), "run-2"))

	cfg.Holder, cfg.UncleanStart = "worker-3", true
	_, stop = w.Fold(cfg)
	use(x, 40)
	use(y, 50)
	w.requireExact(x, y)
	stop()
	// The whole bucket of checkpoints is lost: everything is folded again.
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+w.Names.CheckpointBucket()))
	cfg.Holder = "worker-4"
	w.Fold(cfg)
	use(x, 60)
	w.requireExact(x, y)
}

// A fold worker that was stopped as it stores its counts loses to the one that has the shard since.
func TestSpending_WorkerPausedAtItsPut_AnotherCounts(t *testing.T) {
	t.Parallel()
	w := newSpender(t)
	d := &foldtest.Tap{Prefixes: []string{"$KV." + schema.LeaseBucket + ".spent."}}
	paused, goOn := make(chan struct{}), make(chan struct{})
	var n atomic.Int64
	d.Set(func(string) {
		if n.Add(1) == 1 {
			close(paused)
			<-goOn
		}
	})
	w.FoldTapped(w.hasty("older"), d)
	x := w.start("run-1")
	use(x, 10)
	<-paused
	w.freeLease()
	w.Fold(w.hasty("newer"))
	use(x, 20)
	w.requireExact(x)
	close(goOn)
	use(x, 30)
	w.requireExact(x)
	d.Dead.Store(true)
}

func TestSpending_LogIsAnother_CountsFromZero(t *testing.T) {
	t.Parallel()
	w := newSpender(t)
	_, stop := w.Fold(w.hasty("worker-1"))
	x := w.start("run-1")
	use(x, 10)
	w.requireExact(x)
	stop()
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	require.NoError(t, w.JS.DeleteStream(t.Context(), w.Names.EventStream()))
	_, err = w.JS.CreateStream(t.Context(), stream.CachedInfo().Config)
	require.NoError(t, err)
	w.Fold(w.hasty("worker-2"))
	y := w.start("run-2")
	use(y, 20)
	w.Await("the new log", func(c *schema.Checkpoint) bool { return c.Run == "run-2" && uint64(c.Position.Stream) == y.Last })
	w.requireExact(y)
}

func TestSpending_NoBudget_NothingIsStored(t *testing.T) {
	t.Parallel()
	w := newSpender(t)
	w.limits = []schema.Limit{{AtWork: 3}}
	w.Fold(w.hasty("worker-1"))
	x := w.start("run-1")
	use(x, 10)
	w.AwaitPassed(x.Last)
	_, _, err := w.Shard.Spent(t.Context())
	require.ErrorIs(t, err, kvstore.ErrNotFound)
}
