//go:build waymark_failpoints

package mutant_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

func TestChildEnd_DaemonAndServerEndAfterTheSignal_IsToldOnce(t *testing.T) {
	require.Empty(t, told(t, func(w *waymarktest.World) {
		w.Server.Stop()
		w.Server.Start()
	}))
}

// The daemon is killed between the signal and the deletion of the key.
func TestChildEnd_Mistakes_AreFound(t *testing.T) {
	check := func(t *testing.T) []string {
		t.Helper()
		return told(t, nil)
	}
	eachMistake(t, check, map[string]string{"told-twice": "told again", "never-told": "not told"})
}

// told returns what is wrong with a parent whose daemon dies after the signal. The next daemon starts after between.
func told(t *testing.T, between func(*waymarktest.World)) (wrong []string) {
	t.Helper()
	w := waymarktest.Start(t)
	e := w.Serve("parent", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"parent": func(context.Context, *publisher.Run) (publisher.Work, error) {
			return func(ctx context.Context, run *publisher.Run) error {
				end, err := run.Delegate(ctx, publisher.RunSpec{ID: "child", Agent: "child"})
				if err != nil {
					return err
				}
				return run.End(ctx, publisher.RunEnd{Summary: end.Summary})
			}, nil
		},
	}}, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "parent", Agent: "parent"})
	require.NoError(t, err)
	w.Await("parent", schema.StatusWaiting)
	e.Stop()
	w.Daemon.Stop()
	died := dying(t, w)
	child, err := w.Fleet("child", nil).Resume(t.Context(), "child", publisher.ResumeSpec{})
	require.NoError(t, err)
	require.NoError(t, child.End(t.Context(), publisher.RunEnd{Summary: "done"}))
	died()
	if between != nil {
		between(w)
	}
	w.Daemon.Start()
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).CheckpointBucket())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := kv.Get(t.Context(), schema.UntoldKeyPrefix+"child")
		return errors.Is(err, jetstream.ErrKeyNotFound)
	}, time.Minute, 10*time.Millisecond)
	switch n := len(w.State("parent").Signals); {
	case n == 0:
		return []string{"not told"}
	case n > 1:
		wrong = append(wrong, "told again")
	}
	e.Start()
	require.Equal(t, "done", w.Ended("parent").Summary, "the parent wakes")
	return wrong
}

// dying starts a daemon that dies once it has told a parent. The returned call waits for that.
func dying(t *testing.T, w *waymarktest.World) (died func()) {
	t.Helper()
	forService, forFold := w.Conn(), w.Conn()
	service, err := jetstream.New(forService)
	require.NoError(t, err)
	folding, err := jetstream.New(forFold)
	require.NoError(t, err)
	daemon, err := consumer.New(t.Context(), consumer.Config{
		Fleet: schema.DefaultFleet, Name: "dying", Service: service, Fold: folding, Alone: true,
		Worker: fold.Config{LeaseTTL: time.Second, Linger: 1},
	}, w.Now, zerolog.Nop())
	require.NoError(t, err)
	dead := make(chan struct{})
	once := sync.OnceFunc(func() {
		forService.Close()
		forFold.Close()
		close(dead)
	})
	ctx, cancel := context.WithCancel(failpoint.With(t.Context(), func(_ context.Context, p failpoint.Point) error {
		if p != failpoint.AfterTold {
			return nil
		}
		once()
		return errors.New("the daemon died here")
	}))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = daemon.Run(ctx) // from the closed connections
	}()
	<-daemon.Ready()
	return func() {
		t.Helper()
		select {
		case <-dead:
		case <-time.After(time.Minute):
			require.FailNow(t, "no parent was told")
		}
		cancel()
		<-ended
	}
}
