package main

import (
	"errors"
	"fmt"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
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
