package publisher

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
)

// roomEvery is how often the streams that runs wait for are looked at, for all of those runs together.
const roomEvery = 500 * time.Millisecond

// rooms knows whether room is being made in the streams that are full. It has no goroutine: of those who wait, the one
// who finds the last look old looks again.
type rooms struct {
	mu      sync.Mutex
	streams map[string]*room
}

// room is what the last look at a full stream has found.
type room struct {
	// looked is when it was asked last, told when that was answered.
	looked, told time.Time
	// removed counts the messages that were taken out of the stream since it was made: it grows with each purge, also when
	// others fill at once what became free.
	removed uint64
	// freed is when a look last found that something had been taken out.
	freed       time.Time
	quota, used int64
}

// roomWait is the wait of one event for room.
type roomWait struct {
	// began is when the event was refused first, progress when room was made last or the wait began.
	began, progress time.Time
	relieved        bool
	pause           *pause.Backoff
}

// lookForRoom asks how full a stream is, unless that was asked a moment ago.
func (f *Fleet) lookForRoom(ctx context.Context, stream string, every time.Duration) room {
	f.rooms.mu.Lock()
	if f.rooms.streams == nil {
		f.rooms.streams = make(map[string]*room)
	}
	r := f.rooms.streams[stream]
	if r == nil {
		r = new(room)
		f.rooms.streams[stream] = r
	}
	now := time.Now()
	if now.Sub(r.looked) < every {
		defer f.rooms.mu.Unlock()
		return *r
	}
	// Who comes meanwhile goes by the look before. What happened before an old look, or before the first, is nobody's progress.
	old := now.Sub(r.told) > 4*max(every, f.cfg.MaxBackoff)+f.cfg.TryTimeout
	r.looked = now
	f.rooms.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, f.cfg.TryTimeout)
	defer cancel()
	s, err := f.js.Stream(ctx, stream)
	f.rooms.mu.Lock()
	defer f.rooms.mu.Unlock()
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

// awaitRoom is called when the server refused an event because its stream is full. It returns nil when the event is to be
// sent again, and an error when no room was made for Config.FullPatience, when the event has waited for
// Config.FullTimeout, or when the caller or the fleet has ended. The event is not stored then.
func (f *Fleet) awaitRoom(ctx context.Context, w *roomWait, stream string, cause error) error {
	now := time.Now()
	if w.began.IsZero() {
		w.began, w.progress, w.pause = now, now, f.backoff()
	}
	every := min(roomEvery, max(f.cfg.FullPatience/4, 0))
	seen := f.lookForRoom(ctx, stream, every)
	if seen.freed.After(w.progress) {
		w.progress, w.relieved = seen.freed, true
	}
	full := func() error {
		return &FullError{
			Fleet: f.cfg.Fleet, Stream: stream, Answer: cause.Error(), Quota: seen.quota, Used: seen.used,
			Waited: time.Since(w.began), Relieved: w.relieved,
		}
	}
	if time.Since(w.progress) >= f.cfg.FullPatience || time.Since(w.began) >= f.cfg.FullTimeout {
		return full()
	}
	both, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(f.life, func() { cancel(context.Cause(f.life)) })() //nolint:contextcheck // the life of the fleet ends the wait, too
	if !w.pause.Wait(both) {
		return fmt.Errorf("%w: %w", full(), context.Cause(both))
	}
	return nil
}

// fullError asks for the quota of a stream that is never relieved, for the message; the error does not depend on the answer.
func (f *Fleet) fullError(ctx context.Context, stream string, cause error) error {
	seen := f.lookForRoom(ctx, stream, 0)
	return &FullError{Fleet: f.cfg.Fleet, Stream: stream, Answer: cause.Error(), Quota: seen.quota, Used: seen.used}
}
