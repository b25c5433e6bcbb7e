package cli

import (
	"bytes"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Of several replicas, one that is cut off or lags answers, too: what it has is shown, and the command fails.
func TestEvents_SeveralReplicas_FailUnlessADaemonProvesTheEnd(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "default", QuotaBytes: 64 << 20}))
	w := schema.Writer{Fleet: "default", Run: "r1", Executor: "e", Epoch: 1}
	e, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "e"}, 0, time.Now(), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.NamesOf("default", 0).EventSubject("r1"), Header: header, Data: body})
	require.NoError(t, err)
	login := nats.GetDefaultOptions()
	for _, option := range server.Options() {
		require.NoError(t, option(&login))
	}
	env := map[string]string{"NATS_USER": login.User, "NATS_PASSWORD": login.Password, "NATS_TOKEN": login.Token}
	events := func(wanted failure.Code) (complaint string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		args := []string{"events", "r1", "--all", "--no-follow", "--nats", server.URL(), "--timeout", "1s"}
		code := Run(t.Context(), args, func(name string) string { return env[name] }, strings.NewReader(""), &stdout, &stderr)
		require.Equal(t, wanted, failure.Code(code), "%s%s", &stdout, &stderr)
		require.Equal(t, 1, strings.Count(stdout.String(), "run.started"), &stdout)
		return stderr.String()
	}
	require.Empty(t, events(failure.OK), "a lone server has all events")

	kv, err := js.KeyValue(t.Context(), schema.FleetBucket)
	require.NoError(t, err)
	stored, err := kv.Get(t.Context(), "default")
	require.NoError(t, err)
	settings := bytes.Replace(stored.Value(), []byte(`"replicas":1`), []byte(`"replicas":3`), 1)
	require.NotEqual(t, stored.Value(), settings)
	_, err = kv.Put(t.Context(), "default", settings)
	require.NoError(t, err)
	require.Contains(t, events(failure.Unavailable), "no daemon answers, so run r1 may have more events")

	// A daemon that knows of one event more than the log that is read.
	var last atomic.Uint64
	last.Store(1)
	_, err = nc.Subscribe(schema.ServiceSubject(schema.VerbGet, "default", "r1"), func(m *nats.Msg) {
		head := schema.NewHead("default", "r1")
		head.Position.Stream = schema.StreamSequence(last.Load())
		reply, err := json.Marshal(&schema.GetReply{Head: head})
		if err == nil {
			err = m.Respond(reply)
		}
		if err != nil {
			t.Error(err)
		}
	})
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	require.Empty(t, events(failure.OK))
	last.Store(2)
	require.Contains(t, events(failure.Unavailable), "the replica that answers lags behind")
}
