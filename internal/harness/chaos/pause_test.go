//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// paused pauses a run between a model's answer and its call, and returns what the fleet lets begin in spite of it.
func paused(t *testing.T, w *waymarktest.World, id string) (mistakes []string) {
	t.Helper()
	f := w.Fleet("exec-"+id, nil)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "coder"})
	require.NoError(t, err)
	turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c", Name: "pay", Replay: publisher.Hold}
	_, err = turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{}}, Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	nc := w.Conn()
	ask := func(body string) {
		m, err := nc.Request(schema.ServiceSubject(schema.VerbPause, schema.DefaultFleet, ""), []byte(body), time.Minute)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), "%s", m.Data)
	}
	ask(`{"run":"` + id + `","reason":"why","by":"ann"}`)
	if _, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		mistakes = append(mistakes, "begun")
		return publisher.Result("paid")
	}); !errors.Is(err, publisher.ErrPaused) {
		require.NoError(t, err)
	}
	require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedPaused))
	if _, err = w.Fleet("other-"+id, nil).Resume(t.Context(), id, publisher.ResumeSpec{}); !errors.Is(err, publisher.ErrPaused) {
		require.NoError(t, err)
		mistakes = append(mistakes, "taken")
	}
	w.Daemon.Stop()
	stale := oldSettings(t, w)
	if _, err = w.Fleet("late-"+id, nil).Resume(t.Context(), id, publisher.ResumeSpec{}); !errors.Is(err, publisher.ErrPaused) {
		require.NoError(t, err)
		mistakes = append(mistakes, "taken by old settings")
	}
	stale()
	w.Daemon.Start()
	ask(`{"run":"` + id + `","end":true,"by":"ann"}`)
	again, err := w.Fleet("again-"+id, nil).Resume(t.Context(), id, publisher.ResumeSpec{})
	require.NoError(t, err)
	if _, err := again.StartTurn(t.Context(), publisher.TurnSpec{}); errors.Is(err, publisher.ErrPaused) {
		mistakes = append(mistakes, "still paused")
	}
	return mistakes
}

// oldSettings answers the fleet's requests as a daemon does that has not read the pauses, until the returned call.
func oldSettings(t *testing.T, w *waymarktest.World) (stop func()) {
	t.Helper()
	nc := w.Conn()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), schema.DefaultFleet)
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "stale")
	require.NoError(t, err)
	shards, log := []*kvstore.Shard{shard}, zerolog.Nop()
	svc, err := service.New(service.Config{Fleet: schema.DefaultFleet, Name: "stale"}, nc, js, shards, liveness.NewLiveRuns(shards, 0, w.Now, log), w.Now, log)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	<-svc.Ready()
	return func() {
		cancel()
		require.NoError(t, <-done)
	}
}

func TestMutants_Pauses_AreFound(t *testing.T) {
	w := waymarktest.Start(t)
	require.Empty(t, paused(t, w, "without"))
	for name, want := range map[string][]string{
		"begun-in-pause": {"begun"}, "taken-in-pause": {"taken by old settings"}, "paused-for-ever": {"taken by old settings", "still paused"},
	} {
		t.Run(name, func(t *testing.T) {
			undo, err := mutant.Switch(name)
			require.NoError(t, err)
			defer undo()
			require.Equal(t, want, paused(t, w, name))
		})
	}
}
