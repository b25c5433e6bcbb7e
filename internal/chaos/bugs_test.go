//go:build waymark_failpoints

package chaos_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/checker"
	"github.com/waymarkio/waymark/internal/failpoint"
)

// seededBug is a mistake, the schedules that are fit to show it, and the rules that one of them must break.
type seededBug struct {
	bug     failpoint.Bug
	profile profile
	rules   []checker.Rule
	// from is the first of them that was seen to show it; 0 is 1. within so many it must be found: what goes on within a step is
	// up to the scheduler, so that it is many times what it takes.
	from, within uint64
}

// mix is bursts and what is named.
func mix(weights map[stepKind]int) map[stepKind]int {
	weights[burst] = 60
	return weights
}

var seededBugs = []seededBug{
	{
		bug: failpoint.WatermarkFirst, from: 9, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterWatermark, failpoint.AfterIndexPut, failpoint.BeforeCheckpointPut}},
		rules:   []checker.Rule{checker.RuleConverged},
	},
	{
		bug: failpoint.NoBarrier, within: 200,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		bug: failpoint.StaleAccepted, from: 3, within: 300,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		bug: failpoint.StreamDedup, within: 200,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"plain"}},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		bug: failpoint.NoEpochCheck, within: 200,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"old epoch"}, takes: 5},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		bug: failpoint.NoCAS, from: 23, within: 600,
		profile: profile{weights: mix(map[stepKind]int{pause: 15, second: 15, letGo: 10}), points: []failpoint.Point{failpoint.BeforeCheckpointPut, failpoint.AfterIndexPut}, runs: 1},
		rules:   []checker.Rule{checker.RuleConverged},
	},
	{
		bug: failpoint.NoPublishCAS, within: 200,
		profile: profile{weights: mix(map[stepKind]int{letGo: 1}), takes: 8},
		rules:   []checker.Rule{checker.RuleAcknowledged, checker.RuleFenced},
	},
	{
		bug: failpoint.HoleFolded, from: 13, within: 600,
		profile: profile{weights: mix(map[stepKind]int{damage: 10}), deletable: true, runs: 1},
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		bug: failpoint.SegmentCountedFirst, from: 17, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterCheckpointPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleModel, checker.RulePast},
	},
	{
		bug: failpoint.PurgeFirst, from: 3, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.BeforeSegmentPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		bug: failpoint.RetryNewID, within: 200,
		profile: profile{weights: mix(map[stepKind]int{loseAnswer: 25})},
		rules:   []checker.Rule{checker.RuleTwice},
	},
}

// TestEverySeededBugIsFound builds each mistake in and runs schedules until the checker finds it. The schedule that shows it is
// lawful without the mistake.
func TestEverySeededBugIsFound(t *testing.T) {
	covered := map[failpoint.Bug]bool{failpoint.DefaultSync: true} // needs the power to be cut: see the power cut tests
	for _, b := range seededBugs {
		covered[b.bug] = true
		t.Run(string(b.bug), func(t *testing.T) {
			first := number(t, "WAYMARK_SEED", max(b.from, 1))
			seed := first
			for ; ; seed++ {
				require.Less(t, seed, first+b.within, "%d schedules did not show the mistake", b.within)
				out, err := runMistaken(t, seed, &b)
				if err != nil {
					t.Logf("schedule %d did not come to its end: %v", seed, err)
					continue // it shows that something is wrong, and not what
				}
				if broke(out.report, b.rules) {
					t.Logf("found by schedule %d of %d: %v, e.g. %s", seed-first+1, b.within, out.report.Rules(), out.report.Violations[0])
					break
				}
				if out.report.Error() != nil {
					t.Logf("schedule %d broke %v", seed, out.report.Rules())
				}
			}
			out, err := runPlan(t.Context(), newPlan(seed, b.profile))
			require.NoError(t, err)
			require.NoError(t, out.report.Error(), "without the mistake:\n%s", out.story(seed))
		})
	}
	for _, b := range failpoint.Bugs() {
		require.True(t, covered[b], "no test seeds %s", b)
	}
}

// runMistaken runs a schedule with the mistake. Some of them never heal, and that is not waited for as long as elsewhere.
func runMistaken(t *testing.T, seed uint64, b *seededBug) (*outcome, error) {
	t.Helper()
	defer func(before time.Duration) { patience = before }(patience)
	patience = min(patience, 20*time.Second)
	defer failpoint.Seed(b.bug)()
	return runPlan(t.Context(), newPlan(seed, b.profile))
}

func broke(r *checker.Report, rules []checker.Rule) bool {
	for _, rule := range rules {
		if r.Broken(rule) {
			return true
		}
	}
	return false
}
