package blob

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// chunkSize is the object store's default.
const chunkSize = 128 << 10

// Fresh is how long a blob may wait for the next step: chunks for their description, an object for another put that
// finds it, and then for its event. The daemon collects what no event names a day after it was stored
// (kvstore.CollectBlobs).
const Fresh = 6 * time.Hour

// Late reports whether a time is longer ago than [Fresh], by the wall clock: others go on while this machine sleeps.
func Late(at, now time.Time) bool { return now.Round(0).Sub(at.Round(0)) > Fresh }

// Put stores content, whose SHA-256 is digest, as a run's blob, unless a complete fresh object of that name and size
// exists. When it returns nil, all of it is acknowledged. After an error it may be repeated. Chunks of a failed try
// can stay behind, because executors may not purge; their ids have the run's prefix, so they are removed with the
// run.
func (s *Store) Put(ctx context.Context, run, digest string, content []byte) error {
	if there, err := s.whole(ctx, run, digest, len(content)); there || err != nil {
		return err
	}
	return s.Replace(ctx, run, digest, content)
}

// Replace is Put without regard to an existing object.
//
// The client's own object store sends the chunks and their description together. If a server goes away in between,
// the description can be stored without a chunk, and a retry finds the object complete. It also purges the chunks of
// the previous description. Here nothing is purged, so that of several concurrent puts of the same content the last
// description names existing chunks, and the chunks of the others stay until the run is removed.
func (s *Store) Replace(ctx context.Context, run, digest string, content []byte) error {
	sum, err := hex.DecodeString(digest)
	if err != nil {
		return fmt.Errorf("digest of a blob: %w", err)
	}
	name := schema.BlobName(run, digest)
	info := jetstream.ObjectInfo{
		ObjectMeta: jetstream.ObjectMeta{Name: name, Opts: &jetstream.ObjectMetaOptions{ChunkSize: chunkSize}},
		Bucket:     s.bucket,
		NUID:       schema.BlobID(run, rand.Text()),
		Size:       uint64(len(content)),
		Digest:     "SHA-256=" + base64.URLEncoding.EncodeToString(sum),
	}
	began := s.now()
	if info.Chunks, err = s.putChunks(ctx, info.NUID, content); err != nil {
		return err
	}
	if Late(began, s.now()) {
		return fmt.Errorf("its chunks waited too long for their description: %w", nats.ErrTimeout)
	}
	body, err := json.Marshal(info)
	if err != nil {
		return err
	}
	about := nats.NewMsg(s.description(name))
	about.Header.Set(jetstream.MsgRollup, jetstream.MsgRollupSubject)
	about.Data = body
	if _, err := s.js.PublishMsg(ctx, about); err != nil {
		return fmt.Errorf("its description: %w", err)
	}
	return nil
}

// whole reports whether an object of that size is stored, with all of its chunks.
func (s *Store) whole(ctx context.Context, run, digest string, size int) (bool, error) {
	info, err := s.info(ctx, run, digest)
	switch {
	case errors.Is(err, jetstream.ErrObjectNotFound), errors.Is(err, ErrChanged):
		return false, nil
	case err != nil:
		return false, err
	case info.Size != uint64(size), Late(info.ModTime, s.now()):
		return false, nil
	}
	subject := s.chunks(info.NUID)
	n, err := s.count(ctx, subject)
	if err != nil {
		return false, fmt.Errorf("its chunks: %w", err)
	}
	return n == uint64(info.Chunks), nil
}

// putChunks stores content, and returns the number of chunks once each of them is acknowledged. nats.go's
// asynchronous publisher would do the same with a goroutine that may outlive the call.
func (s *Store) putChunks(ctx context.Context, id string, content []byte) (uint32, error) {
	n := (len(content) + chunkSize - 1) / chunkSize
	nc := s.js.Conn()
	broken := nc.StatusChanged(nats.RECONNECTING, nats.CLOSED)
	defer nc.RemoveStatusListener(broken)
	inbox := nc.NewInbox()
	answers := make(chan *nats.Msg, n)
	sub, err := nc.ChanSubscribe(inbox+".*", answers)
	if err != nil {
		return 0, err
	}
	defer func() { _ = sub.Unsubscribe() }() // a closed connection has no subscription to end
	for i := range n {
		msg := nats.NewMsg(s.chunks(id))
		msg.Reply = inbox + "." + strconv.Itoa(i)
		msg.Data = content[i*chunkSize : min((i+1)*chunkSize, len(content))]
		if err := nc.PublishMsg(msg); err != nil {
			return 0, fmt.Errorf("chunk %d of %d: %w", i+1, n, err)
		}
	}
	silence := time.NewTimer(patience)
	defer silence.Stop()
	for stored := make(map[string]struct{}, n); len(stored) < n; {
		select {
		case msg := <-answers:
			if _, err := jsapi.DecodeAck(msg); err != nil {
				return 0, fmt.Errorf("one of %d chunks: %w", n, err)
			}
			stored[msg.Subject] = struct{}{}
			silence.Reset(patience)
			continue
		case <-broken:
			err = nats.ErrDisconnected
		case <-silence.C:
			err = nats.ErrTimeout
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		return 0, fmt.Errorf("%d of %d chunks are acknowledged: %w", len(stored), n, err)
	}
	return uint32(n), nil //nolint:gosec // no content has so many
}
