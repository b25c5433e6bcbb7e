package base_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/kvstore"
)

// The slowest of three replicas lacks the last messages at each look at a fleet that works.
func TestStreams_ReplicaNotCurrent_IsBehindOnlyByMany(t *testing.T) {
	t.Parallel()
	streams := func(lag uint64) []base.Finding {
		return base.Streams([]kvstore.Inspected{{Stream: "S", Info: &jetstream.StreamInfo{Cluster: &jetstream.ClusterInfo{
			Leader: "a", Replicas: []*jetstream.PeerInfo{{Name: "b", Current: true}, {Name: "c", Lag: lag, Active: time.Millisecond}},
		}}}})
	}
	require.Empty(t, streams(2))
	require.Equal(t, []base.Finding{{
		Check: "servers", Result: base.Warning, Detail: "server c is behind in 1 stream, by at most 5217 messages",
		Do: "wait until it has caught up; if it does not, see its log and its disk",
	}}, streams(5217))
	require.NotEmpty(t, streams(0), "the leader does not know how much it lacks")
}
