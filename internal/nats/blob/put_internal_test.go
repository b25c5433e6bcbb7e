package blob

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

// A put does not rely on an object that the daemon may collect before its event comes.
func TestPut_ObjectOfHoursAgo_IsPutAgain(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "blobs"})
	require.NoError(t, err)
	store := New(js, "blobs")
	sum := sha256.Sum256([]byte("text"))
	digest := hex.EncodeToString(sum[:])
	put := func(after time.Duration) string {
		t.Helper()
		store.now = func() time.Time { return time.Now().Add(after) }
		require.NoError(t, store.Put(t.Context(), "r1", digest, []byte("text")))
		info, err := store.info(t.Context(), "r1", digest)
		require.NoError(t, err)
		return info.NUID
	}
	first := put(0)
	require.Equal(t, first, put(Fresh-time.Minute))
	require.NotEqual(t, first, put(Fresh+time.Minute))

	calls := 0
	store.now = func() time.Time { calls++; return time.Now().Add(time.Duration(calls) * Fresh) } // it slept before the description
	require.ErrorContains(t, store.Replace(t.Context(), "r1", digest, []byte("text")), "waited too long")
}
