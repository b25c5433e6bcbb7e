package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/schema"
)

// kinds are this package's errors for the codes of the service.
var kinds = map[schema.Code]error{
	schema.CodeNotFound:         ErrRunNotFound,
	schema.CodeErased:           ErrRunErased,
	schema.CodeRunEnded:         ErrRunEnded,
	schema.CodeWrongAgent:       ErrWrongAgent,
	schema.CodeConflict:         ErrConflict,
	schema.CodeDamaged:          ErrIncomplete,
	schema.CodeStorageFull:      ErrFleetFull,
	schema.CodeNotInDoubt:       ErrNotInDoubt,
	schema.CodeUnknownFleet:     ErrNotProvisioned,
	schema.CodeTooLarge:         ErrPayloadTooLarge,
	schema.CodeUnknownInterrupt: ErrUnknownInterrupt,
	schema.CodeUnknownHandoff:   ErrUnknownHandoff,
	schema.CodeTooManySignals:   ErrSignalsFull,
	schema.CodeRunFull:          ErrRunFull,
	schema.CodeHandoffTaken:     ErrHandoffTaken,
	schema.CodeQuarantined:      ErrQuarantined,
	schema.CodePaused:           ErrPaused,
	schema.CodePointNotFound:    ErrPointNotFound,
	schema.CodePointAmbiguous:   ErrPointAmbiguous,
	schema.CodePointPurged:      ErrPointPurged,
}

// translate wraps the daemon's error with the matching error of this package.
func translate(e *schema.ServiceError) error {
	if e.Code == schema.CodeInvalidAnswer {
		return invalidAnswer(e)
	}
	if kind := kinds[e.Code]; kind != nil {
		return fmt.Errorf("%w: %w", kind, e)
	}
	return e
}

func checkRun(run string) error {
	if err := schema.CheckName("run id", run); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return nil
}

// ask sends a request about a run whose answer is one reply.
func ask[T any](ctx context.Context, r *Reader, verb, run string, request any) (*T, error) {
	if err := checkRun(run); err != nil {
		return nil, fmt.Errorf("%s: %w", verb, err)
	}
	return askFleet[T](ctx, r, verb, run, request)
}

// askFleet is [ask] for a request that may be about no run.
func askFleet[T any](ctx context.Context, r *Reader, verb, run string, request any) (*T, error) {
	request, err := r.secrets.Request(ctx, run, request, func(ctx context.Context) ([]string, error) {
		head, err := r.Head(ctx, run)
		return head.KeyIDs, err
	})
	if errors.Is(err, ErrNoKey) {
		return nil, fmt.Errorf("%s: %w: provide it by Encryption.Key", verb, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of run %s: %w", verb, run, err)
	}
	reply := new(T)
	if err := r.service().One(ctx, verb, run, request, reply); err != nil {
		return nil, err
	}
	return reply, nil
}

// control asks the daemon to write an event into a run.
func (f *Fleet) control(ctx context.Context, verb, run string, request any) error {
	_, err := ask[schema.ControlReply](ctx, f.Reader, verb, run, request)
	return err
}
