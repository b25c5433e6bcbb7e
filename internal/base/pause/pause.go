package pause

import (
	"context"
	"time"
)

// For waits until d is over and returns nil, or returns ctx's cause as soon as ctx ends.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
