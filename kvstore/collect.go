package kvstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

const (
	// blobGrace is how old content is before it is collected. Executors name it within twice blob.Fresh, or put it again.
	blobGrace = 24 * time.Hour
	// collectAtOnce bounds the descriptions that are judged in one sweep, and collectChunks the contents.
	collectAtOnce, collectChunks = 4096, 1 << 20
	// hashDigits are the digits of the SHA-256 in a blob's name.
	hashDigits = 64
)

// CollectBlobs deletes what executors left in the blob store a day ago and no event names: descriptions of objects that
// were put before an event that never came, and chunks without a description. It returns their number.
//
// An executor that puts a large field and then publishes the event that names it may be interrupted anywhere. It relies
// on an object only within hours of its put, otherwise it puts the content again, under a new id. So an object of a day
// that no event of its run names will not be named, and a replaced description is of another revision, which stays. A
// run's events are read from the log first and then from its segments: what leaves the log in between is in both. Each
// description is judged once; the position is a key of the bucket of leases. Chunks go after their description.
//
// Only the holder of the lease of shard 0 calls it, for all shards.
func (s *Shard) CollectBlobs(ctx context.Context, now time.Time) (n int, err error) {
	if s.Paused(ctx, now) {
		return 0, nil
	}
	about, chunks := newBlobBucket(s.js, s.Names.Fleet, ".M."), newBlobBucket(s.js, s.Names.Fleet, ".C.")
	ids := make(map[string]struct{})
	if _, err := chunks.everyKey(ctx, "*", func(id string) {
		if len(ids) < collectChunks {
			ids[id] = struct{}{}
		}
	}); err != nil {
		return 0, fmt.Errorf("list contents of blobs of fleet %s: %w", s.Names.Fleet, err)
	}
	leases, key := newBucket(s.js, schema.LeaseBucket), "blobs."+s.Names.Fleet
	mark, err := leases.getFresh(ctx, key)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return 0, err
	}
	judged, _ := strconv.ParseUint(string(mark.value), 10, 64) // without one, all are judged again
	old, err := about.described(ctx, s.Names.Fleet, schema.Revision(judged), now.Add(-blobGrace), ids)
	if err != nil {
		return 0, err
	}
	unnamed, err := s.unnamed(ctx, old)
	if err != nil {
		return 0, err
	}
	for _, d := range unnamed {
		if err := about.purge(ctx, d.key, d.rev); err != nil {
			return n, fmt.Errorf("collect blob %.160q: %w", d.Name, err)
		}
		n++
	}
	if len(old) > 0 {
		last := strconv.FormatUint(uint64(old[len(old)-1].rev), 10)
		if _, err := leases.publish(ctx, leases.message(key, []byte(last), nil, false, 0)); err != nil {
			return n, err
		}
	}
	for id := range ids {
		last, err := lastRaw(ctx, s.js, chunks.stream, chunks.prefix+id)
		if err == nil && now.Sub(last.Time) > blobGrace {
			_, err = purge(ctx, s.js, chunks.stream, jsapi.PurgeRequest{Filter: chunks.prefix + id, Below: last.Sequence + 1})
			n++
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return n, fmt.Errorf("collect content %.80q: %w", id, err)
		}
	}
	return n, nil
}

// describedBlob is a description at a revision.
type describedBlob struct {
	Blob
	run, digest string
	rev         schema.Revision
}

