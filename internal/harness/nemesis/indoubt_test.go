//go:build unix

package nemesis_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/schema"
)

// It repeatedly kills executors whose tools take long, so that many calls are in doubt. The checker compares their
// state in recoveries, and how often their tools ran, with the log.
func TestInDoubt_Kills_SettledByPolicy(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if !testbin.Full(t) {
		t.Skip(`sample: other tests have some calls in doubt; for many run make chaos CHAOSFLAGS="-run InDoubt"`)
	}
	s := scaleOf(1)
	s.tool, s.slots, s.turns = 500, 10, 21
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	for range 4 {
		for _, name := range []string{"executor-kill", "executor-stop", "executor-term"} {
			for _, f := range faults() {
				if f.name == name {
					r.suffer(f)
				}
			}
		}
	}
	r.judge()
	require.Positive(t, r.settled[schema.SettledRerun], "no call was run again: %v", r.settled)
	require.Positive(t, r.settled[schema.SettledVerified]+r.settled[schema.SettledDecided]+r.settled[schema.SettledAdopted],
		"no call had had its effect: %v", r.settled)
}
