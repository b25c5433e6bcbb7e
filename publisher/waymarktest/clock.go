package waymarktest

import (
	"sync/atomic"
	"time"

	"github.com/waymarkio/waymark/consumer/liveness"
)

// clock is the daemon's clock: the machine's time plus the test's advances.
type clock struct{ ahead atomic.Int64 }

func (c *clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) move(d time.Duration) { c.ahead.Add(int64(d)) }

// Now returns the time of the daemon's clock.
func (w *World) Now() time.Time { return w.clock.Now() }

// Advance moves the daemon's clock forward at once: killed executors have been silent for this long, and waits that end
// within it expire. It returns when the daemon has swept all runs at the new time, and the resulting events are in the
// log. Living executors send a heartbeat before that, and keep their runs. If the server or the daemon is stopped, only
// the clock moves.
//
// The clocks of executors do not move: their timeouts, pauses and retries take real time, and so does the interval of
// checkpoints. If a test must move them, give its agent a clock of its own.
func (w *World) Advance(d time.Duration) {
	w.tb.Helper()
	if d < 0 {
		w.tb.Fatalf("waymarktest: cannot advance by %s: use a positive duration", d)
	}
	if !w.Server.runs() || !w.Daemon.runs() {
		w.clock.move(d)
		return
	}
	w.Daemon.leads()
	w.Daemon.caughtUp()
	heartbeats := w.Daemon.daemon.Heartbeats()
	steady, _ := heartbeats.Steady()
	for {
		release := heartbeats.Hold()
		silence := w.silence()
		living := heartbeats.Living(silence)
		w.clock.move(d)
		d = 0
		moved := time.Now()
		w.until(func() bool {
			now := heartbeats.Living(silence)
			for seen, before := range living {
				if beat, ok := now[seen]; (!ok || beat.At.Equal(before.At)) && w.mayBeat(seen, before.Every, moved) {
					return false
				}
			}
			return true
		}, "a living executor sends no heartbeat")
		release(steady)
		w.Daemon.swept(2)
		if since, _ := heartbeats.Steady(); !since.After(steady) {
			return
		} // otherwise the machine was slow, and the silence timers were reset
	}
}

// silence is the fleet's current silence timeout.
func (w *World) silence() time.Duration {
	s := w.Daemon.daemon.Settings().Current()
	return s.Silence()
}

// mayBeat reports whether a heartbeat of an instance may still come. For its own executors the world knows; any other
// instance has three of its intervals plus a second.
func (w *World) mayBeat(seen liveness.Holder, every time.Duration, moved time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.fleets {
		if f.Executor() == seen.Executor && f.Instance() == seen.Instance {
			return true
		}
	}
	for _, e := range w.executors {
		if e.name == seen.Executor && e.instances[seen.Instance] {
			return e.instance == seen.Instance
		}
	}
	return time.Since(moved) < 3*every+time.Second
}
