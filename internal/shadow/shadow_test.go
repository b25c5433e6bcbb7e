package shadow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/shadow"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// world is a shadow beside a fold that the test does.
type world struct {
	t      *testing.T
	shadow *shadow.Shadow
	heads  map[string]*schema.Head
	stream schema.StreamSequence
	// bend changes what the fold says, as a fault in it would.
	bend func(h *schema.Head)
}

func newWorld(t *testing.T, cfg shadow.Config, run bool) *world {
	t.Helper()
	cfg.Fleet, cfg.Now = "f", time.Now
	s, err := shadow.New(cfg, zerolog.Nop())
	require.NoError(t, err)
	w := &world{t: t, shadow: s, heads: map[string]*schema.Head{}}
	if run {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			require.NoError(t, <-done)
		})
	}
	return w
}

// writer writes the events of one run.
type writer struct {
	w *world
	schema.Writer
	n int
}

func (w *world) begin(run string) *writer {
	w.t.Helper()
	r := &writer{w: w, Writer: schema.Writer{Fleet: "f", Run: run, Executor: "ex-1", Epoch: 1}}
	r.write(&schema.RunStartedData{Agent: "a", Executor: "ex-1"}, 0)
	return r
}

func (r *writer) write(data schema.Data, turn int32) {
	r.w.t.Helper()
	e, err := r.Event(data, turn, time.Unix(int64(r.n), 0), 0)
	require.NoError(r.w.t, err)
	require.NoError(r.w.t, r.Commit(e))
	r.n++
	r.w.fold(r.Run, e)
}

func (w *world) fold(run string, e *schema.Event) {
	w.t.Helper()
	h := w.heads[run]
	if h == nil {
		fresh := schema.NewHead("f", run)
		h = &fresh
		w.heads[run] = h
	}
	w.stream++
	header, body := e.Encode()
	rec := schema.NewRecord(w.stream, header, body)
	before := h.Position.Stream
	v := h.Apply(schema.NoKeys, &rec)
	said := h.Clone()
	if w.bend != nil {
		w.bend(&said)
	}
	w.shadow.Folded(shadow.Folded{Run: run, Before: before, Record: &rec, Kind: v.Kind, Head: &said})
}

func (w *world) compared(n int64) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.shadow.Stats().Events.Load() >= n }, patience, time.Millisecond)
}

func TestWhereFoldAndModelAgreeNothingIsSaid(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shadow.Config{Share: 1}, true)
	for n := range 10 {
		r := w.begin(fmt.Sprintf("r-%d", n))
		r.write(&schema.TurnStartedData{Turn: 1}, 1)
		r.write(&schema.ToolCalledData{ToolCallID: "c1", Name: "ls", Replay: schema.ReplayPure}, 1)
		r.write(&schema.ToolReturnedData{ToolCallID: "c1"}, 1)
		r.write(&schema.TurnEndedData{Turn: 1}, 1)
		r.write(&schema.RunEndedData{Status: "completed"}, 0)
	}
	w.compared(60)
	require.Zero(t, w.shadow.Stats().Differences.Load())
	require.EqualValues(t, 10, w.shadow.Stats().Runs.Load())
	require.Zero(t, w.shadow.Stats().Left.Load())
	require.Empty(t, w.shadow.Last())
}

func TestAFaultOfTheFoldIsSaidWithRunEventAndField(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shadow.Config{Share: 1}, true)
	r := w.begin("r-1")
	w.compared(1)
	w.bend = func(h *schema.Head) { h.Turn = 7 }
	r.write(&schema.TurnStartedData{Turn: 1}, 1)
	require.Eventually(t, func() bool { return w.shadow.Stats().Differences.Load() == 1 }, patience, time.Millisecond)
	last := w.shadow.Last()
	require.Len(t, last, 1)
	require.Equal(t, "r-1", last[0].Run)
	require.EqualValues(t, 2, last[0].Stream)
	require.Contains(t, last[0].Event, "r-1.1.2.")
	require.Contains(t, last[0].String(), "7")
	r.write(&schema.TurnEndedData{Turn: 1}, 1)
	w.bend = nil
	w.begin("r-2")
	w.compared(3) // r-2's, behind that of r-1
	require.EqualValues(t, 1, w.shadow.Stats().Differences.Load(), "what follows from the first is no news")
}

