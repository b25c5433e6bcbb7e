package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/runlog"
	"github.com/waymarkio/waymark/schema"
)

var (
	// ErrTooLarge comes when there are more bytes than the caller takes.
	ErrTooLarge = errors.New("blob is too large")
	// ErrChanged comes when the content is another than the name says: somebody wrote to the store by hand, or it is
	// damaged.
	ErrChanged = errors.New("blob is not what its name says")
)

const (
	// batchChunks and batchBytes bound one request for chunks.
	batchChunks = 64
	batchBytes  = 4 << 20
	// patience is how long a server may take between two chunks.
	patience = 5 * time.Second
	// staleWait is the pause before a replica that lacks a chunk is asked again.
	staleWait = 20 * time.Millisecond
)

// errStale: a replica showed less than the object has.
var errStale = errors.New("chunks are missing")

// Load returns the content of a run's blob with that SHA-256, of at most that many bytes. It reads by direct gets and needs
// no consumer, so that it works across accounts.
func Load(ctx context.Context, js jetstream.JetStream, bucket, run, digest string, most int64) ([]byte, error) {
	store, err := js.ObjectStore(ctx, bucket)
	if err != nil {
		return nil, err
	}
	info, err := store.GetInfo(ctx, schema.BlobName(run, digest))
	if err != nil {
		return nil, err
	}
	switch {
	case info.NUID == "" || info.Opts != nil && info.Opts.Link != nil:
		return nil, fmt.Errorf("%w: it is a link", ErrChanged)
	case info.Size > uint64(max(most, 0)):
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrTooLarge, info.Size, most)
	}
	content, err := readAll(ctx, js, bucket, info, most)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%w: its content has SHA-256 %x", ErrChanged, sum)
	}
	return content, nil
}

// readAll reads the chunks in order. Replicas may be behind the one that told of the object: they are asked again.
func readAll(ctx context.Context, js jetstream.JetStream, bucket string, info *jetstream.ObjectInfo, most int64) ([]byte, error) {
	r := &reader{js: js, stream: "OBJ_" + bucket, subject: "$O." + bucket + ".C." + info.NUID, most: most, next: 1}
	var begun time.Time
	for uint64(len(r.content)) < info.Size {
		before := r.next
		err := r.batch(ctx)
		switch {
		case err != nil && !errors.Is(err, errStale):
			return nil, err
		case r.next != before:
			begun = time.Time{}
			continue
		case begun.IsZero():
			begun = time.Now()
		case time.Since(begun) > patience:
			return nil, fmt.Errorf("blob %s: %d of %d bytes: %w", info.Name, len(r.content), info.Size, errStale)
		}
		pause := time.NewTimer(staleWait)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, context.Cause(ctx)
		}
	}
	return r.content, nil
}

// reader reads the chunks of one object.
type reader struct {
	js              jetstream.JetStream
	stream, subject string
	most            int64
	next            uint64
	content         []byte
}

// batch asks once for the next chunks.
func (r *reader) batch(ctx context.Context) error {
	body, err := json.Marshal(struct {
		Seq      uint64 `json:"seq"`
		NextFor  string `json:"next_by_subj"`
		Batch    int    `json:"batch"`
		MaxBytes int    `json:"max_bytes"`
	}{r.next, r.subject, batchChunks, batchBytes})
	if err != nil {
		return err
	}
	nc := r.js.Conn()
	inbox := nc.NewRespInbox()
	msgs := make(chan *nats.Msg, batchChunks+2)
	sub, err := nc.ChanSubscribe(inbox, msgs)
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }() // a closed connection has no subscription to end
	if err := nc.PublishRequest(runlog.APISubject(r.js, "DIRECT.GET."+r.stream), inbox, body); err != nil {
		return err
	}
	silence := time.NewTimer(patience)
	defer silence.Stop()
	for {
		select {
		case m := <-msgs:
			silence.Reset(patience)
			done, err := r.take(m)
			if done || err != nil {
				return err
			}
		case <-silence.C:
			return fmt.Errorf("stream %s: %w", r.stream, nats.ErrTimeout)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// take takes one message of an answer.
func (r *reader) take(m *nats.Msg) (done bool, err error) {
	if m.Header.Get(jetstream.SequenceHeader) == "" {
		switch status := m.Header.Get("Status"); status {
		case "204":
			return true, nil
		case "404":
			return true, errStale
		case "503":
			return true, fmt.Errorf("stream %s: %w", r.stream, nats.ErrNoResponders)
		default:
			return true, fmt.Errorf("stream %s answered %s %s", r.stream, status, m.Header.Get("Description"))
		}
	}
	seq, err := strconv.ParseUint(m.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil || seq < r.next {
		return true, fmt.Errorf("stream %s: chunk at %.24q, after %d", r.stream, m.Header.Get(jetstream.SequenceHeader), r.next-1)
	}
	if int64(len(r.content)+len(m.Data)) > r.most {
		return true, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, r.most)
	}
	r.next = seq + 1
	r.content = append(r.content, m.Data...)
	return false, nil
}
