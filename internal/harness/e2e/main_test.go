package e2e_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/transcript"
)

// binary is the program under test, built by TestMain.
var binary string

func TestMain(m *testing.M) {
	for variable, program := range map[string]func(settings string) int{
		executorVariable: executorMain, workerVariable: workerMain, shopVariable: shopMain, loopVariable: loopMain,
	} {
		if settings := os.Getenv(variable); settings != "" {
			os.Exit(program(settings)) //nolint:forbidigo // replaces main
		}
	}
	flag.Parse()
	// With -short no test starts a program.
	os.Exit(testbin.Main(m.Run, !testing.Short(), func(p []string) { binary = p[0] }, "../../../cmd/waymark")) //nolint:forbidigo // this is main
}

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

// sharedData is the location of real transcripts next to the repository; they are not part of it.
var sharedData = filepath.Join("..", "..", "..", "..", "shared", "data")

// ownData are the transcripts that the project carries.
var ownData = filepath.Join("..", "..", "..", "internal", "transcript", "testdata", "small")

// transcriptFiles returns the transcripts below a directory, and logs other files. Sub-agents' files belong to their
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
