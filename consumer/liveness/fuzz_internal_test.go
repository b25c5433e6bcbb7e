package liveness

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// FuzzHeard tries unsolicited messages to a daemon: heartbeats of executors.
func FuzzHeard(f *testing.F) {
	f.Add([]byte(`{"executor":"ex-1","instance":"s1","interval_ms":3000,"leaving":true,"held":[{"run":"r-1","epoch":2}]}`))
	f.Add([]byte(`{"executor":"ex-1","interval_ms":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		now := time.Unix(1_000_000, 0)
		clock := func() time.Time { return now }
		h := NewHeartbeats("f", nil, nil, clock, zerolog.Nop())
		h.take(&nats.Msg{Subject: schema.HeartbeatSubject("f", "ex-1"), Data: data})
		require.LessOrEqual(t, h.Alive(10*time.Second), maxInstances)
		if life, ok := h.last("ex-1", "s1", 10*time.Second); ok {
			require.False(t, life.seen.After(now), "no executor is seen in the future")
			require.GreaterOrEqual(t, life.interval, time.Duration(0))
		}
	})
}
