package firing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// world is a fleet with schedules, and its server's clock.
type world struct {
	*waymarktest.World
	t testing.TB

	mu        sync.Mutex
	schedules []schema.Schedule
	now       time.Time
}

// began is when the tests' schedules were set.
var began = time.Date(2026, 12, 1, 6, 30, 0, 0, time.UTC)

func newWorld(tb testing.TB, schedules ...schema.Schedule) *world {
	tb.Helper()
	w := &world{World: waymarktest.Start(tb), t: tb, now: began}
	for _, s := range schedules {
		s.Agent, s.By, s.Since = "writer", "ann", schema.FormatTime(began)
		w.schedules = append(w.schedules, s)
	}
	return w
}

// hourly is a schedule with a policy for missed firings.
func hourly(name, missed string) schema.Schedule {
	return schema.Schedule{Name: name, ScheduleSpec: schema.ScheduleSpec{Cron: "0 * * * *", Missed: missed, Task: "Write."}}
}

// daemon is the part of a new daemon that fires. It knows nothing of earlier ones.
func (w *world) daemon() *Firings {
	w.t.Helper()
	return w.firings(w.submitter())
}

// submitter has one name in all daemons, as in waymark serve.
func (w *world) submitter() *publisher.Fleet {
	w.t.Helper()
	return w.Fleet("waymark-schedule", func(c *publisher.Config) { c.Heartbeat, c.FullPatience = -1, -1 })
}

func (w *world) firings(fleet Fleet) *Firings {
	return New(fleet, func() schema.FleetSettings {
		w.mu.Lock()
		defer w.mu.Unlock()
		return schema.FleetSettings{Schedules: slices.Clone(w.schedules)}
	}, func(context.Context) (time.Time, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.now, nil
	}, zerolog.Nop())
}

// at looks at the schedules at a time of 1 December, and waits for what that begins.
func (w *world) at(clock string, daemons ...*Firings) {
	w.t.Helper()
	day, err := time.Parse("15:04:05", clock)
	require.NoError(w.t, err)
	w.mu.Lock()
	w.now = time.Date(2026, 12, 1, day.Hour(), day.Minute(), day.Second(), 0, time.UTC)
	w.mu.Unlock()
	var group errgroup.Group
	for _, d := range daemons {
		d.look(w.t.Context(), &group)
	}
	require.NoError(w.t, group.Wait())
}

// runs are the hours of the runs of a schedule that can be claimed, and each was started once.
func (w *world) runs(name string) (hours []string) {
	w.t.Helper()
	for hour := range 24 {
		run := fmt.Sprintf("%s-20261201T%02d00Z", name, hour)
		state, err := w.Reader().Get(w.t.Context(), run)
		if errors.Is(err, publisher.ErrRunNotFound) {
			continue
		}
		require.NoError(w.t, err)
		require.Equal(w.t, "Write.", state.Started.Task)
		require.Equal(w.t, "writer", state.Head.Agent)
		require.Equal(w.t, schema.StatusInterrupted, state.Head.Status)
		require.Equal(w.t, schema.Epoch(1), state.Head.Epoch)
		hours = append(hours, fmt.Sprintf("%02d", hour))
	}
	return hours
}

func TestFirings_NoDaemonForThreeDueTimes_PolicyDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll), hourly("one", schema.MissedOne), hourly("none", schema.MissedNone))
	first := w.daemon()
	w.at("06:59:59", first)
	for _, s := range w.schedules {
		require.Empty(t, w.runs(s.Name))
	}
	w.at("07:00:00", first) // and is killed; 08:00, 09:00 and 10:00 pass
	w.Daemon.Kill()
	w.Daemon.Start()
	second := w.daemon()
	w.at("10:01:01", second)
	require.Equal(t, []string{"07", "08", "09", "10"}, w.runs("all"))
	require.Equal(t, []string{"07", "10"}, w.runs("one"))
	require.Equal(t, []string{"07"}, w.runs("none"))
	states := second.States()
	require.Equal(t, []string{"all", "one", "none"}, []string{states[0].Name, states[1].Name, states[2].Name})
	for _, s := range states[:2] {
		require.Equal(t, "2026-12-01T10:00:00Z", s.Last)
		require.Equal(t, s.Name+"-20261201T1000Z", s.LastRun)
	}
	require.Empty(t, states[2].LastRun)
	require.Equal(t, "2026-12-01T10:00:00Z", states[2].LeftOut)
	for _, s := range states {
		require.Equal(t, "2026-12-01T11:00:00Z", s.Next)
		require.Empty(t, s.Why)
	}

	w.at("11:00:59", w.daemon()) // a minute late is in time
	require.Equal(t, []string{"07", "08", "09", "10", "11"}, w.runs("all"))
	require.Equal(t, []string{"07", "10", "11"}, w.runs("one"))
	require.Equal(t, []string{"07", "11"}, w.runs("none"))

	fourth := w.daemon() // what fired is left alone, and known
	w.at("11:30:00", fourth)
	for _, s := range fourth.States() {
		require.Equal(t, s.Name+"-20261201T1100Z", s.LastRun)
		require.Empty(t, s.LeftOut)
	}
	require.Zero(t, fourth.Submitted.Load())
}

