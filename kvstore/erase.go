package kvstore

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/schema"
)

// Blob is an object of a run in the fleet's object store.
type Blob struct {
	// Name of the object; NUID is what its content lies under.
	Name, NUID string
	// Bytes of its content; 0 for one that was deleted.
	Bytes   int64
	Deleted bool
	// False: its description is none that the object store writes. It alone is removed, and no content by what it says.
	False bool
}

// BlobsOf finds the objects of some runs by their names, deleted ones included. It reads the names of all objects of the
// fleet: ask for many runs at once.
func BlobsOf(ctx context.Context, js jetstream.JetStream, fleet string, runs map[string]struct{}) (map[string][]Blob, error) {
	bucket := newBlobBucket(js, fleet)
	found := make(map[string][]Blob)
	for offset, more := 0, true; more; {
		keys, further, err := bucket.subjectPage(ctx, "*", offset)
		if err != nil {
			return nil, fmt.Errorf("list blobs of fleet %s: %w", fleet, err)
		}
		offset, more = offset+len(keys), further
		for _, key := range keys {
			name, err := base64.URLEncoding.DecodeString(key)
			if err != nil {
				continue // another client's; it is none of ours
			}
			run, _, ok := strings.Cut(string(name), ".")
			if _, wanted := runs[run]; ok && wanted {
				found[run] = append(found[run], Blob{Name: string(name)})
			}
		}
	}
	if len(found) == 0 {
		return found, nil
	}
	store, err := js.ObjectStore(ctx, schema.BlobBucket(fleet))
	if err != nil {
		return nil, fmt.Errorf("blobs of fleet %s: %w", fleet, translate(err))
	}
	for _, blobs := range found {
		for i := range blobs {
			b := &blobs[i]
			info, err := store.GetInfo(ctx, b.Name, jetstream.GetObjectInfoShowDeleted())
			if err != nil {
				return nil, fmt.Errorf("blob %.160q: %w", b.Name, translate(err))
			}
			b.Deleted, b.Bytes = info.Deleted, int64(info.Size) //nolint:gosec // a size on disk
			// What describes an object is an executor's word. A name of its content that is a pattern would take out other runs'.
			if schema.ValidName(info.NUID) && info.Name == b.Name && info.Bucket == schema.BlobBucket(fleet) {
				b.NUID = info.NUID
			} else {
				b.False = true
			}
		}
	}
	return found, nil
}

// newBlobBucket is the part of a fleet's object store that describes objects.
func newBlobBucket(js jetstream.JetStream, fleet string) bucket {
	name := schema.BlobBucket(fleet)
	return bucket{js: js, name: name, stream: "OBJ_" + name, prefix: "$O." + name + ".M.", api: apiPrefix(js)}
}

func chunkSubject(fleet, nuid string) string { return "$O." + schema.BlobBucket(fleet) + ".C." + nuid }

// Left is what is stored of a run beside the mark in the log and the checkpoint that says that it was removed. blobs are
// those of the run as [BlobsOf] found them; keys are those of its index entries. wide looks for entries under other keys,
// too, which makes the server go through all keys of the bucket.
func (s *Shard) Left(ctx context.Context, run string, keys []string, blobs []Blob, wide bool) (schema.ErasedParts, error) {
	var p schema.ErasedParts
	err := errors.Join(schema.CheckName("run id", run), s.leftInLog(ctx, run, &p))
	if err == nil {
		err = s.leftInBuckets(ctx, run, keys, wide, &p)
	}
	if err == nil {
		err = s.leftOfBlobs(ctx, blobs, &p)
	}
	if err == nil {
		p.DeadLetters, err = s.count(ctx, schema.DeadLetterStream(s.Names.Fleet), deadLettersOf(s.Names.Fleet, run))
	}
	if err != nil {
		return p, fmt.Errorf("what is left of run %s: %w", run, err)
	}
	return p, nil
}

// Stored is [Shard.Left] for a run of which nothing was removed yet: it reads no segments.
func (s *Shard) Stored(ctx context.Context, run string, keys []string, blobs []Blob) (schema.ErasedParts, error) {
	var p schema.ErasedParts
	segments, err := s.Segments.keysOf(ctx, run)
	if err == nil {
		p.Segments = int64(len(segments))
		err = s.leftInLog(ctx, run, &p)
	}
	if err == nil {
		err = s.leftOfCheckpoints(ctx, run, &p)
	}
	if err == nil {
		err = s.leftOfBlobs(ctx, blobs, &p)
	}
	if err == nil {
		p.DeadLetters, err = s.count(ctx, schema.DeadLetterStream(s.Names.Fleet), deadLettersOf(s.Names.Fleet, run))
	}
	if err != nil {
		return p, fmt.Errorf("what is stored of run %s: %w", run, err)
	}
	p.IndexKeys = int64(len(keys)) // the fold has taken them out already
	return p, nil
}

func deadLettersOf(fleet, run string) string { return "waymark.deadletters." + fleet + ".*." + run }

