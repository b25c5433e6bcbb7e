package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"bench": main}) }

// The scripts run bench as a process of its own: this test binary under another name. "exits N bench …" fails unless it exits with N.
func TestScripts_Short_Pass(t *testing.T) {
	t.Parallel()
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			env.Setenv("WAYMARK_STATE_DIR", env.WorkDir+"/state")
			env.Setenv("XDG_CONFIG_HOME", env.WorkDir+"/config")
			env.Setenv("GORACE", "atexit_sleep_ms=0") // a race-built process would wait a second at its end
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": func(ts *testscript.TestScript, _ bool, args []string) {
				var exit interface{ ExitCode() int }
				if err := ts.Exec(args[1], args[2:]...); !errors.As(err, &exit) || fmt.Sprint(exit.ExitCode()) != args[0] {
					ts.Fatalf("want exit code %s: %v", args[0], err)
				}
			},
		},
	})
}

// A fleet that was filled is filled no second time, and other runs than those asked for are found.
func TestStore_FilledTwice_PublishesOnceAndCompares(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	nc := server.Conn(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "filled", Shards: 1, QuotaBytes: 128 << 20}))
	serveFleet(t, server, "filled")
	fill := func(more ...string) (string, error) {
		var out bytes.Buffer
		args := []string{"store", "--state-dir", server.StateDir(), "--fleet", "filled", "--runs", "30", "--live", "6"}
		err := run(t.Context(), append(args, more...), strings.NewReader(""), &out, &out)
		return out.String(), err
	}
	out, err := fill()
	require.NoError(t, err)
	require.Contains(t, out, "30 runs, 6 of them live; 30 published in ")
	require.Contains(t, out, " 30 compared\n")
	out, err = fill("--json", "--check", "5")
	require.NoError(t, err)
	require.Contains(t, out, `"published": 0`)
	require.Contains(t, out, `"compared": 5`)
	_, err = fill("--payload", "300")
	require.ErrorContains(t, err, "a generated run is not what was generated")
	require.Equal(t, exitDamaged, explain(t.Context(), err).code)
}

// serveFleet runs a daemon until the test ends.
func serveFleet(t *testing.T, server *natstest.Server, fleet string) {
	t.Helper()
	js := server.JetStream(t)
	daemon, err := consumer.New(t.Context(), consumer.Config{Fleet: fleet, Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case <-daemon.Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "the daemon is not ready")
	}
}
