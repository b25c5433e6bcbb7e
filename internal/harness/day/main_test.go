//go:build unix

// Package day_test has ten minutes that stand for a day of a fleet: real processes, a scripted provider, and an
// operator. "make day" runs it whole and prints the report.
//
// A minute of the script (script_test.go) does something to the fleet, and names what a person must see in it. A
// check (judge_test.go) looks at the whole day. New features add rows to both.
//
//	WAYMARK_DAY=1             the whole day: 1,000 runs, three servers, ten minutes
//	WAYMARK_DAY_REPORT=file   where the report goes; default: only the test's log
//	WAYMARK_DAY_BREAK=early   executors do not read when the provider may be asked again: the test must fail
//	WAYMARK_TEST_BIN=dir      where waymark is built already
package day_test

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// patience bounds each single wait. Nothing is expected to take so long.
const patience = 3 * time.Minute

// The program under test, built by TestMain, and this one, which is servers and executors, too.
var waymarkBinary, testBinary string

func TestMain(m *testing.M) {
	if os.Getenv(nodeVariable)+os.Getenv(executorVariable) != "" {
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

// wait waits unless ctx ends before.
func wait(ctx context.Context, d time.Duration) bool { return pause.For(ctx, d) == nil }
