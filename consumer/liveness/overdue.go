package liveness

import (
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/schema"
)

// setOverdue replaces the overdue work of an instance. One invalid entry refuses the whole list, and so does a lack
// of room: the previous list stays. Under h.mu.
func (h *Heartbeats) setOverdue(l *instanceLife, list []schema.Overdue) error {
	if len(list) > schema.MaxOverdue {
		return fmt.Errorf("%w: %d pieces of work are overdue, at most %d", errHeartbeat, len(list), schema.MaxOverdue)
	}
	for i := range list {
		o := &list[i]
		if err := schema.CheckName("run", o.Run); err != nil {
			return fmt.Errorf("%w: overdue: %w", errHeartbeat, err)
		}
		if len(o.ToolCallID) > schema.MaxIdentifier || len(o.Tool) > schema.MaxIdentifier || schema.ParseTime(o.Since).IsZero() || o.LimitMS < 0 {
			return fmt.Errorf("%w: overdue work of run %s: an id or a name above %d bytes, no time, or a limit below 0", errHeartbeat, o.Run, schema.MaxIdentifier)
		}
		o.Extra = nil
	}
	more := len(list) - len(l.overdue)
	if more > 0 && h.overdue+more > maxOverdue {
		return fmt.Errorf("%w: executor %s has %d pieces of overdue work, but the fleet's have %d already, at most %d", errHeartbeat, l.executor, len(list), h.overdue, maxOverdue)
	}
	h.overdue += more
	l.overdue = list
	return nil
}

// Overdue returns the overdue work of a run, the oldest first. Reports about runs of other executors are ignored.
func (h *Heartbeats) Overdue(run string) []schema.Overdue {
	l, ok := h.runs.Get(run)
	if !ok {
		return nil
	}
	return h.overdueOf(&l)
}

// OverdueRuns counts the runs with overdue work.
func (h *Heartbeats) OverdueRuns() int {
	n := 0
	for run := range h.overdueRuns() {
		if len(h.Overdue(run)) > 0 {
			n++
		}
	}
	return n
}

// overdueRuns are the runs that any executor reports as overdue.
func (h *Heartbeats) overdueRuns() map[string]struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.overdue == 0 {
		return nil
	}
	runs := make(map[string]struct{}, h.overdue)
	for _, own := range h.executors {
		for _, l := range own {
			for _, o := range l.overdue {
				runs[o.Run] = struct{}{}
			}
		}
	}
	return runs
}

// overdueOf returns the overdue work of a run, the oldest first, as reported by its executor.
func (h *Heartbeats) overdueOf(l *schema.Live) (list []schema.Overdue) {
	if !l.Attended {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for instance, life := range h.executors[l.Executor] {
		if l.Instance != "" && l.Instance != instance {
			continue
		}
		for _, o := range life.overdue {
			if o.Run == l.Run && o.Epoch == l.Epoch {
				list = append(list, o)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b schema.Overdue) int { return schema.ParseTime(a.Since).Compare(schema.ParseTime(b.Since)) })
	return list
}
