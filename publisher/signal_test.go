package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A plain executor hears of signals without reading the log, acts on them, and says so.
func TestSignals_PlainExecutor_HeardInOrderAndConsumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	run := start(t, w.fleet(), "r1")
	other := w.fleet(func(c *publisher.Config) { c.Executor = "exec-2" })
	begun := time.Now()
	waited := make(chan []publisher.Signal, 1)
	go func() {
		signals, _ := run.AwaitSignal(t.Context())
		waited <- signals
	}()
	for _, id := range []string{"s1", "s2"} {
		require.NoError(t, other.Signal(t.Context(), "r1", publisher.SignalSpec{ID: id, Name: "note", Payload: raw(`{"n": 1}`)}))
		require.NoError(t, other.Signal(t.Context(), "r1", publisher.SignalSpec{ID: id, Name: "note", Payload: raw(`{"n":1}`), By: "another"}))
	}
	came := <-waited
	require.NotEmpty(t, came)
	first := came[0]
	require.Equal(t, "s1", first.ID)
	require.Equal(t, "exec-2", first.From())
	require.JSONEq(t, `{"n":1}`, string(first.Payload))
	require.WithinRange(t, first.Sent, begun.Add(-time.Second), time.Now().Add(time.Second))
	var signals []publisher.Signal
	require.Eventually(t, func() bool {
		var err error
		signals, err = run.Signals(t.Context())
		require.NoError(t, err)
		return len(signals) == 2
	}, patience, time.Millisecond)
	require.Equal(t, []string{"s1", "s2"}, []string{signals[0].ID, signals[1].ID})
	require.NoError(t, run.ConsumeSignals(t.Context(), "s1"))
	require.ErrorIs(t, run.ConsumeSignals(t.Context(), "s1"), publisher.ErrRejected)
	signals, err := run.AwaitSignal(t.Context())
	require.NoError(t, err)
	require.Len(t, signals, 1)
	require.Equal(t, "s2", signals[0].ID)
	require.Equal(t, "s2", w.requireSameFold(run).Head.Signals[0].SignalID)
}

func TestSignal_WhatCannotBeSent_NamedError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	send := func(run string, s publisher.SignalSpec) error { return f.Signal(t.Context(), run, s) }
	require.ErrorIs(t, send("a b", publisher.SignalSpec{Name: "n"}), publisher.ErrConfig)
	require.ErrorIs(t, send("r1", publisher.SignalSpec{}), publisher.ErrConfig)
	require.ErrorIs(t, send("r1", publisher.SignalSpec{Name: "n", Payload: raw("{")}), publisher.ErrConfig)
	require.ErrorIs(t, send("r1", publisher.SignalSpec{Name: "n"}), publisher.ErrRunNotFound)
	run := start(t, f, "r1")
	require.ErrorIs(t, send("r1", publisher.SignalSpec{Name: "n", Payload: raw(`"` + strings.Repeat("x", schema.MaxSignalPayload) + `"`)}), publisher.ErrPayloadTooLarge)
	require.NoError(t, send("r1", publisher.SignalSpec{ID: "s1", Name: "n"}))
	require.ErrorIs(t, send("r1", publisher.SignalSpec{ID: "s1", Name: "other"}), publisher.ErrConflict)
	for i := range schema.MaxSignals - 1 {
		require.NoError(t, send("r1", publisher.SignalSpec{Name: fmt.Sprint(i)}))
	}
	require.ErrorIs(t, send("r1", publisher.SignalSpec{Name: "n"}), publisher.ErrSignalsFull)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	require.ErrorIs(t, send("r1", publisher.SignalSpec{Name: "n"}), publisher.ErrRunEnded)
}

// The refusal comes from the head that the handle knows, and from the log that it does not know yet.
func TestEnd_NoSignals_RefusedUntilAllAreConsumed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	end := publisher.RunEnd{NoSignals: true}
	signalTo(t, f, "s1", "1")
	require.ErrorIs(t, run.End(t.Context(), end), publisher.ErrSignalled, "met in the log")
	require.ErrorIs(t, run.End(t.Context(), end), publisher.ErrSignalled, "known")
	require.NoError(t, run.ConsumeSignals(t.Context(), "s1"))
	require.NoError(t, run.End(t.Context(), end))
	require.Equal(t, []string{"run.started", "signal.sent", "signal.consumed", "run.ended"}, names(w.log("r1")))
}

