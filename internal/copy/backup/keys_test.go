package backup_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/copy/backup"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A run with an event signed by a daemon and a forged one is backed up. The fleet that a connection without a key
// restores has the keys, and folds the run to the same state.
func TestRestore_FleetWithKeys_FoldsAsBefore(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	nc := natstest.Start(t).Conn(t)
	nc.Opts.Nkey, nc.Opts.SignatureCB = public, pair.Sign // the server asks for none
	w := onServer(t, nc)
	w.provision(kvstore.FleetConfig{Fleet: fleet, QuotaBytes: 256 << 20})
	require.Equal(t, []schema.FleetKey{{Key: public}}, w.settings.Keys)
	x := w.writer("run-1")
	require.NoError(t, x.start(t.Context()))
	head, _ := x.upTo(1 << 62)
	send := func(e *schema.Event) {
		header, body := e.Encode()
		ack, err := w.js.PublishMsg(t.Context(), &nats.Msg{Subject: x.names.EventSubject("run-1"), Header: header, Data: body}, jetstream.WithMsgID(e.ID))
		require.NoError(t, err)
		x.last = ack.Sequence
	}
	for id, d := range map[string]schema.Data{"forged": &schema.CheckpointMarkedData{Name: "m", By: "alice"}, "signed": &schema.RunCancelRequestedData{By: "alice"}} {
		e, err := schema.NewControl(fleet, "daemon", "run-1", 1, id, d, time.Now())
		require.NoError(t, err)
		if id == "signed" {
			require.NoError(t, e.Sign(public, head.Digest, pair.Sign))
		}
		send(e)
	}
	require.NoError(t, x.oneTurn(t.Context(), 10))
	verify := func(w *world) *verify.Result {
		v, err := verify.Run(t.Context(), w.js, w.shard(0), fleet, "run-1")
		require.NoError(t, err)
		require.EqualValues(t, 7, v.Records)
		require.EqualValues(t, 6, v.Events, "forged events do not count")
		return v
	}
	was := verify(w)

	dir := target(t)
	_, err = w.take(dir, nil)
	require.NoError(t, err)
	other := empty(t)
	_, err = backup.Restore(t.Context(), other.js, backup.Target{Dir: dir})
	require.NoError(t, err)
	other.load()
	require.Equal(t, w.settings, other.settings)
	require.Equal(t, was.Digest, verify(other).Digest)
	require.NoError(t, kvstore.Provision(t.Context(), other.js, kvstore.ConfigOf(&other.settings)))
	other.load()
	require.Equal(t, w.settings.Keys, other.settings.Keys, "a fleet that is known keeps its keys")
}
