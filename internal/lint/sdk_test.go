package lint_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The SDK must not import the NATS server.
func TestSDK_Dependencies_HaveNoServer(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./publisher")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "/nats.go\n")
	for name := range strings.Lines(string(out)) {
		require.NotContains(t, name, "nats-server")
	}
}
