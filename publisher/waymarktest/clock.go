package waymarktest

import (
	"sync/atomic"
	"time"

	"github.com/waymarkio/waymark/consumer/assign"
)

// clock is the daemon's: the machine's, and how far the test has moved it.
type clock struct{ ahead atomic.Int64 }

func (c *clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *clock) move(d time.Duration) { c.ahead.Add(int64(d)) }

// Now is the time by the clock of the daemon.
func (w *World) Now() time.Time { return w.clock.Now() }

// Advance moves the daemon's clock forward, at once: killed executors have been silent for so long, and waits that end within it expire. It
// returns when the daemon has swept all runs by the new time, and the events that follow from it are in the log. Living executors heartbeat
// before that, and keep their runs. With a stopped server or daemon only the clock moves.
//
// The clocks of executors stay as they are: their time-outs, pauses and retries take the time that they take, and so does the pace of
// checkpoints. A test that needs them moved gives its agent a clock of its own.
func (w *World) Advance(d time.Duration) {
	w.tb.Helper()
	if d < 0 {
		w.tb.Fatalf("waymarktest: advance by %s: time does not go back", d)
	}
	if !w.Server.runs() || !w.Daemon.runs() {
		w.clock.move(d)
		return
	}
	w.Daemon.leads()
	w.Daemon.caughtUp()
	heartbeats := w.Daemon.daemon.Heartbeats()
	release := heartbeats.Hold()
	silence := w.silence()
	living := heartbeats.Living(silence)
	w.clock.move(d)
	moved := time.Now()
	w.until(func() bool {
		now := heartbeats.Living(silence)
		for seen, before := range living {
			if beat, ok := now[seen]; (!ok || beat.At.Equal(before.At)) && w.mayBeat(seen, before.Every, moved) {
				return false
			}
		}
		return true
	}, "an executor that lives does not heartbeat")
	release()
	w.Daemon.swept(2)
}

// silence of the fleet as it is now.
func (w *World) silence() time.Duration {
	s := w.Daemon.daemon.Settings().Current()
	return s.Silence()
}

// mayBeat reports whether a heartbeat of an instance may still come. The world knows this of its own executors; any other one has three of
// its intervals and a second.
func (w *World) mayBeat(seen assign.Seen, every time.Duration, moved time.Time) bool {
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
