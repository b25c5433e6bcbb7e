package testbin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// builtVariable names a directory with the built programs.
const builtVariable = "WAYMARK_TEST_BIN"

// Main builds the packages' programs if they are needed, runs the tests, checks for leaked goroutines, and returns
// the exit code. found gets the path of each program, in the order of the packages.
func Main(run func() int, needed bool, found func(programs []string), packages ...string) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir := os.Getenv(builtVariable)
	if dir == "" && needed {
		var err error
		if dir, err = os.MkdirTemp("", "waymark-test-"); err != nil {
			return fail(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := build(dir, packages); err != nil {
			return fail(err)
		}
	}
	var programs []string
	for _, pkg := range packages {
		name := filepath.Join(dir, filepath.Base(pkg))
		if runtime.GOOS == "windows" {
			name += ".exe"
		}
		programs = append(programs, name)
	}
	found(programs)
	code := run()
	if err := goleak.Find(); err != nil && code == 0 {
		return fail(err)
	}
	return code
}

// build builds the programs into a directory, without debug information: that halves the time of the linker. They are
// built with the race detector only in full runs: it makes them five times slower, and the test's own binary has it in
// any case.
func build(dir string, packages []string) error {
	args := []string{"build", "-ldflags=-w", "-o", dir + string(filepath.Separator)}
	if self, _ := debug.ReadBuildInfo(); Whole() && slices.Contains(self.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(context.Background(), "go", append(args, packages...)...).CombinedOutput() //nolint:gosec // packages of this module
	if err != nil {
		return fmt.Errorf("building %v: %w\n%s", packages, err, out)
	}
	return nil
}

// Environment is this process's without variables that name servers or settings.
func Environment(more ...string) []string {
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "NATS_") || strings.HasPrefix(e, "WAYMARK_") })
	return append(env, append(more, "GORACE=atexit_sleep_ms=0 halt_on_error=1")...)
}

// Full reports whether the full test is requested. Otherwise it logs that the test runs a sample, which its tier
// reports at its end.
func Full(tb testing.TB) bool {
	tb.Helper()
	if Whole() {
		return true
	}
	tb.Log("sample: a part of what it can do")
	return false
}

// Whole reports whether the full test is requested, without a log line.
func Whole() bool { return os.Getenv("WAYMARK_E2E_FULL") != "" }
