package kvstore

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// SetSchedule stores a schedule in place of that of the same name, and returns the one in effect: an equal one stays.
// Beyond schema.MaxSchedules it returns [ErrSettings].
func (f *Fleets) SetSchedule(ctx context.Context, fleet string, is schema.Schedule) (_ schema.Schedule, already bool, err error) {
	_, stored, err := f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		i := scheduleIndex(s, is.Name)
		switch {
		case i < 0 && len(s.Schedules) >= schema.MaxSchedules:
			return fmt.Errorf("%w: fleet %s has %d schedules: remove one", ErrSettings, fleet, len(s.Schedules))
		case i < 0:
			s.Schedules = append(slices.Clone(s.Schedules), is)
		case reflect.DeepEqual(&s.Schedules[i].ScheduleSpec, &is.ScheduleSpec):
			is = s.Schedules[i]
		default:
			s.Schedules = slices.Clone(s.Schedules)
			s.Schedules[i] = is
		}
		return nil
	})
	return is, !stored, err
}

// RemoveSchedule removes the schedule of a name, and returns it. It reports false if there is none.
func (f *Fleets) RemoveSchedule(ctx context.Context, fleet, name string) (was schema.Schedule, removed bool, err error) {
	was.Name = name
	_, removed, err = f.putSettings(ctx, fleet, func(s *schema.FleetSettings) error {
		if i := scheduleIndex(s, name); i >= 0 {
			was, s.Schedules = s.Schedules[i], slices.Delete(slices.Clone(s.Schedules), i, i+1)
		}
		if len(s.Schedules) == 0 {
			s.Schedules = nil
		}
		return nil
	})
	return was, removed, err
}

// scheduleIndex is the index of the schedule of a name, -1 for none.
func scheduleIndex(s *schema.FleetSettings, name string) int {
	return slices.IndexFunc(s.Schedules, func(is schema.Schedule) bool { return is.Name == name })
}