func TestSignals_UnrecordedRun_WaitsForNone(t *testing.T) {
	t.Parallel()
	require.Nil(t, publisher.InvocationOf(t.Context()).Run(), "outside of a tool")
	alone, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "test"}, publisher.RunSpec{ID: "alone", Agent: "coder"})
	require.NoError(t, err)
	_, err = alone.AwaitSignal(t.Context())
	require.ErrorIs(t, err, publisher.ErrUnrecorded)
}

func TestSignal_Redaction_TakenOutBeforeItIsSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(func(c *publisher.Config) { c.Redaction = &publisher.Redaction{Fields: []string{"password"}} })
	run := start(t, f, "r1")
	signalTo(t, f, "s1", `{"password":"hunter2"}`)
	require.NotContains(t, w.everything(), "hunter2")
	require.NoError(t, run.Sync(t.Context()))
	signals, err := run.Signals(t.Context())
	require.NoError(t, err)
	require.JSONEq(t, `{"password":"[redacted]"}`, string(signals[0].Payload))
}

// A model waits for a message by a tool.
func TestInvocation_ToolAwaitsASignal_ModelIsShownIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet()
	run := start(t, f, "r1")
	waits := make(chan struct{})
	wait := publisher.NewTool("wait", "Waits for the next message.", publisher.Pure, func(ctx context.Context, _ struct{}) (string, error) {
		close(waits)
		_, err := publisher.InvocationOf(ctx).Run().AwaitSignal(ctx)
		return "A message has come.", err
	})
	m := &scripted{answers: map[int32]publisher.Answer{1: calls(call("a", "wait", `{}`))}}
	done := make(chan error, 1)
	go func() { done <- publisher.Loop{Model: m.model, Tools: []publisher.Tool{wait}}.Work(t.Context(), run) }()
	<-waits
	signalTo(t, f, "s1", `"hello"`)
	require.NoError(t, <-done)
	require.Equal(t, []string{"user: write it", "assistant calls a wait{}", `tool a "A message has come."`, "user: Message \"note\" from ann:\nhello"}, m.sent()[1])
}

// The signal comes when the work has looked for signals and asked, and before the run is released. No notice comes.
func TestExecutor_SignalAsTheRunIsLetGo_WorkSeesIt(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	works := 0
	e := serveRuns(t, f, func(ctx context.Context, run *publisher.Run) error {
		works++
		signals, err := run.Signals(ctx)
		for _, s := range signals {
			err = errors.Join(err, run.ConsumeSignals(ctx, s.ID))
		}
		if err != nil {
			return err
		}
		_, err = run.Ask(ctx, question)
		if works == 1 {
			signalTo(t, f, "s1", "1")
		}
		return err
	}, func(s *publisher.ExecutorSpec) { s.WaitDetached = true })
	_, err := e.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.Equal(t, publisher.OutcomeWaiting, e.outcome(t, "r1").outcome)
	require.Equal(t, []string{"run.started", "run.waiting", "signal.sent", "signal.consumed", "run.interrupted"}, names(w.log("r1")))
	require.Equal(t, 2, works)
	require.NoError(t, e.stop())
}

// What the work did not consume is logged when the run ends.
func TestExecutor_EndsWithUnreadSignals_Logged(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	var lines lockedBuffer
	log := zerolog.New(&lines)
	f := w.fleet(func(c *publisher.Config) { c.Logger = &log })
	e := serveRuns(t, f, func(ctx context.Context, run *publisher.Run) error {
		signalTo(t, f, "s1", "1")
		return run.Sync(ctx)
	})
	_, err := e.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.Equal(t, publisher.OutcomeCompleted, e.outcome(t, "r1").outcome)
	require.Contains(t, lines.String(), "run has ended with signals that were not consumed")
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(line)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
