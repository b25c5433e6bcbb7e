package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/pause"
)

// quotaEvery is how often the streams that runs wait for are looked at, for all of those runs together.
const quotaEvery = 500 * time.Millisecond

// quotas knows whether room is being made in the streams that are full. It has no goroutine: of those who wait, the one
// who finds the last look old looks again.
type quotas struct {
	cfg *Config
	js  jetstream.JetStream
	// life ends with the handle of the fleet, and every wait with it.
	life    context.Context
	mu      sync.Mutex
	streams map[string]*quota
}

// quota is what the last look at a full stream has found.
type quota struct {
	// looked is when it was asked last, told when that was answered.
	looked, told time.Time
	// removed counts the messages that were taken out of the stream since it was made: it grows with each purge, also when
	// others fill at once what became free.
	removed uint64
	// freed is when a look last found that something had been taken out.
	freed       time.Time
	quota, used int64
}

// quotaWait is the wait of one event for room.
type quotaWait struct {
	// began is when the event was refused first, progress when room was made last or the wait began.
	began, progress time.Time
	relieved        bool
	pause           *pause.Backoff
}

// look asks how full a stream is, unless that was asked a moment ago.
func (q *quotas) look(ctx context.Context, stream string, every time.Duration) quota {
	q.mu.Lock()
	if q.streams == nil {
		q.streams = make(map[string]*quota)
	}
	r := q.streams[stream]
	if r == nil {
		r = new(quota)
		q.streams[stream] = r
	}
	now := time.Now()
	if now.Sub(r.looked) < every {
		defer q.mu.Unlock()
		return *r
	}
	// Who comes meanwhile goes by the look before. What happened before an old look, or before the first, is nobody's progress.
	old := now.Sub(r.told) > 4*max(every, q.cfg.MaxBackoff)+q.cfg.TryTimeout
	r.looked = now
	q.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, q.cfg.TryTimeout)
	defer cancel()
	s, err := q.js.Stream(ctx, stream)
	q.mu.Lock()
	defer q.mu.Unlock()
	if err != nil {
		return *r
	}
	info := s.CachedInfo()
	removed := info.State.LastSeq - info.State.Msgs
	if !old && removed > r.removed {
		r.freed = time.Now()
	}
	r.told = now
	r.removed, r.quota, r.used = removed, max(info.Config.MaxBytes, 0), int64(info.State.Bytes) //nolint:gosec // a size
	return *r
}

// await is called when the server refused an event because its stream is full. It returns nil when the event is to be
// sent again, and an error when no room was made for Config.FullPatience, when the event has waited for
// Config.FullTimeout, or when the caller or the fleet has ended. The event is not stored then.
func (q *quotas) await(ctx context.Context, w *quotaWait, stream string, cause error) error {
	now := time.Now()
	if w.began.IsZero() {
		w.began, w.progress, w.pause = now, now, q.cfg.pause()
	}
	every := min(quotaEvery, max(q.cfg.FullPatience/4, 0))
	seen := q.look(ctx, stream, every)
	if seen.freed.After(w.progress) {
		w.progress, w.relieved = seen.freed, true
	}
	full := func() error {
		return &FullError{
			Fleet: q.cfg.Fleet, Stream: stream, Answer: cause.Error(), Quota: seen.quota, Used: seen.used,
			Waited: time.Since(w.began), Relieved: w.relieved,
		}
	}
	if time.Since(w.progress) >= q.cfg.FullPatience || time.Since(w.began) >= q.cfg.FullTimeout {
		return full()
	}
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(q.life, func() { cancel(context.Cause(q.life)) })() //nolint:contextcheck // the life of the fleet ends the wait, too
	if !w.pause.Wait(both) {
		return fmt.Errorf("%w: %w", full(), context.Cause(both))
	}
	return nil
}

// fullError asks for the quota of a stream that is never relieved, for the message; the error does not depend on the answer.
func (q *quotas) fullError(ctx context.Context, stream string, cause error) error {
	seen := q.look(ctx, stream, 0)
	return &FullError{Fleet: q.cfg.Fleet, Stream: stream, Answer: cause.Error(), Quota: seen.quota, Used: seen.used}
}
