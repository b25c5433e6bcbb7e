package service

import (
	"errors"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

func TestRequestQueue_SeveralSenders_ServedInTurnWithinTheirShares(t *testing.T) {
	t.Parallel()
	cfg := Config{Workers: 8, Queue: 16, QueueBytes: 4000, Proof: func(string, *nats.Msg) (string, error) { return "", errors.ErrUnsupported }}
	q := newRequestQueue(&cfg)
	put := func(sender string, size int64) *schema.ServiceError { return q.put(&task{proven: sender, size: size}) }
	for range 4 {
		require.Nil(t, put("a", 1))
	}
	full := put("a", 1)
	require.Equal(t, schema.CodeOverloaded, full.Code)
	require.Contains(t, full.Message, "4 of them from this sender")
	require.Nil(t, put("b", 1000))
	require.NotNil(t, put("b", 1))
	var served []*task
	take := func(senders ...string) {
		t.Helper()
		for _, sender := range senders {
			got := q.take()
			require.Equal(t, sender, got.proven)
			served = append(served, got)
		}
	}
	take("a", "b", "a")
	require.Nil(t, put("c", 1))
	take("c")
	require.Equal(t, room{waiting: 2, serving: 4, bytes: 1005}, q.used, "a waits, with all its workers busy")
	for _, done := range served {
		q.release(done)
	}
	served = nil
	q.close()
	require.Equal(t, schema.CodeUnavailable, put("a", 1).Code)
	take("a", "a")
	require.Nil(t, q.take())
	q.release(served[0])
	q.release(served[1])
	require.Empty(t, q.lines)
	require.Equal(t, room{}, q.used)
}

// Reads cost processor time: a sender that takes more of it than there is delays all others.
func TestReadQueue_ManyWorkers_SenderHasAsManyAsProcessors(t *testing.T) {
	t.Parallel()
	many := 16 * runtime.GOMAXPROCS(0)
	cfg := Config{Workers: many, Queue: 16, QueueBytes: 4000, Proof: func(string, *nats.Msg) (string, error) { return "", errors.ErrUnsupported }}
	require.Equal(t, runtime.GOMAXPROCS(0), newReadQueue(&cfg).share.serving)
	require.Equal(t, many/4, newRequestQueue(&cfg).share.serving, "changes wait for the log")
	cfg.Proof = nil
	require.Equal(t, many/2, newReadQueue(&cfg).share.serving, "all senders are one")
}

func TestRequestQueue_TwoSendersFillIt_AnotherHasAPlace(t *testing.T) {
	t.Parallel()
	cfg := Config{Workers: 4, Queue: 8, QueueBytes: 4000, Proof: func(string, *nats.Msg) (string, error) { return "", errors.ErrUnsupported }}
	q := newRequestQueue(&cfg)
	for _, sender := range []string{"a", "a", "b", "b"} {
		require.Nil(t, q.put(&task{proven: sender, size: 1000 / 2}))
	}
	for _, sender := range []string{"a", "b"} {
		require.NotNil(t, q.put(&task{proven: sender, size: 1}))
	}
	require.NotNil(t, q.put(&task{proven: "c", size: 1001}), "above the share of one")
	require.Nil(t, q.put(&task{proven: "c", size: 1000}))
	require.NotNil(t, q.put(&task{proven: "c", size: 1}))
	for _, sender := range []string{"a", "b", "c", "a", "b"} {
		got := q.take()
		require.Equal(t, sender, got.proven)
		q.release(got)
	}
	require.Equal(t, room{}, q.used)
}
