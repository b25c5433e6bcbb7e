package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestVerify_FirstEventInWrongShard_IsNamed(t *testing.T) {
	t.Parallel()
	nc, served := startServe(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	const id = "astray"
	home := schema.ShardOf(id, kvstore.LoneShards)
	wrong := schema.NamesOf(schema.DefaultFleet, (home+1)%kvstore.LoneShards).EventSubject(id)
	w := schema.Writer{Fleet: schema.DefaultFleet, Run: id, Executor: "e", Epoch: 1}
	e, err := w.Event(&schema.RunStartedData{Agent: "coder", Executor: "e"}, 0, time.Now(), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: wrong, Header: header, Data: body})
	require.NoError(t, err)

	var stdout, stderr bytes.Buffer
	code := Run(t.Context(), []string{"verify", "--all", "--strict", "--context", served.Context}, func(string) string { return "" }, strings.NewReader(""), &stdout, &stderr)
	require.EqualValues(t, failure.Differs, code, "%s%s", &stdout, &stderr)
	require.Regexp(t, `mistake  wrong_shard: event \d+: the events are in shard \d+, and readers look in shard \d+\n`, stdout.String())
}
