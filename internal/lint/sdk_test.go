package lint_test

import (
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// testTools are packages that only tests may link, with the packages below them.
var testTools = []string{"internal/harness", "internal/lint", "tools"}

// The binary must not link a tool of the tests, nor gRPC.
func TestBinary_Dependencies_HaveNoTestToolsAndNoGRPC(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./cmd/waymark")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	require.NoError(t, err)
	linked := strings.Fields(string(out))
	require.Contains(t, linked, module+"/consumer")
	require.NotContains(t, linked, "testing")
	for _, tool := range testTools {
		require.DirExists(t, filepath.Join("..", "..", tool))
		for _, pkg := range linked {
			require.False(t, within(pkg, module+"/"+tool), pkg)
		}
	}
	require.NotContains(t, linked, "google.golang.org/grpc")
}

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

// Each module that go.mod requires directly has a row in decision 13.
func TestModules_DirectRequirements_HaveAReason(t *testing.T) {
	t.Parallel()
	reasons := read(t, "docs/decisions/0013-dependencies-and-their-reasons.md")
	version := regexp.MustCompile(`^v\d+$`)
	found := 0
	for _, m := range regexp.MustCompile(`(?m)^\t(\S+) v\S+$`).FindAllStringSubmatch(read(t, "go.mod"), -1) {
		name := m[1]
		if version.MatchString(path.Base(name)) || path.Base(name) == "libraries" {
			name = path.Dir(name)
		}
		require.Contains(t, reasons, path.Base(name), "%s: write its reason into decision 13", m[1])
		found++
	}
	require.Greater(t, found, 20)
}