func (s *Shard) leftInLog(ctx context.Context, run string, p *schema.ErasedParts) error {
	n, err := s.count(ctx, s.Names.EventStream(), s.Names.EventSubject(run))
	if err != nil || n == 0 {
		return err
	}
	last, err := s.LastOfRun(ctx, run)
	if err != nil {
		return err
	}
	if p.LogEvents = n; last != nil && schema.IsErasedMark(last) {
		p.LogEvents--
	}
	return nil
}

// LastOfRun returns the last message that the leader has of a run in the log, nil for none.
func (s *Shard) LastOfRun(ctx context.Context, run string) (*schema.Record, error) {
	e, err := lastFresh(ctx, s.js, s.Names.EventStream(), s.Names.EventSubject(run))
	if errors.Is(err, ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("last event of run %s: %w", run, err)
	}
	return &schema.Record{Stream: schema.StreamSequence(e.rev), Header: e.header, Body: e.value}, nil
}

// LastPlace is where and when a run's last message was stored, by the server's clock.
type LastPlace struct {
	At     schema.StreamSequence
	Stored time.Time
}

// LastStored returns where the last message of each of some runs is in the log, those left out that have none. It may be
// stale.
func (s *Shard) LastStored(ctx context.Context, runs []string) (map[string]LastPlace, error) {
	events := bucket{
		js: s.js, name: s.Names.EventStream(), stream: s.Names.EventStream(), prefix: s.Names.EventSubject(""), api: apiPrefix(s.js),
	}
	lasts := make(map[string]LastPlace, len(runs))
	found, err := events.many(ctx, runs)
	if err != nil {
		// A message whose own headers are no header block comes without its place: the leader answers otherwise.
		for _, run := range runs {
			e, err := lastFresh(ctx, s.js, events.stream, events.prefix+run)
			if errors.Is(err, ErrNotFound) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("last event of run %s: %w", run, err)
			}
			lasts[run] = LastPlace{At: schema.StreamSequence(e.rev), Stored: e.stored}
		}
		return lasts, nil
	}
	for run, e := range found {
		lasts[run] = LastPlace{At: schema.StreamSequence(e.rev), Stored: e.stored}
	}
	return lasts, nil
}

func (s *Shard) leftInBuckets(ctx context.Context, run string, keys []string, wide bool, p *schema.ErasedParts) error {
	segments, err := s.Segments.keysOf(ctx, run)
	if err != nil {
		return err
	}
	there, err := s.Segments.bucket.many(ctx, segments)
	if err != nil {
		return err
	}
	for _, e := range there {
		p.Segments++
		p.SegmentBytes += int64(len(e.value))
	}
	if err := s.leftOfCheckpoints(ctx, run, p); err != nil {
		return err
	}
	keys, err = s.indexKeys(ctx, run, keys, wide)
	if err != nil {
		return err
	}
	entries, err := s.Checkpoints.bucket.many(ctx, keys)
	p.IndexKeys = int64(len(entries))
	return err
}

func (s *Shard) leftOfCheckpoints(ctx context.Context, run string, p *schema.ErasedParts) error {
	list, err := s.Checkpoints.History(ctx, run)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	for i := range list {
		if c := list[i].Checkpoint; c == nil || c.Status != schema.StatusErased {
			p.Checkpoints++
		}
	}
	return nil
}

// indexKeys are the keys under which a run may be listed.
func (s *Shard) indexKeys(ctx context.Context, run string, keys []string, wide bool) ([]string, error) {
	keys = append(slices.Clone(keys), schema.LiveKeyPrefix+run)
	if wide {
		for _, filter := range []string{
			schema.EndedKeyPrefix + strings.Repeat("*.", len(schema.EndedShifts)+2) + run, schema.ChildKeyPrefix + "*." + run,
		} {
			more, _, err := s.Checkpoints.bucket.subjectPage(ctx, filter, 0)
			if err != nil {
				return nil, err
			}
			keys = append(keys, more...)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), nil
}

func (s *Shard) leftOfBlobs(ctx context.Context, blobs []Blob, p *schema.ErasedParts) error {
	for _, b := range blobs {
		if !b.Deleted && b.Name != "" {
			p.Blobs++
			p.BlobBytes += b.Bytes
			continue
		}
		n, err := s.count(ctx, "OBJ_"+schema.BlobBucket(s.Names.Fleet), chunkSubject(s.Names.Fleet, b.NUID))
		if err != nil {
			return err
		}
		if n > 0 {
			p.Blobs++
		}
	}
	return nil
}

// Remove takes out everything of a run but its mark in the log and the checkpoint that says that it was removed. Call it
// for a run that both are there of. It may be repeated, and goes on where it was interrupted.
func (s *Shard) Remove(ctx context.Context, run string, keys []string, blobs []Blob, wide bool) error {
	if err := schema.CheckName("run id", run); err != nil {
		return err
	}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"index entries", func(ctx context.Context) error { return s.removeIndex(ctx, run, keys, wide) }},
		{"dead letters", func(ctx context.Context) error {
			letters := schema.DeadLetterStream(s.Names.Fleet)
			n, err := s.count(ctx, letters, deadLettersOf(s.Names.Fleet, run))
			if err == nil && n > 0 {
				_, err = purge(ctx, s.js, letters, purgeRequest{Filter: deadLettersOf(s.Names.Fleet, run)})
			}
			return err
		}},
		{"blobs", func(ctx context.Context) error { return s.removeBlobs(ctx, blobs) }},
		{"segments", func(ctx context.Context) error { return s.Segments.deleteAll(ctx, run) }},
		{"events", func(ctx context.Context) error { return s.removeEvents(ctx, run) }},
		{"checkpoints", func(ctx context.Context) error { return s.Checkpoints.Trim(ctx, run) }},
	} {
		if err := step.do(ctx); err != nil {
			return fmt.Errorf("remove %s of run %s: %w", step.what, run, err)
		}
	}
	return nil
}

