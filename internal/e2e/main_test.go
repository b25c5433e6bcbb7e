package e2e_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/transcript"
)

// binary is the program under test, built by TestMain.
var binary string

// builtVariable names a folder that has the program already: the Makefile builds it once for all packages.
const builtVariable = "WAYMARK_TEST_BIN"

func TestMain(m *testing.M) {
	for variable, program := range map[string]func(settings string) int{
		executorVariable: executorMain, workerVariable: workerMain, shopVariable: shopMain,
	} {
		if settings := os.Getenv(variable); settings != "" {
			os.Exit(program(settings)) //nolint:forbidigo // stands in for main
		}
	}
	flag.Parse()
	// With -short no test starts a program.
	os.Exit(withBinary(m.Run, !testing.Short())) //nolint:forbidigo // this is main
}

// withBinary builds the program, runs the tests and looks for what they left.
func withBinary(run func() int, needed bool) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	dir := os.Getenv(builtVariable)
	if dir == "" && needed {
		var err error
		if dir, err = os.MkdirTemp("", "waymark-e2e-"); err != nil {
			return fail(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := build(dir); err != nil {
			return fail(err)
		}
	}
	binary = filepath.Join(dir, "waymark")
	if runtime.GOOS == "windows" {
		binary += ".exe"
	}
	code := run()
	if err := goleak.Find(); err != nil && code == 0 {
		return fail(err)
	}
	return code
}

// build builds the program into a folder.
func build(dir string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	// Executors and the SDK are in this binary, and the daemon's own tests run under the detector, too. The program
	// itself only does in full: it takes five times as long.
	if raceDetector && whole() {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(context.Background(), "go", append(args, "../../cmd/waymark")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building the program: %w\n%s", err, out)
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

// random returns a source of random numbers whose seed is printed, and taken from the environment.
func random(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	if text := os.Getenv("WAYMARK_E2E_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(tb, err, "WAYMARK_E2E_SEED")
	}
	tb.Logf("WAYMARK_E2E_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // chooses where to kill
}

// sharedData is where real transcripts lie beside the repository; they are not part of it.
var sharedData = filepath.Join("..", "..", "..", "shared", "data")

// ownData are the transcripts that the project carries.
var ownData = filepath.Join("..", "..", "cmd", "waymark", "demodata")

// transcriptFiles returns the transcripts below a folder, and says what is none. Sub-agents' files belong to their
// sessions.
func transcriptFiles(tb testing.TB, folder string) []string {
	tb.Helper()
	var files []string
	require.NoError(tb, filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && entry.Name() == "subagents":
			return filepath.SkipDir
		case entry.IsDir():
			return nil
		}
		_, err = transcript.Open(path, transcript.Options{})
		if errors.Is(err, transcript.ErrUnknownFormat) {
			tb.Logf("no transcript, and not proven: %s", path)
			return nil
		}
		require.NoError(tb, err)
		files = append(files, path)
		return nil
	}))
	return files
}
