package kvstore_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/blob"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	aboutPrefix = "$O.WAYMARK_BLOBS_alpha.M."
	chunkPrefix = "$O.WAYMARK_BLOBS_alpha.C."
)

var errKilled = errors.New("killed before the description")

// halfWay is an executor that dies after storing content and before its description.
type halfWay struct{ jetstream.JetStream }

func (halfWay) PublishMsg(context.Context, *nats.Msg, ...jetstream.PublishOpt) (*jetstream.PubAck, error) {
	return nil, errKilled
}

func digestOf(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// put stores a run's large payload; if killed, without its description.
func (b *bench) put(tb testing.TB, run, content string, killed bool) {
	tb.Helper()
	js := b.js
	if killed {
		js = halfWay{js}
	}
	store := blob.New(js, schema.BlobBucket("alpha"))
	err := store.Put(tb.Context(), run, digestOf(content), []byte(content))
	if killed {
		require.ErrorIs(tb, err, errKilled)
		return
	}
	require.NoError(tb, err)
}

// load loads a run's payload as readers do.
func (b *bench) load(tb testing.TB, run, content string) error {
	tb.Helper()
	store := blob.New(b.js, schema.BlobBucket("alpha"))
	got, err := store.Load(tb.Context(), run, digestOf(content), 1<<30)
	if err == nil {
		require.Equal(tb, content, string(got))
	}
	return err
}

// describe stores a hand-made description of an object.
func (b *bench) describe(tb testing.TB, key, body string) {
	tb.Helper()
	_, err := b.js.PublishMsg(tb.Context(), &nats.Msg{Subject: aboutPrefix + key, Data: []byte(body), Header: nats.Header{"Nats-Rollup": {"sub"}}})
	require.NoError(tb, err)
}

// ids are the ids of contents, with their numbers of chunks.
func (b *bench) ids(tb testing.TB) map[string]uint64 {
	tb.Helper()
	stream, err := b.js.Stream(tb.Context(), blobStream)
	require.NoError(tb, err)
	info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(chunkPrefix+"*"))
	require.NoError(tb, err)
	ids := make(map[string]uint64)
	for subject, n := range info.State.Subjects {
		ids[strings.TrimPrefix(subject, chunkPrefix)] = n
	}
	return ids
}

// idsOf are the ids with a run's prefix.
func (b *bench) idsOf(tb testing.TB, run string) (ids []string) {
	tb.Helper()
	for id := range b.ids(tb) {
		if mark, ok := schema.MarkOfBlobID(id); ok && mark == schema.BlobMark(run) {
			ids = append(ids, id)
		}
	}
	return ids
}

// found are the objects of a run.
func (b *bench) found(tb testing.TB, run string) []kvstore.Blob {
	tb.Helper()
	blobs, err := kvstore.BlobsOf(tb.Context(), b.js, "alpha", map[string]struct{}{run: {}})
	require.NoError(tb, err)
	for other := range blobs {
		require.Equal(tb, run, other)
	}
	return blobs[run]
}

// mark stores run.erased.
func (b *bench) mark(tb testing.TB, run string) {
	tb.Helper()
	e, err := schema.NewErased("daemon-1", &schema.Removal{Fleet: "alpha", Run: run, ID: "n1"}, "1", time.Now())
	require.NoError(tb, err)
	header, body := e.Encode()
	_, err = b.js.PublishMsg(tb.Context(), &nats.Msg{Subject: b.names.EventSubject(run), Header: header, Data: body})
	require.NoError(tb, err)
}

// remove removes a run's blobs, and returns what a later check finds.
func (b *bench) remove(tb testing.TB, run string) schema.ErasedParts {
	tb.Helper()
	b.mark(tb, run)
	require.NoError(tb, b.shard.Remove(tb.Context(), schema.NoKeys, &schema.Removal{Run: run}, b.found(tb, run)))
	left, err := b.shard.Left(tb.Context(), schema.NoKeys, run, nil, b.found(tb, run), true)
	require.NoError(tb, err)
	return left
}

