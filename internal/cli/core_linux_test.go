package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The process of a user who allows core files of any size leaves none.
func TestMain_Process_LeavesNoCore(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", `ulimit -S -c "$(ulimit -H -c)"; exec waymark handoff check -`)
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	})
	require.Eventually(t, func() bool {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", cmd.Process.Pid))
		require.NoError(t, err)
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", cmd.Process.Pid))
		require.NoError(t, err)
		for line := range strings.Lines(string(limits)) {
			if strings.HasPrefix(line, "Max core file size") {
				return strings.HasPrefix(string(name), "waymark\x00") && strings.Join(strings.Fields(line)[4:6], " ") == "0 0"
			}
		}
		return false
	}, securedWait, pollEvery)
}
