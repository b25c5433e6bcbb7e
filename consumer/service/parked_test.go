package service_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestPark_RunAskedFor_RecoveredWholeAndNamed(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Limit("KV_"+w.Names.CheckpointBucket(), 3<<10)
	w.Fold(fold.Config{})
	x := w.writer("large")
	x.Start()
	for i := range 12 {
		x.Publish(&schema.PhaseCompletedData{Phase: strings.Repeat("p", 250) + string(rune('a'+i))}, 0)
	}
	w.AwaitPassed(x.Last)
	require.Len(t, w.Parked(), 1)
	got, _ := w.get("large", schema.ViewHead)
	require.Equal(t, x.Model(), got.Head)
	reply, _ := w.recover("large", schema.RecoverRequest{Executor: "executor-2", RequestID: "r1"})
	require.EqualValues(t, 2, reply.Epoch)
	require.Equal(t, w.Parked()[0], w.page(schema.ListRequest{}).Parked[0])
	a, err := w.ask(schema.VerbFleet, "", schema.FleetRequest{})
	require.NoError(t, err)
	require.Equal(t, w.Parked(), decodeAs[schema.FleetReply](t, a.first).Shards[0].Parked)
	require.Empty(t, w.verify("large").Findings)
}

// Three shards with the maximum of parked runs are more than fit into a message.
func TestFleet_ManyParkedRuns_CountsAllAndNamesSome(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) { f.Shards = 3 })
	for _, shard := range w.shards {
		usage, err := shard.Usage(t.Context())
		require.NoError(t, err)
		mark := kvstore.Watermark{Incarnation: usage.Incarnation}
		for i := range schema.MaxParked {
			mark.Parked = append(mark.Parked, schema.ParkedRun{Run: fmt.Sprintf("run-%d", i), Why: strings.Repeat("y", 256), Tries: 1})
		}
		_, rev, err := shard.Checkpoints.Watermark(t.Context())
		if err != nil {
			require.ErrorIs(t, err, kvstore.ErrNotFound)
		}
		_, err = shard.Checkpoints.PutWatermark(t.Context(), mark, rev)
		require.NoError(t, err)
	}
	a, err := w.ask(schema.VerbFleet, "", schema.FleetRequest{})
	require.NoError(t, err)
	named := 0
	for _, s := range decodeAs[schema.FleetReply](t, a.first).Shards {
		require.Empty(t, s.Error)
		require.Equal(t, schema.MaxParked, s.ParkedCount)
		named += len(s.Parked)
	}
	require.Equal(t, schema.MaxListParked, named)
	require.Less(t, len(a.first), 64<<10)
}
