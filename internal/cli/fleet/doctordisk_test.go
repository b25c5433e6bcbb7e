package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDoctor_FreeSpace_IsComparedWithWhatTheStreamsMayStore(t *testing.T) {
	t.Parallel()
	const mib, gib = int64(1 << 20), int64(1 << 30)
	for name, c := range map[string]struct {
		free, total, growth int64
		result, detail      string
	}{
		"an empty disk":                         {250 * gib, 252 * gib, 8 * gib, checkOK, "250.0 GiB of 252.0 GiB are free"},
		"a large disk with two percent free":    {5 * gib, 252 * gib, 2 * gib, checkOK, "5.0 GiB of 252.0 GiB are free"},
		"less than the streams may store":       {5 * gib, 252 * gib, 8 * gib, checkWarning, "5.0 GiB of 252.0 GiB are free, and the streams may grow by 8.0 GiB"},
		"too little to go on":                   {63 * mib, 252 * gib, 0, checkFailed, "63.0 MiB of 252.0 GiB are free"},
		"too little, and streams that may grow": {0, 252 * gib, gib, checkFailed, "0 B of 252.0 GiB are free"},
		"a small disk with a tenth free":        {26 * mib, 256 * mib, 20 * mib, checkOK, "26.0 MiB of 256.0 MiB are free"},
		"a small disk with nearly nothing":      {12 * mib, 256 * mib, 0, checkFailed, "12.0 MiB of 256.0 MiB are free"},
	} {
		result, do, detail := diskRoom(c.free, c.total, c.growth)
		require.Equal(t, c.result, result, name)
		require.Equal(t, c.detail, detail, name)
		require.Equal(t, c.result == checkOK, do == "", name)
	}
}
