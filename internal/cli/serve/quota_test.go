package serve

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
)

func TestQuota_FreshFleet_FitsDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store  int64
		shards int
		want   int64
	}{
		"a large disk takes the usual default":   {100 << 30, 1, kvstore.DefaultQuotaBytes},
		"a small disk has room for each stream":  {4 << 30, 1, 858 << 20},
		"shards share it":                        {4 << 30, 4, 189 << 20},
		"hardly any room is an error to be seen": {10 << 20, 1, kvstore.MinQuotaBytes},
	} {
		require.Equal(t, c.want, roomyQuota(c.store, c.shards), name)
	}
}

func TestRoomyShards_SmallDisk_HasFewer(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store, quota int64
		want         int
	}{
		"a large disk":               {100 << 30, 0, kvstore.LoneShards},
		"a large disk, large logs":   {100 << 30, 4 << 30, 4},
		"logs that fit once":         {100 << 30, 20 << 30, 1},
		"logs that do not fit":       {100 << 30, 200 << 30, 1},
		"a disk without room for it": {10 << 20, 0, 1},
	} {
		require.Equal(t, c.want, roomyShards(c.store, c.quota), name)
	}
}
