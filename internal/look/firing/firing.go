package firing

import (
	"context"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/due"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// lookEvery is the interval at which the due times are looked at; a failed submission is tried again as often.
	lookEvery = time.Second
	// patience bounds one look at a schedule. The next one continues where it ended.
	patience = 30 * time.Second
	// recent is the age up to which a due time is not missed.
	recent = time.Minute
)

// Fleet is what firings need of a publisher.Fleet.
type Fleet interface {
	Submit(ctx context.Context, spec publisher.RunSpec) (fresh bool, err error)
	Head(ctx context.Context, run string) (schema.Head, error)
}

// Firings are those of a fleet's schedules in one daemon.
type Firings struct {
	// Submitted counts the runs that this daemon started, and Failed the looks that could not.
	Submitted, Failed atomic.Int64

	fleet    Fleet
	settings func() schema.FleetSettings
	// now is the server's time: a machine whose clock is wrong fires right.
	now func(context.Context) (time.Time, error)
	log zerolog.Logger

	mu sync.Mutex
	// known are the schedules by name, as they were last set.
	known map[string]*schedule
}

// schedule is what the daemon knows of one. The lock of Firings guards it.
type schedule struct {
	state schema.ScheduleState
	times *due.Times
	// done is the time up to which nothing is left to submit. The look that is under way, one at a time, owns it.
	done    time.Time
	looking bool
	// next due time that is not submitted; zero for none.
	next time.Time
}

// New returns the firings of a fleet. Call Run to begin.
func New(fleet Fleet, settings func() schema.FleetSettings, now func(context.Context) (time.Time, error), log zerolog.Logger) *Firings {
	return &Firings{fleet: fleet, settings: settings, now: now, log: log, known: make(map[string]*schedule)}
}

// Run submits what is due until ctx ends, and returns nil then.
func (f *Firings) Run(ctx context.Context) error {
	var group errgroup.Group
	for pause.For(ctx, lookEvery) == nil {
		f.look(ctx, &group)
	}
	return group.Wait()
}