func TestFirings_TwoDaemons_EachDueTimeIsOneRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll), hourly("one", schema.MissedOne), hourly("none", schema.MissedNone))
	a, b := w.daemon(), w.daemon()
	for hour := 7; hour < 12; hour++ {
		w.at(fmt.Sprintf("%02d:00:00", hour), a, b) // at the same moment
	}
	for _, s := range w.schedules {
		require.Equal(t, []string{"07", "08", "09", "10", "11"}, w.runs(s.Name), s.Name)
	}
	require.Equal(t, int64(15), a.Submitted.Load()+b.Submitted.Load())
	for _, d := range []*Firings{a, b} {
		require.Zero(t, d.Failed.Load())
	}
}

// crashing is a fleet of a daemon that is killed after it has started a run, and before others can claim it.
type crashing struct{ *publisher.Fleet }

func (c crashing) Submit(ctx context.Context, spec publisher.RunSpec) (bool, error) {
	if _, err := c.Start(ctx, spec); err != nil {
		return false, err
	}
	return false, errors.New("killed")
}

func TestFirings_DaemonDiesInTheMiddle_RunCanBeClaimed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll), hourly("one", schema.MissedOne))
	dead := w.firings(crashing{w.submitter()})
	w.at("07:00:00", dead)
	require.Contains(t, dead.States()[0].Why, "killed")
	w.at("07:00:01", w.daemon())
	require.Equal(t, []string{"07"}, w.runs("one"), "the next daemon releases it")
	require.False(t, w.Status("all-20261201T0700Z").Claimable())
	w.Advance(time.Minute)
	require.Equal(t, schema.StatusOrphaned, w.Await("all-20261201T0700Z", schema.StatusOrphaned), "or it is orphaned")
}

// A fleet whose runs of one hour cannot be stored.
type full struct {
	Fleet

	mu   sync.Mutex
	hour string
}

func (f *full) Submit(ctx context.Context, spec publisher.RunSpec) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hour != "" && strings.HasSuffix(spec.ID, f.hour) {
		return false, fmt.Errorf("start of run %s: %w: shard 3", spec.ID, publisher.ErrFleetFull)
	}
	return f.Fleet.Submit(ctx, spec)
}

func TestFirings_ShardIsFull_SaysSoAndTriesAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll), hourly("one", schema.MissedOne))
	fleet := &full{Fleet: w.submitter(), hour: "0800Z"}
	d := w.firings(fleet)
	w.at("07:00:00", d)
	w.at("08:00:00", d)
	for _, s := range d.States() {
		require.Contains(t, s.Why, "shard 3")
		require.NotEmpty(t, s.FailingSince)
		require.Equal(t, "2026-12-01T08:00:00Z", s.Next, "it is still due")
		require.Equal(t, s.Name+"-20261201T0700Z", s.LastRun)
	}
	require.Equal(t, map[string]float64{"all": 1, "one": 1}, d.Failing())
	require.Equal(t, int64(2), d.Failed.Load())
	w.at("09:00:00", d)
	require.Equal(t, []string{"07"}, w.runs("all"), "a run exists only if those before it do")
	require.Equal(t, []string{"07", "09"}, w.runs("one"), "the latest one does not wait for another")
	fleet.mu.Lock()
	fleet.hour = ""
	fleet.mu.Unlock()
	w.at("09:00:01", d)
	require.Equal(t, []string{"07", "08", "09"}, w.runs("all"))
	require.Equal(t, map[string]float64{"all": 0, "one": 0}, d.Failing())
	for _, s := range d.States() {
		require.Empty(t, s.Why)
		require.Empty(t, s.FailingSince)
	}
}

