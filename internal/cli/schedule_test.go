package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// setInThePast stores a schedule that fires in each hour and was set three hours ago, and returns the id of the run that
// a daemon submits now. The hour may end before that.
func setInThePast(t *testing.T, js jetstream.JetStream, fleet string) (ids []string) {
	t.Helper()
	fleets := kvstore.NewFleets(js)
	now, err := fleets.ServerTime(t.Context())
	require.NoError(t, err)
	s := schema.Schedule{
		Name: "hourly", By: "ann", Since: schema.FormatTime(now.Add(-3 * time.Hour)),
		ScheduleSpec: schema.ScheduleSpec{Cron: "0 * * * *", Missed: schema.MissedOne, Agent: "clerk", Task: "Count.", Labels: map[string]string{"job": "count"}},
	}
	_, _, err = fleets.SetSchedule(t.Context(), fleet, s)
	require.NoError(t, err)
	hour := now.Truncate(time.Hour)
	return []string{s.RunID(hour), s.RunID(hour.Add(time.Hour))}
}

func TestSchedule_CommandsOfThePage_SetRunAndRemove(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "people.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Schedules")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.Split(strings.TrimSpace(strings.ReplaceAll(block, "\\\n", "")), "\n")
	require.Len(t, commands, 5)
	w := newPageWorld(t)

	hasAll(t, w.run(t, "-euc", "waymark schedule ls"), "no schedules")
	hasAll(t, w.run(t, "-euc", commands[0]), "set", "schedule report", "0 7 * * 1-5", "Europe/Berlin", "writer", "waymark-cli")
	hasAll(t, w.run(t, "-euc", commands[0]), "set already")
	w.run(t, "-euc", commands[1])
	hasAll(t, w.run(t, "-euc", "waymark limit ls"), "--label job=report")
	require.Eventually(t, func() bool {
		return regexp.MustCompile(`(?m)^report +0 7 \* \* 1-5 +Europe/Berlin +writer +20\S+:00:00Z *$`).MatchString(w.run(t, "-euc", commands[2]))
	}, time.Minute, 50*time.Millisecond)
	text := w.run(t, "-euc", commands[3])
	hasAll(t, text, "run ", "report-20", "an executor of agent writer claims it")
	run := regexp.MustCompile(`report-\d{8}T\d{6}Z`).FindString(text)
	hasAll(t, w.run(t, "-euc", "waymark runs get "+run), "writer", "Write the daily report.", "job=report")

	// What the user sees of firings.
	end, err := natsconn.Discover(t.Context(), filepath.Join(w.dir, "state"))
	require.NoError(t, err)
	nc, err := end.Connect()
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	ids := setInThePast(t, js, schema.DefaultFleet)
	require.Eventually(t, func() bool {
		text := w.run(t, "-euc", "waymark schedule ls")
		return strings.Contains(text, "interrupted") && (strings.Contains(text, ids[0]) || strings.Contains(text, ids[1]))
	}, time.Minute, 50*time.Millisecond)
	w.run(t, "-euc", "waymark pause --agent clerk --reason why")
	hasAll(t, strings.Join(strings.Fields(w.run(t, "-euc", "waymark schedule ls")), " "), "runs of schedule hourly are submitted and wait", "waymark unpause --agent clerk")
	hasAll(t, w.run(t, "-euc", "curl -s http://127.0.0.1:9477/metrics"), `waymark_schedule_failing{fleet="default",schedule="hourly"} 0`, `waymark_schedule_runs_total{fleet="default"} 1`)

	hasAll(t, w.run(t, "-euc", commands[4]), "removed", "schedule report")
	hasAll(t, w.run(t, "-euc", commands[4]), "there is no schedule report", "waymark schedule ls")
	hasAll(t, w.run(t, "-euc", "waymark runs get "+run), "writer")
	hasAll(t, w.run(t, "-uc", "waymark schedule run report; true"), "no schedule report", "waymark schedule ls")
	for _, wrong := range []string{
		"schedule set report writer", "schedule set report 'a writer' --cron '0 7 * * *'", "schedule set report writer --cron '@daily'",
		"schedule set report writer --cron '0 7 * * *' --time-zone Berlin", "schedule set report writer --cron '0 7 * * *' --missed some",
		"schedule set report-with-a-name-that-is-longer-than-forty-seven writer --cron '0 7 * * *'",
	} {
		require.Contains(t, w.run(t, "-uc", "waymark "+wrong+" || echo refused "), "refused", wrong)
	}
}

// With separate duties a schedule is set by an executor's key: an operator could otherwise start what it approves. The
// daemon may submit with its own permissions.
func TestSchedule_SeparateDuties_ExecutorSetsAndDaemonFires(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon and some commands")
	}
	k := startKeyed(t, "--operator", "ann", "--duties", "separate")
	logs := k.serve(t)
	set := []string{"schedule", "set", "report", "clerk", "--cron", "0 7 * * *", "--task", "Write."}
	hasAll(t, k.person(t, "ann", int(failure.Refused), set...), "does not permit")
	hasAll(t, k.as(t, keyedFleet, access.Observer, int(failure.Refused), set...), "does not permit")
	hasAll(t, k.as(t, keyedFleet, access.Executor, 0, set...), "schedule report", "executor:U")
	hasAll(t, k.as(t, keyedFleet, access.Observer, 0, "schedule", "ls"), "report", "0 7 * * *")
	hasAll(t, k.as(t, keyedFleet, access.Executor, 0, "schedule", "run", "report"), "report-20")

	ids := setInThePast(t, k.jetStream(t, access.Daemon), keyedFleet)
	f := k.executor(t, "worker-7")
	var run string
	require.Eventually(t, func() bool {
		for _, id := range ids {
			if head, err := f.Head(t.Context(), id); err == nil && head.Status == schema.StatusInterrupted {
				run = id
			}
		}
		return run != ""
	}, securedWait, securedWait/600, "%s", logs)
	claimed := map[string]bool{}
	for range 2 {
		r, err := f.Claim(t.Context(), publisher.ClaimSpec{})
		require.NoError(t, err)
		claimed[r.ID()] = true
	}
	require.True(t, claimed[run], "%v", claimed)
	require.NotContains(t, logs.String(), "ermissions violation")
	var states []schema.ScheduleState
	require.NoError(t, json.Unmarshal([]byte(k.as(t, keyedFleet, access.Observer, 0, "--json", "schedule", "ls")), &states))
	require.Len(t, states, 2)
	require.Equal(t, run, states[1].LastRun)
	require.Empty(t, states[1].Why)
}
