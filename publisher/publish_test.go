package publisher_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPublish_Run_StoredAsPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{user("hello")}})
	require.NoError(t, err)
	keys, err := turn.Answer(t.Context(), publisher.Answer{
		Message: assistant(schema.Text("let me look"), schema.CallPart("c1", "read"), schema.CallPart("c2", "read")),
		Calls: []publisher.ToolCall{
			{ID: "c1", Name: "read", Arguments: raw(`{"path":"a"}`), Replay: schema.ReplayPure}, {ID: "c2", Name: "read", Arguments: raw(`{"path":"b"}`)},
		},
		FinishReasons: []string{"stop"}, Usage: &schema.Usage{InputTokens: 7},
	})
	require.NoError(t, err)
	require.Equal(t, []schema.CallKey{{Turn: 1, ToolCallID: "c1", Occurrence: 1}, {Turn: 1, ToolCallID: "c2", Occurrence: 1}}, keys)
	require.NoError(t, turn.Return(t.Context(), keys[1], publisher.ToolResult{Result: raw(`"bb"`)}))
	require.NoError(t, turn.Fail(t.Context(), keys[0], schema.Error{Type: "not_found"}))
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}), "it is over")
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Summary: "done"}))
	s := w.requireSameFold(run)
	require.Equal(t, schema.StatusCompleted, s.Head.Status)
	require.Equal(t, []string{
		"run.started", "turn.started", "turn.answered", "tool.returned", "tool.failed", "run.ended",
	}, names(w.log("r1")))
	require.False(t, s.Head.TurnOpen)
	require.Empty(t, s.Head.OpenCalls)
}

func TestStart_IDTaken_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	start(t, f, "r1")
	_, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.Len(t, w.log("r1"), 1)
}

func TestStart_SameStartOtherHandle_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	spec := publisher.RunSpec{ID: "r1", Agent: "agent-1"}
	// A process that died and began again at the same time makes the identical event.
	at := func(c *publisher.Config) { c.Now = func() time.Time { return time.Unix(1_700_000_000, 0) } }
	first, err := w.fleet(at).Start(t.Context(), spec)
	require.NoError(t, err)
	_, err = w.fleet(at).Start(t.Context(), spec)
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.NoError(t, first.Mark(t.Context(), "still the writer"))
	_, err = w.fleet(at).Start(t.Context(), spec)
	require.ErrorIs(t, err, publisher.ErrRunExists)
	require.Len(t, w.log("r1"), 2)
}

func TestPublish_InvalidEvent_Refused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{Number: 3})
	require.NoError(t, err)
	_, err = turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "x"})
	require.NoError(t, err)
	before := len(w.log("r1"))
	var rejected *publisher.RejectedError
	_, err = run.StartTurn(t.Context(), publisher.TurnSpec{Number: 2})
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, schema.ReasonTurnOrder, rejected.Reason)
	_, err = turn.Call(t.Context(), publisher.ToolCall{ID: "c1", Name: "x"})
	require.ErrorAs(t, err, &rejected)
	require.Equal(t, schema.ReasonCallOpen, rejected.Reason)
	require.ErrorIs(t, turn.Return(t.Context(), schema.CallKey{Turn: 3, ToolCallID: "missing"}, publisher.ToolResult{}), publisher.ErrRejected)
	var data *schema.DataError
	require.ErrorAs(t, turn.Fail(t.Context(), schema.CallKey{Turn: 3, ToolCallID: "c1"}, schema.Error{}), &data)
	require.Equal(t, "/error/type", data.Path)
	require.Len(t, w.log("r1"), before)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	require.NoError(t, run.Mark(t.Context(), "late"), "a mark may follow the end")
	require.ErrorIs(t, run.AddMessage(t.Context(), user("late")), publisher.ErrRunEnded)
	w.requireSameFold(run)
}

