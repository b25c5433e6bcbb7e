package service_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// The daemon learns of a new policy a moment after it was set. A cleanup at that moment removed runs that the new
// policy keeps.
func TestCleanup_PolicyWasReplacedUnheard_GoesByTheNewOne(t *testing.T) {
	t.Parallel()
	var read, away atomic.Bool
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *service.Config) {
		c.Settings = func() schema.FleetSettings {
			if read.Load() {
				return schema.FleetSettings{Retention: schema.RetentionPolicy{FailedSeconds: 7}}
			}
			return schema.FleetSettings{Retention: schema.RetentionPolicy{CompletedSeconds: 1}}
		}
		c.Refresh = func(context.Context, time.Time) error {
			if away.Load() {
				return errors.New("no leader")
			}
			read.Store(true)
			return nil
		}
	})
	w.folded(1)
	a, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, schema.RetentionPolicy{FailedSeconds: 7}, decodeAs[schema.CleanupReply](t, a.first).Policy)
	away.Store(true)
	require.Equal(t, schema.CodeUnavailable, w.refused(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true}).Code)
}
