package liveness

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
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

// tellOverdue publishes run.overdue to observers, once for each overdue attempt in the shard. Another daemon that
// takes over the shard publishes it again with the same id. It is not in the log.
func (w *Sweeper) tellOverdue() {
	told := make(map[string]struct{})
	for run := range w.deps.Heartbeats.overdueRuns() {
		l, ok := w.deps.LiveRuns.of(w.cfg.Shard, run)
		if !ok {
			continue
		}
		for _, o := range w.deps.Heartbeats.overdueOf(&l) {
			id := overdueID(&o)
			if _, ok := w.told[id]; !ok {
				w.tell(id, &l, o)
			}
			told[id] = struct{}{}
		}
	}
	w.told = told
}

// overdueID is the id of run.overdue: the same from each daemon.
func overdueID(o *schema.Overdue) string {
	of := sha256.Sum256(fmt.Appendf(nil, "%d %q %d %s", o.Turn, o.ToolCallID, o.Occurrence, o.Since))
	return fmt.Sprintf("%s.%d.overdue.%x", o.Run, o.Epoch, of[:8])
}

func (w *Sweeper) tell(id string, l *schema.Live, o schema.Overdue) {
	w.deps.Log.Warn().Str(logkey.Run, o.Run).Str("executor", l.Executor).Int32("turn", o.Turn).Str("tool", o.Tool).Str("call", o.ToolCallID).
		Str("since", o.Since).Int64("limit_ms", o.LimitMS).Msg("work exceeds its time limit")
	body, err := json.Marshal(&schema.OverdueData{Executor: l.Executor, Instance: l.Instance, Overdue: o})
	if err == nil {
		e := schema.Event{
			ID: id, Source: schema.Source(w.cfg.Fleet, w.cfg.Holder), Type: schema.TypeOf(schema.RunOverdue), Subject: o.Run,
			Time: schema.FormatTime(w.deps.Now()), Epoch: o.Epoch, DataContentType: schema.ContentTypeJSON, Data: body,
		}
		header, data := e.Encode()
		err = w.deps.JS.Conn().PublishMsg(&nats.Msg{Subject: schema.ObservedSubject(w.cfg.Fleet, schema.RunOverdue, o.Run), Header: header, Data: data})
	}
	if err != nil {
		w.deps.Log.Debug().Err(err).Str(logkey.Run, o.Run).Msg("overdue work not announced")
	}
}
