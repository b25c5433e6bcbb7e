package publisher

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxLooks bounds the runs that are read concurrently because of notices.
	maxLooks = 16
	// lookPatience is how long one look waits for the stream sequence that a notice names. An older replica may not
	// have it yet. Meanwhile the run cannot publish.
	lookPatience = 250 * time.Millisecond
	// lookTries is how often a notice is followed up. An event that is not found then is found when the run next
	// publishes, or by a waiting call.
	lookTries = 4
)

// noticed handles a notice. The connection calls it, for one notice after another.
func (f *Fleet) noticed(m *nats.Msg) {
	var n schema.Notice
	if err := json.Unmarshal(m.Data, &n); err != nil {
		f.cfg.Logger.Debug().Err(err).Str("executor", f.cfg.Executor).Msg("could not read notice")
		return
	}
	switch n.Name {
	case schema.RunClaimable:
		f.calls.come()
		return
	case schema.EventRefused: // a handle folds its own events before it publishes them
		f.cfg.Logger.Warn().Str("run", n.Run).Str("event", n.Position.ID).Str("reason", string(n.Reason)).Str("detail", n.Detail).Msg("event refused by the fold")
		return
	}
	for _, r := range f.hand.of(n.Run) {
		f.followUp(r, n.Position.Stream)
	}
}

// follower reads a run in the background, up to the sequences that notices name. The same read follows up notices that
// arrive meanwhile.
type follower struct {
	// look folds events of other writers, up to a sequence; ended reports that the handle has ended.
	look  func(ctx context.Context, upTo schema.StreamSequence) error
	ended func() bool

	mu sync.Mutex
	// looking: a notice is being followed up. noticed is the highest sequence named, and left the number of looks since
	// the latest notice that may follow.
	looking bool
	noticed schema.StreamSequence
	left    int
}

// notice records a sequence. It reports whether the caller must start to look.
func (w *follower) notice(at schema.StreamSequence) (begin bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noticed, w.left = max(w.noticed, at), lookTries
	begin = !w.looking
	w.looking = true
	return begin
}

// lookUntil looks until the noticed sequence was folded, and returns the error if it was not.
func (w *follower) lookUntil(ctx context.Context) error {
	wait := &pause.Backoff{Next: lookPatience, Most: 4 * lookPatience}
	for {
		w.mu.Lock()
		w.left--
		upTo, left := w.noticed, w.left
		w.mu.Unlock()
		err := w.look(ctx, upTo)
		w.mu.Lock()
		again := w.left != left // a notice arrived during the look
		if !again && (err == nil || left == 0 || w.ended()) || ctx.Err() != nil {
			w.looking, w.noticed = false, 0
			w.mu.Unlock()
			return err
		}
		w.mu.Unlock()
		if err != nil {
			wait.Wait(ctx)
		}
	}
}

// followUp looks at the run in the background, unless publishing has already folded the sequence.
func (f *Fleet) followUp(r *Run, at schema.StreamSequence) {
	if last, _ := r.ledger.end(); r.ledger.ended() != nil || at != 0 && at <= last {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped || !r.follower.notice(at) {
		return
	}
	f.background.Go(func() {
		if err := r.follower.lookUntil(f.life); err != nil && f.life.Err() == nil {
			f.cfg.Logger.Debug().Err(err).Str("run", r.id).Msg("event of notice not found")
		}
	})
}

// look folds events of other writers, up to a sequence.
func (r *Run) look(ctx context.Context, upTo schema.StreamSequence) error {
	if err := r.slot.enter(ctx); err != nil {
		return err
	}
	defer r.slot.leave()
	if err := r.ledger.err(); err != nil {
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
	last, _ := r.ledger.end()
	if err := r.recorder.catchUp(ctx, max(upTo, last), nil); err != nil && !errors.Is(err, ErrCancelRequested) {
		return err
	}
	return nil
}
