package bench_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

// childVariable makes this test binary a process of a measurement.
const childVariable = "WAYMARK_BENCH_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := bench.Child(context.Background(), os.Stdin, os.Stdout, zerolog.Nop()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1) //nolint:forbidigo // stands in for main
		}
		os.Exit(0) //nolint:forbidigo // stands in for main
	}
	goleak.VerifyTestMain(m)
}

// child is this binary as a process of a measurement.
func child() *exec.Cmd {
	cmd := exec.CommandContext(context.Background(), os.Args[0])
	// A child built with the race detector would otherwise sleep for a second before it exits.
	race := strings.TrimSpace(os.Getenv("GORACE") + " atexit_sleep_ms=0")
	cmd.Env = append(os.Environ(), "GORACE="+race, childVariable+"=1")
	cmd.Stderr = os.Stderr
	return cmd
}
