package blob

import (
	"context"
	"crypto/sha256"
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

var (
	// ErrTooLarge comes when the blob has more bytes than the caller accepts.
	ErrTooLarge = errors.New("blob is too large")
	// ErrChanged comes when the content does not match the name: a client wrote to the store by hand, or it is
	// damaged.
	ErrChanged = errors.New("blob does not match its name")
)

const (
	// batchChunks and batchBytes bound one request for chunks.
	batchChunks = 64
	batchBytes  = 4 << 20
	// patience is how long a server may take for a description, and between two chunks: then its answer is lost.
	patience = 2 * time.Second
)

// errStale: a replica lags.
var errStale = errors.New("a replica lacks what its leader has")

// Store is a fleet's object store. It is safe for concurrent use.
type Store struct {
	js             jetstream.JetStream
	bucket, stream string
	now            func() time.Time
}

// New returns the store of a bucket. Its methods return [jetstream.ErrBucketNotFound] if there is none.
func New(js jetstream.JetStream, bucket string) *Store {
	return &Store{js: js, bucket: bucket, stream: "OBJ_" + bucket, now: time.Now}
}

// chunks and description are the subjects of an object, by the object store's protocol.
func (s *Store) chunks(id string) string { return "$O." + s.bucket + ".C." + id }

func (s *Store) description(name string) string {
	return "$O." + s.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// count asks the stream's leader for the number of messages of a subject.
func (s *Store) count(ctx context.Context, subject string) (uint64, error) {
	info, err := jsapi.Request[struct {
		State struct {
			Subjects map[string]uint64 `json:"subjects"`
		} `json:"state"`
	}](ctx, s.js, "STREAM.INFO."+s.stream, map[string]string{"subjects_filter": subject})
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		err = fmt.Errorf("%w: %w", jetstream.ErrBucketNotFound, err)
	}
	return info.State.Subjects[subject], err
}

// info returns the description of a run's object. Any client that may write to the store may have written it. A replica
// that has none may lag, and a resuming executor would miss a stored blob: the leader decides.
func (s *Store) info(ctx context.Context, run, digest string) (*jetstream.ObjectInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	subject := s.description(schema.BlobName(run, digest))
	msg, err := jsapi.LastOf(ctx, s.js, s.stream, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, nats.ErrNoResponders) {
		n, failed := s.count(ctx, subject)
		switch {
		case failed != nil:
			err = failed
		case n > 0:
			err = errStale
		case errors.Is(err, jetstream.ErrMsgNotFound):
			err = fmt.Errorf("%w: %w", jetstream.ErrObjectNotFound, err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("its description: %w", err)
	}
	info, err := described(run, msg.Data)
	if err == nil {
		// Who wrote the description may have left the time out, or made it up. Without the server's it is old.
		info.ModTime, _ = time.Parse(time.RFC3339Nano, jsapi.Last(msg.Header, jsapi.HeaderTime))
	}
	return info, err
}

// described reads the description of a run's object.
func described(run string, text []byte) (*jetstream.ObjectInfo, error) {
	var info jetstream.ObjectInfo
	if err := json.Unmarshal(text, &info); err != nil {
		return nil, fmt.Errorf("%w: its description: %w", ErrChanged, err)
	}
	if info.Deleted {
		return nil, fmt.Errorf("%w: it was deleted", jetstream.ErrObjectNotFound)
	}
	if !schema.ValidName(info.NUID) || info.Opts != nil && info.Opts.Link != nil {
		return nil, fmt.Errorf("%w: it is a link", ErrChanged)
	}
	if schema.ForeignBlobID(run, info.NUID) {
		// It exists only as long as the other run, whose removal must not depend on other descriptions.
		return nil, fmt.Errorf("%w: its content is that of another run", ErrChanged)
	}
	return &info, nil
}

// Load returns the content of a run's blob with that SHA-256, of at most a number of bytes. It reads by direct gets
// and needs no consumer, so that it works across accounts. It asks once: repeat it after an error of the connection, and
// of a replica that lags.
func (s *Store) Load(ctx context.Context, run, digest string, most int64) ([]byte, error) {
	info, err := s.info(ctx, run, digest)
	if err != nil {
		return nil, err
	}
	if info.Size > uint64(max(most, 0)) {
		return nil, fmt.Errorf("%w: it has %d bytes, more than %d", ErrTooLarge, info.Size, most)
	}
	content, err := s.readAll(ctx, info, most)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%w: its content has SHA-256 %x", ErrChanged, sum)
	}
	return content, nil
}

// readAll reads the chunks in order.
func (s *Store) readAll(ctx context.Context, info *jetstream.ObjectInfo, most int64) ([]byte, error) {
	r := &reader{js: s.js, stream: s.stream, subject: s.chunks(info.NUID), most: most, next: 1}
	for uint64(len(r.content)) < info.Size {
		before := r.next
		err := r.batch(ctx)
		if err == nil && r.next == before {
			err = errStale
		}
		if errors.Is(err, errStale) {
			// Only the leader knows whether a chunk is missing, or only from this replica.
			switch n, failed := s.count(ctx, r.subject); {
			case failed != nil:
				err = failed
			case n <= r.chunks:
				err = ErrChanged
			}
		}
		if err != nil {
			return nil, fmt.Errorf("%d of %d bytes: %w", len(r.content), info.Size, err)
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
	// chunks that were read.
	chunks  uint64
	content []byte
}

// batch asks once for the next chunks.
func (r *reader) batch(ctx context.Context) error {
	line, err := jsapi.Dial(r.js, r.stream, batchChunks+2)
	if err != nil {
		return err
	}
	defer line.Close()
	if err := line.Ask(ctx, patience, jsapi.GetRequest{Seq: r.next, NextFor: r.subject, Batch: batchChunks, MaxBytes: batchBytes}, r.take); err != nil {
		return fmt.Errorf("stream %s: %w", r.stream, err)
	}
	return nil
}

// take handles one message of an answer.
func (r *reader) take(m *nats.Msg, status string) (done bool, err error) {
	switch status {
	case "":
	case jsapi.StatusEnd:
		return true, nil
	case jsapi.StatusNotFound:
		return true, errStale
	default:
		return true, fmt.Errorf("it answered %s", status)
	}
	at := jsapi.Last(m.Header, jsapi.HeaderSequence)
	seq, err := strconv.ParseUint(at, 10, 64)
	if err != nil || seq < r.next {
		return true, fmt.Errorf("chunk at %.24q, after %d", at, r.next-1)
	}
	if int64(len(r.content)+len(m.Data)) > r.most {
		return true, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, r.most)
	}
	r.next = seq + 1
	r.chunks++
	r.content = append(r.content, m.Data...)
	return false, nil
}
