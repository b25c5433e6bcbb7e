package backup

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// While a cut reads a run, some of it is sealed and leaves the log. The events in the new segment below the cut were
// not read, even if the log has events of the run after the cut.
func TestCut_SealedDuringRead_ReadAgain(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(natstest.Start(t).Conn(t))
	require.NoError(t, err)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: "f", QuotaBytes: 16 << 20}))
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "f")
	require.NoError(t, err)
	shard, err := kvstore.OpenShard(js, settings, 0, "tester")
	require.NoError(t, err)
	c := &cutter{js: js, shard: shard}
	whole, err := c.whole(t.Context(), "run-1", 1, 100)
	require.NoError(t, err)
	require.True(t, whole, "there is no segment")
	head := schema.NewHead("f", "run-1")
	w := schema.Writer{Fleet: "f", Run: "run-1", Executor: "e", Epoch: 1}
	e, err := w.Event(&schema.RunStartedData{Agent: "a", Executor: "e"}, 0, time.Unix(1_700_000_000, 0), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	rec := schema.NewRecord(40, header, body)
	info := schema.SegmentInfo{Fleet: "f", Run: "run-1", Number: 1, Events: 1, First: schema.PositionOf(&rec), Last: schema.PositionOf(&rec), DigestBefore: head.Digest}
	head.Apply(schema.NoKeys, &rec)
	info.DigestAfter = head.Digest
	packed, err := schema.EncodeSegment(info, schema.AppendFrame(nil, &rec))
	require.NoError(t, err)
	require.NoError(t, shard.Segments.Create(t.Context(), "run-1", 1, packed))
	for upTo, want := range map[schema.StreamSequence]bool{39: true, 40: false, 41: false} {
		whole, err := c.whole(t.Context(), "run-1", 1, upTo)
		require.NoError(t, err)
		require.Equal(t, want, whole, "cut at %d", upTo)
	}
}

func TestTakes_Filter_MatchesAsTheServerDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		filter, subject string
		want            bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.*", "a", false},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.>", "a.", false},
		{"*.b", "a.b", true},
		{"a", "a.b", false},
		{">", "", false},
		{"a.*.c", "a..c", false},
	} {
		require.Equal(t, c.want, takes(c.filter, c.subject), "%s, %s", c.filter, c.subject)
	}
}
