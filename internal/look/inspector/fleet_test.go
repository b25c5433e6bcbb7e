package inspector

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// dim is a fleet whose first shard cannot be read, and with more failed runs than one list holds.
type dim struct{ Fleet }

func (d dim) Ask(ctx context.Context, verb, run string, request, reply any) error {
	err := d.Fleet.Ask(ctx, verb, run, request, reply)
	switch r := reply.(type) {
	case *schema.FleetReply:
		r.Shards = []schema.ShardState{{Shard: 0, Error: "unavailable"}, {Shard: 1, Worker: "daemon"}}
	case *schema.ListReply:
		if of, ok := request.(schema.ListRequest); ok && of.Since != "" {
			r.Next = "more"
		}
	}
	return err
}

func TestFleetPage_ShardUnreadAndFailuresUncounted_AreSaidAsSuch(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *Config) { c.Fleet = dim{c.Fleet} })
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "import", Agent: "importer"})
	require.NoError(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "odd"}}))
	page := d.eventually("/", "1+ failed in 24 h", "1 shard without a daemon or a readable state", "importer 1+ failed")
	require.NotContains(t, plain(page), "No daemon folds")
}

func TestFleetPage_ManyAgents_TellsHowManyItLeavesOut(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	for i := range agentsMost + 3 {
		_, err := box.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprintf("work-%03d", i), Agent: fmt.Sprintf("agent-%03d", i)})
		require.NoError(t, err)
	}
	page := d.eventually("/", "103 live", "and 3 more agents")
	require.Equal(t, agentsMost, strings.Count(page, `id="a-agent-`))
}
