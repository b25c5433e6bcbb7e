package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPipeline_Events_SameAsDirect(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	digests := map[string]bool{}
	for _, window := range []int{0, 1, 3, 64, 1000} {
		w := newWorld(t)
		ctx := publisher.WithTime(t.Context(), at)
		run, err := w.fleet(func(c *publisher.Config) { c.Instance = "one" }).Start(ctx, publisher.RunSpec{ID: "r1"})
		require.NoError(t, err)
		if window > 0 {
			require.NoError(t, run.Pipelined(publisher.Window{Events: window}))
		}
		for i := range 30 {
			turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{user(fmt.Sprint(i))}})
			require.NoError(t, err)
			keys, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.CallPart("c", "x")), Calls: []publisher.ToolCall{{ID: "c", Name: "x"}}})
			require.NoError(t, err)
			require.NoError(t, turn.Return(ctx, keys[0], publisher.ToolResult{Result: raw("1")}))
		}
		require.NoError(t, run.Synchronous(ctx))
		require.NoError(t, run.End(ctx, publisher.RunEnd{}))
		digests[w.requireSameFold(run).Head.Digest] = true
	}
	require.Len(t, digests, 1, "the mode must not show in the log")
}

func TestPipeline_Flush_WaitsForQueue(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Pipelined(publisher.Window{}))
	n := 1
	for range 5 {
		for range 37 {
			require.NoError(t, run.AddMessage(t.Context(), user("x")))
			n++
		}
		require.NoError(t, run.Flush(t.Context()))
		require.Len(t, w.log("r1"), n)
	}
	w.requireSameFold(run)
}

func TestPipeline_Batch_NumbersMembers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	noise := start(t, f, "noise")
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	var calls []publisher.ToolCall
	for i := range 50 {
		calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "x"})
	}
	require.NoError(t, noise.Mark(t.Context(), "between"))
	_, err := turn.Call(t.Context(), calls...)
	require.NoError(t, err)
	require.NoError(t, noise.Mark(t.Context(), "after"))
	require.Equal(t, 51, w.batched(), "the start of the turn and its calls")
	log := w.log("r1")
	require.Equal(t, log[len(log)-1].Stream, run.Head().Position.Stream)
	require.Equal(t, schema.StreamSequence(50), log[len(log)-1].Stream-log[1].Stream)
	require.Equal(t, "1", log[len(log)-1].Header["ce-turn"][0])
	require.NoError(t, run.Mark(t.Context(), "x"))
	w.requireSameFold(run)
}

func TestPipeline_BatchRefused_ResolvedSingly(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T, *world, *proxy){
		"a control event came first": func(_ *testing.T, w *world, _ *proxy) {
			w.control("r1", 1, &schema.RunOrphanedData{})
		},
		"its acknowledgement was lost":   func(_ *testing.T, _ *world, p *proxy) { p.dropAcks(1) },
		"two acknowledgements were lost": func(_ *testing.T, _ *world, p *proxy) { p.dropAcks(2) },
		"batches were switched off": func(t *testing.T, w *world, _ *proxy) {
			t.Helper()
			s, err := w.js.Stream(t.Context(), w.names.EventStream())
			require.NoError(t, err)
			cfg := s.CachedInfo().Config
			cfg.AllowAtomicPublish = false
			_, err = w.js.UpdateStream(t.Context(), cfg)
			require.NoError(t, err)
		},
	}
	for name, trouble := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			p := newProxy(t, w.server.URL())
			f := w.fleet(func(c *publisher.Config) {
				c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options()
			})
			run := start(t, f, "r1")
			turn := openTurn(t, run)
			trouble(t, w, p)
			var calls []publisher.ToolCall
			for i := range 20 {
				calls = append(calls, publisher.ToolCall{ID: fmt.Sprint(i), Name: "x"})
			}
			_, err := turn.Call(t.Context(), calls...)
			require.NoError(t, err)
			require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
			s := w.requireSameFold(run)
			require.Len(t, s.Calls, 20)
			require.Zero(t, s.Head.Counts.Duplicates)
		})
	}
}