// look begins a look at each schedule that is due. A schedule that fails or catches up delays no other.
func (f *Firings) look(ctx context.Context, group *errgroup.Group) {
	list := f.refresh()
	if len(list) == 0 {
		return
	}
	now, err := f.now(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range list {
		if s.looking {
			continue
		}
		if err != nil {
			f.failed(s, err)
			continue
		}
		if s.next.IsZero() || s.next.After(now) {
			s.worked()
			continue
		}
		s.looking = true
		group.Go(func() error {
			limit, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			err := f.fire(limit, s, now)
			f.mu.Lock()
			defer f.mu.Unlock()
			s.looking = false
			switch {
			case err == nil:
				s.plan(now)
				s.worked()
			case ctx.Err() == nil:
				f.failed(s, err)
			}
			return nil
		})
	}
}

// plan sets the next due time after t.
func (s *schedule) plan(t time.Time) {
	s.next, s.state.Next = time.Time{}, ""
	if next, ok := s.times.Next(t); ok {
		s.next, s.state.Next = next, next.Format(time.RFC3339)
	}
}

// worked notes that nothing fails any more.
func (s *schedule) worked() { s.state.FailingSince, s.state.Why = "", "" }

// refresh returns the schedules of the settings. One that was set again begins again.
func (f *Firings) refresh() []*schedule {
	settings := f.settings()
	f.mu.Lock()
	defer f.mu.Unlock()
	known, list := make(map[string]*schedule, len(settings.Schedules)), make([]*schedule, 0, len(settings.Schedules))
	for i := range settings.Schedules {
		is := &settings.Schedules[i]
		s := f.known[is.Name]
		if s == nil || !reflect.DeepEqual(&s.state.Schedule, is) {
			s = &schedule{state: schema.ScheduleState{Schedule: *is}, done: schema.ParseTime(is.Since)}
			var err error
			if s.times, err = due.Parse(is.Cron, is.TimeZone); err != nil { // a later version may know the zone
				f.failed(s, err)
			} else {
				s.plan(s.done)
			}
		}
		known[is.Name] = s
		if s.times != nil {
			list = append(list, s)
		}
	}
	f.known = known
	return list
}

// failed notes a reason, and logs it once. The lock is held.
func (f *Firings) failed(s *schedule, err error) {
	f.Failed.Add(1)
	if s.state.FailingSince == "" {
		s.state.FailingSince = time.Now().UTC().Format(time.RFC3339)
	}
	if s.state.Why != err.Error() {
		s.state.Why = err.Error()
		f.log.Warn().Err(err).Str("schedule", s.state.Name).Str("hint", "see it with: waymark schedule ls").Msg("schedule cannot submit its run, trying again")
	}
}

// fire submits what is due up to now and was not, by the schedule's policy.
func (f *Firings) fire(ctx context.Context, s *schedule, now time.Time) error {
	most := 1
	if s.state.Missed == schema.MissedAll {
		most = schema.MaxMissed + 1
	}
	list := s.times.Latest(s.done, now, most)
	if latest := list[len(list)-1]; s.state.Missed == schema.MissedOne || s.state.Missed == schema.MissedNone && now.Sub(latest) <= recent {
		return f.submit(ctx, s, latest)
	}
	// The oldest is submitted first: a run exists only if those before it do.
	first := len(list)
	for ; first > 0; first-- {
		fired, err := f.fired(ctx, s.state.RunID(list[first-1]))
		if err != nil {
			return err
		}
		if fired {
			f.advance(s, list[first-1], true)
			break
		}
	}
	if first == 0 && (len(list) > schema.MaxMissed || s.state.Missed == schema.MissedNone) {
		first = 1
		f.advance(s, list[0], false)
		f.log.Warn().Str("schedule", s.state.Name).Time("until", list[0]).Msg("missed firings of a schedule are left out")
	}
	for _, at := range list[first:] {
		if err := f.submit(ctx, s, at); err != nil {
			return err
		}
	}
	return nil
}

// fired reports whether the run of a due time exists, or was removed.
func (f *Firings) fired(ctx context.Context, run string) (bool, error) {
	_, err := f.fleet.Head(ctx, run)
	switch {
	case err == nil, errors.Is(err, publisher.ErrRunErased):
		return true, nil
	case errors.Is(err, publisher.ErrRunNotFound):
		return false, nil
	}
	return false, err
}

// submit submits the run of a due time. One that was removed has fired, and one that differs has, too: a person, or a
// daemon that did not know a change yet, submitted it.
func (f *Firings) submit(ctx context.Context, s *schedule, at time.Time) error {
	spec := Spec(&s.state.Schedule, s.state.RunID(at))
	fresh, err := f.fleet.Submit(ctx, spec)
	if fresh {
		f.Submitted.Add(1)
		f.log.Info().Str("schedule", s.state.Name).Str("run", spec.ID).Msg("schedule submitted a run")
	}
	if errors.Is(err, publisher.ErrConflict) {
		f.log.Warn().Err(err).Str("schedule", s.state.Name).Msg("the run of a schedule differs from it")
	} else if err != nil && !errors.Is(err, publisher.ErrRunErased) {
		return err
	}
	f.advance(s, at, true)
	return nil
}

// advance notes that nothing up to a due time is left to submit: its run exists, or it was left out.
func (f *Firings) advance(s *schedule, at time.Time, fired bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.done = at
	if fired {
		s.state.Last, s.state.LastRun = at.Format(time.RFC3339), s.state.RunID(at)
	} else {
		s.state.LeftOut = at.Format(time.RFC3339)
	}
}

// States are the fleet's schedules, in the order of its settings.
func (f *Firings) States() (list []schema.ScheduleState) {
	settings := f.settings()
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range settings.Schedules {
		is := schema.ScheduleState{Schedule: settings.Schedules[i]}
		if s := f.known[is.Name]; s != nil && reflect.DeepEqual(&s.state.Schedule, &is.Schedule) {
			is = s.state
		}
		list = append(list, is)
	}
	return list
}

// Failing are the names of the schedules whose due run this daemon could not submit.
func (f *Firings) Failing() map[string]float64 {
	list := make(map[string]float64)
	for _, s := range f.States() {
		list[s.Name] = 0
		if s.Why != "" {
			list[s.Name] = 1
		}
	}
	return list
}

// Spec is the run of a schedule with an id.
func Spec(s *schema.Schedule, run string) publisher.RunSpec {
	return publisher.RunSpec{
		ID: run, Agent: s.Agent, Task: s.Task, ThreadID: s.ThreadID, Labels: s.Labels, ModelTier: s.ModelTier, Priority: s.Priority,
		MaxTurns: s.MaxTurns, MaxTokens: s.MaxTokens, Complete: s.CompletionTool,
	}
}