func (s *Shard) removeIndex(ctx context.Context, run string, keys []string, wide bool) error {
	keys, err := s.indexKeys(ctx, run, keys, wide)
	if err != nil {
		return err
	}
	// The entry of the live index is the folder's, who tells the watches of it.
	keys = slices.DeleteFunc(keys, func(key string) bool { return key == schema.LiveKeyPrefix+run })
	there, err := s.Checkpoints.bucket.many(ctx, keys)
	if err != nil {
		return err
	}
	entries := make([]IndexAt, 0, len(there))
	for key, e := range there {
		entries = append(entries, IndexAt{Key: key, Revision: e.rev})
	}
	return s.Checkpoints.TakeIndex(ctx, entries...)
}

// removeEvents takes out what is before the run's last message, if that is the mark.
func (s *Shard) removeEvents(ctx context.Context, run string) error {
	last, err := s.LastOfRun(ctx, run)
	if err != nil {
		return err
	}
	if last == nil || !schema.IsErasedMark(last) {
		return fmt.Errorf("its last message is not the mark that it was removed: %w", ErrConflict)
	}
	_, err = s.PurgeRun(ctx, run, last.Stream)
	return err
}

func (s *Shard) removeBlobs(ctx context.Context, blobs []Blob) error {
	if len(blobs) == 0 {
		return nil
	}
	store, err := s.js.ObjectStore(ctx, schema.BlobBucket(s.Names.Fleet))
	if err != nil {
		return translate(err)
	}
	for _, b := range blobs {
		if b.False {
			about := "$O." + schema.BlobBucket(s.Names.Fleet) + ".M." + base64.URLEncoding.EncodeToString([]byte(b.Name))
			if _, err := purge(ctx, s.js, "OBJ_"+schema.BlobBucket(s.Names.Fleet), purgeRequest{Filter: about}); err != nil {
				return err
			}
			continue
		}
		if b.Name != "" && !b.Deleted {
			// A mark stays, so that a crash cannot bring the object back.
			if err := store.Delete(ctx, b.Name); err != nil && !errors.Is(err, jetstream.ErrObjectNotFound) {
				return translate(err)
			}
		}
		if b.NUID == "" {
			continue
		}
		if _, err := purge(ctx, s.js, "OBJ_"+schema.BlobBucket(s.Names.Fleet), purgeRequest{Filter: chunkSubject(s.Names.Fleet, b.NUID)}); err != nil {
			return err
		}
	}
	return nil
}

// keysOf are the keys of a run's segments, deleted ones included.
func (s *Segments) keysOf(ctx context.Context, run string) ([]string, error) {
	var keys []string
	for offset, more := 0, true; more; {
		page, further, err := s.bucket.subjectPage(ctx, run+".*", offset)
		if err != nil {
			return nil, fmt.Errorf("list segments of run %s: %w", run, err)
		}
		offset, more = offset+len(page), further
		keys = append(keys, page...)
	}
	return keys, nil
}

// deleteAll deletes all segments of a run. Marks stay, so that a crash cannot bring them back.
func (s *Segments) deleteAll(ctx context.Context, run string) error {
	keys, err := s.keysOf(ctx, run)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(liveInFlight)
	for _, key := range keys {
		group.Go(func() error { return s.bucket.remove(ctx, key, false, 0) })
	}
	return group.Wait()
}

// count returns how many messages a stream has of a literal subject, or of those that a filter names, as its leader says.
func (s *Shard) count(ctx context.Context, stream, filter string) (int64, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	req, err := json.Marshal(map[string]string{"subjects_filter": filter})
	if err != nil {
		return 0, err
	}
	msg, err := s.js.Conn().RequestWithContext(ctx, runlog.APISubject(s.js, "STREAM.INFO."+stream), req)
	if err != nil {
		return 0, translate(err)
	}
	var reply struct {
		Error *jetstream.APIError `json:"error"`
		State struct {
			Subjects map[string]int64 `json:"subjects"`
		} `json:"state"`
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return 0, fmt.Errorf("stream %s: answer to info: %w", stream, err)
	}
	if reply.Error != nil {
		return 0, translate(reply.Error)
	}
	n := int64(0)
	for _, messages := range reply.State.Subjects {
		n += messages
	}
	return n, nil
}
