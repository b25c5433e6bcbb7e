package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestQuotaOfAFreshFleetFitsTheDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		store  int64
		shards int
		want   int64
	}{
		"a large disk takes the usual default":   {100 << 30, 1, 0},
		"a small disk leaves half of its room":   {4 << 30, 1, 2 << 30},
		"shards share it":                        {4 << 30, 4, 512 << 20},
		"hardly any room is an error to be seen": {10 << 20, 1, leastQuota},
	} {
		require.Equal(t, c.want, roomyQuota(c.store, c.shards), name)
	}
}
