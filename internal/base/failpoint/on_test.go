//go:build waymark_failpoints

package failpoint_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/failpoint"
)

func TestFailpoints_Hook_Called(t *testing.T) {
	stop := errors.New("stop here")
	ctx := failpoint.With(t.Context(), func(_ context.Context, p failpoint.Point) error {
		if p == failpoint.AfterApply {
			return stop
		}
		return nil
	})
	require.NoError(t, failpoint.Hit(ctx, failpoint.AfterFetch))
	require.ErrorIs(t, failpoint.Hit(context.WithoutCancel(ctx), failpoint.AfterApply), stop)
	require.NoError(t, failpoint.Hit(t.Context(), failpoint.AfterApply), "other work does not meet it")
}

// It starts this binary again.
func TestFailpoints_Environment_Read(t *testing.T) {
	if os.Getenv("WAYMARK_FAILPOINT_CHILD") != "" {
		for range 2 {
			err := failpoint.Hit(context.Background(), failpoint.AfterFetch)
			os.Stdout.WriteString("met")
			if err != nil {
				os.Stdout.WriteString(" " + err.Error())
			}
			os.Stdout.WriteString("\n")
		}
		return
	}
	child := func(point string) (string, error) {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestFailpoints_Environment_Read$")
		cmd.Env = append(os.Environ(), "WAYMARK_FAILPOINT_CHILD=1", failpoint.PointVariable+"="+point)
		var out bytes.Buffer
		cmd.Stdout = &out
		err := cmd.Run()
		return out.String(), err
	}
	out, err := child("after-fetch:2:kill")
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, "met\n", out)
	out, err = child("after-fetch:1:fail")
	require.NoError(t, err)
	require.Contains(t, out, "met failed at a failpoint: after-fetch\nmet\n")
	for _, wrong := range []string{"nowhere:1:kill", "after-fetch:0:kill", "after-fetch:1:sing", "after-fetch"} {
		_, err = child(wrong)
		require.Error(t, err, wrong)
	}
}
