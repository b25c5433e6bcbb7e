package service_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestSchedule_SetChangedAndRemoved_AnswersSayWhatHolds(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	ask := func(req *schema.ScheduleRequest) *schema.ScheduleReply {
		t.Helper()
		a, err := w.askPlain(schema.VerbSchedule, "", req)
		require.NoError(t, err)
		return decodeAs[schema.ScheduleReply](t, a.first)
	}
	req := schema.ScheduleRequest{Name: "report", By: "ann", ScheduleSpec: schema.ScheduleSpec{
		Cron: "0 7 * * 1-5", TimeZone: "Europe/Berlin", Agent: "writer", Task: "Write.", Labels: map[string]string{"tenant": "acme"},
	}}
	first := ask(&req)
	require.False(t, first.Already)
	require.Equal(t, schema.MissedOne, first.Schedule.Missed)
	since, next := schema.ParseTime(first.Schedule.Since), schema.ParseTime(first.Next)
	require.True(t, next.After(since), "%s after %s", next, since)
	zone, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	require.Equal(t, 7, next.In(zone).Hour())
	require.True(t, ask(&req).Already)
	req.Task = "Write more."
	changed := ask(&req)
	require.False(t, changed.Already)
	require.Equal(t, "Write more.", changed.Schedule.Task)
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), w.Shard.Names.Fleet)
	require.NoError(t, err)
	require.Equal(t, []schema.Schedule{changed.Schedule}, settings.Schedules)
	end := schema.ScheduleRequest{Name: "report", End: true, By: "ann"}
	require.Equal(t, changed.Schedule, ask(&end).Schedule)
	require.True(t, ask(&end).Already)
}

func TestSchedule_WrongRequests_AreRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	right := schema.ScheduleRequest{Name: "report", By: "ann", ScheduleSpec: schema.ScheduleSpec{Cron: "0 7 * * *", Agent: "writer"}}
	for name, change := range map[string]func(*schema.ScheduleRequest){
		"no sender":       func(r *schema.ScheduleRequest) { r.By = "" },
		"no name":         func(r *schema.ScheduleRequest) { r.Name = "" },
		"a long name":     func(r *schema.ScheduleRequest) { r.Name = strings.Repeat("n", 48) },
		"no agent":        func(r *schema.ScheduleRequest) { r.Agent = "" },
		"a bad agent":     func(r *schema.ScheduleRequest) { r.Agent = "an agent" },
		"no cron":         func(r *schema.ScheduleRequest) { r.Cron = "" },
		"seconds":         func(r *schema.ScheduleRequest) { r.Cron = "0 0 7 * * *" },
		"never due":       func(r *schema.ScheduleRequest) { r.Cron = "0 7 31 2 *" },
		"no zone":         func(r *schema.ScheduleRequest) { r.TimeZone = "Berlin" },
		"no policy":       func(r *schema.ScheduleRequest) { r.Missed = "some" },
		"a long task":     func(r *schema.ScheduleRequest) { r.Task = strings.Repeat("t", 4097) },
		"a task too wide": func(r *schema.ScheduleRequest) { r.Task = strings.Repeat("\u0001", 2000) },
	} {
		req := right
		change(&req)
		require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbSchedule, "", &req).Code, name)
	}
}

// The longest name makes a run's id that is a name, too.
func TestSchedule_LongestName_ItsRunsHaveNames(t *testing.T) {
	t.Parallel()
	s := schema.Schedule{Name: strings.Repeat("n", 47)}
	now := time.Date(2026, 12, 1, 7, 0, 5, 0, time.UTC)
	require.NoError(t, schema.CheckName("run", s.RunID(now)))
	require.NoError(t, schema.CheckName("run", s.RunIDNow(now)))
	require.Len(t, s.RunIDNow(now), schema.MaxName)
	require.True(t, strings.HasSuffix(s.RunID(now), "n-20261201T0700Z"))
}

func TestSchedule_SixtyFourExist_AnotherIsRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	fleets := kvstore.NewFleets(w.JS)
	for i := range schema.MaxSchedules {
		_, _, err := fleets.SetSchedule(t.Context(), w.Shard.Names.Fleet, schema.Schedule{Name: "s" + string(rune('a'+i/26)) + string(rune('a'+i%26)), Since: "2026-12-01T07:00:00Z", By: "ann"})
		require.NoError(t, err)
	}
	req := schema.ScheduleRequest{Name: "report", By: "ann", ScheduleSpec: schema.ScheduleSpec{Cron: "0 7 * * *", Agent: "writer"}}
	refused := w.refused(schema.VerbSchedule, "", &req)
	require.Equal(t, schema.CodeConflict, refused.Code)
	require.Contains(t, refused.Message, "64 schedules: remove one")
	req.Name = "saa"
	_, err := w.askPlain(schema.VerbSchedule, "", &req)
	require.NoError(t, err, "one of them can be changed")
}