func TestBlobs_Undescribed_RemovedWithRun(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	large := strings.Repeat("x", 300<<10)
	for _, run := range []string{"gone", "kept"} {
		b.put(t, run, "whole of "+run, false)
		for i := range 3 {
			b.put(t, run, fmt.Sprint(large, run, i), true)
		}
	}
	_, err := b.js.Publish(t.Context(), chunkPrefix+"2dWhqLr1m9uWTE4sD3cCqj", []byte("of an earlier version"))
	require.NoError(t, err)
	require.Len(t, b.idsOf(t, "gone"), 4)
	before, err := b.shard.Left(t.Context(), schema.NoKeys, "gone", nil, b.found(t, "gone"), false)
	require.NoError(t, err)
	require.EqualValues(t, 4, before.Blobs, "each is counted once")

	left := b.remove(t, "gone")
	require.True(t, left.None(), "%+v", left)
	require.Empty(t, b.idsOf(t, "gone"))
	require.Len(t, b.ids(t), 5, "content of other runs, or of none, stays")
	require.Len(t, b.idsOf(t, "kept"), 4)
	require.NoError(t, b.load(t, "kept", "whole of kept"))
	require.ErrorIs(t, b.load(t, "gone", "whole of gone"), jetstream.ErrObjectNotFound)
	for _, o := range b.found(t, "gone") {
		require.True(t, o.Deleted, "a mark stays of what was described: %+v", o)
	}
}

// A removal can end between any two of its requests, and the process that continues knows only what is stored.
// Content that a server crash brings back is found, too.
func TestBlobs_RemovalInterrupted_Continues(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for i := range 3 {
		b.put(t, "gone", fmt.Sprint("whole ", i), false)
		b.put(t, "gone", fmt.Sprint("half ", i), true)
		b.put(t, "kept", fmt.Sprint("whole ", i), false)
		b.put(t, "kept", fmt.Sprint("half ", i), true)
	}
	b.mark(t, "gone")
	for i, o := range b.found(t, "gone") {
		if i%2 == 0 && o.Name != "" {
			// The deletion was stored, and the process died before the contents were deleted.
			b.describe(t, keyOf(o.Name), fmt.Sprintf(`{"name":%q,"bucket":"WAYMARK_BLOBS_alpha","nuid":%q,"deleted":true}`, o.Name, o.NUID))
		}
	}
	for len(b.found(t, "gone")) > 0 {
		all := b.found(t, "gone")
		require.NoError(t, b.shard.Remove(t.Context(), schema.NoKeys, &schema.Removal{Run: "gone"}, all[:1]))
		left, err := b.shard.Left(t.Context(), schema.NoKeys, "gone", nil, b.found(t, "gone"), true)
		require.NoError(t, err)
		if left.None() {
			break
		}
		// The next process begins with the blobs that it finds, in any order.
		rest := b.found(t, "gone")
		require.NoError(t, b.shard.Remove(t.Context(), schema.NoKeys, &schema.Removal{Run: "gone"}, rest[len(rest)-1:]))
		require.NoError(t, b.shard.Remove(t.Context(), schema.NoKeys, &schema.Removal{Run: "gone"}, rest[len(rest)/2:]))
	}
	require.Empty(t, b.idsOf(t, "gone"))

	_, err := b.js.Publish(t.Context(), chunkPrefix+schema.BlobID("gone", "back"), []byte("half"))
	require.NoError(t, err)
	left, err := b.shard.Left(t.Context(), schema.NoKeys, "gone", nil, b.found(t, "gone"), true)
	require.NoError(t, err)
	require.EqualValues(t, 1, left.Blobs, "what came back is named")
	require.NoError(t, b.shard.Remove(t.Context(), schema.NoKeys, &schema.Removal{Run: "gone"}, b.found(t, "gone")))
	require.Empty(t, b.idsOf(t, "gone"))
	require.Len(t, b.idsOf(t, "kept"), 6)
	for i := range 3 {
		require.NoError(t, b.load(t, "kept", fmt.Sprint("whole ", i)))
	}
}

// publishAsItIs publishes headers that no client would send.
func (b *bench) publishAsItIs(tb testing.TB, subject, header, body string) {
	tb.Helper()
	conn, err := net.Dial("tcp", b.nc.ConnectedAddr())
	require.NoError(tb, err)
	defer func() { require.NoError(tb, conn.Close()) }()
	user, password := b.nc.Opts.User, b.nc.Opts.Password
	_, err = fmt.Fprintf(conn, "CONNECT {\"headers\":true,\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nHPUB %s %d %d\r\n%s%s\r\n",
		user, password, subject, len(header), len(header)+len(body), header, body)
	require.NoError(tb, err)
	require.Eventually(tb, func() bool {
		stream, err := b.js.Stream(tb.Context(), blobStream)
		require.NoError(tb, err)
		info, err := stream.Info(tb.Context(), jetstream.WithSubjectFilter(subject))
		return err == nil && len(info.State.Subjects) == 1
	}, time.Minute, time.Millisecond)
}

