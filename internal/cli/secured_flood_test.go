package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// streamIsFull is the server's error code of a message that a stream's limit of bytes has no room for.
const streamIsFull jetstream.ErrorCode = 10077

// A fleet that writes as fast as the servers accept it fills only its own quota: it gets an error, and another fleet's
// boundaries are all acknowledged and read back meanwhile. What the flood costs the other in time is logged, and no test.
func TestQuota_FloodingFleet_FillsOnlyItsOwn(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const calm, wild = "payments", "rivals"
	boundaries := 40
	if testbin.Whole() {
		boundaries = 1000
	}
	s := startSecured(t, calm, wild)
	s.daemon(t, calm)
	s.daemon(t, wild)
	ctx, cancel := context.WithTimeout(t.Context(), 5*securedWait)
	defer cancel()
	r, err := s.executor(t, calm, "one").Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	written := 0
	publish := func() []time.Duration {
		took := make([]time.Duration, 0, boundaries)
		for range boundaries {
			begun := time.Now()
			require.NoError(t, r.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("calm")}}))
			took = append(took, time.Since(begun))
			written++
		}
		slices.Sort(took)
		return took
	}
	before := publish()

	var taken, refused, other atomic.Int64
	stop := make(chan struct{})
	var floods sync.WaitGroup
	for i := range 8 {
		js, err := jetstream.New(s.connect(t, wild, access.Executor).Conn)
		require.NoError(t, err)
		floods.Go(func() {
			subject := schema.NamesOf(wild, 0).EventSubject(fmt.Sprintf("flood-%d", i))
			body := make([]byte, 128<<10)
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, err := js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: body})
				var api *jetstream.APIError
				switch {
				case err == nil:
					taken.Add(1)
				case errors.As(err, &api) && api.ErrorCode == streamIsFull:
					refused.Add(1)
				default:
					other.Add(1)
				}
			}
		})
	}
	meanwhile := publish()
	require.Eventually(t, func() bool { return refused.Load() > 0 }, 2*securedWait, 10*time.Millisecond, "%d taken, %d others", taken.Load(), other.Load())
	full := publish()
	close(stop)
	floods.Wait()
	require.Positive(t, taken.Load())

	head, err := s.executor(t, calm, "two").Head(ctx, "r1")
	require.NoError(t, err)
	require.EqualValues(t, written, head.Counts.Messages)
	for name, took := range map[string][]time.Duration{"before": before, "while it fills up": meanwhile, "when it is full": full} {
		t.Logf("%s: median %s, p99 %s, worst %s of %d", name, took[len(took)/2], took[len(took)*99/100], took[len(took)-1], len(took))
	}
	t.Logf("flood: %d taken, %d refused for the quota, %d otherwise", taken.Load(), refused.Load(), other.Load())
}
