package service_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// keyed is a world with keys, whose worker removes at once.
func keyed(t *testing.T) *serviceWorld {
	t.Helper()
	server := natstest.Start(t)
	server.OnConn = fleettest.Keyed(t)
	w, _ := erasingIn(t, newServiceWorldOn(t, server))
	return w
}

// An executor stores an event and an unsigned run.erased with content after the signed one: only a signed one stays.
func TestRemoval_ForgedAfterwards_SignedOneStays(t *testing.T) {
	t.Parallel()
	w := keyed(t)
	w.ended("run-1")
	receipt := w.erase("run-1", false)
	w.awaitUnlisted()
	w.late("run-1")
	e := schema.Event{
		ID: "forged", Source: schema.Source("default", "executor-9"), Type: schema.TypeOf(schema.RunErased), Subject: "run-1",
		Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: []byte(`{"note":"content"}`),
	}
	header, body := e.Encode()
	w.publishRaw("run-1", header, body)
	keys, err := kvstore.ReadKeys(t.Context(), w.JS, "default")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		log := w.Log("run-1")
		return len(log) == 1 && schema.Removes(keys, &log[0]) != nil
	}, testTimeout, 10*time.Millisecond)
	w.awaitUnlisted()
	w.requireNothingLeft(&receipt)
	w.refusedAs(schema.CodeErased, schema.VerbGet, "run-1", schema.GetRequest{})
}

// An executor marks its run with the id of another run, as if that were a fork of it.
func TestErase_MarkNamesAnUnrelatedRun_BaseIsRemoved(t *testing.T) {
	t.Parallel()
	w := keyed(t)
	base := w.writer("base")
	base.Start()
	base.Publish(&schema.CheckpointMarkedData{Name: "unrelated", Fork: true}, 0)
	w.awaitFolded(base.end(schema.StatusCompleted))
	other := w.writer("unrelated")
	other.Start()
	w.awaitFolded(other.TurnOf(5))
	receipt := w.erase("base", false)
	require.Equal(t, "base", receipt.Run)
	require.Equal(t, schema.StatusRunning, w.status("unrelated"))
}
