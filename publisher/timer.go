package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// mostWait bounds a wait for a time. A duration has at most 292 years.
	mostWait = 100 * 365 * 24 * time.Hour
	// mostTimerJitter bounds the jitter of a timer, which is up to a quarter of its time.
	mostTimerJitter = time.Minute
	// firstRetry is the first wait of a released run before another try. It doubles up to mostRetry.
	firstRetry, mostRetry = 15 * time.Second, 15 * time.Minute
)

// Sleep waits until a time by the server's clock. Under an [Executor] it returns [ErrWaiting], which the work, or its
// pure or idempotent tool, should return: the executor releases the run, with or without WaitDetached, and the run
// needs no memory and no capacity until it is claimed after that time. Then the same call returns nil at once.
//
// id names the wait, as an interrupt id of [Run.Ask]: it must be the same each time the work runs. In a tool it may be
// empty, for the only wait of the call. The first call with an id decides; later ones ignore until. To wait for a
// duration, add it to the present time.
//
// Sleep returns late by up to a quarter of the time, at most a minute, so that many runs do not wake at once, and early
// if a person answers the wait. Its errors are those of [Run.Ask].
func (r *Run) Sleep(ctx context.Context, id string, until time.Time) error {
	if id == "" {
		name := callName(ctx, r)
		if name == "" {
			return fmt.Errorf("sleep of run %s: %w", r.id, configError("id", `""`, "use an id that is the same each time the work waits for this"))
		}
		id = r.derivedID("sleep.", name)
	}
	if err := checkInterruptID(r.id, id); err != nil {
		return err
	}
	return r.sleep(ctx, schema.RunWaitingData{InterruptID: id}, until)
}

// sleep waits for a timer. The daemon answers it.
func (r *Run) sleep(ctx context.Context, d schema.RunWaitingData, until time.Time) error {
	now := r.fleet.cfg.Now()
	if err := r.checkUntil(until); err != nil {
		return err
	}
	left := max(until.Sub(now), 0)
	if r.fleet.unrecorded() {
		return pause.For(ctx, left)
	}
	left += rand.N(min(left/4, mostTimerJitter) + 1) //nolint:gosec // jitter
	d.Reason, d.ExpiresAt = schema.WaitTimer, schema.FormatTime(now.Add(left))
	_, err := r.ask(ctx, d, true)
	return timeOver(err)
}

// checkUntil refuses a time that a duration from now, or an event, cannot have.
func (r *Run) checkUntil(until time.Time) error {
	if until.Year() < 1 || until.Sub(r.fleet.cfg.Now()) > mostWait {
		return fmt.Errorf("run %s: %w", r.id, configError("until", until, "use a time within the next hundred years"))
	}
	return nil
}

// timeOver is nil for the answer to a timer.
func timeOver(err error) error {
	if errors.Is(err, ErrInputExpired) || errors.Is(err, ErrInputCancelled) {
		return nil
	}
	return err
}

// retries counts the recorded waits before another try of a call, or of the turn's request if key names no call, since the
// run was last reopened. last is the latest, and open the wait that is not over.
func (r *Run) retries(key schema.CallKey) (n int, last schema.RunWaitingData, open string) {
	prefix := r.retryPrefix(key)
	r.View(func(s *schema.State) {
		for i := range s.Waits {
			w := &s.Waits[i]
			if !strings.HasPrefix(w.InterruptID, prefix) || w.ToolCallID != key.ToolCallID || w.Occurrence != key.Occurrence {
				continue
			}
			if n, last = n+1, w.RunWaitingData; w.Input == nil {
				open = w.InterruptID
			}
		}
	})
	return n, last, open
}

// retryPrefix has the number of reopens: a run that gave up and is reopened tries again for as long.
func (r *Run) retryPrefix(key schema.CallKey) string {
	reopened := 0
	r.View(func(s *schema.State) {
		for i := range s.Takeovers {
			if s.Takeovers[i].Reason == schema.TakeoverReopen {
				reopened++
			}
		}
	})
	return fmt.Sprintf("%s%d.%d.", schema.RetryWait, key.Turn, reopened)
}

// awaitRetry waits until the next try is due. An earlier executor may have published the wait.
func (r *Run) awaitRetry(ctx context.Context, key schema.CallKey) error {
	_, _, open := r.retries(key)
	if open == "" {
		return nil
	}
	_, err := r.awaitInput(ctx, open)
	return timeOver(err)
}

// retryLater waits before the next try, each time for longer, and not before at; until at if that is far away. It returns
// the error of the failed try once patience since the first failed try, on any executor, is over. begun is when the present
// tries began: the time from the end of the last wait until then, such as a pause, does not count.
func (r *Run) retryLater(ctx context.Context, key schema.CallKey, failed error, begun, at time.Time, patience time.Duration) error {
	if patience < 0 || r.fleet.unrecorded() {
		return failed
	}
	n, last, _ := r.retries(key)
	since := begun
	if n > 0 {
		since = schema.ParseTime(last.FailedSince).Add(max(begun.Sub(schema.ParseTime(last.ExpiresAt)), 0))
	}
	now, over := r.fleet.cfg.Now(), since.Add(patience)
	switch {
	case !now.Before(over):
		return &gaveUp{fmt.Errorf("no try was successful in %s: %w", now.Sub(since).Round(time.Second), failed)}
	case at.After(over):
		return &gaveUp{fmt.Errorf("the next try is due at %s, after the patience of %s: %w", schema.FormatTime(at), patience, failed)}
	}
	until := now.Add(min(firstRetry<<min(n, 10), mostRetry, over.Sub(now)))
	if at.After(until) || at.Sub(now) > mostTryPause { // the provider knows it
		until = at
	}
	return r.sleep(ctx, schema.RunWaitingData{
		InterruptID: r.derivedID(r.retryPrefix(key), fmt.Sprintf("%d.%s.%d", n+1, key.ToolCallID, key.Occurrence)),
		Message:     clipped(failed.Error(), maxShownProblem), ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, FailedSince: schema.FormatTime(since),
	}, until)
}

// gaveUp is the last error of a model or a tool that is not tried again, with the reason.
type gaveUp struct{ error }

func (e *gaveUp) Unwrap() error { return e.error }

// ToolFailure returns the recorded form of the error.
func (e *gaveUp) ToolFailure() schema.Error {
	f := failureOf(e.error)
	f.Message, f.Retryable = e.Error(), false
	return f
}

// callName names the call whose tool calls the method; empty outside a tool of the run.
func callName(ctx context.Context, r *Run) string {
	inv := InvocationOf(ctx)
	if inv.run != r {
		return ""
	}
	return fmt.Sprintf("%d.%s.%d", inv.Key.Turn, inv.Key.ToolCallID, inv.Key.Occurrence)
}

func (r *Run) derivedID(prefix, name string) string {
	head := r.Head()
	return head.DerivedID(prefix, name)
}
