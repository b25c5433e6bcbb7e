//go:build unix

package day_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestDay_ProviderLimitsDeployPausesKills_EachRunEndsByItself lives through a day, checks what is promised of it, and that
// a person saw the cause of each minute.
func TestDay_ProviderLimitsDeployPausesKills_EachRunEndsByItself(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: a fleet of processes lives for a minute")
	}
	s := scale{
		servers: 1, runs: 60, leads: 2, capacity: 3, tries: 1, minute: 3 * time.Second, think: 700 * time.Millisecond, down: time.Second,
	}
	if os.Getenv("WAYMARK_DAY") == "" {
		t.Log("sample: a minute that stands for a day; make day: ten minutes")
	} else {
		s = scale{
			servers: 3, runs: 1000, leads: 10, capacity: 8, tries: 2, minute: time.Minute, think: 4 * time.Second, down: 4 * time.Second, whole: true,
		}
	}
	begun := time.Now()
	d := &day{fleet: newFleet(t, s)}
	d.person = newPerson(d.fleet)
	d.live(t.Context())
	lived := time.Since(begun)
	require.Len(t, d.orders, s.runs)
	lives := d.lives(t.Context())
	verdicts := d.judge(lives)
	text := d.report(verdicts, lives, lived)
	t.Log(text)
	if name := os.Getenv("WAYMARK_DAY_REPORT"); name != "" {
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	for _, v := range verdicts {
		for _, b := range v.broken {
			t.Errorf("%s: %s", v.promise, b)
		}
	}
}

// notYet are parts of a day that cannot be shown yet.
var notYet = []string{
	"each tenant has its share: fair turns do not exist yet; the figures below are without them",
	"a budget that is used up: budgets do not exist yet",
	"a browser that follows one answer: live text does not exist yet",
}

// report is the day as a page.
func (d *day) report(verdicts []verdict, lives []*life, lived time.Duration) string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	say("# A day in %s\n", lived.Round(time.Second))
	say("%d runs (with the children) of %d tenants, %d servers, %d daemons, %d executors of %d agents and one that always dies; %d kills.\n",
		len(lives), len(tenants), len(d.servers), len(d.daemons), len(d.executors), len(agents), len(d.kills))
	say("| promise | kept | found |\n|---|---|---|")
	for _, v := range verdicts {
		kept := "yes"
		if len(v.broken) > 0 {
			kept = fmt.Sprintf("NO (%d)", len(v.broken))
		}
		say("| %s | %s | %s |", v.promise, kept, v.found)
	}
	for _, text := range notYet {
		say("| NOT YET: %s | | |", text)
	}
	say("\nUntil the first turn, by tenant: %s.\n", strings.Join(shares(lives), "; "))
	say("## Minutes\n")
	say("Numbers are the largest of the minute. Alerts are those of deploy/prometheus/alerts.yaml, which held at two looks.\n")
	say("| minute | done to the fleet | must be named as | stuck | inbox, webhook | doctor | alerts, metrics |\n|---|---|---|---|---|---|---|")
	for i := range d.rows {
		r := &d.rows[i]
		done := r.what
		if len(r.kills) > 0 {
			done += "; killed: " + strings.Join(r.kills, ", ")
		}
		cell := func(kinds ...string) string {
			var list []string
			for _, kind := range kinds {
				list = append(list, r.saw.lines(kind)...)
			}
			return strings.ReplaceAll(strings.Join(list, "<br>"), "|", "/")
		}
		say("| %d (%s) | %s | %s | %s | %s | %s | %s |", i+1, r.begun.Format("15:04:05"), done, strings.Join(r.sees, "<br>"),
			cell("stuck: "), cell("inbox: ", "webhook: ", "plan: "), cell("doctor: ", "pause: ", "no answer: "), cell("alert: ", "metric: waymark_runs_", "claimable: "))
	}
	for _, v := range verdicts {
		for _, broken := range v.broken[:min(len(v.broken), 20)] {
			say("\n- %s: %s", v.promise, broken)
		}
	}
	return b.String()
}