func TestPipeline_Error_Sticky(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(1 << 20)
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", HeadOnly: true})
	require.NoError(t, err)
	require.NoError(t, run.Pipelined(publisher.Window{}))
	big := strings.Repeat("x", 200<<10)
	for n := 0; err == nil && n < 1000; n++ {
		err = run.AddMessage(t.Context(), user(big))
	}
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	require.ErrorIs(t, run.Mark(t.Context(), "small"), publisher.ErrFleetFull)
	require.ErrorIs(t, run.Flush(t.Context()), publisher.ErrFleetFull)
	require.ErrorIs(t, run.Synchronous(t.Context()), publisher.ErrFleetFull)
	require.Equal(t, w.fold("r1").Head, run.Head(), "the handle is where the log is")
	w.limit(2 << 20)
	require.NoError(t, run.Mark(t.Context(), "on"), "and goes on from there")
	require.Equal(t, w.fold("r1").Head, run.Head())
}

func TestPipeline_ControlEvents_Folded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Pipelined(publisher.Window{Events: 20}))
	for i := range 200 {
		require.NoError(t, run.AddMessage(t.Context(), user("x")))
		if i%50 == 0 {
			w.control("r1", 1, &schema.RunCancelRequestedData{By: fmt.Sprint(i)})
		}
	}
	require.NoError(t, run.Flush(t.Context()))
	require.True(t, run.CancelRequested())
	s := w.requireSameFold(run)
	require.Len(t, s.Messages, 200)
}

func TestPipeline_Fenced_Stops(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	require.NoError(t, run.Pipelined(publisher.Window{}))
	resume(t, f, "r1")
	var err error
	for n := 0; err == nil && n < 10_000; n++ {
		err = run.AddMessage(t.Context(), user("x"))
	}
	require.ErrorIs(t, err, publisher.ErrFenced)
	require.ErrorIs(t, run.Synchronous(t.Context()), publisher.ErrFenced)
	require.Len(t, w.log("r1"), 2)
}

func TestPipeline_Tool_DurableFirst(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Pipelined(publisher.Window{}))
	turn := openTurn(t, run)
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "x"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		require.Len(t, w.log("r1"), 3)
		return publisher.Result("ok")
	})
	require.NoError(t, err)
	require.Len(t, w.log("r1"), 4)
	w.requireSameFold(run)
}

func TestPipeline_Close_SendsQueued(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-1", Agent: "coder"})
	require.NoError(t, err)
	run := start(t, f, "r1")
	require.NoError(t, run.Pipelined(publisher.Window{Events: 2}))
	for range 100 {
		require.NoError(t, run.AddMessage(t.Context(), user("x")))
	}
	require.NoError(t, f.Close(t.Context()))
	require.Len(t, w.log("r1"), 101)
	require.False(t, w.nc.IsClosed(), "the connection is the caller's")
}

func TestPipeline_CloseUnsent_Reported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.nc, Executor: "exec-1", Agent: "coder"})
	require.NoError(t, err)
	run := start(t, f, "r1")
	require.NoError(t, run.Pipelined(publisher.Window{}))
	w.server.Stop(t)
	require.NoError(t, run.AddMessage(t.Context(), user("x")))
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, f.Close(ctx))
}

func TestPipeline_ManyRuns_Concurrent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	var wait sync.WaitGroup
	for i := range 48 {
		wait.Go(func() {
			run, err := f.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", i)})
			for n := 0; err == nil && n < 20; n++ {
				if n%7 == 3 {
					w.control(run.ID(), 1, &schema.RunOrphanedData{})
				}
				err = run.AddMessage(t.Context(), user(fmt.Sprint(n)))
			}
			if err != nil {
				t.Errorf("run %d: %v", i, err)
				return
			}
			w.requireSameFold(run)
		})
	}
	wait.Wait()
}
