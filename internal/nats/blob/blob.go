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

	"github.com/waymarkio/waymark/internal/base/pause"
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
	// staleWait is the pause before a lagging replica is asked again.
	staleWait = 20 * time.Millisecond
)

// errStale: replicas lagged for the whole time.
var errStale = errors.New("a replica lacks what its leader has")

// Store is a fleet's object store. It is safe for concurrent use.
type Store struct {
	js     jetstream.JetStream
	bucket string
	stream jetstream.Stream
}

// Open looks a bucket up. It returns [jetstream.ErrBucketNotFound] if there is none.
func Open(ctx context.Context, js jetstream.JetStream, bucket string) (*Store, error) {
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, fmt.Errorf("object store %s: %w", bucket, translate(err))
	}
	return &Store{js: js, bucket: bucket, stream: stream}, nil
}

// translate turns errors of streams into those of object stores.
func translate(err error) error {
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return fmt.Errorf("%w: %w", jetstream.ErrBucketNotFound, err)
	case errors.Is(err, jetstream.ErrMsgNotFound):
		return fmt.Errorf("%w: %w", jetstream.ErrObjectNotFound, err)
	}
	return err
}

// chunks and description are the subjects of an object, by the object store's protocol.
func (s *Store) chunks(id string) string { return "$O." + s.bucket + ".C." + id }

func (s *Store) description(name string) string {
	return "$O." + s.bucket + ".M." + base64.URLEncoding.EncodeToString([]byte(name))
}

// info returns the description of a run's object. Any client that may write to the store may have written it.
func (s *Store) info(ctx context.Context, run, digest string) (*jetstream.ObjectInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	msg, err := s.stream.GetLastMsgForSubject(ctx, s.description(schema.BlobName(run, digest)))
	if err != nil {
		return nil, fmt.Errorf("its description: %w", translate(err))
	}
	return described(run, msg.Data)
}

// infoFresh is info, but does not trust a replica that has no description: because of a lagging one a resuming
// executor would miss a stored blob. The leader decides, and then the replicas are asked again.
func (s *Store) infoFresh(ctx context.Context, run, digest string) (*jetstream.ObjectInfo, error) {
	subject := s.description(schema.BlobName(run, digest))
	asked := false
	for begun := time.Now(); ; {
		info, err := s.info(ctx, run, digest)
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return info, err
		}
		if !asked {
			is, err2 := s.stream.Info(ctx, jetstream.WithSubjectFilter(subject))
			switch {
			case err2 != nil:
				return nil, fmt.Errorf("its description: %w", translate(err2))
			case is.State.Subjects[subject] == 0:
				return nil, err
			}
			asked = true
		}
		if time.Since(begun) > patience {
			return nil, fmt.Errorf("its description: %w", errStale)
		}
		if err := pause.For(ctx, staleWait); err != nil {
			return nil, err
		}
	}
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
// and needs no consumer, so that it works across accounts.
func (s *Store) Load(ctx context.Context, run, digest string, most int64) ([]byte, error) {
	info, err := s.infoFresh(ctx, run, digest)
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

// readAll reads the chunks in order. Replicas may lag behind the one with the description: they are asked again.
func (s *Store) readAll(ctx context.Context, info *jetstream.ObjectInfo, most int64) ([]byte, error) {
	r := &reader{js: s.js, stream: "OBJ_" + s.bucket, subject: s.chunks(info.NUID), most: most, next: 1}
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
		if err := pause.For(ctx, staleWait); err != nil {
			return nil, err
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
	r.content = append(r.content, m.Data...)
	return false, nil
}
