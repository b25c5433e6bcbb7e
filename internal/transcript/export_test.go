package transcript

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// StillLeft counts the steps that a run lacks, looked at after a takeover as if it had changed before it.
func StillLeft(ctx context.Context, fleet *publisher.Fleet, handle *publisher.Run, run *Run) (int, error) {
	left, err := stillLeft(ctx, fleet, handle, run, &schema.State{Head: schema.Head{Digest: "another"}}, nil)
	if err != nil {
		return 0, err
	}
	return len(left.steps) - left.done, nil
}
