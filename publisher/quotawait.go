package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/pause"
)

// quotaEvery is how often a full stream is sampled, for all waiting runs together.
const quotaEvery = 500 * time.Millisecond

// quotas detects whether space is being freed in full streams. It has no goroutine: the first waiting caller that finds
// the last sample too old takes the next one.
type quotas struct {
	cfg *Config
	js  jetstream.JetStream
	// life ends with the fleet handle, and ends every wait.
	life    context.Context
	mu      sync.Mutex
	streams map[string]*quota
}

// quota is the last sample of a full stream.
type quota struct {
	// looked is when the last sample was requested, told when it was answered.
	looked, told time.Time
	// removed counts the messages removed from the stream since it was created. It grows with each purge, even if other
	// writers use the freed space at once.
	removed uint64
	// freed is when a sample last found removed messages.
	freed       time.Time
	quota, used int64
}

// quotaWait is the wait of one event for space.
type quotaWait struct {
	// began is when the event was first refused; progress is when space was last freed, or when the wait began.
	began, progress time.Time
	relieved        bool
	pause           *pause.Backoff
}

// look samples how full a stream is, unless the last sample is recent.
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
	// Concurrent callers reuse the last sample. Messages removed before an old sample, or before the first one, do not
	// count as progress.
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

// await is called after the server refused an event because its stream is full. It returns nil when the event should be
// sent again. It returns an error when no space was freed for Config.FullPatience, when the event has waited for
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
	defer context.AfterFunc(q.life, func() { cancel(context.Cause(q.life)) })() //nolint:contextcheck // closing the fleet handle ends the wait, too
	if !w.pause.Wait(both) {
		return fmt.Errorf("%w: %w", full(), context.Cause(both))
	}
	return nil
}

// fullError reads the quota of a stream that is never purged, for the message; the error does not depend on the answer.
func (q *quotas) fullError(ctx context.Context, stream string, cause error) error {
	seen := q.look(ctx, stream, 0)
	return &FullError{Fleet: q.cfg.Fleet, Stream: stream, Answer: cause.Error(), Quota: seen.quota, Used: seen.used}
}
