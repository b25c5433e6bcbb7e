package publisher_test

import (
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// request sends a request for which no caller of the SDK waits, and returns the first reply.
func request[T any](w *world, verb, run string, req any) *T {
	w.tb.Helper()
	body, err := json.Marshal(req)
	require.NoError(w.tb, err)
	m, err := w.nc.Request(schema.ServiceSubject(verb, "default", run), body, patience)
	require.NoError(w.tb, err)
	require.Empty(w.tb, m.Header.Get(schema.HeaderErrorCode), "%s", m.Data)
	reply := new(T)
	require.NoError(w.tb, json.Unmarshal(m.Data, reply))
	return reply
}

// A request that had no answer is sent again. Its first copy may be read long after the second was answered, by a replica
// that was stopped meanwhile.
func TestRelease_ForgottenRequest_GivenToOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.daemon()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	publisher.SetUnclaimedAfter(f, 10*time.Millisecond)
	_, err := f.Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrNothing)
	start(t, w.fleet(named("exec-2")), "r1")
	w.orphan("r1", 1)
	late := &schema.ClaimRequest{Executor: f.Executor(), Instance: f.Instance(), RequestID: "late"}
	require.Eventually(t, func() bool {
		return request[schema.ClaimReply](w, schema.VerbClaim, "", late).Run == "r1"
	}, patience, 10*time.Millisecond)
	require.Equal(t, schema.Epoch(3), claimed(t, w.fleet(named("exec-3")), publisher.ClaimSpec{}).Epoch())
}

// A caller that resumes the abandoned run gets it, and the run is no longer abandoned.
func TestRelease_Abandoned_TakenBackOnResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	next := w.heartbeats()
	f := w.fleet(func(c *publisher.Config) { c.Heartbeat = 20 * time.Millisecond })
	publisher.SetUnclaimedAfter(f, 10*time.Millisecond)
	start(t, f, "r2")
	start(t, w.fleet(named("exec-2")), "r1")
	reply := request[schema.RecoverReply](w, schema.VerbRecover, "r1", &schema.RecoverRequest{
		Executor: f.Executor(), Instance: f.Instance(), RequestID: "late", Reason: schema.TakeoverRequest,
	})
	body, err := json.Marshal(&schema.Notice{Run: "r1", Name: schema.RunResumed, Position: reply.Head.Position})
	require.NoError(t, err)
	require.NoError(t, w.nc.Publish(schema.NoticeSubject("default", f.Executor()), body))
	gaveUp := func() bool { return slices.Contains(next().GivenUp, schema.GivenUp{Run: "r1", Epoch: 2}) }
	require.Eventually(t, gaveUp, patience, time.Millisecond)
	run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{RequestID: "late"})
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(2), run.Epoch())
	require.Eventually(t, func() bool {
		h := next()
		return h.Executor == f.Executor() && len(h.GivenUp) == 0
	}, patience, time.Millisecond)
	// Another notice of the same takeover changes nothing.
	require.NoError(t, w.nc.Publish(schema.NoticeSubject("default", f.Executor()), body))
	for range 5 {
		require.False(t, gaveUp())
	}
}
