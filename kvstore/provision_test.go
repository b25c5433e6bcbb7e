package kvstore_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	eventStream      = "WAYMARK_EVENTS_alpha_0"
	checkpointStream = "KV_WAYMARK_CHECKPOINTS_alpha_0"
	deadLetterStream = "WAYMARK_DEADLETTERS_alpha"
	segmentStream    = "KV_WAYMARK_SEGMENTS_alpha_0"
	blobStream       = "OBJ_WAYMARK_BLOBS_alpha"
	letterStream     = "WAYMARK_DEADLETTERS_alpha"
	fleetStream      = "KV_WAYMARK_FLEETS"
	leaseStream      = "KV_WAYMARK_LEASES"
)

func config(tb testing.TB, js jetstream.JetStream, stream string) jetstream.StreamConfig {
	tb.Helper()
	s, err := js.Stream(tb.Context(), stream)
	require.NoError(tb, err)
	return s.CachedInfo().Config
}

func TestProvision_Repeated_Idempotent(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for range 3 {
		require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
	}
	_, rev, err := kvstore.NewFleets(js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	require.EqualValues(t, config(t, js, fleetStream).FirstSeq, rev, "settings that did not change are not written again")
}

// endsAt is a JetStream whose caller gives up when a stream is looked up.
type endsAt struct {
	jetstream.JetStream
	stream string
	end    context.CancelFunc
}

func (e endsAt) Stream(ctx context.Context, name string) (jetstream.Stream, error) {
	if name == e.stream {
		e.end()
	}
	return e.JetStream.Stream(ctx, name)
}

func TestProvision_TimeIsUp_NamesTheStreamThatItWasAtAlone(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	cfg := smallFleet()
	cfg.Shards = 8
	require.NoError(t, kvstore.Provision(t.Context(), js, cfg))
	ctx, cancel := context.WithCancel(t.Context())
	err := kvstore.Provision(ctx, endsAt{js, segmentStream, cancel}, cfg)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 1, strings.Count(err.Error(), "WAYMARK_"), err)
}

func TestProvision_Streams_FlagsExplicit(t *testing.T) {
	t.Parallel()
	js := newBench(t).js
	c := config(t, js, eventStream)
	require.Equal(t, []string{"waymark.events.alpha.0.*"}, c.Subjects)
	require.Equal(t, jetstream.DiscardNew, c.Discard)
	require.EqualValues(t, kvstore.MinQuotaBytes, c.MaxBytes)
	require.EqualValues(t, 512<<10, c.MaxMsgSize)
	require.True(t, c.AllowAtomicPublish)
	require.False(t, c.AllowRollup || c.AllowMsgTTL || c.AllowMsgSchedules || c.AllowMsgCounter || c.DenyPurge)
	require.Zero(t, c.MaxAge)
	require.Equal(t, 2*time.Minute, c.Duplicates)

	c = config(t, js, checkpointStream)
	require.EqualValues(t, 5, c.MaxMsgsPerSubject)
	require.Equal(t, jetstream.AsyncPersistMode, c.PersistMode)
	require.True(t, c.AllowRollup && !c.DenyDelete && c.AllowDirect)

	c = config(t, js, segmentStream)
	require.EqualValues(t, 1, c.MaxMsgsPerSubject)
	require.Equal(t, jetstream.DefaultPersistMode, c.PersistMode, "segments are the truth")

	c = config(t, js, letterStream)
	require.Equal(t, jetstream.DiscardOld, c.Discard, "a flood of bad events must not stop the fold")
	require.Equal(t, jetstream.AsyncPersistMode, c.PersistMode, "dead letters are derived, and a flood of them would sync one by one")
	require.EqualValues(t, kvstore.MinQuotaBytes/4, c.MaxBytes)

	_, err := js.ObjectStore(t.Context(), schema.BlobBucket("alpha"))
	require.NoError(t, err)
}

func TestProvision_ManyReplicas_OneResult(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t)
	var group errgroup.Group
	for range 6 {
		js := srv.JetStream(t)
		group.Go(func() error { return kvstore.Provision(t.Context(), js, smallFleet()) })
	}
	require.NoError(t, group.Wait())
}

