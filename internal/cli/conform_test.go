package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestConform_FirstEventInWrongShard_IsNamed(t *testing.T) {
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

	for _, which := range [][]string{{"--all"}, {"--run", id}} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"conform", "--no-follow", "--context", served.Context}, which...)
		code := Run(t.Context(), args, func(string) string { return "" }, strings.NewReader(""), &stdout, &stderr)
		require.EqualValues(t, failure.Differs, code, "%v: %s%s", which, &stdout, &stderr)
		require.Contains(t, stdout.String(), "WM-E-003 must")
		require.Contains(t, stdout.String(), "expected  the subject "+schema.NamesOf(schema.DefaultFleet, home).EventSubject(id)+"\n")
		require.Contains(t, stdout.String(), "found     "+wrong+"\n")
	}
}
