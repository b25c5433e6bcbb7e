package pause_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/pause"
)

func TestBackoff_EachWait_IsLongerUpToTheMost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		wait := pause.Backoff{Next: time.Second, Most: 3 * time.Second}
		for _, most := range []time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 3 * time.Second} {
			began := time.Now()
			require.True(t, wait.Wait(t.Context()))
			require.GreaterOrEqual(t, time.Since(began), most/2)
			require.LessOrEqual(t, time.Since(began), most)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, wait.Wait(ctx))
	})
}
