package nemesis_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// patience bounds every single wait.
const patience = 2 * time.Minute

// The program under test, built by TestMain, and this one, which is servers and executors, too.
var waymarkBinary, testBinary string

func TestMain(m *testing.M) {
	if os.Getenv(NodeVariable)+os.Getenv(ExecutorVariable) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := runRole(ctx, os.Getenv, os.Stdin, os.Stdout, os.Stderr)
		stop()
		os.Exit(code) //nolint:forbidigo // this is main
	}
	flag.Parse()
	// With -short no test starts a program.
	found := func(p []string) { waymarkBinary = p[0] }
	var err error
	if testBinary, err = os.Executable(); err != nil {
		panic(err)
	}
	os.Exit(testbin.Main(m.Run, !testing.Short(), found, "../../../cmd/waymark")) //nolint:forbidigo // this is main
}

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
