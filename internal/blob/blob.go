package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/schema"
)

var (
	// ErrTooLarge comes when there are more bytes than the caller takes.
	ErrTooLarge = errors.New("blob is too large")
	// ErrChanged comes when the content is another than the name says: somebody wrote to the store by hand, or it is
	// damaged.
	ErrChanged = errors.New("blob is not what its name says")
)

// Load returns the content of a run's blob with that SHA-256, of at most that many bytes.
func Load(ctx context.Context, store jetstream.ObjectStore, run, digest string, most int64) ([]byte, error) {
	object, err := store.Get(ctx, schema.BlobName(run, digest))
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(object, most+1))
	err = errors.Join(err, object.Close())
	switch {
	case int64(len(content)) > most:
		// What Close says of an object that was not read to its end means nothing.
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, most)
	case err != nil:
		return nil, err
	}
	if sum := sha256.Sum256(content); hex.EncodeToString(sum[:]) != digest {
		return nil, fmt.Errorf("%w: its content has SHA-256 %x", ErrChanged, sum)
	}
	return content, nil
}
