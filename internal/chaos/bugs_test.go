//go:build waymark_failpoints

package chaos_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/checker"
	"github.com/waymarkio/waymark/internal/failpoint"
)

// seededBug is a mistake, the schedules that are fit to show it, and the rules that one of them must break.
type seededBug struct {
	bug     failpoint.Bug
	profile profile
	rules   []checker.Rule
	// within so many schedules it must be found. It is several times what it takes, so that the test does not fail by
	// chance.
	within uint64
}

// quiet are bursts and what is named.
func mix(weights map[stepKind]int) map[stepKind]int {
	weights[burst] = 60
	return weights
}

var seededBugs = []seededBug{
	{
		bug: failpoint.WatermarkFirst, within: 40,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterWatermark, failpoint.AfterIndexPut, failpoint.BeforeCheckpointPut}},
		rules:   []checker.Rule{checker.RuleConverged},
	},
	{
		bug: failpoint.NoBarrier, within: 20,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		bug: failpoint.StaleAccepted, within: 20,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		bug: failpoint.StreamDedup, within: 20,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"plain"}},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		bug: failpoint.NoEpochCheck, within: 20,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"old epoch"}, takes: 5},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		bug: failpoint.NoCAS, within: 40,
		profile: profile{weights: mix(map[stepKind]int{pause: 15, second: 15, letGo: 10}), points: []failpoint.Point{failpoint.BeforeCheckpointPut, failpoint.AfterIndexPut}, runs: 1},
		rules:   []checker.Rule{checker.RuleConverged},
	},
	{
		bug: failpoint.NoPublishCAS, within: 20,
		profile: profile{weights: mix(map[stepKind]int{letGo: 1}), takes: 8},
		rules:   []checker.Rule{checker.RuleAcknowledged, checker.RuleFenced},
	},
	{
		bug: failpoint.HoleFolded, within: 20,
		profile: profile{weights: mix(map[stepKind]int{damage: 10}), deletable: true, runs: 1},
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		bug: failpoint.SegmentCountedFirst, within: 40,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterCheckpointPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleModel, checker.RulePast},
	},
	{
		bug: failpoint.PurgeFirst, within: 40,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.BeforeSegmentPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		bug: failpoint.RetryNewID, within: 20,
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
			seed, first := number(t, "WAYMARK_SEED", 1), number(t, "WAYMARK_SEED", 1)
			for ; ; seed++ {
				require.Less(t, seed, first+b.within, "%d schedules did not show the mistake", b.within)
				undo := failpoint.Seed(b.bug)
				out, err := runPlan(t.Context(), newPlan(seed, b.profile))
				undo()
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

func broke(r *checker.Report, rules []checker.Rule) bool {
	for _, rule := range rules {
		if r.Broken(rule) {
			return true
		}
	}
	return false
}
