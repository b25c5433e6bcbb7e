package blob_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) { natstest.Main(m) }

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

func TestLoad_WrongOrLargeContent_Refused(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	store, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "blobs"})
	require.NoError(t, err)
	large := strings.Repeat("x", 300<<10) // more than one chunk
	for name, content := range map[string]string{digestOf("text"): "text", digestOf(large): large, digestOf(""): "", digestOf("asked"): "swapped"} {
		_, err := store.PutBytes(t.Context(), schema.BlobName("r1", name), []byte(content))
		require.NoError(t, err)
	}
	ours := blob.New(js, "blobs")
	tests := map[string]struct {
		content string
		most    int64
		want    error
	}{
		"within the bound":             {content: "text", most: 5},
		"of exactly the bound":         {content: "text", most: 4},
		"one byte above it":            {content: "text", most: 3, want: blob.ErrTooLarge},
		"of several chunks":            {content: large, most: 1 << 20},
		"of several chunks, far above": {content: large, most: 10, want: blob.ErrTooLarge},
		"empty":                        {content: "", most: 0},
		"other than its name":          {content: "asked", most: 100, want: blob.ErrChanged},
		"missing":                      {content: "never stored", most: 100, want: jetstream.ErrObjectNotFound},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ours.Load(t.Context(), "r1", digestOf(test.content), test.most)
			if test.want != nil {
				require.ErrorIs(t, err, test.want)
				require.Nil(t, got)
				return
			}
			require.NoError(t, err)
			require.Equal(t, test.content, string(got))
		})
	}
}

// A lagging replica does not know a blob that was just stored. Only the leader can say that it does not exist.
func TestLoad_StaleReplica_NotMissing(t *testing.T) {
	t.Parallel()
	nc := natstest.Start(t).Conn(t)
	var behind atomic.Int64
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if behind.Load() > 0 && strings.HasPrefix(subject, "$JS.API.DIRECT.GET.OBJ_blobs.$O.blobs.M.") {
			behind.Add(-1)
			_ = m.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}, "Description": {"Message Not Found"}}})
			return
		}
		natstest.Forward(nc, m, subject)
	})
	_, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "blobs"})
	require.NoError(t, err)
	store := blob.New(js, "blobs")
	require.NoError(t, store.Put(t.Context(), "r1", digestOf("text"), []byte("text")))
	behind.Store(1)
	_, err = store.Load(t.Context(), "r1", digestOf("text"), 100)
	require.ErrorContains(t, err, "lacks what its leader has")
	require.NotErrorIs(t, err, jetstream.ErrObjectNotFound)
	got, err := store.Load(t.Context(), "r1", digestOf("text"), 100)
	require.NoError(t, err)
	require.Equal(t, "text", string(got))
	_, err = store.Load(t.Context(), "r1", digestOf("never stored"), 100)
	require.ErrorIs(t, err, jetstream.ErrObjectNotFound)
}