func TestPublish_HigherEpoch_Fenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	old := start(t, f, "r1")
	second, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.ErrorIs(t, old.Mark(t.Context(), "mine"), publisher.ErrFenced)
	require.ErrorIs(t, old.Mark(t.Context(), "again"), publisher.ErrFenced, "the handle stays ended")
	require.ErrorIs(t, old.Err(), publisher.ErrFenced)
	require.NoError(t, second.Mark(t.Context(), "theirs"))
	w.requireSameFold(second)
}

func TestPublish_TwoWritersOneEpoch_Detected(t *testing.T) {
	t.Parallel()
	for name, others := range map[string]int{"at the same sequence": 1, "further ahead": 2} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			// A copy of this process, restored from a snapshot, writes on.
			writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-1", Epoch: 1, Last: 1}
			for range others {
				e, err := writer.Event(&schema.CheckpointMarkedData{Name: "copy"}, 0, time.Now(), 0)
				require.NoError(t, err)
				require.NoError(t, writer.Commit(e))
				w.put(e)
			}
			require.ErrorIs(t, run.Mark(t.Context(), "mine"), publisher.ErrForked)
			require.ErrorIs(t, run.Err(), publisher.ErrForked)
			require.Len(t, w.log("r1"), 1+others)
		})
	}
}

func TestPublish_OwnIDWithOtherContent_Detected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	run := start(t, w.fleet(func(c *publisher.Config) { c.Heartbeat, c.Now = -1, func() time.Time { return now } }), "r1")
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-1", Epoch: 1, Last: 1}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "mine"}, 0, now, 0)
	require.NoError(t, err)
	e.Data = raw(`{"name":"theirs"}`)
	w.put(e)
	require.ErrorIs(t, run.Mark(t.Context(), "mine"), publisher.ErrForked)
	require.Len(t, w.log("r1"), 2)
	require.EqualValues(t, 1, w.fold("r1").Head.Counts.DeadLetters, "the fold refuses it")
}

