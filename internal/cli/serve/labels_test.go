package serve

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/schema"
)

// series are the names and labels of all metrics of a registry, except those of agents, and of troubles that pass.
func series(t *testing.T, registry *prometheus.Registry) []string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var all []string
	for _, f := range families {
		if name := f.GetName(); !strings.HasPrefix(name, "waymark_") || strings.HasPrefix(name, "waymark_agent_") ||
			name == "waymark_runs_claimable" || name == "waymark_ready" || name == "waymark_fleet_stream_trouble" { // of a busy machine
			continue
		}
		for _, m := range f.GetMetric() {
			labels := make([]string, 0, 4)
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			all = append(all, f.GetName()+"{"+strings.Join(labels, ",")+"}")
		}
	}
	slices.Sort(all)
	return all
}

// No label has the name of an executor, run, agent, tool or client. Only metrics of agents do, for a bounded number of names.
func TestMetrics_Labels_Bounded(t *testing.T) {
	if testing.Short() {
		t.Skip("short: thousands of names")
	}
	d, registry := aDaemon(t, "--shards", "1")
	ctx, cancel := context.WithCancel(t.Context())
	group, work := errgroup.WithContext(ctx)
	d.run(work, group, zerolog.Nop())
	defer func() {
		cancel()
		require.NoError(t, group.Wait())
	}()
	select {
	case <-d.waymark.Ready():
	case <-time.After(time.Minute):
		require.Fail(t, "the service is not ready")
	}
	require.Eventually(t, func() bool { return d.waymark.Workers()[0].Leads() }, time.Minute, time.Millisecond)
	before := series(t, registry)

	nc := d.conns[0]
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := schema.NamesOf("default", 0)
	const runs = 1000
	for i := range runs {
		hostile := fmt.Sprintf("r%d\"}{le=\"\\", i)
		if i%10 != 0 {
			hostile = fmt.Sprintf("%s-%d", strings.Repeat("x", 50), i) // a valid one
		}
		body := fmt.Sprintf(`{"agent":"agent-%d","executor":"executor-%d","model":"model-%d","labels":{"key-%d":"value"}}`, i, i, i, i)
		msg := nats.NewMsg(names.EventSubject(hostile))
		msg.Header = nats.Header{
			"ce-specversion": {"1.0"}, "ce-id": {fmt.Sprintf("event-%d", i)}, "ce-type": {schema.TypeOf(schema.RunStarted)},
			"ce-source": {fmt.Sprintf("/waymark/default/executor-%d", i)}, "ce-subject": {hostile}, "ce-datacontenttype": {"application/json"},
		}
		if i%5 == 0 {
			msg.Header.Set("ce-type", fmt.Sprintf("io.waymark.unknown%d.happened.v1", i))
		}
		msg.Data = []byte(body)
		_, err := js.PublishMsgAsync(msg)
		require.NoError(t, err)
		require.NoError(t, nc.Publish(schema.HeartbeatSubject("default", fmt.Sprintf("executor-%d", i)), []byte(`{"executor":"other"}`)))
		require.NoError(t, nc.PublishRequest(schema.ServiceSubject(schema.VerbGet, "default", fmt.Sprintf("none-%d", i)), nc.NewInbox(), []byte("{")))
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(2 * time.Minute):
		require.Fail(t, "the events were not acknowledged")
	}
	stats := d.waymark.Workers()[0].Stats()
	require.Eventually(t, func() bool { return stats.Events.Load() >= runs && d.waymark.Service().Stats().Gets.Load() >= runs }, 2*time.Minute, 10*time.Millisecond)
	require.Positive(t, stats.DeadLetters.Load(), "some of them are no runs")
	require.Greater(t, stats.Applied.Load(), int64(runs/2))
	require.Equal(t, before, series(t, registry))
	agents, executors := make(map[string]bool), 0
	require.Eventually(t, func() bool {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == "agent" && f.GetName() != "waymark_runs_claimable" {
						agents[l.GetValue()] = true
					}
					if strings.Contains(l.GetValue(), "executor-") || strings.Contains(l.GetValue(), "xxx-") {
						executors++
					}
				}
			}
		}
		return len(agents) > activity.MaxAgents
	}, time.Minute, 10*time.Millisecond)
	require.Len(t, agents, activity.MaxAgents+1)
	require.Zero(t, executors, "no label is made of an executor or a run")
	live := d.waymark.LiveRuns()
	require.Eventually(t, func() bool { return len(live.ClaimableByAgent()) > 2*activity.MaxAgents }, 2*time.Minute, 100*time.Millisecond, "the executors are silent")
	shown := 0
	require.Eventually(t, func() bool {
		families, err := registry.Gather()
		require.NoError(t, err)
		shown = 0
		for _, f := range families {
			if f.GetName() == "waymark_runs_claimable" {
				shown = len(f.GetMetric())
			}
		}
		return shown > activity.MaxAgents
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, activity.MaxAgents+1, shown)
}
