package kvstore_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
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

// holding returns the files below a directory with a text. The server replaces its files, so one may be gone.
func holding(dir, text string) (files []string) {
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if content, err := os.ReadFile(path); err == nil && bytes.Contains(content, []byte(text)) {
				files = append(files, path)
			}
		}
		return nil
	})
	return files
}

// Neighbours use most of each block, so that the servers compact none. The Raft logs of the streams have the bytes, too.
func TestOverwrite_ThreeServers_NoByteLeftOnAny(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: three servers")
	}
	nc, servers := startServers(t)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	cfg := smallFleet()
	cfg.Replicas, cfg.QuotaBytes = 3, 64<<20
	require.Eventually(t, func() bool { return kvstore.Provision(t.Context(), js, cfg) == nil }, time.Minute, time.Second)
	b := &bench{nc: nc, js: js, names: schema.NamesOf("alpha", 0), shard: openShard(t, js, "alpha")}
	store := blob.New(js, schema.BlobBucket("alpha"))
	const canary = "XK99CANARY"
	lasts := make(map[string]schema.StreamSequence)
	event := func(run string, header nats.Header, body []byte) {
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: b.names.EventSubject(run), Header: header, Data: body})
		require.NoError(t, err)
		lasts[run] = schema.StreamSequence(ack.Sequence)
	}
	write := func(run, text string, size int) {
		noise := func(of string) []byte {
			return append([]byte(run+text+of), bytes.Repeat([]byte{byte(rand.Uint32())}, size)...)
		}
		for i := range 7 {
			event(run, nil, noise("event"))
			require.NoError(t, b.shard.Segments.Create(t.Context(), run, i+1, noise("segment")))
			content := noise(fmt.Sprint("blob", i))
			require.NoError(t, store.Put(t.Context(), run, digestOf(string(content)), content))
			c := checkpoint(run, schema.StreamSequence(i+1))
			_, rev, err := b.shard.Checkpoints.GetFresh(t.Context(), run)
			require.True(t, err == nil || rev == 0)
			if c.Labels = map[string]string{"text": text}; text == "" {
				c.Task = string(bytes.Repeat([]byte("k"), size/2))
			}
			_, err = b.shard.Checkpoints.Put(t.Context(), c, rev)
			require.NoError(t, err)
		}
	}
	write("kept-1", "", 200_000)
	write("gone", canary, 500)
	write("kept-2", "", 200_000)
	for _, s := range servers {
		dir := s.JetStreamConfig().StoreDir
		require.Eventually(t, func() bool { return len(holding(dir, canary)) >= 4 }, time.Minute, 20*time.Millisecond, "%s", holding(dir, canary))
	}

	removal := &schema.Removal{Fleet: "alpha", Run: "gone", ID: "n1", Overwrite: true, Position: schema.Position{Stream: lasts["gone"], ID: "x"}}
	e, err := schema.NewErased("daemon-1", removal, "1", time.Now())
	require.NoError(t, err)
	header, body := e.Encode()
	header["Nats-Expected-Last-Subject-Sequence"] = []string{fmt.Sprint(uint64(lasts["gone"]))}
	event("gone", header, body)
	_, rev, err := b.shard.Checkpoints.GetFresh(t.Context(), "gone")
	require.NoError(t, err)
	_, err = b.shard.Checkpoints.Put(t.Context(), &schema.Checkpoint{Head: schema.ErasedHead(removal), Incarnation: "i"}, rev)
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, b.shard.Remove(t.Context(), schema.NoKeys, removal, b.found(t, "gone")))
	removed := time.Since(began)
	require.Eventually(t, func() bool { err = b.shard.Turn(t.Context(), "daemon-1", time.Now()); return err == nil }, time.Minute, time.Second, "%v", err)
	t.Log("removed", removed, "turned", time.Since(began)-removed)
	log, err := js.Stream(t.Context(), b.names.EventStream())
	require.NoError(t, err)
	require.Eventually(t, func() bool { // a replica that is a moment behind may answer
		m, err := log.GetLastMsgForSubject(t.Context(), b.names.EventSubject(schema.BarrierRun))
		return err == nil && len(m.Data) == 0
	}, time.Minute, 100*time.Millisecond, "a reader that waits for an earlier barrier is answered")
	for _, s := range servers {
		dir := s.JetStreamConfig().StoreDir
		require.Eventually(t, func() bool { return len(holding(dir, canary)) == 0 }, 5*time.Minute, 100*time.Millisecond, "%s", holding(dir, canary))
	}
	t.Log("gone everywhere after", time.Since(began))
	for _, run := range []string{"kept-1", "kept-2"} {
		left, err := b.shard.Left(t.Context(), schema.NoKeys, run, nil, b.found(t, run), true)
		require.NoError(t, err)
		require.Equal(t, []int64{7, 7, 7, 5}, []int64{left.LogEvents, left.Segments, left.Blobs, left.Checkpoints})
	}

	// A server that is away keeps its bytes: the removal is not finished before it is back.
	last := servers[len(servers)-1]
	last.Shutdown()
	last.WaitForShutdown()
	require.Eventually(t, func() bool {
		err = b.shard.Turn(t.Context(), "daemon-1", time.Now())
		return err != nil && strings.Contains(err.Error(), last.Name())
	}, time.Minute, 100*time.Millisecond)
	require.ErrorIs(t, err, kvstore.ErrUnavailable)
}

// A segment bucket has one message for each key: the next ballast replaces the one before.
func TestTurn_EmptyStreams_LeavesOneEmptyBarrier(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	count := func() map[string]uint64 {
		list := make(map[string]uint64)
		streams := b.js.ListStreams(t.Context())
		for s := range streams.Info() {
			list[s.Config.Name] = s.State.Msgs
		}
		require.NoError(t, streams.Err())
		return list
	}
	want := count()
	require.Len(t, want, 7)
	want[b.names.EventStream()]++
	for range 2 {
		require.NoError(t, b.shard.Turn(t.Context(), "daemon-1", time.Now()))
		require.Equal(t, want, count())
	}
	m, err := b.js.Stream(t.Context(), b.names.EventStream())
	require.NoError(t, err)
	last, err := m.GetLastMsgForSubject(t.Context(), b.names.EventSubject(schema.BarrierRun))
	require.NoError(t, err)
	require.Empty(t, last.Data)
}
