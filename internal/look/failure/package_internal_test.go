package failure

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// Who installed the package and forgets its state directory is not told to start a second daemon.
func TestExplain_ServiceOfThePackageRuns_NamesItsDirectory(t *testing.T) { //nolint:paralleltest // it changes the directory
	was := packageDir
	t.Cleanup(func() { packageDir = was })
	packageDir = t.TempDir()
	down := &natsconn.NotRunningError{Dir: "elsewhere", Reason: "there is no endpoint.json"}
	require.Contains(t, explainServer(down).Hint, "waymark serve")
	require.NoError(t, os.WriteFile(filepath.Join(packageDir, "endpoint.json"), nil, 0o600))
	require.Contains(t, explainServer(down).Hint, "sudo waymark --state-dir "+packageDir)
	down.Dir = packageDir
	require.Contains(t, explainServer(down).Hint, "waymark serve")
}
