package fleet

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/schema"
)

func TestDoctor_DurableWrites_ToldWithWhatSharesTheirSyncs(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ms                         float64
		replicas, shards           int
		result, contains, nextStep string
	}{
		"eight shards, slow disk":  {9, 1, 8, checkOK, "9.0 ms for a small message; the messages of one shard are synced one after the other", ""},
		"one shard, slow disk":     {2.5, 1, 1, checkWarning, "spread over 1 shard", "start new runs in a second fleet with 8 shards (docs/deploy.md, A fleet that is too small)"},
		"one shard, fast disk":     {0.4, 1, 1, checkOK, "0.4 ms", ""},
		"three replicas, one":      {9, 3, 1, checkOK, "the servers sync the messages of all executors together", ""},
		"nothing was measured yet": {0, 1, 8, checkUnknown, "not measured yet", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &doctor{p: prompt.Prompt{}}
			d.syncs(c.ms, &schema.FleetSettings{Shards: c.shards, Replicas: c.replicas})
			require.Len(t, d.checks, 1)
			require.Equal(t, c.result, d.checks[0].Result)
			require.Contains(t, d.checks[0].Detail, c.contains)
			require.Equal(t, c.nextStep, d.checks[0].Do)
		})
	}
}
