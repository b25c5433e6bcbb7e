package service_test

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// chunk stores a chunk without a description, as a put leaves it that was killed half way.
func (w *serviceWorld) chunk(run, unique string) (id string) {
	w.TB.Helper()
	id = schema.BlobID(run, unique)
	_, err := w.JS.Publish(w.TB.Context(), "$O."+schema.BlobBucket("default")+".C."+id, []byte("said by "+run))
	require.NoError(w.TB, err)
	return id
}

// chunks are the ids of the stored contents.
func (w *serviceWorld) chunks() (ids []string) {
	w.TB.Helper()
	stream, err := w.JS.Stream(w.TB.Context(), "OBJ_"+schema.BlobBucket("default"))
	require.NoError(w.TB, err)
	prefix := "$O." + schema.BlobBucket("default") + ".C."
	info, err := stream.Info(w.TB.Context(), jetstream.WithSubjectFilter(prefix+"*"))
	require.NoError(w.TB, err)
	for subject := range info.State.Subjects {
		if id := subject[len(prefix):]; id != "_ballast" { // the daemon overwrites erased bytes with it, and removes it
			ids = append(ids, id)
		}
	}
	return ids
}

func TestErase_LeftoverBlobs_RemovedWithRun(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	w.ended("gone")
	w.ended("kept")
	w.chunk("gone", "half")
	kept := w.chunk("kept", "half")
	// One unreadable description does not block the removal of other data.
	about := "$O." + schema.BlobBucket("default") + ".M." + base64.URLEncoding.EncodeToString([]byte("gone.x"))
	_, err := w.JS.Publish(t.Context(), about, []byte("no JSON"))
	require.NoError(t, err)

	receipt := w.erase("gone", false)
	w.requireNothingLeft(&receipt)
	require.Equal(t, []string{kept}, w.chunks())

	// An executor that slept through the removal puts the rest.
	w.awaitUnlisted()
	stop()
	w.chunk("gone", "late")
	left := w.left(&receipt)
	require.EqualValues(t, 1, left.Blobs, "a request reports it")
	require.NoError(t, w.Shard.Removals.Add(t.Context(), "gone", 1))
	w.Fold(eraseSoon())
	require.Eventually(t, func() bool { return len(w.chunks()) == 1 }, time.Minute, 5*time.Millisecond, "the next daemon takes it out")
	require.Equal(t, []string{kept}, w.chunks())
}

// A daemon can fail after each of its steps. The next one continues from the stored state.
func TestErase_LeftoverBlobCrash_Continues(t *testing.T) {
	t.Parallel()
	w, stop := erasing(t)
	x := w.ended("half")
	first := w.chunk("half", "0")
	w.chunk("half", "1")
	kept := w.chunk("kept", "0")
	stop()
	w.eraseByHand(x)
	stream, err := w.JS.Stream(t.Context(), "OBJ_"+schema.BlobBucket("default"))
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$O."+schema.BlobBucket("default")+".C."+first)))
	w.Fold(eraseSoon())
	receipt := w.erase("half", false)
	w.requireNothingLeft(&receipt)
	require.Equal(t, []string{kept}, w.chunks())
}