func TestProvision_ChangedFlag_NamesCommand(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		stream, flag string
		change       func(*jetstream.StreamConfig)
	}{
		"events: roll-up allowed":      {eventStream, "allow_rollup_hdrs", func(c *jetstream.StreamConfig) { c.AllowRollup = true }},
		"events: age":                  {eventStream, "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"events: old ones discarded":   {eventStream, "discard", func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardOld }},
		"events: unlimited":            {eventStream, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }},
		"events: no atomic batches":    {eventStream, "allow_atomic", func(c *jetstream.StreamConfig) { c.AllowAtomicPublish = false }},
		"events: window":               {eventStream, "duplicate_window", func(c *jetstream.StreamConfig) { c.Duplicates = time.Second }},
		"events: subjects":             {eventStream, "subjects", func(c *jetstream.StreamConfig) { c.Subjects = append(c.Subjects, "more.>") }},
		"events: messages":             {eventStream, "max_msgs", func(c *jetstream.StreamConfig) { c.MaxMsgs = 10 }},
		"events: message size":         {eventStream, "max_msg_size", func(c *jetstream.StreamConfig) { c.MaxMsgSize = -1 }},
		"events: per run":              {eventStream, "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 9 }},
		"events: no acks":              {eventStream, "no_ack", func(c *jetstream.StreamConfig) { c.NoAck = true }},
		"events: fast batches":         {eventStream, "allow_batched", func(c *jetstream.StreamConfig) { c.AllowBatchPublish = true }},
		"events: compression":          {eventStream, "compression", func(c *jetstream.StreamConfig) { c.Compression = jetstream.S2Compression }},
		"events: purge denied":         {eventStream, "deny_purge", func(c *jetstream.StreamConfig) { c.DenyPurge = true }},
		"events: TTL":                  {eventStream, "allow_msg_ttl", func(c *jetstream.StreamConfig) { c.AllowMsgTTL = true }},
		"checkpoints: no announcement": {checkpointStream, "republish", func(c *jetstream.StreamConfig) { c.RePublish = nil }},
		"checkpoints: all announced": {checkpointStream, "republish", func(c *jetstream.StreamConfig) {
			c.RePublish = &jetstream.RePublish{Source: ">", Destination: "waymark.checkpoints.alpha.0.>"}
		}},
		"checkpoints: history":   {checkpointStream, "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 2 }},
		"checkpoints: limit":     {checkpointStream, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		"checkpoints: direct":    {checkpointStream, "allow_direct", func(c *jetstream.StreamConfig) { c.AllowDirect = false }},
		"segments: unlimited":    {segmentStream, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = -1 }},
		"segments: age":          {segmentStream, "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
		"segments: per subject":  {segmentStream, "discard_new_per_subject", func(c *jetstream.StreamConfig) { c.DiscardNewPerSubject = true }},
		"blobs: limit":           {blobStream, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		"blobs: consumer limits": {blobStream, "consumer_limits", func(c *jetstream.StreamConfig) { c.ConsumerLimits.MaxAckPending = 7 }},
		"letters: limit":         {letterStream, "max_bytes", func(c *jetstream.StreamConfig) { c.MaxBytes = 1 << 20 }},
		"fleets: history":        {fleetStream, "max_msgs_per_subject", func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject = 1 }},
		"leases: age":            {leaseStream, "max_age", func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			cfg := config(t, b.js, test.stream)
			test.change(&cfg)
			_, err := b.js.UpdateStream(t.Context(), cfg)
			require.NoError(t, err)

			err = kvstore.Provision(t.Context(), b.js, smallFleet())
			var ce *kvstore.ConfigError
			require.ErrorAs(t, err, &ce)
			require.Equal(t, test.stream, ce.Stream)
			flags := make([]string, 0, len(ce.Differences))
			for _, d := range ce.Differences {
				require.NotEqual(t, d.Want, d.Have)
				flags = append(flags, d.Flag)
			}
			require.Equal(t, []string{test.flag}, flags)
			if test.flag == "deny_purge" || test.flag == "allow_msg_ttl" {
				require.Empty(t, ce.Command, "the server does not take this back")
				require.Contains(t, ce.Hint, "back up")
				return
			}
			runCommand(t, b.nc, ce.Command)
			require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()), "the command mends it")
		})
	}
}

