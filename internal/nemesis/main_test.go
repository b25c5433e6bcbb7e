package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// patience bounds every single wait.
const patience = 2 * time.Minute

// Programs under test, built by TestMain.
var waymarkBinary, helperBinary string

func TestMain(m *testing.M) {
	os.Exit(withBinaries(m.Run)) //nolint:forbidigo // this is main
}

// withBinaries builds the programs, runs the tests and looks for what they left.
func withBinaries(run func() int) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir := os.Getenv("WAYMARK_CHAOS_BIN")
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "waymark-nemesis-"); err != nil {
			return fail(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := build(dir); err != nil {
			return fail(err)
		}
	}
	waymarkBinary, helperBinary = filepath.Join(dir, "waymark"), filepath.Join(dir, "helper")
	if runtime.GOOS == "windows" {
		waymarkBinary, helperBinary = waymarkBinary+".exe", helperBinary+".exe"
	}
	code := run()
	if err := goleak.Find(); err != nil && code == 0 {
		return fail(err)
	}
	return code
}

// build builds the programs into a folder.
func build(dir string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	// The fold and the SDK run under the detector in their own tests; here three servers share the processor with them.
	if raceDetector && full() {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(context.Background(), "go", append(args, "../../cmd/waymark", "./helper")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}

// full reports whether the whole schedules are asked for.
func full() bool { return os.Getenv("WAYMARK_E2E_FULL") != "" }

// number reads a variable that is a number.
func number(tb testing.TB, variable string, otherwise uint64) uint64 {
	tb.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(tb, err, variable)
	return n
}

func errorsAs(err error, target any) bool { return errors.As(err, target) }
