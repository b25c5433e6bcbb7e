package pause

import (
	"context"
	"math/rand/v2"
	"time"
)

// Backoff waits between tries, with jitter, longer each time.
type Backoff struct {
	// Next is the next wait, half of it jitter; Most bounds later waits.
	Next, Most time.Duration
}

// Wait returns false when ctx ends first.
func (b *Backoff) Wait(ctx context.Context) bool {
	d := b.Next/2 + rand.N(b.Next/2+1) //nolint:gosec // jitter
	b.Next = min(2*b.Next, b.Most)
	return For(ctx, d) == nil
}
