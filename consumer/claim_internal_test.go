package consumer

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestATakeoverIsFoundByItsRequestWhileItsEpochLasts(t *testing.T) {
	t.Parallel()
	taken := func(run, request string, epoch schema.Epoch) schema.Live {
		l := orphan(run, "me", 10)
		l.Status, l.RequestID, l.Epoch = schema.StatusRunning, request, epoch
		return l
	}
	r := tableOf(t, taken("run-1", "req-1", 2), taken("run-2", "req-2", 2), taken("run-3", "req-3", 2))
	found := func(request string) string {
		l, _ := r.takenBy("me", request)
		return l.Run
	}
	require.Equal(t, "run-1", found("req-1"))
	_, ok := r.takenBy("you", "req-1")
	require.False(t, ok)
	next := taken("run-1", "req-9", 3)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &next, Revision: 9})
	require.Empty(t, found("req-1"), "another took it over since")
	require.Equal(t, "run-1", found("req-9"))
	r.apply(0, &kvstore.LiveEntry{Run: "run-2", Revision: 10})
	require.Empty(t, found("req-2"), "it has ended")
	r.begin(0)
	r.apply(0, &kvstore.LiveEntry{Run: "run-1", Live: &next, Revision: 9})
	r.sync(0)
	require.Empty(t, found("req-3"), "the new watch did not bring it")
	require.Equal(t, "run-1", found("req-9"))
}

func TestClaimsAreRememberedForAWhileAndNotWithoutBound(t *testing.T) {
	t.Parallel()
	now := noon
	cfg := ServiceConfig{}.withDefaults()
	c := newClaims(&cfg, func() time.Time { return now })
	serve := func(request string, reply *schema.ClaimReply) *schema.ClaimReply {
		q, given, err := c.enter(t.Context(), takeoverKey{"me", request})
		require.NoError(t, err)
		if given != nil {
			return given
		}
		if reply != nil {
			q.reply = reply
		}
		c.leave(q)
		return nil
	}
	run := &schema.ClaimReply{Run: "run-1", Epoch: 2}
	require.Nil(t, serve("nothing-there", nil))
	require.Empty(t, c.known, "who was given nothing may be given something")
	require.Nil(t, serve("req-1", run))
	require.Equal(t, run, serve("req-1", nil))
	now = now.Add(claimMemory / 2)
	require.Equal(t, run, serve("req-1", nil))
	now = now.Add(claimMemory)
	require.Nil(t, serve("req-2", run))
	require.Len(t, c.known, 1)
	for i := range 2 * maxClaimMemory {
		serve(fmt.Sprint(i), run)
	}
	require.Len(t, c.known, maxClaimMemory)
	require.Len(t, c.aged, maxClaimMemory)
	require.Zero(t, c.inHand)
}
