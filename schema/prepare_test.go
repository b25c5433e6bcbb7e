package schema_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/schema"
)

// TestFold_PreparedAnyOrder_Same prepares a log from its end, on many goroutines.
func TestFold_PreparedAnyOrder_Same(t *testing.T) {
	var log []schema.Record
	ordinaryRun(t, 20, func(rec *schema.Record) { log = append(log, *rec) })
	log = append(log, log[3], schema.Record{Stream: 1 << 20, Body: []byte("no event")})
	prepared := make([]schema.Prepared, len(log))
	var group errgroup.Group
	for i := len(log) - 1; i >= 0; i-- {
		group.Go(func() error {
			prepared[i] = schema.Prepare(schema.NoKeys, &log[i])
			return nil
		})
	}
	require.NoError(t, group.Wait())
	ahead, at := schema.NewHead("default", "run-01hq3v8j5k"), schema.NewHead("default", "run-01hq3v8j5k")
	for i := range log {
		require.Equal(t, schema.PositionOf(&log[i]), prepared[i].Position())
		require.Equal(t, at.Apply(schema.NoKeys, &log[i]), ahead.ApplyPrepared(&prepared[i]))
		require.Equal(t, at, ahead)
	}
	require.Positive(t, at.Counts.DeadLetters)
}
