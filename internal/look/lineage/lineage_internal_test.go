package lineage

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// family builds a tree as gather would. A line has the run and what it names as parent, resumed_from or handoff; with from,
// only an accepted hand-off names the run.
func family(lines ...string) *gatherer {
	t := &gatherer{nodes: map[string]*Node{}, from: map[string]string{}}
	for _, l := range lines {
		fields := strings.Fields(l)
		n := &Node{Run: fields[0], Agent: "coder", Status: schema.StatusRunning, Text: "running"}
		from := ""
		for _, f := range fields[1:] {
			kind, of, _ := strings.Cut(f, "=")
			switch kind {
			case TieParent:
				n.Parent = &schema.Parent{Run: of, Turn: 2, ToolCallID: "call-1"}
			case TieResumed:
				n.ResumedFrom = of
			case TieHandoff:
				n.Handoff = &schema.HandoffSource{Run: of, HandoffID: "half"}
			case "from":
				from = of
			}
		}
		t.add(n, from)
	}
	return t
}

// shape is the tree as text: each run with its depth.
func shape(reply Tree) string {
	var list []string
	for _, n := range reply.Runs {
		list = append(list, fmt.Sprintf("%d%s", n.Depth, n.Run))
	}
	return strings.Join(list, " ")
}

func TestTree_ContradictingRuns_EachOnce(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		lines []string
		want  string
	}{
		{"alone", []string{"a"}, "0a"},
		{"below its parent, siblings in order", []string{"b parent=a", "a", "d parent=a from=a", "c parent=a from=a"}, "0a 1b 1c 1d"},
		{"below the run it continues before its parent", []string{"a", "c parent=a resumed_from=b from=a", "b parent=a from=a"}, "0a 1b 2c"},
		{"below the run that handed over before all others", []string{"a", "b parent=a from=a", "c parent=a handoff=b resumed_from=a from=b"}, "0a 1b 2c"},
		{"named by a hand-off before it exists", []string{"a", "b from=a"}, "0a 1b"},
		{"itself", []string{"a resumed_from=a"}, "0a"},
		{"two that continue each other", []string{"a resumed_from=b", "b resumed_from=a"}, "0b 1a"},
		{"two that continue each other below a parent", []string{"a", "p parent=a resumed_from=q from=a", "q resumed_from=p from=p"}, "0a 1q 2p"},
		{"a ring that hangs on nothing", []string{"a", "p resumed_from=q from=a", "q resumed_from=r from=p", "r resumed_from=p from=q"}, "0a 1r 2q 3p"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			run := strings.Fields(test.lines[0])[0]
			require.Equal(t, test.want, shape(family(test.lines...).arrange(run)))
		})
	}
}

func TestTree_HandoffTakenByOther_NotOwnChild(t *testing.T) {
	t.Parallel()
	gathered := family("a", "b handoff=a from=a")
	reply := gathered.arrange("a")
	require.Equal(t, "hand-off half, over", reply.TieText(&reply.Runs[1]))
	gathered.nodes["a"].Handoffs = []schema.OpenHandoff{{HandoffID: "half", Status: schema.HandoffStatusAccepted, ChildRun: "other"}}
	reply = gathered.arrange("a")
	require.Equal(t, "hand-off half, accepted by run other", reply.TieText(&reply.Runs[1]))
}

func TestTree_ManyRuns_Bounded(t *testing.T) {
	t.Parallel()
	const limit = 40
	server := natstest.Start(t)
	nc, js := server.Conn(t), server.JetStream(t)
	require.NoError(t, kvstore.Provision(t.Context(), js, kvstore.FleetConfig{Fleet: schema.DefaultFleet}))
	daemon, err := consumer.New(t.Context(), consumer.Config{Fleet: schema.DefaultFleet, Name: "daemon", Service: js, Fold: js, Alone: true}, time.Now, natstest.Logger(t))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- daemon.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-stopped)
	})
	started := 0
	start := func(run string, d schema.RunStartedData) {
		started++
		d.Agent, d.Executor = "coder", "tree-test"
		w := schema.Writer{Fleet: schema.DefaultFleet, Run: run, Executor: d.Executor, Epoch: 1}
		e, err := w.Event(&d, 0, time.Now(), 0)
		require.NoError(t, err)
		header, body := e.Encode()
		_, err = js.PublishMsg(t.Context(), &nats.Msg{Subject: schema.NamesOf(schema.DefaultFleet, 0).EventSubject(run), Header: header, Data: body})
		require.NoError(t, err)
	}
	start("root", schema.RunStartedData{})
	for i := range limit + 10 {
		start(fmt.Sprintf("child-%02d", i), schema.RunStartedData{Parent: &schema.Parent{Run: "root"}})
	}
	start("last", schema.RunStartedData{Parent: &schema.Parent{Run: "child-49"}})
	start("a-top", schema.RunStartedData{})
	for i := range 5 {
		child := fmt.Sprintf("a-%d", i)
		start(child, schema.RunStartedData{Parent: &schema.Parent{Run: "a-top"}, ResumedFrom: "a-top"})
		start(child+"-next", schema.RunStartedData{Handoff: &schema.HandoffSource{Run: child, HandoffID: "half", OfferHash: strings.Repeat("0", 64)}})
	}
	cl := &base.Client{NATS: nc, Fleet: schema.DefaultFleet, Wait: time.Minute}
	require.Eventually(t, func() bool {
		var all schema.ListReply
		err := cl.Ask(t.Context(), schema.VerbList, "", schema.ListRequest{Limit: schema.MaxList}, &all)
		return err == nil && len(all.Runs) == started
	}, time.Minute, 50*time.Millisecond, "a checkpoint of each run")

	wide := &gatherer{client: cl, limit: limit, nodes: map[string]*Node{}}
	require.NoError(t, wide.gather(t.Context(), "a-top", 8))
	require.Equal(t, "0a-top 1a-0 2a-0-next 1a-1 2a-1-next 1a-2 2a-2-next 1a-3 2a-3-next 1a-4 2a-4-next", shape(wide.arrange("a-top")))
	require.False(t, wide.cut)

	all := &gatherer{client: cl, limit: limit, nodes: map[string]*Node{}}
	require.NoError(t, all.gather(t.Context(), "root", 8))
	require.Len(t, all.arrange("root").Runs, limit)
	require.True(t, all.arrange("root").Cut)

	// From a run further down, its ancestors and their descendants come first.
	below := &gatherer{client: cl, limit: limit, nodes: map[string]*Node{}}
	require.NoError(t, below.gather(t.Context(), "child-49", 1))
	reply := below.arrange("child-49")
	require.Len(t, reply.Runs, limit)
	require.Contains(t, shape(reply), "1child-49 2last")
	require.True(t, reply.Cut)

	way := &gatherer{client: cl, limit: limit, nodes: map[string]*Node{}}
	require.NoError(t, way.gather(t.Context(), "last", 0))
	require.Equal(t, "0root 1child-49 2last", shape(way.arrange("last")))
	require.True(t, way.arrange("last").Cut)
}
