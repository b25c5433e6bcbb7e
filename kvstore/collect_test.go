package kvstore_test

import (
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A blob of a day stays if an event names it, in the log or in a segment, and others go, with what failed puts left.
func TestCollectBlobs_ADayLater_UnnamedGo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	names := func(content string) schema.Record {
		return schema.Record{Stream: 1, Body: []byte(`{"refs":[{"dataref":"` + schema.DataRef("run-1", digestOf(content)) + `"}]}`)}
	}
	for _, content := range []string{"in the log", "in a segment", "unnamed", "twice"} {
		b.put(t, "run-1", content, false)
	}
	b.put(t, "run-2", "before run.started", false)
	b.put(t, "run-1", "half way", true)
	b.put(t, "run-1", "twice", false)
	_, err := b.js.Publish(t.Context(), chunkPrefix+"flood1", []byte("no object's"))
	require.NoError(t, err)
	b.describe(t, "junk", "{}")
	log, sealed := names("in the log"), names("in a segment")
	_, err = b.js.Publish(t.Context(), b.names.EventSubject("run-1"), log.Body)
	require.NoError(t, err)
	head := schema.NewHead("alpha", "run-1")
	segment, err := schema.EncodeSegment(schema.SegmentInfo{
		Fleet: "alpha", Run: "run-1", Number: 1, Events: 1, First: schema.Position{Stream: 1, ID: "a"}, Last: schema.Position{Stream: 1, ID: "a"},
	}, &head, schema.AppendFrame(nil, &sealed))
	require.NoError(t, err)
	require.NoError(t, b.shard.Segments.Create(t.Context(), "run-1", 1, segment))
	collect := func(after time.Duration) int {
		t.Helper()
		n, err := b.shard.CollectBlobs(t.Context(), time.Now().Add(after))
		require.NoError(t, err)
		return n
	}
	require.Zero(t, collect(23*time.Hour))
	require.Len(t, b.ids(t), 7)
	until := time.Now().Add(25 * time.Hour)
	require.NoError(t, kvstore.Pause(t.Context(), b.js, "alpha", until.Add(time.Minute)))
	require.Zero(t, collect(25*time.Hour), "not during a backup")
	require.NoError(t, kvstore.Pause(t.Context(), b.js, "alpha", time.Now()))
	collect(25 * time.Hour)
	collect(25 * time.Hour) // the contents after their descriptions
	require.NoError(t, b.load(t, "run-1", "in the log"))
	require.NoError(t, b.load(t, "run-1", "in a segment"))
	for run, content := range map[string]string{"run-1": "unnamed", "run-2": "before run.started"} {
		require.ErrorIs(t, b.load(t, run, content), jetstream.ErrObjectNotFound)
	}
	require.Len(t, b.ids(t), 2)
	stream, err := b.js.Stream(t.Context(), blobStream)
	require.NoError(t, err)
	require.EqualValues(t, 4, stream.CachedInfo().State.Msgs, "nothing else is left")

	// CollectBlobs does not judge a description twice.
	require.NoError(t, func() error {
		s, err := b.js.Stream(t.Context(), eventStream)
		if err == nil {
			err = s.Purge(t.Context())
		}
		return err
	}())
	require.Zero(t, collect(30*time.Hour))
	require.NoError(t, b.load(t, "run-1", "in the log"))
}

// A run whose segments have a gap, or cannot be read, keeps its blobs.
func TestCollectBlobs_DamagedSegment_KeepsTheRunsBlobs(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, "run-1", "perhaps named", false)
	b.put(t, "run-2", "perhaps named, too", false)
	require.NoError(t, b.shard.Segments.Create(t.Context(), "run-1", 1, []byte("damaged")))
	require.NoError(t, b.shard.Segments.Create(t.Context(), "run-2", 2, []byte("the first is missing")))
	n, err := b.shard.CollectBlobs(t.Context(), time.Now().Add(25*time.Hour))
	require.NoError(t, err)
	require.Zero(t, n)
	require.NoError(t, b.load(t, "run-1", "perhaps named"))
	require.NoError(t, b.load(t, "run-2", "perhaps named, too"))
}

// A run can be removed from a blob store in which no description has room any more.
func TestRemove_FullBlobStore_MakesRoom(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.put(t, "run-1", strings.Repeat("x", 1<<20), false)
	blobs, err := kvstore.BlobsOf(t.Context(), b.js, "alpha", map[string]struct{}{"run-1": {}})
	require.NoError(t, err)
	s, err := b.js.Stream(t.Context(), blobStream)
	require.NoError(t, err)
	cfg := s.CachedInfo().Config
	cfg.MaxBytes = int64(s.CachedInfo().State.Bytes)
	_, err = b.js.UpdateStream(t.Context(), cfg)
	require.NoError(t, err)
	err = b.shard.Remove(t.Context(), nil, &schema.Removal{Run: "run-1"}, blobs["run-1"])
	require.ErrorContains(t, err, "remove events of run run-1", "all before is done")
	require.Empty(t, b.ids(t))
	require.ErrorIs(t, b.load(t, "run-1", strings.Repeat("x", 1<<20)), jetstream.ErrObjectNotFound)
}

// What an event names stays in each form that an event may have, and if a replica answers that nothing is there.
func TestCollectBlobs_NamedInAnotherFormOrUnknownToAReplica_Stays(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	refs := func(content string) string {
		return `{"refs":[{"dataref":"` + schema.DataRef("run-1", digestOf(content)) + `"}]}`
	}
	digest := digestOf("escaped")
	escaped := strings.Replace(refs("escaped"), digest, digest[:63]+`\u00`+hex.EncodeToString([]byte(digest[63:])), 1)
	require.NotContains(t, escaped, digest)
	whole := nats.NewMsg(b.names.EventSubject("run-1"))
	whole.Header = nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"s"}, "ce-type": {"t"}, "ce-dataref": {schema.DataRef("run-1", digestOf("whole"))}}
	coded := nats.NewMsg(whole.Subject)
	coded.Header, coded.Data = nats.Header{"Content-Type": {"application/cloudevents+json"}}, []byte(
		`{"specversion":"1.0","id":"2","source":"s","type":"t","data_base64":"`+base64.StdEncoding.EncodeToString([]byte(refs("coded")))+`"}`)
	contents := []string{"escaped", "whole", "coded"}
	for _, content := range contents {
		b.put(t, "run-1", content, false)
	}
	text := nats.NewMsg(whole.Subject)
	text.Header, text.Data = nats.Header{"ce-specversion": {"1.0"}, "ce-id": {"3"}, "ce-source": {"s"}, "ce-type": {"t"}, "content-type": {"application/json"}}, []byte(escaped)
	for _, m := range []*nats.Msg{whole, coded, text} {
		_, err := b.js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	empty := natstest.Between(t, b.nc, func(m *nats.Msg, subject string) {
		if !strings.HasPrefix(subject, "$JS.API.DIRECT.GET.") {
			natstest.Forward(b.nc, m, subject)
			return
		}
		out := nats.NewMsg(m.Reply)
		out.Header.Set("Status", "404")
		_ = b.nc.PublishMsg(out)
	})
	later := time.Now().Add(25 * time.Hour)
	_, _ = openShard(t, empty, "alpha").CollectBlobs(t.Context(), later) // it may fail, and deletes nothing
	for _, content := range contents {
		require.NoError(t, b.load(t, "run-1", content))
	}
	_, err := b.shard.CollectBlobs(t.Context(), later)
	require.NoError(t, err)
	for _, content := range contents {
		require.NoError(t, b.load(t, "run-1", content), content)
	}
}
