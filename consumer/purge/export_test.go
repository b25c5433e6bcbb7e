package purge

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// ProofTrust is for the tests.
const ProofTrust = proofTrust

var ErrSlowProof = errSlowProof

// PurgeQueued purges the queue without waiting for the grace, and returns how many runs remain in it.
func PurgeQueued(ctx context.Context, p *Purger) (left int, err error) {
	for _, e := range p.queue.gains(1<<30, 0, p.deps.Now()) {
		if _, err := p.purgeRun(ctx, e, proofBytes); err != nil {
			return 0, err
		}
	}
	return p.queue.len(), nil
}

// PurgeOnce proves and purges a run once.
func PurgeOnce(ctx context.Context, p *Purger, run string, upTo schema.StreamSequence) error {
	_, err := p.purgeOnce(ctx, run, upTo, proofBytes)
	return err
}
