package archive_test

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// A run that the fleet does not have is imported into its home, which every executor checks first, or into the shard
// that a tombstone there names.
func TestImport_NumberOfShardsChanged_RunIsInItsHomeOrWhereItsMarkSays(t *testing.T) {
	t.Parallel()
	const run = "r1"
	shards := 2
	for schema.ShardOf(run, shards) == 0 {
		shards++
	}
	w := newWorld(t, "alpha")
	w.eventful(run)
	b, _ := w.export(false, run)
	for name, marked := range map[string]bool{"home": false, "marked": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			other := newWorld(t, "alpha")
			settings, err := kvstore.Change(t.Context(), other.js, "alpha", func(c *kvstore.FleetConfig) { c.Shards = shards })
			require.NoError(t, err)
			home := schema.ShardOf(run, settings.Mapped())
			want := home
			if marked {
				want = schema.ShardsOf(run, settings.Generations)[0]
				mark, err := schema.NewPlaced("alpha", "exec-1", run, "n", schema.Placed{Shard: want}, time.Now())
				require.NoError(t, err)
				header, body := mark.Encode()
				_, err = other.js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.NamesOf("alpha", home).EventSubject(run), Header: header, Data: body})
				require.NoError(t, err)
			}
			_, err = other.importing(b, nil)
			require.NoError(t, err)
			for i := range settings.Shards() {
				rec, there, err := eventlog.Last(t.Context(), other.js, schema.NamesOf("alpha", i), run)
				require.NoError(t, err)
				e, err := schema.Decode(rec.Header, rec.Body)
				if i == want {
					require.True(t, there)
					require.NoError(t, err)
					_, mark := schema.PlacedOf(e)
					require.False(t, mark)
					continue
				}
				require.Equal(t, marked && i == home, there)
			}
		})
	}
}
