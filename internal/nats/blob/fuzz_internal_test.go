package blob

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// FuzzDescription tries descriptions of objects, which any client that may write to the store can write.
func FuzzDescription(f *testing.F) {
	f.Add([]byte(`{"name":"r1.sha256-00","options":{"max_chunk_size":131072},"bucket":"b","nuid":"x","size":5,"chunks":1,"digest":"SHA-256=","mtime":"2026-11-22T00:00:00Z"}`))
	f.Add([]byte(`{"name":"r1.sha256-00","options":{"link":{"bucket":"other","name":"n"}},"nuid":"x"}`))
	f.Add([]byte(`{"nuid":">","size":18446744073709551615}`))
	f.Add([]byte(`{"nuid":"x","deleted":true}`))
	f.Add([]byte(`{"nuid":"` + schema.BlobID("r1", "x") + `"}`))
	f.Add([]byte(`{"nuid":"` + schema.BlobID("r2", "x") + `"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		info, err := described("r1", text)
		if err != nil {
			require.Nil(t, info)
			require.True(t, errors.Is(err, ErrChanged) || errors.Is(err, jetstream.ErrObjectNotFound), "%v", err)
			return
		}
		// It becomes part of a subject.
		require.NoError(t, schema.CheckName("nuid", info.NUID))
		require.False(t, schema.ForeignBlobID("r1", info.NUID), "it is not another run's content")
		require.False(t, info.Deleted)
	})
}
