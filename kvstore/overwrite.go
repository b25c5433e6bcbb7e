package kvstore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// ballastBytes is the size of a ballast message, and ballasts the number that fills a block of the server, 8 MiB.
	ballastBytes = 256 << 10
	ballasts     = 8<<20/ballastBytes + 1
	// replicaLook is the pause between two looks whether the replicas have all of a stream.
	replicaLook = 50 * time.Millisecond
)

// overwrite deletes the stored messages of a removed run one by one: the server overwrites each with random bytes on
// every replica. It rewrites and syncs a block of its files, up to 8 MiB, for each of them. A purge only marks messages
// as deleted. The last message in the log, run.erased, and the last checkpoint stay.
func (s *Shard) overwrite(ctx context.Context, run string, keys []string, blobs []Blob, erased schema.StreamSequence) error {
	last, err := s.Checkpoints.bucket.getFresh(ctx, run)
	if err != nil {
		return err
	}
	checkpoints, segments := &s.Checkpoints.bucket, &s.Segments.bucket
	about, chunks := newBlobBucket(s.js, s.Names.Fleet, ".M."), newBlobBucket(s.js, s.Names.Fleet, ".C.")
	list := []stored{
		{s.Names.EventStream(), s.Names.EventSubject(run), uint64(erased)},
		{checkpoints.stream, checkpoints.prefix + run, uint64(last.rev)},
		{segments.stream, segments.prefix + run + ".*", math.MaxUint64},
		{schema.DeadLetterStream(s.Names.Fleet), deadLettersOf(s.Names.Fleet, run), math.MaxUint64},
	}
	for _, key := range keys {
		list = append(list, stored{checkpoints.stream, checkpoints.prefix + key, math.MaxUint64})
	}
	for _, b := range blobs {
		if b.NUID != "" && !b.False {
			list = append(list, stored{chunks.stream, chunks.prefix + b.NUID, math.MaxUint64})
		}
		if b.Name != "" {
			list = append(list, stored{about.stream, about.prefix + b.key, math.MaxUint64})
		}
	}
	for _, all := range list {
		if err := s.overwriteAll(ctx, all); err != nil {
			return err
		}
	}
	return nil
}

// stored are the messages of a subject below a sequence.
type stored struct {
	stream, subject string
	below           uint64
}

func (s *Shard) overwriteAll(ctx context.Context, all stored) error {
	for from := uint64(1); ; from++ {
		one, cancel := oneRead(ctx)
		m, err := jsapi.Get(one, s.js, all.stream, jsapi.GetRequest{Seq: from, NextFor: all.subject}) // its headers may be anything
		cancel()
		if err = translate(err); errors.Is(err, ErrNotFound) || err == nil && m.Sequence >= all.below {
			return nil
		}
		if err == nil {
			from, err = m.Sequence, s.deleteMessage(ctx, all.stream, jsapi.DeleteRequest{Seq: m.Sequence})
		}
		if err != nil {
			return err
		}
	}
}

func (s *Shard) deleteMessage(ctx context.Context, stream string, what jsapi.DeleteRequest) error {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	return translate(jsapi.Delete(ctx, s.js, stream, what))
}

// Turn ends the block of each stream of the shard into which the server writes, and makes a cluster's server shorten
// its Raft log: these still have messages that were deleted before [Shard.Remove], such as superseded checkpoints and
// sealed events. For this it publishes and deletes ballast, a block in size, one message at a time. The server
// compacts an ended block as soon as less than half of it is in use. Dead letters are never superseded, and ballast
// would push out others. It returns [ErrFull] if a stream has no room for a message of ballast, and [ErrUnavailable]
// if a replica is away, or does not have all: only a later Turn reaches that one.
func (s *Shard) Turn(ctx context.Context, daemon string, now time.Time) error {
	barrier := schema.Event{
		ID: schema.BarrierRun + ".ballast", Source: schema.Source(s.Names.Fleet, daemon), Type: schema.TypeOf(schema.Barrier),
		Subject: schema.BarrierRun, Time: schema.FormatTime(now),
	}
	header, _ := barrier.Encode()
	blobs := schema.BlobBucket(s.Names.Fleet)
	for stream, subject := range map[string]string{
		s.Names.EventStream():       s.Names.EventSubject(schema.BarrierRun), // no reader takes it for an event of a run
		s.Segments.bucket.stream:    s.Segments.bucket.prefix + "_.ballast",
		s.Checkpoints.bucket.stream: s.Checkpoints.bucket.prefix + "_.ballast",
		"OBJ_" + blobs:              "$O." + blobs + ".C._ballast",
	} {
		if err := s.turn(ctx, stream, subject, header); err != nil {
			return fmt.Errorf("overwrite deleted messages of stream %s: %w", stream, err)
		}
	}
	return nil
}

func (s *Shard) turn(ctx context.Context, stream, subject string, header nats.Header) error {
	if err := s.complete(ctx, stream); err != nil {
		return err
	}
	b := bucket{js: s.js, stream: stream}
	before := schema.Revision(0)
	for i := range ballasts + 1 {
		data := make([]byte, ballastBytes)
		if i == ballasts {
			data = nil // the last one stays in the log: a reader may wait for a barrier that ends here, too
		}
		at, err := b.publish(ctx, &nats.Msg{Subject: subject, Header: header, Data: data})
		if err != nil {
			return err
		}
		// The one before: the server checks a block for compaction when a message in it is deleted, if it is not the last.
		if before != 0 {
			err = s.deleteMessage(ctx, stream, jsapi.DeleteRequest{Seq: uint64(before), NoErase: true})
		}
		if err != nil {
			return err
		}
		before = at
	}
	keep := uint64(0)
	if stream == s.Names.EventStream() {
		keep = 1
	}
	if _, err := purge(ctx, s.js, stream, jsapi.PurgeRequest{Filter: subject, Keep: keep}); err != nil {
		return err
	}
	for {
		err := s.complete(ctx, stream)
		if err == nil || pause.For(ctx, replicaLook) != nil {
			return err
		}
	}
}

// complete returns [ErrUnavailable] unless every replica of a stream has all of it.
func (s *Shard) complete(ctx context.Context, stream string) error {
	info, err := streamInfo(ctx, s.js, stream)
	if err != nil || info.Cluster == nil {
		return err
	}
	for _, r := range info.Cluster.Replicas {
		if r.Offline || !r.Current {
			return fmt.Errorf("%w: its replica on server %s is away or behind", ErrUnavailable, r.Name)
		}
	}
	return nil
}
