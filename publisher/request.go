package publisher

import (
	"context"
	"errors"
	"fmt"

	"github.com/waymarkio/waymark/internal/fleetclient"
	"github.com/waymarkio/waymark/schema"
)

// translate wraps the daemon's error with the matching error of this package.
func translate(e *schema.ServiceError) error {
	if e.Code == schema.CodeInvalidAnswer {
		return invalidAnswer(e)
	}
	if kind := kindOf(e.Code); kind != nil {
		return fmt.Errorf("%w: %w", kind, e)
	}
	return e
}

// kindOf is this package's error for a code of the service, or nil.
func kindOf(code schema.Code) error {
	switch code {
	case schema.CodeNotFound:
		return ErrRunNotFound
	case schema.CodeErased:
		return ErrRunErased
	case schema.CodeRunEnded:
		return ErrRunEnded
	case schema.CodeWrongAgent:
		return ErrWrongAgent
	case schema.CodeConflict:
		return ErrConflict
	case schema.CodeDamaged:
		return ErrIncomplete
	case schema.CodeStorageFull:
		return ErrFleetFull
	case schema.CodeNotInDoubt:
		return ErrNotInDoubt
	case schema.CodeUnknownFleet:
		return ErrNotProvisioned
	case schema.CodeTooLarge:
		return ErrPayloadTooLarge
	case schema.CodeUnknownInterrupt:
		return ErrUnknownInterrupt
	case schema.CodeUnknownHandoff:
		return ErrUnknownHandoff
	case schema.CodeTooManySignals:
		return ErrSignalsFull
	case schema.CodeHandoffTaken:
		return ErrHandoffTaken
	case schema.CodeQuarantined:
		return ErrQuarantined
	case schema.CodePointNotFound:
		return ErrPointNotFound
	case schema.CodePointAmbiguous:
		return ErrPointAmbiguous
	case schema.CodePointPurged:
		return ErrPointPurged
	default:
		return nil
	}
}

// askOne sends a request whose answer is one reply.
func askOne[T any](ctx context.Context, r *Reader, verb, run string, request any) (*T, error) {
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
	return fleetclient.One[T](ctx, r.service(), verb, run, request)
}
