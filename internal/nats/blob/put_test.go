package blob_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/schema"
)

// opened creates a bucket.
func opened(t *testing.T, js jetstream.JetStream) (*blob.Store, jetstream.ObjectStore, jetstream.Stream) {
	t.Helper()
	theirs, err := js.CreateObjectStore(t.Context(), jetstream.ObjectStoreConfig{Bucket: "blobs"})
	require.NoError(t, err)
	ours := blob.New(js, "blobs")
	stream, err := js.Stream(t.Context(), "OBJ_blobs")
	require.NoError(t, err)
	return ours, theirs, stream
}

func messages(t *testing.T, stream jetstream.Stream) uint64 {
	t.Helper()
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	return info.State.Msgs
}

func TestPut_Acknowledged_ReadableByOthers(t *testing.T) {
	t.Parallel()
	ours, theirs, _ := opened(t, natstest.Start(t).JetStream(t))
	for _, size := range []int{0, 1, 128 << 10, 128<<10 + 1, 5<<20 + 7} {
		content := strings.Repeat("x", size)
		require.NoError(t, ours.Put(t.Context(), "r1", digestOf(content), []byte(content)))
		got, err := theirs.GetString(t.Context(), schema.BlobName("r1", digestOf(content))) // it compares digest and size, too
		require.NoError(t, err, size)
		require.Equal(t, content, got)
		loaded, err := ours.Load(t.Context(), "r1", digestOf(content), int64(size))
		require.NoError(t, err, size)
		require.Equal(t, content, string(loaded))
	}
}

func TestPut_SameContent_StoredOnce(t *testing.T) {
	t.Parallel()
	ours, theirs, stream := opened(t, natstest.Start(t).JetStream(t))
	content := strings.Repeat("x", 300<<10)
	require.NoError(t, ours.Put(t.Context(), "r1", digestOf(content), []byte(content)))
	before := messages(t, stream)
	require.EqualValues(t, 4, before, "three chunks, and what describes them")
	require.NoError(t, ours.Put(t.Context(), "r1", digestOf(content), []byte(content)))
	require.Equal(t, before, messages(t, stream))
	require.NoError(t, ours.Put(t.Context(), "r2", digestOf(content), []byte(content)))
	require.Equal(t, 2*before, messages(t, stream), "another run's is its own")
	require.NoError(t, theirs.Delete(t.Context(), schema.BlobName("r1", digestOf(content))))
	require.NoError(t, ours.Put(t.Context(), "r1", digestOf(content), []byte(content)))
	_, err := ours.Load(t.Context(), "r1", digestOf(content), 1<<20)
	require.NoError(t, err, "what was deleted is stored again")
}

// A server that goes away between the chunks of an object, and comes back before their description, leaves that.
func TestPut_MissingChunk_PutAgain(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	ours, theirs, stream := opened(t, js)
	content := strings.Repeat("x", 300<<10)
	_, err := theirs.PutString(t.Context(), schema.BlobName("r1", digestOf(content)), content)
	require.NoError(t, err)
	require.NoError(t, stream.DeleteMsg(t.Context(), 2))
	require.NoError(t, ours.Put(t.Context(), "r1", digestOf(content), []byte(content)))
	got, err := ours.Load(t.Context(), "r1", digestOf(content), 1<<20)
	require.NoError(t, err)
	require.Equal(t, content, string(got))
}

func TestPut_Unacknowledged_NotDescribed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	// No stream stores chunks.
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "OBJ_blobs", Subjects: []string{"$O.blobs.M.>"}, AllowRollup: true, AllowDirect: true})
	require.NoError(t, err)
	ours := blob.New(js, "blobs")
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	require.ErrorContains(t, ours.Put(ctx, "r1", digestOf("text"), []byte("text")), "one of 1 chunks")
	require.Zero(t, messages(t, stream))
}

func TestPut_ContextEnds_Returns(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	ours, _, stream := opened(t, js)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, ours.Put(ctx, "r1", digestOf("text"), []byte("text")), context.Canceled)
	require.Zero(t, messages(t, stream))
	others := blob.New(js, "others")
	require.ErrorIs(t, others.Put(t.Context(), "r1", digestOf("text"), []byte("text")), jetstream.ErrBucketNotFound)
	_, err := others.Load(t.Context(), "r1", digestOf("text"), 100)
	require.ErrorIs(t, err, jetstream.ErrBucketNotFound)
}

// slow is an executor that waits before it describes its stored content.
type slow struct {
	jetstream.JetStream
	stored chan<- struct{}
	goOn   <-chan struct{}
}

func (s slow) PublishMsg(ctx context.Context, msg *nats.Msg, opts ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	s.stored <- struct{}{}
	<-s.goOn
	return s.JetStream.PublishMsg(ctx, msg, opts...)
}

// Whichever description is the last, its content is there; the run's prefix finds the content of the others.
func TestPut_SameConcurrently_LastWhole(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	ours, theirs, stream := opened(t, js)
	content := strings.Repeat("x", 300<<10)
	name := schema.BlobName("r1", digestOf(content))
	const executors = 3
	stored := make(chan struct{}, executors)
	var goOn [executors]chan struct{}
	var done [executors]chan error
	for i := range executors {
		goOn[i], done[i] = make(chan struct{}), make(chan error, 1)
		store := blob.New(slow{js, stored, goOn[i]}, "blobs")
		go func() { done[i] <- store.Put(t.Context(), "r1", digestOf(content), []byte(content)) }()
	}
	for range executors {
		<-stored // none has seen the others' object
	}
	ids := map[string]bool{}
	for _, i := range []int{1, 2, 0} {
		close(goOn[i])
		require.NoError(t, <-done[i])
		loaded, err := ours.Load(t.Context(), "r1", digestOf(content), 1<<20)
		require.NoError(t, err)
		require.Equal(t, content, string(loaded))
		got, err := theirs.GetString(t.Context(), name)
		require.NoError(t, err)
		require.Equal(t, content, got)
		info, err := theirs.GetInfo(t.Context(), name)
		require.NoError(t, err)
		require.False(t, schema.ForeignBlobID("r1", info.NUID))
		mark, _ := schema.MarkOfBlobID(info.NUID)
		require.Equal(t, schema.BlobMark("r1"), mark)
		ids[info.NUID] = true
	}
	require.Len(t, ids, executors, "each has an id of its own")
	require.EqualValues(t, executors*3+1, messages(t, stream), "and no put removed another's")
}

func TestPut_ContentOfOtherRun_StoredSeparately(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	ours, theirs, _ := opened(t, js)
	require.NoError(t, ours.Put(t.Context(), "r1", digestOf("text"), []byte("text")))
	info, err := theirs.GetInfo(t.Context(), schema.BlobName("r1", digestOf("text")))
	require.NoError(t, err)
	name := schema.BlobName("r2", digestOf("text"))
	info.Name = name
	forged, err := json.Marshal(info)
	require.NoError(t, err)
	_, err = js.Publish(t.Context(), "$O.blobs.M."+base64.URLEncoding.EncodeToString([]byte(name)), forged)
	require.NoError(t, err)
	_, err = ours.Load(t.Context(), "r2", digestOf("text"), 100)
	require.ErrorIs(t, err, blob.ErrChanged)
	require.NoError(t, ours.Put(t.Context(), "r2", digestOf("text"), []byte("text")))
	loaded, err := ours.Load(t.Context(), "r2", digestOf("text"), 100)
	require.NoError(t, err)
	require.Equal(t, "text", string(loaded))
}