// runCommand does what the nats CLI would do with the command of a ConfigError.
func runCommand(tb testing.TB, nc *nats.Conn, command string) {
	tb.Helper()
	m := regexp.MustCompile(`^nats req '([^']+)' '(.*)'$`).FindStringSubmatch(command)
	require.Len(tb, m, 3, "command %q", command)
	reply, err := nc.RequestWithContext(tb.Context(), m[1], []byte(strings.ReplaceAll(m[2], `'\''`, "'")))
	require.NoError(tb, err)
	require.NotContains(tb, string(reply.Data), `"error"`)
}

func TestProvision_SyncedStreamOfDerivedData_IsKept(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{checkpointStream, deadLetterStream} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			cfg := config(t, b.js, stream)
			require.Equal(t, jetstream.AsyncPersistMode, cfg.PersistMode)
			cfg.PersistMode = jetstream.DefaultPersistMode
			require.NoError(t, b.js.DeleteStream(t.Context(), stream))
			_, err := b.js.CreateStream(t.Context(), cfg)
			require.NoError(t, err)
			require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
			require.Equal(t, jetstream.DefaultPersistMode, config(t, b.js, stream).PersistMode)
		})
	}
}

func TestProvision_TruthWithoutSync_IsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := config(t, b.js, segmentStream)
	cfg.PersistMode = jetstream.AsyncPersistMode
	require.NoError(t, b.js.DeleteStream(t.Context(), segmentStream))
	_, err := b.js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	var ce *kvstore.ConfigError
	require.ErrorAs(t, kvstore.Provision(t.Context(), b.js, smallFleet()), &ce)
	require.Equal(t, "persist_mode", ce.Differences[0].Flag)
	require.Contains(t, ce.Hint, "back up")
}

func TestProvision_LogLost_Alarm(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{eventStream, segmentStream, blobStream} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			require.NoError(t, b.js.DeleteStream(t.Context(), stream))
			for range 2 {
				err := kvstore.Provision(t.Context(), b.js, smallFleet())
				require.ErrorIs(t, err, kvstore.ErrStreamMissing)
				require.ErrorContains(t, err, stream)
				require.ErrorContains(t, err, "backup")
			}
			_, err := b.js.Stream(t.Context(), stream)
			require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "it was made again")
		})
	}
}

func TestProvision_LogAndMarkerLost_Alarm(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.shard.Segments.Create(t.Context(), "run-1", 1, []byte("sealed")))
	require.NoError(t, b.js.DeleteStream(t.Context(), fleetStream))
	require.NoError(t, b.js.DeleteStream(t.Context(), eventStream))
	cfg := smallFleet()
	require.ErrorIs(t, kvstore.Provision(t.Context(), b.js, cfg), kvstore.ErrSettingsMissing)
	cfg.Shards = 1
	err := kvstore.Provision(t.Context(), b.js, cfg)
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	require.ErrorContains(t, err, eventStream)
}

// With the defaults, runs of the other shards would be unknown, and their ids started again.
func TestProvision_SettingsLost_NotMadeWithDefaults(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.Fleet, cfg.Shards = "beta", 3
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	last := schema.NamesOf("beta", 2)
	_, err := b.js.Publish(t.Context(), last.EventSubject("r1"), []byte("x"))
	require.NoError(t, err)
	require.NoError(t, b.js.DeleteStream(t.Context(), fleetStream))
	for shards, wide := range map[int]int{0: 8, 1: 0, 2: 0, 4: 0} {
		cfg.Shards, cfg.NewShards = shards, wide
		err := kvstore.Provision(t.Context(), b.js, cfg)
		require.ErrorIs(t, err, kvstore.ErrSettingsMissing, "%d shards", shards)
		require.ErrorContains(t, err, last.EventStream())
		require.ErrorContains(t, err, "had 3 shards")
		_, err = b.js.Stream(t.Context(), fleetStream)
		require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "nothing was made")
	}
	cfg.Shards, cfg.NewShards = 3, 0
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg), "with the right number of shards the settings are made again")
	s, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "beta")
	require.NoError(t, err)
	require.Equal(t, 3, s.Shards)
}

// As after a crash of the first start: its streams are there and empty.
func TestProvision_EmptyStreamsOfMoreShards_AreNoRemains(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.Fleet, cfg.NewShards = "beta", 2
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	require.NoError(t, b.js.DeleteStream(t.Context(), fleetStream))
	cfg.NewShards = 0
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
}

