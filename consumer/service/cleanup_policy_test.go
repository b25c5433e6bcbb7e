package service_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// The daemon learns of a new policy a moment after it was set. A cleanup at that moment removed runs that the new
// policy keeps.
func TestCleanup_PolicyWasReplacedUnheard_GoesByTheNewOne(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *service.Config) {
		c.Settings = func() schema.FleetSettings {
			return schema.FleetSettings{Retention: schema.RetentionPolicy{CompletedSeconds: 1}}
		}
	})
	w.folded(1)
	_, err := kvstore.Change(t.Context(), w.JS, "default", func(c *kvstore.FleetConfig) { c.Retention = schema.RetentionPolicy{FailedSeconds: 7} })
	require.NoError(t, err)
	a, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, schema.RetentionPolicy{FailedSeconds: 7}, decodeAs[schema.CleanupReply](t, a.first).Policy)
	require.NoError(t, w.JS.DeleteStream(t.Context(), "KV_"+schema.FleetBucket))
	require.Equal(t, schema.CodeUnavailable, w.refused(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true}).Code)
}
