package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/schema"
)

// InBlob is the object store, where the large fields of events are.
const InBlob = "blob"

// field is a large field of an accepted event.
type field struct {
	event schema.Position
	size  int64
}

// unsized is the size that a field of another SDK may have that does not state it.
const unsized = 64 << 20

// name notes the large fields of an accepted event. Those of another run stand in that run's events.
func (v *verifier) name(verdict *schema.Verdict) {
	refs := schema.RefsOf(verdict.Data)
	if refs == nil {
		return
	}
	for _, r := range *refs {
		if run, digest, err := schema.ParseDataRef(r.DataRef); err == nil && run == v.is.Run {
			if _, known := v.fields[digest]; !known {
				v.fields[digest] = field{v.head.Position, cmp.Or(r.Size, unsized)}
			}
		}
	}
}

// readBlobs compares each large field with the digest in its name.
func (v *verifier) readBlobs(ctx context.Context) error {
	store := blob.New(v.js, schema.BlobBucket(v.head.Fleet))
	digests := slices.SortedFunc(maps.Keys(v.fields), func(a, b string) int {
		return cmp.Or(cmp.Compare(v.fields[a].event.Stream, v.fields[b].event.Stream), cmp.Compare(a, b))
	})
	for _, digest := range digests {
		f, name, err := v.fields[digest], schema.BlobName(v.is.Run, digest), error(nil)
		for try := 1; ; try++ {
			if _, err = store.Load(ctx, v.is.Run, digest, f.size); err == nil || isDamage(err) || try == tries {
				break
			}
		}
		if err == nil {
			continue
		}
		c, _, gone := v.shard.Checkpoints.GetFresh(ctx, v.is.Run)
		switch {
		case gone == nil && c.Status == schema.StatusErased:
			return ErrNoRun
		case !isDamage(err):
			return fmt.Errorf("large field %s: %w", name, err)
		}
		v.found(&Finding{In: InBlob, Event: f.event, Problem: fmt.Sprintf("large field %s: %s", name, err)})
	}
	return nil
}

// isDamage reports whether the store answered that a blob is missing or another.
func isDamage(err error) bool {
	return errors.Is(err, jetstream.ErrObjectNotFound) || errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, blob.ErrChanged) || errors.Is(err, blob.ErrTooLarge)
}
