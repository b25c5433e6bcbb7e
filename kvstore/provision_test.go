package kvstore_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/natstest"
	"github.com/waymarkio/waymark/kvstore"
)

func TestProvisionIsIdempotent(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	for range 3 {
		require.NoError(t, kvstore.Provision(t.Context(), js, smallFleet()))
	}
	_, rev, err := kvstore.NewFleets(js).Get(t.Context(), "alpha")
	require.NoError(t, err)
	require.EqualValues(t, 1, rev, "settings that did not change are not written again")
}
