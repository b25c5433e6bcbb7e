package kvstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Checkpoints is the checkpoint bucket of a shard: a run's checkpoint under its run id, and the daemon's own keys. It
// is derived from the log: lost entries are folded again.
type Checkpoints struct {
	bucket bucket
	names  schema.Names
	daemon string
}

// Item is one checkpoint to put.
type Item struct {
	// Checkpoint to store. Its Format and Sum are set.
	Checkpoint *schema.Checkpoint
	// Revision that the key must have; 0 creates.
	Revision schema.Revision
}

// Result of one put: the new revision, or the error.
type Result struct {
	Revision schema.Revision
	// Bytes of the put in its stream.
	Bytes int
	Err   error
}

// Stored is a stored checkpoint, or what is known about an unreadable one.
type Stored struct {
	// Run in the key.
	Run string
	// Checkpoint is nil when Err is not.
	Checkpoint *schema.Checkpoint
	// Revision and time of the put, by the server's clock.
	Revision schema.Revision
	Stored   time.Time
	// Err wraps [ErrCorrupt] or schema.ErrFormat.
	Err error
}

// Get reads a run's checkpoint from any replica. It may be stale, so the caller must check it against the log. It
// returns [ErrNotFound], with the revision of a deletion if there was one; [ErrCorrupt] or schema.ErrFormat, with the
// revision to replace.
func (c *Checkpoints) Get(ctx context.Context, run string) (*schema.Checkpoint, schema.Revision, error) {
	return c.read(ctx, run, c.bucket.get)
}

// GetFresh is [Checkpoints.Get] from the leader: for a revision to put with.
func (c *Checkpoints) GetFresh(ctx context.Context, run string) (*schema.Checkpoint, schema.Revision, error) {
	return c.read(ctx, run, c.bucket.getFresh)
}

func (c *Checkpoints) read(ctx context.Context, run string, get func(context.Context, string) (entry, error)) (*schema.Checkpoint, schema.Revision, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, 0, err
	}
	e, err := get(ctx, run)
	if err != nil {
		return nil, e.rev, fmt.Errorf("get checkpoint of run %s: %w", run, err)
	}
	cp, err := c.decode(run, e)
	return cp, e.rev, err
}

// decode reads a stored value and checks that it belongs to the run.
func (c *Checkpoints) decode(run string, e entry) (*schema.Checkpoint, error) {
	cp, err := schema.DecodeCheckpoint(e.value)
	if err != nil {
		return nil, fmt.Errorf("checkpoint of run %s at revision %d: %w", run, e.rev, err)
	}
	if cp.Run != run || cp.Fleet != "" && cp.Fleet != c.names.Fleet {
		return nil, fmt.Errorf("checkpoint of run %s at revision %d is one of run %.64s in fleet %.64s: %w", run, e.rev, cp.Run, cp.Fleet, ErrCorrupt)
	}
	return cp, nil
}

// Put stores a checkpoint if the key is at revision rev; 0 creates it. It returns the new revision, or
// [ErrConflict], [ErrTooLarge], [ErrFull], [ErrUnavailable] (outcome unknown), [ErrStreamMissing].
func (c *Checkpoints) Put(ctx context.Context, cp *schema.Checkpoint, rev schema.Revision) (schema.Revision, error) {
	msg, err := c.message(cp, rev)
	if err != nil {
		return 0, err
	}
	next, err := c.bucket.publishCAS(ctx, msg, cp.Run, rev)
	if err != nil {
		return 0, putError(cp.Run, err)
	}
	return next, nil
}

func putError(run string, err error) error {
	return fmt.Errorf("put checkpoint of run %s: %w", run, err)
}

// message builds a put: the checkpoint as the value, and headers that make its republished copy a CloudEvent.
func (c *Checkpoints) message(cp *schema.Checkpoint, rev schema.Revision) (*nats.Msg, error) {
	if err := schema.CheckName("run id", cp.Run); err != nil {
		return nil, fmt.Errorf("put checkpoint: %w", err)
	}
	value, err := schema.EncodeCheckpoint(cp)
	if err != nil {
		return nil, fmt.Errorf("put: %w", err)
	}
	name := schema.CheckpointUpdated
	switch {
	case cp.Status.Terminal():
		name = schema.CheckpointFinalized
	case rev == 0:
		name = schema.CheckpointCreated
	}
	event := schema.Event{
		ID: cp.Run + "." + strconv.FormatUint(uint64(cp.Epoch), 10) + ".checkpoint." +
			strconv.FormatUint(uint64(cp.Position.Stream), 10),
		Source:          schema.Source(c.names.Fleet, c.daemon),
		Type:            schema.TypeOf(name),
		Subject:         cp.Run,
		Time:            cp.UpdatedAt,
		Epoch:           cp.Epoch,
		DataContentType: schema.ContentTypeJSON,
		Data:            value,
	}
	header, body := event.Encode()
	return c.bucket.message(cp.Run, body, header, true, rev), nil
}

// PutBatch puts many checkpoints, each by compare-and-set on its own key, without waiting between them; the number
// and bytes in flight are bounded. It returns when every put was answered, or ctx is done, or the server is silent; the
// results are in the order of the items. Items must be of different runs: a second one of the same run gets
// [ErrConflict]. Errors are those of [Checkpoints.Put].
func (c *Checkpoints) PutBatch(ctx context.Context, items []Item) []Result {
	seen := make(map[string]struct{}, len(items))
	results := c.bucket.fly(ctx, len(items), func(i int) (*nats.Msg, error) {
		item := &items[i]
		if _, twice := seen[item.Checkpoint.Run]; twice {
			return nil, errTwice
		}
		seen[item.Checkpoint.Run] = struct{}{}
		return c.message(item.Checkpoint, item.Revision)
	})
	for i, item := range items {
		r := &results[i]
		switch {
		case r.Err == nil:
		case item.Revision == 0 && errors.Is(r.Err, ErrConflict) && !errors.Is(r.Err, errTwice):
			// The key may only have a delete marker; Put can create over it.
			r.Revision, r.Err = c.Put(ctx, item.Checkpoint, 0)
		default:
			r.Err = putError(item.Checkpoint.Run, r.Err)
		}
	}
	return results
}

var errTwice = fmt.Errorf("twice in one batch: %w", ErrConflict)

// History returns the stored checkpoints of a run, newest first, including unreadable ones with their error. It ends
// at the newest deletion. It may be stale, and is empty for an unknown run.
func (c *Checkpoints) History(ctx context.Context, run string) ([]Stored, error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, err
	}
	entries, err := c.bucket.history(ctx, run)
	if err != nil {
		return nil, fmt.Errorf("history of run %s: %w", run, err)
	}
	var list []Stored
	for _, e := range slices.Backward(entries) {
		if e.deleted {
			break
		}
		list = append(list, c.stored(run, e))
	}
	return list, nil
}

func (c *Checkpoints) stored(run string, e entry) Stored {
	cp, err := c.decode(run, e)
	return Stored{Run: run, Checkpoint: cp, Revision: e.rev, Stored: e.stored, Err: err}
}

// Trim removes all but the latest checkpoint of an ended run, whose earlier checkpoints are no longer needed.
func (c *Checkpoints) Trim(ctx context.Context, run string) error {
	if err := schema.CheckName("run id", run); err != nil {
		return err
	}
	if _, err := purge(ctx, c.bucket.js, c.bucket.stream, jsapi.PurgeRequest{Filter: c.bucket.prefix + run, Keep: 1}); err != nil {
		return fmt.Errorf("trim checkpoints of run %s: %w", run, err)
	}
	return nil
}
