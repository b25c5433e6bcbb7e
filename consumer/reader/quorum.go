package reader

import (
	"context"
	"fmt"
	"time"
)

// Quorum says whether the log of a shard accepts writes.
type Quorum struct {
	Shard int
	// At is when the last barrier was acknowledged; zero before the first.
	At time.Time
	// Err is why it accepts none now; nil if it does.
	Err error
}

// Insist waits for a bound that was found after the call, and retries.
func (b *Barrier) Insist(ctx context.Context) error {
	return Insist(ctx, "stream "+b.names.EventStream(), func() error {
		_, err := b.Wait(ctx)
		return err
	}, func(error) {})
}

// Proof is the quorum of one shard.
func (b *Barrier) Proof(ctx context.Context, now time.Time, fresh time.Duration) Quorum {
	q := Quorum{Shard: b.names.Shard, At: b.lastAcked()}
	if !q.At.IsZero() && now.Sub(q.At) < fresh {
		return q
	}
	if err := b.written(ctx); err != nil {
		q.Err = fmt.Errorf("stream %s takes no writes: %w", b.names.EventStream(), err)
	}
	q.At = b.lastAcked()
	return q
}

// lastAcked is when the last barrier was acknowledged; zero before the first.
func (b *Barrier) lastAcked() time.Time {
	if n := b.acked.Load(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}
