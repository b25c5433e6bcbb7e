package service

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/schema"
)

func TestClaimMemory_ManyClaims_Bounded(t *testing.T) {
	t.Parallel()
	now := fleettest.Noon
	cfg := Config{}.withDefaults()
	c := newClaims(&cfg, func() time.Time { return now })
	serve := func(request string, reply *schema.ClaimReply) *schema.ClaimReply {
		q, given, err := c.enter(t.Context(), claimKey{"me", request})
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
	require.Empty(t, c.known, "a request without a run may get one later")
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
