//go:build waymark_failpoints

package chaos_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/mutant"
)

// mutantCase is a mutant of internal/harness/mutant, the schedules that are fit to show its mistake, and the rules that one of them must break.
type mutantCase struct {
	name    string
	profile profile
	rules   []checker.Rule
	// directed makes a schedule that reveals it directly, instead of those drawn from the profile.
	directed func(seed uint64) *plan
	// from is the first schedule that was seen to reveal it; 0 is 1. It must be found within so many: the scheduler
	// decides the order within a step, so the number is a multiple of the usual one.
	from, within uint64
}

// mix is bursts and the given steps.
func mix(weights map[stepKind]int) map[stepKind]int {
	weights[burst] = 60
	return weights
}

var mutantCases = []mutantCase{
	{
		name: "watermark-first", from: 10, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterWatermark, failpoint.AfterIndexPut, failpoint.BeforeCheckpointPut}},
		rules:   []checker.Rule{checker.RuleConverged},
	},
	{
		name: "no-barrier", from: 12, within: 200,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		name: "stale-accepted", from: 25, within: 300,
		profile: profile{weights: mix(map[stepKind]int{freeze: 20}), stale: true, reads: 12},
		rules:   []checker.Rule{checker.RuleWhole, checker.RuleBackwards},
	},
	{
		name: "stream-dedup", within: 200,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"plain"}},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		name: "no-epoch-check", within: 200,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"old epoch"}, takes: 5},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		name: "no-signature-check", within: 200,
		profile: profile{weights: mix(map[stepKind]int{forge: 30}), forgeries: []string{"control"}, keyed: true},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		name: "no-cas", within: 20,
		directed: twoFold,
		rules:    []checker.Rule{checker.RuleConverged},
	},
	{
		name: "stale-begin", within: 20,
		directed: twoBegin,
		rules:    []checker.Rule{checker.RuleCalls},
	},
	{
		name: "begun-as-requested", within: 100,
		profile: profile{weights: mix(map[stepKind]int{resume: 1}), takes: 8},
		rules:   []checker.Rule{checker.RuleModel, checker.RuleCalls},
	},
	{
		name: "requested-kept", within: 100,
		profile: profile{weights: mix(map[stepKind]int{resume: 1}), takes: 8},
		rules:   []checker.Rule{checker.RuleModel},
	},
	{
		name: "answered-again", within: 20,
		directed: afterTheTurn,
		rules:    []checker.Rule{checker.RuleModel},
	},
	{
		name: "ended-twice", within: 20,
		directed: afterTheTurn,
		rules:    []checker.Rule{checker.RuleModel},
	},
	{
		name: "call-behind-end", within: 20,
		directed: afterTheTurn,
		rules:    []checker.Rule{checker.RuleModel},
	},
	{
		name: "no-publish-cas", within: 200,
		profile: profile{weights: mix(map[stepKind]int{resume: 1}), takes: 8},
		rules:   []checker.Rule{checker.RuleAcknowledged, checker.RuleFenced},
	},
	{
		name: "hole-folded", from: 43, within: 600,
		profile: holes,
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		name: "segment-counted-first", from: 17, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.AfterCheckpointPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleModel, checker.RulePast},
	},
	{
		name: "purge-first", from: 3, within: 300,
		profile: profile{weights: mix(map[stepKind]int{crash: 25}), points: []failpoint.Point{failpoint.BeforeSegmentPut}, seal: 3, purges: true},
		rules:   []checker.Rule{checker.RuleAcknowledged},
	},
	{
		name: "retry-new-id", within: 200,
		profile: profile{weights: mix(map[stepKind]int{loseAnswer: 25})},
		rules:   []checker.Rule{checker.RuleTwice},
	},
}

// twoFold stops a daemon just before it puts a checkpoint, lets another fold, and then lets the first continue.
// Within the time to live of the lease it may believe that it folds alone; on a machine that is too slow for that, it
// stops.
func twoFold(seed uint64) *plan {
	all := func(times int) step {
		return step{kind: burst, acts: []act{{executor: 0, run: "run-1", what: "step", times: times, choice: int(seed % 97)}}} //nolint:gosec // small
	}
	return &plan{
		seed: seed, executors: 1, runs: 1, batch: 64, seal: 4, steps: []step{
			{kind: burst, acts: []act{{executor: 0, run: "run-1", what: "start", times: 1}}},
			{kind: settle},
			{kind: pause, point: failpoint.BeforeCheckpointPut, nth: 1},
			all(1),
			{kind: stands},
			{kind: second},
			all(3),
			{kind: settle},
			{kind: goOn},
		},
	}
}

// plan is the schedule of a seed.
func (b *mutantCase) plan(seed uint64) *plan {
	if b.directed != nil {
		return b.directed(seed)
	}
	return newPlan(seed, b.profile)
}

// TestMutants_RandomSchedules_AreFound switches each mutant on and runs schedules until the checker finds its mistake. The schedule that
// shows it breaks no rule without the mutant.
func TestMutants_RandomSchedules_AreFound(t *testing.T) {
	shown := map[string]bool{}
	for _, b := range mutantCases {
		shown[b.name] = true
		t.Run(b.name, func(t *testing.T) {
			first := number(t, "WAYMARK_SEED", max(b.from, 1))
			seed := first
			for ; ; seed++ {
				require.Less(t, seed, first+b.within, "%d schedules did not show the mistake", b.within)
				out, err := runMistaken(t, seed, &b)
				if errors.Is(err, errBehind) && slices.Contains(b.rules, checker.RuleConverged) {
					// A violation of the rule about checkpoints at rest, for a fold that never comes to rest.
					t.Logf("found by schedule %d of %d: %v", seed-first+1, b.within, err)
					break
				}
				if err != nil {
					t.Logf("schedule %d did not come to its end: %v", seed, err)
					continue // it shows that something is wrong, but not what
				}
				if broke(out.report, b.rules) {
					t.Logf("found by schedule %d of %d: %v, e.g. %s", seed-first+1, b.within, out.report.Rules(), out.report.Violations[0])
					break
				}
				if out.report.Error() != nil {
					t.Logf("schedule %d broke %v", seed, out.report.Rules())
				}
			}
			out, err := runPlan(t.Context(), b.plan(seed))
			require.NoError(t, err)
			require.NoError(t, out.report.Error(), "without the mistake:\n%s", out.story(seed))
		})
	}
	all, err := mutant.All()
	require.NoError(t, err)
	for _, m := range all {
		require.Equal(t, shown[m.Name], m.FoundBy == "internal/harness/chaos."+t.Name(), "mutant %s: its patch says that %s finds it", m.Name, m.FoundBy)
	}
}

// runMistaken runs a schedule with the mistake. Some of them never heal, and that is not waited for as long as elsewhere.
func runMistaken(t *testing.T, seed uint64, b *mutantCase) (*outcome, error) {
	t.Helper()
	defer func(before time.Duration) { patience = before }(patience)
	patience = min(patience, 20*time.Second)
	off, err := mutant.Switch(b.name)
	require.NoError(t, err)
	defer off()
	return runPlan(t.Context(), b.plan(seed))
}

func broke(r *checker.Report, rules []checker.Rule) bool {
	return slices.ContainsFunc(rules, r.Broken)
}
