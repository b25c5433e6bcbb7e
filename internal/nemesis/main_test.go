package nemesis_test

import (
	"context"
	"errors"
	"flag"
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

// builtVariable names a folder that has the programs already: the Makefile builds them once for all packages.
const builtVariable = "WAYMARK_TEST_BIN"

func TestMain(m *testing.M) {
	flag.Parse()
	// With -short no test starts a program.
	os.Exit(withBinaries(m.Run, !testing.Short())) //nolint:forbidigo // this is main
}

// withBinaries builds the programs, runs the tests and looks for what they left.
func withBinaries(run func() int, needed bool) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir := os.Getenv(builtVariable)
	if dir == "" && needed {
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
	if raceDetector && whole() {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(context.Background(), "go", append(args, "../../cmd/waymark", "./helper")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the programs: %w\n%s", err, out)
	}
	return nil
}

// full reports whether the whole is asked for. Otherwise it logs that the test runs a sample, which its tier says at its end.
func full(tb testing.TB) bool {
	tb.Helper()
	if whole() {
		return true
	}
	tb.Log("sample: a part of what it can do")
	return false
}

func whole() bool { return os.Getenv("WAYMARK_E2E_FULL") != "" }

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