func keyOf(name string) string { return base64.URLEncoding.EncodeToString([]byte(name)) }

// Executors write descriptions and ids themselves. Content with a run's prefix belongs to that run: the removal of
// another run does not remove it, and a description in another run does not keep it.
func TestBlobs_DescriptionOfOtherRun_NoEffect(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, run := range []string{"hers", "his"} {
		b.put(t, run, "a secret of "+run, false)
		b.put(t, run, "a half of "+run, true)
	}
	claim := func(run, content string, of string) {
		for _, id := range b.idsOf(t, of) {
			name := schema.BlobName(run, digestOf(content+id))
			b.describe(t, keyOf(name), fmt.Sprintf(`{"name":%q,"bucket":"WAYMARK_BLOBS_alpha","nuid":%q,"size":%d,"chunks":1}`, name, id, len(content)))
		}
	}
	claim("thief", "a secret of hers", "hers")
	claim("his", "a secret of hers", "hers")
	// Readers refuse it, so that no reader comes to depend on it.
	name := schema.BlobName("his", digestOf("a secret of hers"))
	b.describe(t, keyOf(name), fmt.Sprintf(`{"name":%q,"bucket":"WAYMARK_BLOBS_alpha","nuid":%q,"size":%d,"chunks":1}`, name, b.idsOf(t, "hers")[0], len("a secret of hers")))
	require.ErrorIs(t, b.load(t, "his", "a secret of hers"), blob.ErrChanged)

	left := b.remove(t, "thief")
	require.True(t, left.None(), "%+v", left)
	require.Len(t, b.idsOf(t, "hers"), 2, "a removal takes no other's content out")
	require.NoError(t, b.load(t, "hers", "a secret of hers"))

	left = b.remove(t, "hers")
	require.True(t, left.None(), "%+v", left)
	require.Empty(t, b.idsOf(t, "hers"), "whatever else describes it")
	require.Len(t, b.idsOf(t, "his"), 2)
	require.NoError(t, b.load(t, "his", "a secret of his"))
	b.put(t, "his", "a secret of hers", false)
	require.NoError(t, b.load(t, "his", "a secret of hers"), "what was described falsely is stored again")
}

// One hand-made object must not block all removals.
func TestBlobs_EmptyDescription_RemovalEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, "gone", "secret", false)
	id := b.idsOf(t, "gone")[0]
	name := schema.BlobName("gone", digestOf("secret"))
	canonical := keyOf("gone.xy")
	require.True(t, strings.HasSuffix(canonical, "="))
	padded := []byte(canonical)
	at := len(strings.TrimRight(canonical, "=")) - 1
	padded[at]++ // bits that no text needs, and that decoders ignore
	decoded, err := base64.URLEncoding.DecodeString(string(padded))
	require.NoError(t, err)
	require.Equal(t, "gone.xy", string(decoded))
	for key, text := range map[string]string{
		keyOf("gone.1"): "no JSON", keyOf("gone.2"): "", keyOf("gone.3"): `{"nuid":7}`, string(padded): `{"name":"gone.xy"}`,
		keyOf("gone."): `{"name":"gone.","bucket":"WAYMARK_BLOBS_alpha","nuid":"*"}`,
	} {
		b.describe(t, key, text)
	}
	// Malformed headers; and the run's own object, with a description that points elsewhere.
	b.publishAsItIs(t, aboutPrefix+keyOf("gone.4"), "no headers at all\r\n\r\n", "{}")
	b.describe(t, keyOf(name), fmt.Sprintf(`{"name":%q,"bucket":"WAYMARK_BLOBS_alpha","nuid":"elsewhere","size":6,"chunks":1}`, name))
	b.put(t, "kept", "kept", false)

	left := b.remove(t, "gone")
	require.True(t, left.None(), "%+v", left)
	require.NotContains(t, b.ids(t), id)
	require.NoError(t, b.load(t, "kept", "kept"))
	found := b.found(t, "gone")
	require.Len(t, found, 1)
	require.Equal(t, name, found[0].Name)
	require.True(t, found[0].Deleted)
}