func TestFirings_ServersTimeIsUnknown_NothingFiresUntilItIs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("one", schema.MissedOne))
	d := w.daemon()
	now := d.now
	d.now = func(context.Context) (time.Time, error) { return time.Time{}, errors.New("no time") }
	w.at("07:00:00", d)
	require.Contains(t, d.States()[0].Why, "no time")
	require.Empty(t, w.runs("one"))
	d.now = now
	w.at("07:00:01", d)
	require.Empty(t, d.States()[0].Why)
	require.Equal(t, []string{"07"}, w.runs("one"))
}

// A schedule counts from the time at which it was set, and its runs stay without it.
func TestFirings_ChangedAndRemoved_CountFromTheChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll))
	d := w.daemon()
	w.at("07:00:00", d)
	w.mu.Lock()
	w.schedules[0].Cron, w.schedules[0].Since = "0 8-23 * * *", "2026-12-01T09:00:00Z"
	w.mu.Unlock()
	w.at("10:00:00", d)
	require.Equal(t, []string{"07", "10"}, w.runs("all"))
	w.mu.Lock()
	w.schedules = nil
	w.mu.Unlock()
	w.at("11:00:00", d)
	require.Empty(t, d.States())
	require.Equal(t, []string{"07", "10"}, w.runs("all"))
}

// A run that was removed has fired, and so has one that a person submitted with its id.
func TestFirings_RunWasRemovedOrDiffers_IsNotSubmittedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, hourly("all", schema.MissedAll), hourly("one", schema.MissedOne))
	ids := []string{"all-20261201T0700Z", "one-20261201T0700Z"}
	w.at("07:00:00", w.daemon())
	operator := w.Fleet("ann", nil)
	for _, id := range ids {
		_, err := operator.Submit(t.Context(), publisher.RunSpec{ID: strings.Replace(id, "07", "08", 1), Agent: "writer", Task: "Another."})
		require.NoError(t, err)
	}
	removed := &removing{Fleet: operator, runs: ids}
	d := w.firings(removed)
	w.at("07:30:00", d)
	for _, s := range d.States() {
		require.Equal(t, s.Name+"-20261201T0700Z", s.LastRun)
	}
	w.at("08:00:00", d)
	for _, s := range d.States() {
		require.Equal(t, s.Name+"-20261201T0800Z", s.LastRun)
		require.Empty(t, s.Why)
	}
	require.Zero(t, d.Submitted.Load())
}

// removing is a fleet whose runs were removed.
type removing struct {
	Fleet

	runs []string
}

func (f *removing) Submit(ctx context.Context, spec publisher.RunSpec) (bool, error) {
	if slices.Contains(f.runs, spec.ID) {
		return false, publisher.ErrRunErased
	}
	return f.Fleet.Submit(ctx, spec)
}

func (f *removing) Head(ctx context.Context, run string) (schema.Head, error) {
	if slices.Contains(f.runs, run) {
		return schema.Head{}, publisher.ErrRunErased
	}
	return f.Fleet.Head(ctx, run)
}

// memory is a fleet in memory.
type memory struct {
	mu   sync.Mutex
	runs []string
}

func (f *memory) Submit(_ context.Context, spec publisher.RunSpec) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fresh := !slices.Contains(f.runs, spec.ID)
	if fresh {
		f.runs = append(f.runs, spec.ID)
	}
	return fresh, nil
}

func (f *memory) Head(_ context.Context, run string) (schema.Head, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Contains(f.runs, run) {
		return schema.Head{}, publisher.ErrRunNotFound
	}
	return schema.Head{}, nil
}

func TestFirings_MoreThanAThousandMissed_TheOldestAreLeftOut(t *testing.T) {
	t.Parallel()
	s := hourly("all", schema.MissedAll)
	s.Cron, s.Agent, s.By, s.Since = "* * * * *", "writer", "ann", schema.FormatTime(began.Add(-24*time.Hour))
	fleet := new(memory)
	w := &world{t: t, schedules: []schema.Schedule{s}}
	d := w.firings(fleet)
	w.at("06:30:30", d)
	require.Len(t, fleet.runs, schema.MaxMissed)
	require.Equal(t, "all-20261201T0630Z", fleet.runs[schema.MaxMissed-1])
	require.Equal(t, "all-20261130T1351Z", fleet.runs[0])
	require.Equal(t, "2026-11-30T13:50:00Z", d.States()[0].LeftOut)
	require.Equal(t, "2026-12-01T06:31:00Z", d.States()[0].Next)
	w.at("06:31:00", w.firings(fleet))
	require.Len(t, fleet.runs, schema.MaxMissed+1)
}
