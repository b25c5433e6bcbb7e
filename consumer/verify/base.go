package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer/internal/replay"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Bases checks that the run of a fork's base is unchanged up to the point of the fork, and so on for that run's own
// base, down to a run that is no fork. shard returns that of a run. It returns nil if all are unchanged, else the first that is
// not.
func Bases(ctx context.Context, js jetstream.JetStream, fleet string, base *schema.BaseRef, shard func(run string) (*kvstore.Shard, error)) (*Finding, error) {
	for forks := 0; base != nil; forks++ {
		if forks == schema.MaxBases {
			return &Finding{In: InBase, Event: base.Position, Problem: fmt.Sprintf("it stands on more than %d others", schema.MaxBases)}, nil
		}
		in, err := shard(base.Run)
		if err != nil {
			return nil, err
		}
		f, below, err := baseIn(ctx, js, fleet, base, in)
		if err != nil || f != nil {
			return f, err
		}
		base = below
	}
	return nil, nil
}

// baseIn searches for a base in its shard. below is its own base.
func baseIn(ctx context.Context, js jetstream.JetStream, fleet string, base *schema.BaseRef, shard *kvstore.Shard) (f *Finding, below *schema.BaseRef, err error) {
	at, err := headAt(ctx, js, shard, fleet, base)
	switch {
	case errors.Is(err, ErrNoRun):
		return &Finding{In: InBase, Event: base.Position, Problem: "run " + base.Run + " is no longer there"}, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("verify base %s: %w", base.Run, err)
	case at == nil:
		return &Finding{In: InBase, Event: base.Position, Problem: fmt.Sprintf("run %s does not have the event any more", base.Run)}, nil, nil
	case at.Digest != base.Digest || at.Position.ID != base.Position.ID:
		return &Finding{In: InBase, Event: base.Position, Problem: fmt.Sprintf("run %s had digest %.16s… there, and has %.16s…", base.Run, base.Digest, at.Digest)}, nil, nil
	default:
		return nil, at.Base, nil
	}
}

// headAt folds a run of a shard up to the point where a fork of it began. It returns nil if the run ends before it.
func headAt(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, fleet string, base *schema.BaseRef) (*schema.Head, error) {
	keys, err := kvstore.ReadKeys(ctx, js, fleet)
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		v := &verifier{
			js: js, keys: keys, shard: shard, head: schema.NewHead(fleet, base.Run), sums: map[schema.StreamSequence]replay.Sum{}, base: base,
			links: map[schema.StreamSequence]link{}, is: Result{Run: base.Run, Shard: shard.Names.Shard},
		}
		if err := v.readSegments(ctx); err != nil {
			return nil, err
		}
		if err := v.readLog(ctx); err != nil {
			return nil, err
		}
		if v.at != nil && v.at.Digest == base.Digest {
			return v.at, nil
		}
		// More may have been sealed and purged between the two reads.
		moved, err := v.moved(ctx)
		switch {
		case err != nil:
			return nil, err
		case moved && try < tries:
		case v.empty():
			return nil, ErrNoRun
		default:
			return v.at, nil
		}
	}
}
