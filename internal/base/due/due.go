package due

import (
	"cmp"
	"fmt"
	"iter"
	"strings"
	"time"
	_ "time/tzdata" // Windows and scratch images have no time zones

	"github.com/netresearch/go-cron"
)

// fields are those of crontab(5), with its rule for days: if both of them are restricted, one has to match. There are no
// seconds, no names such as @daily, and no @every, which counts from an unknown start.
const fields = cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom

// Times are the due times of a schedule.
type Times struct {
	wall cron.Schedule
	zone *time.Location
}

// Parse reads five cron fields, and the name of a time zone; an empty one means UTC.
func Parse(spec, zone string) (*Times, error) {
	location, err := time.LoadLocation(cmp.Or(zone, "UTC"))
	if err != nil || zone == "Local" {
		return nil, fmt.Errorf("time zone %q is not in the IANA database: use a name such as Europe/Berlin", zone)
	}
	// The prefix keeps a zone out of the spec.
	wall, err := cron.MustNewParser(fields).Parse("TZ=UTC " + strings.TrimSpace(spec))
	if err != nil {
		return nil, fmt.Errorf("%q: %w: use five fields, minute, hour, day of month, month and day of week, such as 0 7 * * 1-5", spec, err)
	}
	return &Times{wall, location}, nil
}

// skipped is more than any clock is advanced at a change of time.
const skipped = 3 * time.Hour

// After yields the due times after t, in order. It steps through the times that the wall clock shows, as if they were in
// UTC: the parser's own steps through a zone fire twice in an hour that comes twice, and never in a skipped midnight.
func (d *Times) After(t time.Time) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		_, offset := t.In(d.zone).Zone()
		wall := t.UTC().Add(time.Duration(offset)*time.Second - skipped)
		for last := t; ; {
			if wall = d.wall.Next(wall); wall.IsZero() {
				return
			}
			due := d.instant(wall)
			if !due.After(last) {
				continue
			}
			if last = due; !yield(due) {
				return
			}
		}
	}
}

// instant is when the clock shows a time. One that comes twice is the first of both, and a skipped one is read by the
// clock before the change, so that it is due behind it. time.Date promises neither.
func (d *Times) instant(wall time.Time) time.Time {
	by := func(near time.Time) (_ time.Time, shown bool) {
		_, offset := near.In(d.zone).Zone()
		t := wall.Add(time.Duration(-offset) * time.Second)
		_, is := t.In(d.zone).Zone()
		return t, is == offset
	}
	before, shown := by(wall.AddDate(0, 0, -1))
	if after, now := by(wall.AddDate(0, 0, 1)); !shown && now {
		return after
	}
	return before
}

// Next is the first due time after t; false if there is none within five years.
func (d *Times) Next(t time.Time) (time.Time, bool) {
	for due := range d.After(t) {
		return due, true
	}
	return time.Time{}, false
}

// Latest returns the latest n due times after t, up to now, in order.
func (d *Times) Latest(t, now time.Time, n int) (list []time.Time) {
	for span := time.Hour; ; span *= 2 {
		from := now.Add(-span)
		if from.Before(t) {
			from = t
		}
		list = list[:0]
		for due := range d.After(from) {
			if due.After(now) {
				break
			}
			list = append(list, due)
		}
		if len(list) >= n || !from.After(t) {
			return list[max(0, len(list)-n):]
		}
	}
}
