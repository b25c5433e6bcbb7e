package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// mostTimerJitter bounds the jitter of a timer, which is up to a quarter of its time.
const mostTimerJitter = time.Minute

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
	left := max(until.Sub(now), 0)
	if r.fleet.unrecorded() {
		return pause.For(ctx, left)
	}
	left += rand.N(min(left/4, mostTimerJitter) + 1) //nolint:gosec // jitter
	d.Reason, d.ExpiresAt = schema.WaitTimer, schema.FormatTime(now.Add(left))
	if _, err := r.ask(ctx, d, true); err != nil && !errors.Is(err, ErrInputExpired) && !errors.Is(err, ErrInputCancelled) {
		return err
	}
	return nil
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
