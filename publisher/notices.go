package publisher

import (
	"context"
	"errors"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxLooks bounds the runs that are read at once because of notices.
	maxLooks = 16
	// lookPatience is how long one look waits for the place that a notice names, which an older replica may not show
	// yet. The run cannot publish meanwhile.
	lookPatience = 250 * time.Millisecond
	// lookTries is how often a notice is followed up. What is not seen then is met when the run publishes, or by
	// whoever waits for it.
	lookTries = 4
)

// noticed follows a notice up. It is called by the connection, for one notice after another.
func (f *Fleet) noticed(m *nats.Msg) {
	var n schema.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil {
		f.cfg.Logger.Debug().Err(err).Str("executor", f.cfg.Executor).Msg("notice is not readable")
		return
	}
	met := false
	for _, r := range f.hand.of(n.Run) {
		r.followUp(n.Position.Stream)
		met = met || r.met(n.Position.Stream)
	}
	if n.Name == schema.RunResumed && !met {
		f.mayStray(n.Run)
	}
}

// met reports whether the handle has folded the run up to a place, and goes on.
func (r *Run) met(at schema.StreamSequence) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dead == nil && at <= r.last
}

// followUp looks at the run in the background, until everything up to at was seen; notices that come meanwhile are
// followed up by the same look.
func (r *Run) followUp(at schema.StreamSequence) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead != nil || at != 0 && at <= r.last {
		return // it was met by publishing
	}
	r.noticed = max(r.noticed, at)
	if r.again = true; r.looking {
		return
	}
	f := r.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return
	}
	r.looking = true
	f.background.Go(func() { r.lookUntil(f.life) })
}

// lookUntil looks until what was noticed was seen.
func (r *Run) lookUntil(ctx context.Context) {
	wait := &pause.Backoff{Next: lookPatience, Most: 4 * lookPatience}
	for try := 0; ; {
		r.mu.Lock()
		if r.again {
			r.again, try = false, 0
		}
		r.mu.Unlock()
		err := r.look(ctx)
		try++
		r.mu.Lock()
		if !r.again && (err == nil || r.dead != nil || try == lookTries || ctx.Err() != nil) {
			r.looking, r.noticed = false, 0
			r.mu.Unlock()
			if err != nil && ctx.Err() == nil {
				r.fleet.cfg.Logger.Debug().Err(err).Str("run", r.id).Msg("what a notice names is not seen")
			}
			return
		}
		r.mu.Unlock()
		if err != nil && !wait.Wait(ctx) {
			continue // the fleet is closed
		}
	}
}

// look folds what others wrote, up to what was noticed. A pipeline meets it as it sends; what comes behind all that it
// has sent is looked for once it is idle, which holding the turnstile makes it.
func (r *Run) look(ctx context.Context) error {
	if err := r.enter(ctx); err != nil {
		return err
	}
	defer r.leave()
	r.mu.Lock()
	for p := r.pipe; p != nil && !p.idle() && r.errLocked() == nil; {
		if err := r.await(ctx, p); err != nil {
			r.mu.Unlock()
			return err
		}
	}
	err, upTo := r.errLocked(), max(r.noticed, r.last)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case r.fleet.looks <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-r.fleet.looks }()
	ctx, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	if err := r.catchUp(ctx, upTo, nil); err != nil && !errors.Is(err, ErrCancelRequested) {
		return err
	}
	return nil
}
