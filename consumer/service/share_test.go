package service_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/schema"
)

func TestClaim_AnotherWaitsWithFewerInHand_CallsItAndYields(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("run-1", "gone", 10)
	require.Equal(t, "run-1", w.claim(claimFor("busy")).Run)
	require.Equal(t, 1, w.liveRuns.InHand(liveness.Holder{Executor: "busy", Instance: "start-1"}))
	require.Empty(t, w.claim(claimFor("idle")).Run)
	other := claimFor("other")
	other.Agents = []string{"another-agent"}
	require.Empty(t, w.claim(other).Run)
	told := make(chan *nats.Msg, 8)
	sub, err := w.client.ChanSubscribe(schema.NoticeSubject("default", "*"), told)
	require.NoError(t, err)
	defer func() { require.NoError(t, sub.Unsubscribe()) }()
	require.NoError(t, w.client.Flush())

	w.orphan("run-2", "gone", 9)
	later := w.claim(claimFor("busy"))
	require.Empty(t, later.Run)
	require.Equal(t, 1, later.Claimable)
	require.Positive(t, later.RetryAfterMS)
	require.Less(t, later.RetryAfterMS, int64(500))
	call := <-told
	require.Equal(t, schema.NoticeSubject("default", "idle"), call.Subject, "it has the fewest active runs")
	require.Equal(t, schema.Notice{Run: "run-2", Name: schema.RunClaimable}, *decodeAs[schema.Notice](t, call.Data))
	require.Equal(t, "run-2", w.claim(claimFor("idle")).Run)

	w.orphan("run-3", "gone", 8)
	require.Equal(t, "run-3", w.claim(claimFor("busy")).Run, "both have one")
	for len(told) > 0 {
		require.NotEqual(t, schema.NoticeSubject("default", "other"), (<-told).Subject, "it serves another agent")
	}
}

func TestClaim_TheOneWithFewerDoesNotCome_IsGiven(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.orphan("run-1", "gone", 10)
	require.Equal(t, "run-1", w.claim(claimFor("busy")).Run)
	require.Empty(t, w.claim(claimFor("deaf")).Run)
	w.orphan("run-2", "gone", 9)
	began := time.Now()
	yielded := 0
	require.Eventually(t, func() bool {
		reply := w.claim(claimFor("busy"))
		if reply.Run == "" && reply.Claimable == 1 {
			yielded++
		}
		return reply.Run == "run-2"
	}, time.Minute, 5*time.Millisecond)
	require.Less(t, time.Since(began), 2*time.Second, "not the age of the run, but the silence of the other one")
	require.Positive(t, yielded)
}