// A cluster looks for the message id before it compares, so it calls the event a duplicate of the other message.
func TestPublish_DuplicateOfOwnIDWithOtherContent_Detected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	now := time.Now()
	run := start(t, w.fleet(func(c *publisher.Config) { c.Heartbeat, c.Now = -1, func() time.Time { return now } }), "r1")
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-1", Epoch: 1, Last: 1}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "mine"}, 0, now, 0)
	require.NoError(t, err)
	e.Data = raw(`{"name":"theirs"}`)
	w.put(e)
	w.unwritable()
	_, err = w.nc.Subscribe(w.names.EventSubjects(), func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"stream":"` + w.names.EventStream() + `","seq":2,"duplicate":true}`))
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	require.ErrorIs(t, run.Mark(t.Context(), "mine"), publisher.ErrForked)
	require.ErrorIs(t, run.Err(), publisher.ErrForked)
}

func TestPublish_ControlEventArrived_FoldedThenPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "i1", Reason: "human_input"}))
	w.control("r1", 1, &schema.RunInputData{InterruptID: "i1", Payload: raw(`"yes"`), By: "anna"})
	w.control("r1", 1, &schema.RunOrphanedData{Executor: "exec-1"})
	require.NoError(t, run.Mark(t.Context(), "behind"))
	input, err := run.AwaitInput(t.Context(), "i1")
	require.NoError(t, err)
	require.Equal(t, `"yes"`, string(input.Payload))
	require.Equal(t, schema.StatusRunning, w.requireSameFold(run).Head.Status)
}

func TestPublish_CancelRecorded_StopsNewWorkOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	w.control("r1", 1, &schema.RunCancelRequestedData{By: "anna"})
	ran := false
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		ran = true
		return publisher.ToolResult{}, nil
	})
	require.ErrorIs(t, err, publisher.ErrCancelRequested)
	require.False(t, ran)
	require.True(t, run.CancelRequested())
	require.NoError(t, run.Err(), "the handle goes on")
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}))
	recovery, err := run.StartTurn(t.Context(), publisher.TurnSpec{Purpose: schema.PurposeRecovery})
	require.NoError(t, err)
	require.NoError(t, recovery.End(t.Context(), publisher.TurnEnd{}))
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusCancelled}))
	w.requireSameFold(run)
}

func TestPublish_ResultAfterCancel_Accepted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "deploy"}, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		w.control("r1", 1, &schema.RunCancelRequestedData{By: "anna"})
		return publisher.Result("done")
	})
	require.NoError(t, err)
	require.Empty(t, w.requireSameFold(run).Head.OpenCalls)
}

func TestPublish_ForeignMessages_FoldedThenPublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	_, err := w.js.Publish(t.Context(), w.names.EventSubject("r1"), []byte("no event at all"))
	require.NoError(t, err)
	require.NoError(t, run.Mark(t.Context(), "behind"))
	require.Equal(t, w.fold("r1"), run.State())
	require.Equal(t, int64(1), run.Head().Counts.DeadLetters)
}

func TestPublish_LowerEpochMessage_PublishedAfter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	start(t, f, "r1")
	second, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.NoError(t, err)
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-0", Epoch: 1, Last: 1}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "ghost"}, 0, time.Now(), 0)
	require.NoError(t, err)
	w.put(e)
	require.NoError(t, second.Mark(t.Context(), "mine"))
	require.Equal(t, w.fold("r1"), second.State())
	require.Equal(t, int64(1), second.Head().Counts.Fenced)
}

func TestPublish_LogLost_Regression(t *testing.T) {
	t.Parallel()
	tests := map[string]func(*testing.T, *world, jetstream.Stream){
		"when the run was purged": func(t *testing.T, w *world, s jetstream.Stream) {
			t.Helper()
			require.NoError(t, s.Purge(t.Context(), jetstream.WithPurgeSubject(w.names.EventSubject("r1"))))
		},
		"when the stream was made again": func(t *testing.T, w *world, s jetstream.Stream) {
			t.Helper()
			cfg := s.CachedInfo().Config
			require.NoError(t, w.js.DeleteStream(t.Context(), cfg.Name))
			_, err := w.js.CreateStream(t.Context(), cfg)
			require.NoError(t, err)
		},
		"when its sequences were used again": func(t *testing.T, w *world, s jetstream.Stream) {
			t.Helper()
			cfg := s.CachedInfo().Config
			require.NoError(t, w.js.DeleteStream(t.Context(), cfg.Name))
			_, err := w.js.CreateStream(t.Context(), cfg)
			require.NoError(t, err)
			for range 5 {
				w.control("r1", 1, &schema.RunCancelRequestedData{By: "anna"})
			}
		},
	}
	for name, damage := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			run := start(t, w.fleet(), "r1")
			require.NoError(t, run.Mark(t.Context(), "one"))
			s, err := w.js.Stream(t.Context(), w.names.EventStream())
			require.NoError(t, err)
			damage(t, w, s)
			require.ErrorIs(t, run.Mark(t.Context(), "two"), publisher.ErrLogRegressed)
			require.ErrorIs(t, run.Err(), publisher.ErrLogRegressed)
		})
	}
}

// The server is put back to an older copy of its store while the handle's connection is down. Another executor goes on with the run, and
// its last message gets the very stream sequence that the handle's last one had.
func TestPublish_LogWentBack_NotAcknowledged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	require.NoError(t, run.Mark(t.Context(), "one"))
	s, err := w.js.Stream(t.Context(), w.names.EventStream())
	require.NoError(t, err)
	first, err := s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	require.NoError(t, w.js.DeleteStream(t.Context(), w.names.EventStream()))
	_, err = w.js.CreateStream(t.Context(), s.CachedInfo().Config)
	require.NoError(t, err)
	_, err = w.js.PublishMsg(t.Context(), &nats.Msg{Subject: first.Subject, Header: first.Header, Data: first.Data})
	require.NoError(t, err)
	w.control("r1", 1, &schema.RunCancelRequestedData{By: "anna"})
	before := w.nc.Stats().Reconnects
	require.NoError(t, w.nc.ForceReconnect())
	require.Eventually(t, func() bool { return w.nc.Stats().Reconnects > before && w.nc.IsConnected() }, time.Minute, time.Millisecond)

	require.ErrorIs(t, run.Mark(t.Context(), "two"), publisher.ErrLogRegressed)
	require.ErrorIs(t, run.Err(), publisher.ErrLogRegressed)
	require.Len(t, w.log("r1"), 2, "nothing was stored behind it")
}

func TestPublish_FullFleet_ReportedAndHeals(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.limit(1 << 20)
	run := start(t, w.fleet(), "r1")
	big := strings.Repeat("x", 200<<10)
	var err error
	n := 0
	for ; err == nil && n < 1000; n++ {
		err = run.AddMessage(t.Context(), user(big))
	}
	require.ErrorIs(t, err, publisher.ErrFleetFull)
	var full *publisher.FullError
	require.ErrorAs(t, err, &full)
	require.Equal(t, int64(1<<20), full.Quota)
	require.Positive(t, full.Used)
	require.NoError(t, run.Err(), "the handle goes on")
	require.Len(t, w.log("r1"), n, "run.started, and each message that returned nil")

	w.limit(2 << 20)
	require.NoError(t, run.AddMessage(t.Context(), user(big)))
	w.requireSameFold(run)
}

func TestPublish_Oversized_NamesLargestField(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	err = run.Publish(t.Context(), &schema.ToolCalledData{ToolCallID: "c1", Name: "x", Extra: raw(`{"a":1,"deep":{"b":"` + strings.Repeat("x", 600<<10) + `"}}`)}, 1)
	require.ErrorIs(t, err, publisher.ErrPayloadTooLarge)
	require.ErrorContains(t, err, "its largest field /deep has 6144")
	require.NoError(t, turn.End(t.Context(), publisher.TurnEnd{}), "the handle goes on")
	w.requireSameFold(run)
}

func TestPublish_OversizedForStream_Reported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	s, err := w.js.Stream(t.Context(), w.names.EventStream())
	require.NoError(t, err)
	cfg := s.CachedInfo().Config
	cfg.MaxMsgSize = 4 << 10
	_, err = w.js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	require.ErrorIs(t, run.AddMessage(t.Context(), user(strings.Repeat("x", 8<<10))), publisher.ErrPayloadTooLarge)
	require.NoError(t, run.Mark(t.Context(), "small"))
	w.requireSameFold(run)
}

func TestPublish_EarlierAttemptStored_Found(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	run := start(t, w.fleet(func(c *publisher.Config) {
		c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options()
	}), "r1")
	p.dropAcks(1)
	require.NoError(t, run.Mark(t.Context(), "one"))
	require.Equal(t, 1, p.dropped())
	require.Len(t, w.log("r1"), 2, "the retry is the same message")
	require.NoError(t, run.Mark(t.Context(), "two"))
	w.requireSameFold(run)
}

func TestPublish_NoAnswer_Unresolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	run := start(t, f, "r1")
	p.deafen(f)
	require.ErrorIs(t, run.Mark(t.Context(), "one"), publisher.ErrUnresolved)
	require.ErrorIs(t, run.Err(), publisher.ErrUnresolved)
	require.ErrorIs(t, run.Mark(t.Context(), "two"), publisher.ErrUnresolved, "another event may not follow")
	p.heal(f)
	require.ErrorIs(t, run.Mark(t.Context(), "two"), publisher.ErrUnresolved, "not even when the server answers again")
	require.NoError(t, run.Mark(t.Context(), "one"), "the same event may")
	require.NoError(t, run.Err())
	require.NoError(t, run.Mark(t.Context(), "two"))
	require.Len(t, w.log("r1"), 3)
	w.requireSameFold(run)
}

func TestResolve_UnresolvedHandle_Repaired(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	f := w.fleet(func(c *publisher.Config) { c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options() })
	run := start(t, f, "r1")
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	p.deafen(f)
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: assistant(schema.CallPart("c1", "x")), Calls: []publisher.ToolCall{{ID: "c1", Name: "x"}}})
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	p.heal(f)
	require.NoError(t, run.Resolve(t.Context()))
	require.NoError(t, run.Resolve(t.Context()), "nothing is left to resolve")
	require.NoError(t, turn.Return(t.Context(), schema.CallKey{Turn: 1, ToolCallID: "c1"}, publisher.ToolResult{}))
	require.Equal(t, []string{"run.started", "turn.answered", "tool.returned"}, names(w.log("r1")))
	w.requireSameFold(run)
}

func TestPublish_ServerRestarts_Waits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.PublishTimeout = 20 * time.Second }), "r1")
	w.server.Stop(t)
	done := make(chan error, 1)
	go func() { done <- run.Mark(context.WithoutCancel(t.Context()), "one") }()
	w.server.Resume(t)
	require.NoError(t, <-done)
	require.NoError(t, run.Mark(t.Context(), "two"))
	w.requireSameFold(run)
}

// nats.go ends requests that wait with ErrConnectionClosed, which it also returns for a publish that it did not begin.
func TestPublish_ConnectionClosedBeforeTheAnswer_Unresolved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	nc, err := nats.Connect(p.url(), append(w.server.Options(), nats.ReconnectBufSize(-1))...)
	require.NoError(t, err)
	f := w.fleet(func(c *publisher.Config) {
		c.Conn, c.Executor, c.TryTimeout = nc, "exec-2", 500*time.Millisecond
	})
	const runs = 24
	var list [runs]*publisher.Run
	for i := range list {
		list[i] = start(t, f, fmt.Sprintf("r%d", i))
	}
	p.hold()
	var group sync.WaitGroup
	var errs [runs]error
	for i := range list {
		group.Go(func() { errs[i] = list[i].AddMessage(t.Context(), user("hello")) })
	}
	require.Eventually(t, func() bool {
		for i := range list {
			if len(w.log(list[i].ID())) != 2 {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond, "all of them are stored")
	nc.Close()
	p.release()
	group.Wait()
	for i, err := range errs {
		require.ErrorIs(t, err, publisher.ErrUnresolved, "run %d", i)
		require.NotErrorIs(t, err, publisher.ErrUnavailable, "run %d", i)
	}
	err = list[0].AddMessage(t.Context(), user("again"))
	require.ErrorIs(t, err, publisher.ErrUnresolved, "only the same event may follow")
}

func TestPublish_ConnectionClosedBefore_Unavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	nc, err := nats.Connect(w.server.URL(), append(w.server.Options(), nats.ReconnectBufSize(-1))...)
	require.NoError(t, err)
	run := start(t, w.fleet(func(c *publisher.Config) { c.Conn, c.Executor = nc, "exec-2" }), "r1")
	nc.Close()
	err = run.Mark(t.Context(), "one")
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.NotErrorIs(t, err, publisher.ErrUnresolved)
	require.Len(t, w.log("r1"), 1)
}

// A request that was sent may have had its effect, whatever came of its answer; a reading has none.
func TestRequest_AnswerLost_UnresolvedIfItChangesSomething(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = 500 * time.Millisecond })
	start(t, f, "r1")
	for _, verb := range []string{schema.VerbGet, schema.VerbSettle, schema.VerbRecover} {
		sub, err := w.nc.Subscribe(schema.ServiceSubject(verb, "default", "r1"), func(*nats.Msg) {})
		require.NoError(t, err)
		t.Cleanup(func() { _ = sub.Unsubscribe() })
	}
	require.NoError(t, w.nc.Flush())
	_, err := f.Head(t.Context(), "r1")
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.NotErrorIs(t, err, publisher.ErrUnresolved)
	_, err = f.Settle(t.Context(), "r1", schema.SettleRequest{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}, CallEpoch: 1, How: schema.SettledRerun, By: "ann"})
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.ErrorIs(t, err, publisher.ErrUnresolved)
}

func TestPublish_ServerAway_Unavailable(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.PublishTimeout = 2 * time.Second }), "r1")
	w.server.Stop(t)
	require.Eventually(t, func() bool { return !w.nc.IsConnected() }, time.Minute, time.Millisecond, "until the client knows, it sends what may be stored")
	err := run.Mark(t.Context(), "one")
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.NotErrorIs(t, err, publisher.ErrUnresolved, "nothing was sent, so nothing is in doubt")
	w.server.Resume(t)
	require.Eventually(t, w.nc.IsConnected, time.Minute, time.Millisecond)
	require.NoError(t, run.Mark(t.Context(), "two"), "another event may follow")
	require.Len(t, w.log("r1"), 2)
	w.requireSameFold(run)
}

func TestPublish_ServerKilledBetween_LosesNothing(t *testing.T) {
	t.Parallel()
	tests := 3
	p := newProcessWorld(t)
	run := start(t, p.fleet, "r1")
	for range tests {
		require.NoError(t, run.Mark(t.Context(), "before"))
		p.server.Kill9(t)
		done := make(chan error, 1)
		go func() { done <- run.Mark(context.WithoutCancel(t.Context()), "after") }()
		p.server.Start(t)
		require.NoError(t, <-done)
	}
	require.Equal(t, int64(1+2*tests), run.Head().Counts.Events)
	s := schema.NewState("default", "r1")
	for _, rec := range p.log(t, "r1") {
		s.Apply(schema.NoKeys, &rec)
	}
	s.Settle()
	require.Equal(t, s, run.State())
}

func TestPublish_MessageIDOnOtherSubject_NoSuccess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := w.fleet(func(c *publisher.Config) { c.TryTimeout, c.Now = patience, func() time.Time { return at } })
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-1", Epoch: 1, Last: 1}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "one"}, 0, at, 0)
	require.NoError(t, err)
	// Another client of the fleet guesses the id and uses it first.
	_, err = w.js.PublishMsg(t.Context(), &nats.Msg{Subject: w.names.EventSubject("other"), Data: []byte("x")}, jetstream.WithMsgID(e.ID))
	require.NoError(t, err)
	publisher.SetPublishTimeout(f, 2*time.Second)
	err = run.Mark(t.Context(), "one")
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	require.ErrorContains(t, err, "is used by another message")
	require.Len(t, w.log("r1"), 1)
}

// What an earlier try found is in the error, though the last try had no answer when the deadline ended it.
func TestPublish_DeadlineEndsTheLastTry_ErrorSaysWhatWasFoundBefore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.TryTimeout = patience })
	run := start(t, f, "r1")
	w.unwritable()
	asked := 0
	_, err := w.nc.Subscribe(w.names.EventSubjects(), func(m *nats.Msg) {
		if asked++; asked == 1 {
			_ = m.Respond([]byte(`{"stream":"` + w.names.EventStream() + `","seq":9,"duplicate":true}`))
		}
	})
	require.NoError(t, err)
	require.NoError(t, w.nc.Flush())
	publisher.SetPublishTimeout(f, 3*time.Second)
	err = run.Mark(t.Context(), "one")
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	require.ErrorContains(t, err, "is used by another message")
}

func TestPublish_CallerCancels_Returns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, run.Mark(ctx, "one"), context.Canceled)
	require.NoError(t, run.Resolve(t.Context()))
	require.NoError(t, run.Mark(t.Context(), "two"))
	w.requireSameFold(run)
}