func TestProvision_Interrupted_Finished(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	// As after a crash before the marker was put: some streams are there, empty.
	for _, stream := range []string{fleetStream, blobStream, letterStream, checkpointStream} {
		require.NoError(t, b.js.DeleteStream(t.Context(), stream))
	}
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
}

func TestProvision_DerivedStreamsLost_Recreated(t *testing.T) {
	t.Parallel()
	for _, stream := range []string{checkpointStream, letterStream, leaseStream} {
		t.Run(stream, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			before := config(t, b.js, stream)
			require.NoError(t, b.js.DeleteStream(t.Context(), stream))
			require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
			after := config(t, b.js, stream)
			after.FirstSeq = before.FirstSeq // the revisions of a bucket continue: see below
			require.Equal(t, before, after)
		})
	}
}

// A paused fold worker has read a revision of a bucket that is gone. In its successor, the same key must not get the
// same number: compare-and-set would put the old state over the new one.
func TestProvision_RecreatedBucket_RevisionsDiffer(t *testing.T) {
	t.Parallel()
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted: %v", restarted), func(t *testing.T) {
			t.Parallel()
			server := natstest.StartProcess(t)
			js := server.JetStream(t)
			require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
			cps := openShard(t, js, "alpha").Checkpoints
			was, err := cps.Put(t.Context(), checkpoint("run-1", 11), 0)
			require.NoError(t, err)
			require.NoError(t, js.DeleteStream(t.Context(), checkpointStream))
			require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
			if restarted { // before it has content
				server.Kill9(t)
				server.Start(t)
			}
			var is schema.Revision
			require.Eventually(t, func() bool {
				is, err = cps.Put(t.Context(), checkpoint("run-1", 15), 0)
				return err == nil
			}, time.Minute, 10*time.Millisecond)
			require.Greater(t, is, was)
			_, err = cps.Put(t.Context(), checkpoint("run-1", 11), was)
			require.ErrorIs(t, err, kvstore.ErrConflict)
			cp, at, err := cps.GetFresh(t.Context(), "run-1")
			require.NoError(t, err)
			require.Equal(t, is, at)
			require.EqualValues(t, 15, cp.Position.Stream)
		})
	}
}

func TestPut_MissingBucket_Named(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	require.NoError(t, b.js.DeleteStream(t.Context(), checkpointStream))
	_, err := b.shard.Checkpoints.Put(t.Context(), checkpoint("run-1", 1), 0)
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	results := b.shard.Checkpoints.PutBatch(t.Context(), []kvstore.Item{{Checkpoint: checkpoint("run-1", 1)}})
	require.ErrorIs(t, results[0].Err, kvstore.ErrStreamMissing)
	_, _, err = b.shard.Checkpoints.Get(t.Context(), "run-1")
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	_, _, err = b.shard.Checkpoints.Watermark(t.Context())
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
	_, _, err = b.shard.Checkpoints.LiveRuns(t.Context())
	require.ErrorIs(t, err, kvstore.ErrStreamMissing)
}

func TestProvision_BucketOfEarlierVersion_TakesMarkersThatExpire(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := config(t, b.js, checkpointStream)
	require.NoError(t, b.js.DeleteStream(t.Context(), checkpointStream))
	cfg.AllowMsgTTL = false
	_, err := b.js.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	revisions := putLive(t, b, "run-1")
	require.Error(t, b.shard.Checkpoints.EraseLive(t.Context(), kvstore.LiveAt{Run: "run-1", Revision: revisions[0]})[0].Err)
	require.NoError(t, kvstore.Provision(t.Context(), b.js, smallFleet()))
	require.True(t, config(t, b.js, checkpointStream).AllowMsgTTL)
	require.NoError(t, b.shard.Checkpoints.EraseLive(t.Context(), kvstore.LiveAt{Run: "run-1", Revision: revisions[0]})[0].Err)
}

func TestProvision_ChangedSettings_Applied(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.QuotaBytes, cfg.CheckpointsPerRun = 32<<20, 9
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	require.EqualValues(t, 32<<20, config(t, b.js, eventStream).MaxBytes)
	require.EqualValues(t, 9, config(t, b.js, checkpointStream).MaxMsgsPerSubject)

	s, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	require.Equal(t, cfg.Defaults(), kvstore.ConfigOf(&s))
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg), "now they are verified")
}

