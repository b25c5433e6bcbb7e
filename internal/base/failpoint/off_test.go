//go:build !waymark_failpoints

package failpoint_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/failpoint"
)

func TestFailpoints_OrdinaryBuild_Absent(t *testing.T) {
	require.False(t, failpoint.Enabled)
	for _, p := range failpoint.Points() {
		require.NoError(t, failpoint.Hit(t.Context(), p))
	}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if failpoint.Hit(context.Background(), failpoint.AfterApply) != nil {
			panic("there are failpoints")
		}
	}))
}
