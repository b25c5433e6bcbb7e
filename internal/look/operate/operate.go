package operate

import (
	"context"
	"crypto/rand"
	"errors"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ForkInterrupt is the interrupt for which a held fork waits.
const ForkInterrupt = "fork"

// MayTake refuses to take a run from an executor that may be working on it, unless forced.
func MayTake(p prompt.Prompt, h *schema.Head, force bool) error {
	if h.Status.Terminal() || h.Status.Claimable() || h.Unattended != "" || force {
		return nil
	}
	return failure.New(failure.Conflict, "see its state: "+p.Command("runs get "+h.Run)+"; to fence the executor anyway, add --force",
		"run %s is %s with executor %s, which may be working on it", h.Run, h.Status, h.Executor)
}

// ForkID returns a new id for a fork of a run.
func ForkID(run string) string {
	id := rand.Text()
	return run[:min(len(run), schema.MaxName-14)] + "-fork-" + id[len(id)-8:]
}

// Fork starts a new run from a point of another run and releases it: at once, or held until it is answered.
func Fork(ctx context.Context, fleet *publisher.Fleet, spec publisher.ForkSpec, hold bool) error {
	run, err := fleet.Fork(ctx, spec)
	if err != nil {
		return err
	}
	if hold {
		err := run.Wait(ctx, schema.RunWaitingData{
			InterruptID: ForkInterrupt, Reason: schema.WaitHumanInput, Message: "forked from " + spec.Base + " and held: answer to continue it",
		})
		if err != nil {
			return err
		}
	}
	return run.Interrupt(ctx, schema.InterruptedPreempted)
}

// Taken adds the next step to the refusal of a used id: to show the run, or another id if that run was erased. get reads the run.
func Taken(p prompt.Prompt, id string, err error, get func() error) error {
	hint := "show it with: " + p.Command("runs get "+id) + "; or choose another id with --as"
	service, answered := errors.AsType[*schema.ServiceError](get())
	if errors.Is(err, publisher.ErrRunErased) || answered && service.Code == schema.CodeErased {
		hint = "the run with that id was erased, and its id is never used again: choose another id with --as"
	}
	return &failure.Error{Code: failure.Conflict, What: err.Error(), Hint: hint, Err: err}
}

// Rewind takes a run over after a point and releases it to the fleet. It returns the head. epoch is the one in which
// the run was seen: in any other it is left alone. A repeated call with the same request is the same takeover.
func Rewind(ctx context.Context, fleet *publisher.Fleet, run string, epoch schema.Epoch, point schema.Point, request string) (schema.Head, error) {
	return fleet.Release(ctx, run, publisher.ResumeSpec{At: point, RequestID: request, ExpectedEpoch: epoch})
}

// Releasable reports whether a release has an effect: a run without an executor and without failed claims is free already.
func Releasable(p prompt.Prompt, h *schema.Head, force bool) (bool, error) {
	switch {
	case h.Status.Terminal():
		return false, failure.New(failure.Conflict, "to go on with it: "+p.Command("reopen "+h.Run),
			"run %s has ended as %s: there is nothing to release", h.Run, h.Status)
	case (h.Unattended != "" || h.Status.Claimable()) && h.Stalled == 0:
		return false, nil
	}
	return true, MayTake(p, h, force)
}

// Release takes a run over, and then releases it. The reason is request, which ends a quarantine, or reopen for a run
// that has ended. It returns the head. epoch is as in [Rewind].
func Release(ctx context.Context, fleet *publisher.Fleet, run string, epoch schema.Epoch, reason string) (schema.Head, error) {
	return fleet.Release(ctx, run, publisher.ResumeSpec{ExpectedEpoch: epoch, Reason: reason})
}
