//go:build unix

package nemesis_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// olderVariable is the directory of an older version's waymark and nemesis.test, which "make skew" builds.
const olderVariable = "WAYMARK_SKEW_OLDER"

// Daemons and executors of two versions share one fleet. Each is killed, each changes its version in both directions,
// and the checker compares the final state of every run.
func TestVersions_SideBySideUnderLoad_LoseNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	older := os.Getenv(olderVariable)
	if older == "" {
		t.Skip("two versions side by side: NOT PROVEN here; run: make skew OLDER=COMMIT")
	}
	older, err := filepath.Abs(older) // the command's directory is not the test's
	require.NoError(t, err)
	require.NotEqual(t, digestOf(t, filepath.Join(older, filepath.Base(waymarkBinary))), digestOf(t, waymarkBinary), "both are one version: nothing would be tried")
	t.Logf("the older version: %s", filepath.Base(older))

	s := scaleOf(1)
	s.daemons = 2
	s.older, s.old = older, map[string]bool{"daemon-0": true, "executor-0": true, "executor-1": true}
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	version := func(name string) string {
		if s.old[name] {
			return "older"
		}
		return "newer"
	}
	change := func(p *process, old bool, end func(context.Context, *process) error) {
		from := version(p.name)
		s.old[p.name] = old
		r.suffer(fault{name: p.name + " ends as the " + from + " version and starts as the " + version(p.name) + " one", strike: func(ctx context.Context, _ *storm) error { return end(ctx, p) }})
	}
	for _, p := range r.daemons { // alone with the other version for as long as nothing has healed
		change(p, s.old[p.name], kill)
	}
	for _, p := range r.executors {
		change(p, s.old[p.name], kill)
	}
	// The order of the page: daemons first, then executors; then all of it back.
	for _, old := range []bool{false, true} {
		for _, p := range r.daemons {
			change(p, old, terminate)
		}
		for _, p := range r.executors {
			change(p, old, kill)
		}
	}
	r.judge()
}

// ofVersion takes the older version's program for those that are to be of it.
func (w *world) ofVersion(cmd *exec.Cmd, name string) {
	if w.scale.old[name] {
		cmd.Path = filepath.Join(w.scale.older, filepath.Base(cmd.Path))
	}
}

// digestOf a program.
func digestOf(t *testing.T, program string) string {
	t.Helper()
	text, err := os.ReadFile(program)
	require.NoError(t, err)
	return fmt.Sprintf("%x", sha256.Sum256(text))
}
