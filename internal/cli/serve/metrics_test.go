package serve

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
)

var update = flag.Bool("update", false, "write docs/metrics.md again")

// aRegistry is the registry of a daemon of one shard that is not started.
func aRegistry(t *testing.T) *prometheus.Registry {
	t.Helper()
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), 0o600))
	_, registry := aDaemon(t, "--webhook", "https://example.com", "--webhook-secret", secret)
	return registry
}

// aDaemon is a daemon of one shard that is not started.
func aDaemon(t *testing.T, flags ...string) (*daemon, *prometheus.Registry) {
	t.Helper()
	var grammar struct {
		base.Flags
		Serve Cmd `cmd:""`
	}
	a := &base.App{
		Flags: &grammar.Flags, Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Now: time.Now,
		Getenv: func(string) string { return "" },
	}
	parser, err := kong.New(&grammar, kong.Vars{"http": DefaultHTTP},
		kong.TypeMapper(reflect.TypeFor[base.QuotaSize](), kong.MapperFunc(base.DecodeQuotaSize)))
	require.NoError(t, err)
	_, err = parser.Parse(append([]string{"serve", "--state-dir", t.TempDir(), "--name", "daemon-1"}, flags...))
	require.NoError(t, err)
	registry := newRegistry()
	var open closers
	t.Cleanup(func() { require.NoError(t, open.close(t.Context())) })
	d, err := grammar.Serve.start(t.Context(), a, registry, &open, zerolog.Nop())
	require.NoError(t, err)
	return d, registry
}

// metricsDoc is the table of metrics, made from the registry of a daemon.
func metricsDoc(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	var b strings.Builder
	b.WriteString(metricsIntro)
	for _, f := range families {
		if !strings.HasPrefix(f.GetName(), "waymark_") {
			continue
		}
		var labels []string
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(labels, l.GetName()) {
					labels = append(labels, l.GetName())
				}
			}
		}
		slices.Sort(labels)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.GetName(), strings.ToLower(f.GetType().String()), strings.Join(labels, ", "), strings.ReplaceAll(f.GetHelp(), "|", `\|`))
	}
	return b.String()
}

func TestMetrics_PageTable_EqualsDaemon(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "..", "docs", "metrics.md")
	want := metricsDoc(t, aRegistry(t))
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644)) //nolint:gosec // every user may read the documentation
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/cli/serve -run Metrics -update")
	require.Equal(t, want, strings.ReplaceAll(string(have), "\r\n", "\n"), "write it with: go test ./internal/cli/serve -run Metrics -update")
}

func TestMetrics_Fleet_NamedByConvention(t *testing.T) {
	t.Parallel()
	families, err := aRegistry(t).Gather()
	require.NoError(t, err)
	own := families[:0]
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "waymark_fleet_") || strings.HasPrefix(f.GetName(), "waymark_agent_") {
			own = append(own, f)
		}
	}
	require.Greater(t, len(own), 15)
	problems, err := promlint.NewWithMetricFamilies(own).Lint()
	require.NoError(t, err)
	require.Empty(t, problems)
}

const metricsIntro = `# Metrics

Written by a test from what a daemon shows on ` + "`/metrics`" + `; change the program, then run
` + "`go test ./internal/cli/serve -run Metrics -update`" + `. What Go itself and the process show (` + "`go_…`, `process_…`" + `)
is left out, and so is ` + "`waymark_replicas`" + `, which a daemon has that shares its shards with others: the number of
replicas that share the shards of the fleet, this one included.

| names | of what | in a fleet of several daemons |
|---|---|---|
| ` + "`waymark_fleet_…`" + ` with a shard | the shard, as its streams and buckets have it, whichever daemon folds it, and even if none does | every daemon shows the same: take ` + "`max by (fleet, shard)`" + ` |
| ` + "`waymark_fleet_…recovery…`, `waymark_service_…`" + ` | what this daemon answered | add them up |
| ` + "`waymark_fold_…`" + ` | what this daemon folded | add them up; ` + "`waymark_fold_leading`" + ` says which daemon folds |
| ` + "`waymark_agent_…`" + ` | what agents did, as this daemon folded it; from 0 at its start | add them up: ` + "`sum by (fleet, agent) (rate(…))`" + ` |
| ` + "`waymark_runs_…`, `waymark_live_runs_…`, `waymark_executors_…`" + ` | what this daemon knows of the fleet | every daemon shows the same, or nearly |

The counters of a shard are kept with its watermark: a daemon that stops or crashes does not set them back, and an event
that is folded again is not counted again. They begin again when the log itself is a new one. Those of agents begin at 0
with the daemon ([observability.md](observability.md#what-agents-did)).

What to look at first:

| question | expression |
|---|---|
| what would a look at checkpoints miss (recovery misses nothing) | ` + "`max by (fleet, shard) (waymark_fleet_waiting_events)`, `…_waiting_age_seconds`" + ` |
| is each shard folded | ` + "`sum by (fleet, shard) (waymark_fold_leading) == 0`" + ` for longer than the lease of five seconds |
| write amplification now | ` + "`sum without (part) (rate(waymark_fleet_stored_bytes_total[5m])) / rate(waymark_fleet_payload_bytes_total[5m])`" + ` |
| bytes for each event now | ` + "`sum without (part) (rate(waymark_fleet_stored_bytes_total[5m])) / rate(waymark_fleet_events_total[5m])`" + ` |
| events for each put of a checkpoint | ` + "`rate(waymark_fleet_events_total[5m]) / rate(waymark_fleet_checkpoint_puts_total[5m])`" + ` |
| events a second of the whole fleet | ` + "`sum by (fleet) (max by (fleet, shard) (rate(waymark_fleet_events_total[5m])))`" + ` |
| how long recoveries take | ` + "`histogram_quantile(0.99, sum by (le, fleet) (rate(waymark_fleet_recovery_duration_seconds_bucket[5m])))`" + ` |
| completion rate by agent | ` + "`sum by (fleet, agent) (rate(waymark_agent_runs_ended_total{outcome=\"completed\"}[1h])) / sum by (fleet, agent) (rate(waymark_agent_runs_ended_total[1h]))`" + ` |
| tokens for each completed run | ` + "`sum by (fleet, agent) (rate(waymark_agent_tokens_total{kind=~\"input\\|output\"}[1h])) / sum by (fleet, agent) (rate(waymark_agent_runs_ended_total{outcome=\"completed\"}[1h]))`" + ` |
| how often tools fail | ` + "`sum by (fleet, tool) (rate(waymark_agent_tool_calls_total{outcome=~\"failed\\|error\"}[15m])) / sum by (fleet, tool) (rate(waymark_agent_tool_calls_total[15m]))`" + ` |
| how full the log is | ` + "`waymark_fleet_log_bytes / (waymark_fleet_quota_bytes > 0)`" + ` |

A scrape reads counters in memory. Those of shards cost about ten small requests a shard, at most every two seconds,
whatever is stored. ` + "`waymark fleet`" + ` shows the main ones to people, and all of them with ` + "`--json`" + `.

| metric | kind | labels | meaning |
|---|---|---|---|
`
