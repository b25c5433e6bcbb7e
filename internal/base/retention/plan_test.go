package retention_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/base/retention"
	"github.com/waymarkio/waymark/schema"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

func policy() schema.RetentionPolicy {
	return schema.RetentionPolicy{CompletedSeconds: 30 * 86400, FailedSeconds: 7 * 86400}
}

func TestPlan_PolicyAndRun_Kept(t *testing.T) {
	old := now.Add(-365 * day)
	for name, c := range map[string]struct {
		run    retention.Run
		why    schema.Why
		remove bool
	}{
		"an old completed run goes":            {retention.Run{Status: schema.StatusCompleted, Last: old}, schema.WhyAge, true},
		"one of exactly the age goes":          {retention.Run{Status: schema.StatusCompleted, Last: now.Add(-30 * day)}, schema.WhyAge, true},
		"a younger one stays":                  {retention.Run{Status: schema.StatusCompleted, Last: now.Add(-30*day + time.Second)}, schema.WhyYoung, false},
		"a failed one goes sooner":             {retention.Run{Status: schema.StatusFailed, Last: now.Add(-8 * day)}, schema.WhyAge, true},
		"what has no age in the policy stays":  {retention.Run{Status: schema.StatusCancelled, Last: old}, schema.WhyForEver, false},
		"a live one stays":                     {retention.Run{Status: schema.StatusRunning, Last: old}, schema.WhyLive, false},
		"an orphaned one stays":                {retention.Run{Status: schema.StatusOrphaned, Last: old}, schema.WhyLive, false},
		"a waiting one stays":                  {retention.Run{Status: schema.StatusWaiting, Last: old}, schema.WhyWaiting, false},
		"an open call stays":                   {retention.Run{Status: schema.StatusFailed, Last: old, OpenCalls: 1}, schema.WhyOpenCall, false},
		"a call in doubt stays":                {retention.Run{Status: schema.StatusFailed, Last: old, OpenCalls: 1, InDoubt: 1}, schema.WhyInDoubt, false},
		"a hand-off stays":                     {retention.Run{Status: schema.StatusCompleted, Last: old, Handoffs: 1}, schema.WhyHandoff, false},
		"a pin stays":                          {retention.Run{Status: schema.StatusCompleted, Last: old, Pins: []string{"before-deploy"}}, schema.WhyPinned, false},
		"a base of a fork elsewhere stays":     {retention.Run{Status: schema.StatusCompleted, Last: old, Forks: []string{"other"}}, schema.WhyBase, false},
		"one whose end is not known stays":     {retention.Run{Status: schema.StatusCompleted}, schema.WhyUnknown, false},
		"one that misses events stays":         {retention.Run{Status: schema.StatusCompleted, Last: old, Unreadable: true}, schema.WhyUnknown, false},
		"one from the future stays":            {retention.Run{Status: schema.StatusCompleted, Last: now.Add(day)}, schema.WhyActive, false},
		"one that was removed is not in plans": {retention.Run{Status: schema.StatusErased, Last: old}, schema.WhyForEver, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.run.ID = "r"
			plan := retention.Plan([]retention.Run{c.run}, policy(), now)
			require.Len(t, plan, 1)
			require.Equal(t, c.why, plan[0].Why)
			require.Equal(t, c.remove, plan[0].Remove)
		})
	}
}

// keepers are the invariants, written again independently: the run must stay.
func keepers(r *retention.Run, p *schema.RetentionPolicy) bool {
	ended := r.Status == schema.StatusCompleted || r.Status == schema.StatusFailed || r.Status == schema.StatusCancelled
	seconds := map[schema.Status]int64{
		schema.StatusCompleted: p.CompletedSeconds, schema.StatusFailed: p.FailedSeconds, schema.StatusCancelled: p.CancelledSeconds,
	}[r.Status]
	age := now.Sub(r.Last)
	return !ended || r.Unreadable || len(r.Pins) > 0 || r.Handoffs > 0 || r.OpenCalls > 0 || r.InDoubt > 0 || r.Waits > 0 ||
		seconds == 0 || r.Last.IsZero() || age < time.Duration(seconds)*time.Second || age < p.Grace() || len(r.Forks) > 0
}

