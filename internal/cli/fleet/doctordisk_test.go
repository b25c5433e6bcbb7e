package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
)

func TestDoctor_FreeSpace_IsComparedWithWhatTheStreamsMayStore(t *testing.T) {
	t.Parallel()
	const mib, gib = int64(1 << 20), int64(1 << 30)
	for name, c := range map[string]struct {
		free, total, growth int64
		result, detail      string
	}{
		"an empty disk":                         {250 * gib, 252 * gib, 8 * gib, base.Good, "250.0 GiB of 252.0 GiB are free"},
		"a large disk with two percent free":    {5 * gib, 252 * gib, 2 * gib, base.Good, "5.0 GiB of 252.0 GiB are free"},
		"less than the streams may store":       {5 * gib, 252 * gib, 8 * gib, base.Warning, "5.0 GiB of 252.0 GiB are free, and the streams may grow by 8.0 GiB"},
		"too little to go on":                   {63 * mib, 252 * gib, 0, base.Failed, "63.0 MiB of 252.0 GiB are free"},
		"too little, and streams that may grow": {0, 252 * gib, gib, base.Failed, "0 B of 252.0 GiB are free"},
		"a small disk with a tenth free":        {26 * mib, 256 * mib, 20 * mib, base.Good, "26.0 MiB of 256.0 MiB are free"},
		"a small disk with nearly nothing":      {12 * mib, 256 * mib, 0, base.Failed, "12.0 MiB of 256.0 MiB are free"},
	} {
		f := diskRoom(c.free, c.total, c.growth)
		require.Equal(t, c.result, f.Result, name)
		require.Equal(t, c.detail, f.Detail, name)
		require.Equal(t, c.result == base.Good, f.Do == "", name)
	}
}
