package service_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestService_RequestExpiredInQueue_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.stop()
	w.aRun("run-1", 1, 10)
	var later atomic.Int64
	now := func() time.Time { return time.Unix(1_700_000_000+later.Load(), 0) }
	svc, err := newService(t, serviceConfig{Fleet: "default", Name: "service-1", Workers: 1, Timeout: 2 * time.Second}, w.JS, []*kvstore.Shard{w.Shard}, now)
	require.NoError(t, err)
	w.start(svc)
	// A lost log keeps the only worker busy until the first request's time is over.
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.NoError(t, w.JS.DeleteStream(t.Context(), cfg.Name))
	inbox := w.client.NewRespInbox()
	sub, err := w.client.SubscribeSync(inbox)
	require.NoError(t, err)
	const waiting = 5
	for range 1 + waiting {
		require.NoError(t, w.client.PublishRequest("waymark.get.default.run-1", inbox, []byte(`{}`)))
	}
	require.Eventually(t, func() bool { return svc.Stats().Working.Load() == 1 && svc.Stats().Queued.Load() == waiting }, time.Minute, time.Millisecond)
	later.Store(3)
	overloaded := 0
	for range 1 + waiting {
		m, err := sub.NextMsg(time.Minute)
		require.NoError(t, err)
		var e schema.ServiceError
		require.NoError(t, json.Unmarshal(m.Data, &e))
		if e.Code == schema.CodeOverloaded {
			require.Contains(t, e.Message, "waited for 3s")
			require.Contains(t, e.Hint, "ask again")
			overloaded++
		}
	}
	require.Equal(t, waiting, overloaded, "all but the one that was being served")
}