func TestTheSameRunsAreChosenEachTimeAndAboutTheShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shadow.Config{Share: 0.25, Runs: 100_000}, false)
	const runs = 2000
	for n := range runs {
		w.begin(fmt.Sprintf("r-%d", n))
	}
	chosen := w.shadow.Stats().Runs.Load()
	require.InDelta(t, runs/4, chosen, runs/20)
	again := newWorld(t, shadow.Config{Share: 0.25, Runs: 100_000}, false)
	for n := range runs {
		again.begin(fmt.Sprintf("r-%d", n))
	}
	require.Equal(t, chosen, again.shadow.Stats().Runs.Load())
}

func TestWhatPassesABoundIsLetGoAndNeverWaitedFor(t *testing.T) {
	t.Parallel()
	t.Run("runs at once", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1, Runs: 3}, true)
		for n := range 10 {
			w.begin(fmt.Sprintf("r-%d", n))
		}
		require.EqualValues(t, 3, w.shadow.Stats().Runs.Load())
	})
	t.Run("events of a run", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1, Events: 5}, true)
		r := w.begin("r-1")
		for range 20 {
			r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0)
		}
		require.Eventually(t, func() bool { return w.shadow.Stats().Left.Load() == 1 }, patience, time.Millisecond)
		require.EqualValues(t, 5, w.shadow.Stats().Events.Load())
	})
	t.Run("events under way", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1}, false) // nobody takes them
		r := w.begin("r-1")
		for range 3000 {
			r.write(&schema.ErrorRaisedData{Error: schema.Error{Type: "x"}}, 0)
		}
		require.EqualValues(t, 1, w.shadow.Stats().Left.Load())
	})
	t.Run("a part that was folded elsewhere", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1}, true)
		r := w.begin("r-1")
		w.compared(1)
		w.stream, w.heads["r-1"].Position.Stream = 200, 150
		r.write(&schema.TurnStartedData{Turn: 1}, 1)
		require.EqualValues(t, 1, w.shadow.Stats().Left.Load())
		require.Zero(t, w.shadow.Stats().Differences.Load())
	})
	t.Run("a run that was let go and is folded anew", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1}, true)
		r := w.begin("r-1")
		w.compared(1)
		w.stream, w.heads["r-1"].Position.Stream = 200, 150
		r.write(&schema.TurnStartedData{Turn: 1}, 1)
		require.EqualValues(t, 1, w.shadow.Stats().Left.Load())
		delete(w.heads, "r-1") // its checkpoint was lost
		w.stream = 0
		w.begin("r-1").write(&schema.TurnStartedData{Turn: 1}, 1)
		w.compared(3)
		require.Zero(t, w.shadow.Stats().Differences.Load(), "%v", w.shadow.Last())
	})
	t.Run("a run that was under way", func(t *testing.T) {
		w := newWorld(t, shadow.Config{Share: 1}, true)
		h := schema.NewHead("f", "r-1")
		h.Position = schema.Position{Stream: 5, ID: "x"}
		w.heads["r-1"] = &h
		w.begin("r-1")
		require.Zero(t, w.shadow.Stats().Runs.Load())
	})
}

func TestSettingsThatCannotBeUsedAreNamed(t *testing.T) {
	t.Parallel()
	for _, cfg := range []shadow.Config{
		{Fleet: "f", Now: time.Now},
		{Fleet: "f", Now: time.Now, Share: 1.5},
		{Fleet: "f", Now: time.Now, Share: 1, Runs: -1},
		{Fleet: "f", Share: 1},
		{Fleet: "f f", Now: time.Now, Share: 1},
	} {
		_, err := shadow.New(cfg, zerolog.Nop())
		require.Error(t, err)
	}
}