func TestPlan_RandomFleets_InvariantsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "runs")
		ages := rapid.SampledFrom([]time.Duration{0, time.Minute, 9 * time.Minute, 11 * time.Minute, 6 * day, 7 * day, 8 * day, 29 * day, 31 * day, 400 * day})
		few := rapid.SampledFrom([]int{0, 0, 0, 0, 0, 1, 2})
		p := schema.RetentionPolicy{
			CompletedSeconds: rapid.SampledFrom([]int64{0, 1, 86400, 30 * 86400}).Draw(t, "completed"),
			FailedSeconds:    rapid.SampledFrom([]int64{0, 1, 7 * 86400}).Draw(t, "failed"),
			CancelledSeconds: rapid.SampledFrom([]int64{0, 1, 86400}).Draw(t, "cancelled"),
			GraceSeconds:     rapid.SampledFrom([]int64{0, 1, 3600}).Draw(t, "grace"),
		}
		runs := make([]retention.Run, n)
		for i := range runs {
			runs[i] = retention.Run{
				ID: fmt.Sprintf("r%d", i),
				Status: rapid.SampledFrom([]schema.Status{
					schema.StatusCompleted, schema.StatusCompleted, schema.StatusFailed, schema.StatusFailed, schema.StatusCancelled,
					schema.StatusRunning, schema.StatusWaiting, schema.StatusOrphaned, schema.StatusInterrupted, schema.StatusErased, "",
				}).Draw(t, "status"),
				Bytes: 1, Handoffs: few.Draw(t, "handoffs"), OpenCalls: few.Draw(t, "open"), Waits: few.Draw(t, "waits"),
				Unreadable: few.Draw(t, "unreadable") == 2,
			}
			runs[i].InDoubt = min(few.Draw(t, "doubt"), runs[i].OpenCalls)
			if few.Draw(t, "timeless") != 2 {
				runs[i].Last = now.Add(-ages.Draw(t, "age"))
			}
			if few.Draw(t, "pins") > 0 {
				runs[i].Pins = []string{"pin"}
			}
			if few.Draw(t, "forks") > 0 {
				runs[i].Forks = []string{"fork"}
			}
		}
		plan := retention.Plan(runs, p, now)
		require.Len(t, plan, n, "each run is in the plan once")
		for i := range plan {
			require.Equal(t, runs[i].ID, plan[i].Run)
			require.Equal(t, plan[i].Remove, plan[i].Why == schema.WhyAge)
			require.Equal(t, keepers(&runs[i], &p), !plan[i].Remove, "%+v", runs[i])
		}
	})
}

func TestReport_Plan_Same(t *testing.T) {
	old := now.Add(-365 * day)
	items := retention.Plan([]retention.Run{
		{ID: "a", Status: schema.StatusCompleted, Last: old, Bytes: 100},
		{ID: "b", Status: schema.StatusCompleted, Last: old, Bytes: 10, Pins: []string{"x|y"}},
		{ID: "c", Status: schema.StatusFailed, Last: old, Bytes: 1},
	}, policy(), now)
	r := retention.Report{Fleet: "default", Policy: policy(), Began: "then", Ended: "now"}
	items[len(items)-1].Failed = "it was reopened"
	r.Add(items)
	require.EqualValues(t, 3, r.Scanned)
	require.EqualValues(t, 1, r.Removed)
	require.EqualValues(t, 1, r.Kept)
	require.EqualValues(t, 1, r.Failed)
	require.EqualValues(t, 100, r.Bytes)
	require.Equal(t, map[schema.Why]int64{schema.WhyAge: 2, schema.WhyPinned: 1}, r.ByWhy)
	require.Equal(t, []schema.Why{schema.WhyAge, schema.WhyPinned}, r.Reasons())
	require.Equal(t, items, r.Runs)
}

func TestRunOf_OpenCall_IsPending(t *testing.T) {
	c := &schema.Checkpoint{Head: schema.Head{
		Run: "r", Status: schema.StatusCancelled, OpenCalls: []schema.OpenCall{{Replay: schema.ReplayVerify, State: schema.CallInDoubt}},
	}}
	r := retention.RunOf(c, 0)
	why, _ := r.Pending()
	require.Equal(t, schema.WhyInDoubt, why)
	c.OpenCalls[0].State = schema.CallBegun
	r = retention.RunOf(c, 0)
	why, _ = r.Pending()
	require.Equal(t, schema.WhyOpenCall, why)
}