// A run's shard is a hash of its id, and no run moves.
func TestProvision_AnotherNumberOfShards_Refused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	cfg := smallFleet()
	cfg.Fleet, cfg.Shards = "beta", 3
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg))
	cfg.Shards = 0
	require.NoError(t, kvstore.Provision(t.Context(), b.js, cfg), "without a number the fleet keeps its own")
	for _, shards := range []int{1, 4} {
		cfg.Shards = shards
		err := kvstore.Provision(t.Context(), b.js, cfg)
		require.ErrorIs(t, err, kvstore.ErrSettings)
		require.ErrorContains(t, err, fmt.Sprintf("fleet beta with %d shards", shards))
		require.ErrorContains(t, err, "it has 3")
		_, err = kvstore.Change(t.Context(), b.js, "beta", func(c *kvstore.FleetConfig) { c.Shards = shards })
		require.ErrorIs(t, err, kvstore.ErrSettings)
	}
	s, _, err := kvstore.NewFleets(b.js).Get(t.Context(), "beta")
	require.NoError(t, err)
	require.Equal(t, 3, s.Shards)
	_, err = b.js.Stream(t.Context(), "WAYMARK_EVENTS_beta_3")
	require.ErrorIs(t, err, jetstream.ErrStreamNotFound, "nothing was created")
	cfg.Shards = 3
	require.NoError(t, b.js.DeleteStream(t.Context(), "WAYMARK_EVENTS_beta_2"))
	require.ErrorIs(t, kvstore.Provision(t.Context(), b.js, cfg), kvstore.ErrStreamMissing, "each shard is guarded")
}

// A checkpoint that fits into no message would block the fold of its shard.
func TestProvision_SmallMaxPayload_Refused(t *testing.T) {
	t.Parallel()
	small := natstest.With(func(c *natsd.Config) { c.Options = func(o *server.Options) { o.MaxPayload = schema.MaxCheckpoint } })
	err := kvstore.Provision(t.Context(), natstest.Start(t, small).JetStream(t), smallFleet())
	require.ErrorIs(t, err, kvstore.ErrServer)
	require.ErrorContains(t, err, "max_payload is "+strconv.Itoa(schema.MaxCheckpoint))
}

func TestSettings_Invalid_Refused(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for field, cfg := range map[string]kvstore.FleetConfig{
		"fleet":               {Fleet: "a.b"},
		"shards":              {Fleet: "a", Shards: -1},
		"replicas":            {Fleet: "a", Replicas: 6},
		"quota_bytes":         {Fleet: "a", QuotaBytes: 1},
		"reserve_bytes":       {Fleet: "a", ReserveBytes: -1},
		"checkpoints_per_run": {Fleet: "a", CheckpointsPerRun: 65},
		"silence":             {Fleet: "a", Silence: time.Second},
	} {
		err := kvstore.Provision(t.Context(), js, cfg)
		require.ErrorIs(t, err, kvstore.ErrSettings, field)
		require.ErrorContains(t, err, field)
	}
}

func TestProvision_QuotaTooLarge_Named(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	cfg := smallFleet()
	cfg.QuotaBytes = 1 << 60
	err := kvstore.Provision(t.Context(), js, cfg)
	require.ErrorIs(t, err, kvstore.ErrFull)
	require.ErrorContains(t, err, "smaller quota")
}

func TestProvision_SettingsOfNewerVersion_LeftAlone(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
	kv, err := js.KeyValue(t.Context(), schema.FleetBucket)
	require.NoError(t, err)
	fleet := smallFleet().Fleet
	rev, err := kv.Put(t.Context(), fleet, []byte(`{"format":99}`))
	require.NoError(t, err)
	_, _, err = kvstore.NewFleets(js).Get(t.Context(), fleet)
	require.ErrorIs(t, err, schema.ErrFormat)
	require.ErrorIs(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: fleet}), schema.ErrFormat)
	now, err := kv.Get(t.Context(), fleet)
	require.NoError(t, err)
	require.Equal(t, rev, now.Revision())
}