// described returns the descriptions after a revision that were stored before a time, and takes what any description
// names out of ids. It asks the leader for each: a replica that lags or lost its store answers without descriptions that
// are there.
func (b *bucket) described(ctx context.Context, fleet string, after schema.Revision, before time.Time, ids map[string]struct{}) (old []describedBlob, err error) {
	for from := schema.Revision(1); ; {
		e, err := b.nextFresh(ctx, b.prefix+">", from)
		if errors.Is(err, ErrNotFound) {
			return old, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list blobs of fleet %s: %w", fleet, err)
		}
		d := describedBlob{Blob: Blob{key: e.key}, rev: e.rev}
		d.Name, _ = decodeName(e.key)
		d.run, d.digest, _ = strings.Cut(d.Name, ".sha256-")
		if nuid := d.judge(fleet, d.run, e.value); !d.Deleted {
			delete(ids, nuid)
		}
		if e.rev > after && e.stored.Before(before) && !d.Deleted && len(old) < collectAtOnce {
			old = append(old, d)
		}
		from = e.rev + 1
	}
}

// unnamed returns those of the descriptions that no event of their run names. A run that cannot be read keeps its own.
func (s *Shard) unnamed(ctx context.Context, old []describedBlob) (list []describedBlob, err error) {
	left := make(map[string]map[string]struct{})
	for _, d := range old {
		if left[d.run] == nil {
			left[d.run] = make(map[string]struct{})
		}
		left[d.run][d.digest] = struct{}{}
	}
	shards := s.settings.Load().Shards
	for run, digests := range left {
		if !schema.ValidName(run) {
			continue // no event can name it
		}
		names := schema.NamesOf(s.Names.Fleet, schema.ShardOf(run, shards))
		segments := &Segments{bucket: newBucket(s.js, names.SegmentBucket())}
		err := strikeNamed(ctx, s.js, names, segments, run, digests)
		switch {
		case errors.Is(err, ErrNotFound), errors.Is(err, ErrCorrupt), errors.Is(err, schema.ErrFormat):
			delete(left, run)
		case err != nil:
			return nil, fmt.Errorf("events of run %s: %w", run, err)
		}
	}
	for _, d := range old {
		if _, unnamed := left[d.run][d.digest]; unnamed {
			list = append(list, d)
		}
	}
	return list, nil
}

// strikeNamed takes the digests out that any record of a run mentions.
func strikeNamed(ctx context.Context, js jetstream.JetStream, names schema.Names, segments *Segments, run string, digests map[string]struct{}) error {
	read := schema.StreamSequence(0)
	if err := eventlog.Read(ctx, js, names, run, 1, func(rec schema.Record) error {
		strikeRecord(digests, &rec)
		read = rec.Stream
		return nil
	}); err != nil {
		return err
	}
	switch last, err := lastRaw(ctx, js, names.EventStream(), names.EventSubject(run)); {
	case err == nil && schema.StreamSequence(last.Sequence) > read:
		return fmt.Errorf("%w: its log was read from a replica that lags", ErrUnavailable)
	case err != nil && !errors.Is(err, ErrNotFound):
		return err
	}
	keys, err := segments.keysOf(ctx, run)
	if err != nil {
		return err
	}
	for i := range keys {
		stored, err := segments.GetFresh(ctx, run, i+1) // one that is missing in between keeps the run's blobs
		if err != nil {
			return err
		}
		_, frames, err := schema.DecodeSegment(stored)
		if err == nil {
			err = schema.ReadFrames(frames, func(rec schema.Record) bool {
				strikeRecord(digests, &rec)
				return true
			})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// strikeRecord takes the digests out that an event names, in any form of it, or that a message which is no event mentions.
func strikeRecord(digests map[string]struct{}, rec *schema.Record) {
	strike(digests, rec.Body)
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		return
	}
	strike(digests, []byte(e.DataRef))
	plain := jsontext.Value(bytes.Clone(e.Data)) // escapes may hide a digest
	if plain.Format(jsontext.PreserveRawStrings(false)) == nil {
		strike(digests, plain)
	}
}

// strike takes each digest out that stands in a text.
func strike(digests map[string]struct{}, text []byte) {
	digits := 0
	for i, c := range text {
		if digits++; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			digits = 0
		}
		if digits >= hashDigits {
			delete(digests, string(text[i+1-hashDigits:i+1]))
		}
	}
}
