package consumer_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// One executor wrote runs whose checkpoints had more than 64 MiB together, and the shard had no fold worker for more
// than a few seconds, on any daemon: each began with a comparison that failed.
func TestDaemon_ShardOfLargestCheckpoints_KeepsItsWorker(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: 70 MB of checkpoints are written and read")
	}
	const runs = 200
	server := natstest.Start(t)
	js := server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20, Silence: kvstore.MinSilence}))
	names := schema.NamesOf("default", 0)
	d := &schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("x")}}}
	for i := range 1000 {
		text := fmt.Sprintf("%04d%s", i, strings.Repeat(`"`, 44))
		d.Calls = append(d.Calls, schema.RequestedCall{ToolCallID: text, Name: text, Replay: schema.ReplayHold})
	}
	write := func(run string, data ...schema.Data) {
		w := schema.Writer{Fleet: "default", Run: run, Executor: "executor-1", Epoch: 1}
		for _, d := range data {
			e, err := w.Event(d, 0, time.Now(), 0)
			require.NoError(t, err)
			require.NoError(t, w.Commit(e))
			header, body := e.Encode()
			_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: names.EventSubject(run), Header: header, Data: body})
			require.NoError(t, err)
		}
	}
	for i := range runs {
		write(fmt.Sprintf("large-%d", i), &schema.RunStartedData{Agent: "a", Executor: "executor-1"}, d)
	}
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "default")
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "tester")
	require.NoError(t, err)
	var broken atomic.Int32
	log := natstest.Logger(t).Hook(zerolog.HookFunc(func(_ *zerolog.Event, _ zerolog.Level, text string) {
		if strings.HasPrefix(text, "fold interrupted") || strings.HasPrefix(text, "live runs not checked") {
			broken.Add(1)
		}
	}))
	start := func() (stop func()) {
		daemon, err := consumer.New(t.Context(), consumer.Config{Fleet: "default", Name: "daemon", Service: js, Fold: server.JetStream(t), Alone: true}, time.Now, log)
		require.NoError(t, err)
		ctx, end := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- daemon.Run(ctx) }()
		<-daemon.Ready()
		return func() {
			end()
			require.NoError(t, <-done)
		}
	}
	stop := start()
	require.Eventually(t, func() bool {
		mark, _, err := shard.Checkpoints.Watermark(t.Context())
		return err == nil && mark.RebuildTo == 0 && mark.Position.Stream >= 2*runs
	}, 2*time.Minute, 50*time.Millisecond)
	stop()
	write("victim", &schema.RunStartedData{Agent: "b", Executor: "executor-1"})
	defer start()()
	var list func(req schema.ListRequest) []schema.RunSummary
	list = func(req schema.ListRequest) []schema.RunSummary {
		body, err := json.Marshal(&req)
		require.NoError(t, err)
		m, err := js.Conn().Request(schema.ServiceSubject(schema.VerbList, "default", ""), body, time.Minute)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get(schema.HeaderError))
		var page schema.ListReply
		require.NoError(t, json.Unmarshal(m.Data, &page))
		require.LessOrEqual(t, len(page.Runs), req.Limit)
		if req.After = page.Next; req.After == "" {
			return page.Runs
		}
		require.NotEmpty(t, page.Runs)
		return append(page.Runs, list(req)...)
	}
	require.Eventually(t, func() bool {
		c, _, err := shard.Checkpoints.Get(t.Context(), "victim")
		return err == nil && c.Status == schema.StatusOrphaned
	}, 2*time.Minute, 50*time.Millisecond, "its executor is found dead")
	require.Zero(t, broken.Load(), "nothing of the worker fails")
	require.Len(t, list(schema.ListRequest{Limit: 100}), runs+1)
	require.Len(t, list(schema.ListRequest{Limit: schema.MaxList, Agent: "a", Status: []schema.Status{schema.StatusRunning, schema.StatusOrphaned}}), runs)
}
