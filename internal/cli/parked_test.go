package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// provisioned is a fleet on a server of the test's, without a daemon, and an executor of it. where names the server to commands.
func provisioned(t *testing.T) (where []string, js jetstream.JetStream, fleet *publisher.Fleet) {
	t.Helper()
	server := natstest.Start(t)
	nc := server.Conn(t, nats.ReconnectBufSize(-1))
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet, QuotaBytes: 64 << 20}))
	fleet, err = publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "e", Agent: "a", Heartbeat: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) })
	return []string{"--context", server.NATSD().Endpoint().Context}, js, fleet
}

func TestParkedRun_DoctorAndList_NameItAndWhy(t *testing.T) {
	t.Parallel()
	where, js, fleet := provisioned(t)
	kv, err := js.KeyValue(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).CheckpointBucket())
	require.NoError(t, err)
	const parked = 10
	for i := range parked {
		id := fmt.Sprintf("parked-%d", i)
		_, err = kv.Put(t.Context(), id, laterCheckpoint(t, id))
		require.NoError(t, err)
		_, err = fleet.Start(t.Context(), publisher.RunSpec{ID: id})
		require.NoError(t, err)
	}
	getenv := func(string) string { return "" }
	_, stop, err := startDaemon(append([]string{"--http", "off"}, where...), getenv)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	ask := func(args ...string) (code int, stdout, stderr string) {
		var out, complaints bytes.Buffer
		code = Run(t.Context(), append(args, where...), getenv, strings.NewReader(""), &out, &complaints)
		return code, out.String(), complaints.String()
	}
	require.Eventually(t, func() bool {
		_, _, complaints := ask("runs", "ls")
		return strings.Count(complaints, " is parked since ") == parked
	}, time.Minute, 50*time.Millisecond, "runs ls names them")
	_, _, complaints := ask("runs", "ls")
	require.Regexp(t, `(?m)^run parked-0 is parked since \S+, the listed state may be outdated: .*format`, complaints)
	code, out, _ := ask("runs", "ls", "--json")
	require.Zero(t, code)
	require.Contains(t, out, `"parked"`)

	_, out, _ = ask("doctor")
	require.Contains(t, out, "run parked-0 has no new checkpoint since ")
	require.Contains(t, out, "runs get parked-0")
	require.Regexp(t, `the daemon retries by itself; to retry it now: .*retry parked-0`, out)
	require.Contains(t, out, fmt.Sprintf("%d runs more", parked-8))
	code, out, complaints = ask("runs", "get", "parked-0", "--json")
	require.Zero(t, code, "what it is told to look at works: %s", complaints)
	require.Contains(t, out, "parked-0")

	code, _, complaints = ask("retry", "parked-0")
	require.Equal(t, int(failure.Damaged), code)
	require.Regexp(t, `run parked-0 is still parked after \d+ tries: .*format`, complaints)
	code, _, complaints = ask("erase", "parked-0", "--force", "--reason", "test")
	require.Equal(t, int(failure.Conflict), code, "what cannot be read cannot be taken out: it is refused, and not begun")
	require.Contains(t, complaints, "is of a newer version, and only a daemon of that version can remove it")
	require.NoError(t, kv.Purge(t.Context(), "parked-0"))
	code, out, complaints = ask("retry", "parked-0")
	require.Zero(t, code, complaints)
	require.Contains(t, out, "the run is folded again")
	code, out, _ = ask("retry", "parked-0", "--json")
	require.Zero(t, code)
	require.JSONEq(t, `{"run":"parked-0","tried":false}`, out)
	require.Eventually(t, func() bool {
		_, _, complaints := ask("runs", "ls")
		return strings.Count(complaints, " is parked since ") == parked-1 && !strings.Contains(complaints, "parked-0")
	}, time.Minute, 50*time.Millisecond, "a list is up to two seconds old")
	code, _, _ = ask("retry", "unknown")
	require.Equal(t, int(failure.NotFound), code)
}

// laterCheckpoint is a checkpoint as a later version may write it, with the sum of a whole one.
func laterCheckpoint(t *testing.T, run string) []byte {
	t.Helper()
	stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Head: schema.NewHead(schema.DefaultFleet, run)})
	require.NoError(t, err)
	stored = bytes.Replace(stored, fmt.Appendf(nil, `"format":%d`, schema.CheckpointFormat), []byte(`"format":99`), 1)
	body := stored[:len(stored)-len(`"}`)-sha256.Size*2]
	sum := sha256.Sum256(append(slices.Clone(body), `"}`...))
	return append(append(body, hex.EncodeToString(sum[:])...), `"}`...)
}
