package kvstore

import (
	"context"
	"encoding/base64"
	stdjson "encoding/json" // the form of object descriptions is defined by it
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Blob is an object of a run in the fleet's object store, or content with the run's id prefix without a description
// in the run.
type Blob struct {
	// Name of the object, empty for content without a description; NUID is the id of its content.
	Name, NUID string
	// Bytes of its content; 0 for a deleted object, and for content without a description.
	Bytes   int64
	Deleted bool
	// False: the object store did not write its description, or it names another run's content. Only the description
	// is removed then, not the content in it.
	False bool
	// key of its description.
	key string
}

// BlobsOf finds the objects of some runs, deleted ones included: by their names, and by the run's prefix in the ids
// of contents ([schema.BlobID]). A put that failed half way, or was overtaken by another, leaves content without a
// description. It reads the names and the ids of all objects of the fleet once, so ask for many runs in one call.
//
// Content with a prefix belongs to that run, whatever describes it: no description protects it, and none removes it
// with another run. Content without a prefix belongs to the run in its description.
func BlobsOf(ctx context.Context, js jetstream.JetStream, fleet string, runs map[string]struct{}) (map[string][]Blob, error) {
	found := make(map[string][]Blob)
	about := newBlobBucket(js, fleet, ".M.")
	_, err := about.everyKey(ctx, "*", func(key string) {
		name, err := decodeName(key)
		if err != nil {
			return // written by another client
		}
		run, _, ok := strings.Cut(name, ".")
		if _, wanted := runs[run]; ok && wanted {
			found[run] = append(found[run], Blob{Name: name, key: key})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list blobs of fleet %s: %w", fleet, err)
	}
	named := make(map[string]struct{})
	for run, blobs := range found {
		for i := range blobs {
			if err := blobs[i].describe(ctx, &about, fleet, run); err != nil {
				return nil, fmt.Errorf("blob %.160q: %w", blobs[i].Name, err)
			}
			named[blobs[i].NUID] = struct{}{}
		}
		found[run] = slices.DeleteFunc(blobs, func(b Blob) bool { return b.key == "" })
	}
	marks := make(map[string]string, len(runs))
	for run := range runs {
		marks[schema.BlobMark(run)] = run
	}
	chunks := newBlobBucket(js, fleet, ".C.")
	_, err = chunks.everyKey(ctx, "*", func(id string) {
		mark, ok := schema.MarkOfBlobID(id)
		if !ok {
			return
		}
		run, wanted := marks[mark]
		if _, twice := named[id]; wanted && !twice {
			found[run] = append(found[run], Blob{NUID: id, Deleted: true})
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list contents of blobs of fleet %s: %w", fleet, err)
	}
	return found, nil
}

// decodeName is the name of the object that is described under a key.
func decodeName(key string) (string, error) {
	name, err := base64.URLEncoding.DecodeString(key)
	return string(name), err
}

// describe reads the description.
func (b *Blob) describe(ctx context.Context, about *bucket, fleet, run string) error {
	last, err := lastRaw(ctx, about.js, about.stream, about.prefix+b.key)
	if errors.Is(err, ErrNotFound) {
		*b = Blob{} // it was deleted in the meantime
		return nil
	}
	if err != nil {
		return err
	}
	b.judge(fleet, run, last.Data)
	return nil
}

// judge applies a description. Executors write it, so it may contain anything: a content name that is a pattern would
// remove content of other runs, and an unreadable one must not block a removal. It returns the id of the content, also of
// a description that is false: a reader needs no more of it.
func (b *Blob) judge(fleet, run string, description []byte) (nuid string) {
	var info jetstream.ObjectInfo
	switch {
	case stdjson.Unmarshal(description, &info) != nil,
		!schema.ValidName(info.NUID) || schema.ForeignBlobID(run, info.NUID),
		info.Name != b.Name || info.Bucket != schema.BlobBucket(fleet),
		base64.URLEncoding.EncodeToString([]byte(b.Name)) != b.key: // no reader finds it there
		b.False = true
	default:
		b.NUID, b.Deleted = info.NUID, info.Deleted
	}
	b.Bytes = int64(min(info.Size, 1<<62)) //nolint:gosec // bounded
	return info.NUID
}

// newBlobBucket is the part of a fleet's object store with the descriptions (".M."), or with the contents (".C.").
func newBlobBucket(js jetstream.JetStream, fleet, part string) bucket {
	name := schema.BlobBucket(fleet)
	return bucket{js: js, name: name, stream: "OBJ_" + name, prefix: "$O." + name + part}
}

func (s *Shard) leftOfBlobs(ctx context.Context, blobs []Blob, p *schema.ErasedParts) error {
	chunks := newBlobBucket(s.js, s.Names.Fleet, ".C.")
	for _, b := range blobs {
		if !b.Deleted && b.Name != "" {
			p.Blobs++
			p.BlobBytes += b.Bytes
			continue
		}
		if b.NUID == "" {
			continue
		}
		n, err := s.count(ctx, chunks.stream, chunks.prefix+b.NUID)
		if err != nil {
			return err
		}
		if n > 0 {
			p.Blobs++
		}
	}
	return nil
}

// removeBlobs removes contents and descriptions by their validated values. It does not read them again, as they may
// have changed: the client's object store deletes whatever the description names at that moment. In a full store the
// contents make room for the mark; if executors take it at once, the description goes without one.
func (s *Shard) removeBlobs(ctx context.Context, blobs []Blob) error {
	about, chunks := newBlobBucket(s.js, s.Names.Fleet, ".M."), newBlobBucket(s.js, s.Names.Fleet, ".C.")
	for i := range blobs {
		b := &blobs[i]
		if b.NUID != "" && !b.False {
			if _, err := purge(ctx, s.js, chunks.stream, jsapi.PurgeRequest{Filter: chunks.prefix + b.NUID}); err != nil {
				return err
			}
		}
		if b.Name == "" || b.Deleted {
			continue
		}
		err := ErrFull
		if !b.False {
			// A delete marker stays, so that a crash cannot bring the object back.
			var mark []byte
			if mark, err = stdjson.Marshal(jetstream.ObjectInfo{
				ObjectMeta: jetstream.ObjectMeta{Name: b.Name}, Bucket: about.name, NUID: b.NUID, Deleted: true,
			}); err != nil {
				return err
			}
			_, err = about.publish(ctx, &nats.Msg{Subject: about.prefix + b.key, Header: nats.Header{headerRollup: {rollupSubject}}, Data: mark})
		}
		if errors.Is(err, ErrFull) {
			_, err = purge(ctx, s.js, about.stream, jsapi.PurgeRequest{Filter: about.prefix + b.key})
		}
		if err != nil {
			return err
		}
	}
	return nil
}
