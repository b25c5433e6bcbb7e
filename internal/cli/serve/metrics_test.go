package serve

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
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

// metricGroup is a part of the page: the metrics whose names match, with the labels that all of them have.
type metricGroup struct {
	title, text string
	name        *regexp.Regexp
	labels      []string
}

// metricGroups are the parts of the page, in their order. A metric is in the first one that it matches.
var metricGroups = []metricGroup{
	{
		"Agents", "What agents did, as this daemon folded it, from 0 at its start ([observability.md](observability.md#what-agents-did)).\n" +
			"Add the daemons up: `sum by (fleet, agent) (rate(…))`.",
		regexp.MustCompile(`^waymark_agent_`),
		[]string{"fleet"},
	},
	{
		"Recoveries and requests", "What this daemon answered. Add the daemons up.",
		regexp.MustCompile(`^waymark_(fleet_(last_)?recovery_|service_)`),
		[]string{"fleet"},
	},
	{
		"Shards", "What the shard's streams and buckets have, whether or not a daemon folds it. Every daemon shows the same: take\n" +
			"`max by (fleet, shard)`. A restart does not set the counters back, and an event that is folded again is not counted\nagain; a new log begins at 0.",
		regexp.MustCompile(`^waymark_fleet_`),
		[]string{"fleet", "shard"},
	},
	{
		"Folding", "What this daemon folded. Add the daemons up; `waymark_fold_leading` says which one folds.",
		regexp.MustCompile(`^waymark_fold_`),
		[]string{"fleet", "shard"},
	},
	{"Connections", "Each daemon has its own.", regexp.MustCompile(`^waymark_(nats|build)_`), nil},
	{"The fleet", "What this daemon knows of the fleet: every daemon shows nearly the same. Webhook metrics are of\nthe daemon that posts.", regexp.MustCompile(`^waymark_`), []string{"fleet"}},
}

// metricKind is the kind that a name promises.
func metricKind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds") && !strings.Contains(name, "_last_"):
		return "histogram"
	}
	return "gauge"
}

// metricsDoc is the page of metrics, made from the registry of a daemon.
func metricsDoc(t *testing.T, registry *prometheus.Registry) string {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	rows := make([]strings.Builder, len(metricGroups))
	for _, f := range families {
		name := f.GetName()
		at := slices.IndexFunc(metricGroups, func(g metricGroup) bool { return g.name.MatchString(name) })
		if at < 0 {
			continue
		}
		require.Equal(t, metricKind(name), strings.ToLower(f.GetType().String()), "%s: the page tells kinds by names", name)
		var labels []string
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if !slices.Contains(labels, l.GetName()) {
					labels = append(labels, l.GetName())
				}
			}
		}
		require.Subset(t, labels, metricGroups[at].labels, name)
		own := slices.DeleteFunc(slices.Sorted(slices.Values(labels)), func(l string) bool { return slices.Contains(metricGroups[at].labels, l) })
		if len(own) > 0 {
			name += "{" + strings.Join(own, ",") + "}"
		}
		fmt.Fprintf(&rows[at], "| `%s` | %s |\n", name, strings.ReplaceAll(f.GetHelp(), "|", `\|`))
	}
	var b strings.Builder
	b.WriteString(metricsIntro)
	for i, g := range metricGroups {
		if len(g.labels) > 0 {
			g.text += "\nLabels: `" + strings.Join(g.labels, "`, `") + "`."
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n| metric | meaning |\n|---|---|\n%s", g.title, g.text, rows[i].String())
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

After this page you know what each metric of a daemon counts, how to add up several daemons, and what to look at first.

Written by a test from a daemon's ` + "`/metrics`" + `: ` + "`go test ./internal/cli/serve -run Metrics -update`" + `. Metrics of Go and of
the process (` + "`go_…`, `process_…`" + `) are left out. A scrape reads memory; those of shards cost about ten small requests a
shard, at most every two seconds. ` + "`waymark fleet`" + ` shows the main ones.

## What to look at first

| question | expression |
|---|---|
| events not in a checkpoint yet (a recovery has them) | ` + "`max by (fleet, shard) (waymark_fleet_waiting_events)`, `…_waiting_age_seconds`" + ` |
| shards that are not folded | ` + "`sum by (fleet, shard) (waymark_fold_leading) == 0`" + ` for longer than the lease of five seconds |
| write amplification now | ` + "`sum without (part) (rate(waymark_fleet_stored_bytes_total[5m])) / rate(waymark_fleet_payload_bytes_total[5m])`" + ` |
| bytes for each event now | ` + "`sum without (part) (rate(waymark_fleet_stored_bytes_total[5m])) / rate(waymark_fleet_events_total[5m])`" + ` |
| events for each put of a checkpoint | ` + "`rate(waymark_fleet_events_total[5m]) / rate(waymark_fleet_checkpoint_puts_total[5m])`" + ` |
| events a second of the whole fleet | ` + "`sum by (fleet) (max by (fleet, shard) (rate(waymark_fleet_events_total[5m])))`" + ` |
| how long recoveries take | ` + "`histogram_quantile(0.99, sum by (le, fleet) (rate(waymark_fleet_recovery_duration_seconds_bucket[5m])))`" + ` |
| completion rate by agent | ` + "`sum by (fleet, agent) (rate(waymark_agent_runs_ended_total{outcome=\"completed\"}[1h])) / sum by (fleet, agent) (rate(waymark_agent_runs_ended_total[1h]))`" + ` |
| tokens for each completed run | ` + "`sum by (fleet, agent) (rate(waymark_agent_tokens_total{kind=~\"input\\|output\"}[1h])) / sum by (fleet, agent) (rate(waymark_agent_runs_ended_total{outcome=\"completed\"}[1h]))`" + ` |
| how often tools fail | ` + "`sum by (fleet, tool) (rate(waymark_agent_tool_calls_total{outcome=~\"failed\\|error\"}[15m])) / sum by (fleet, tool) (rate(waymark_agent_tool_calls_total[15m]))`" + ` |
| how full the log is | ` + "`waymark_fleet_log_bytes / (waymark_fleet_quota_bytes > 0)`" + ` |

## All

` + "`…_total`" + ` are counters, ` + "`…_duration_seconds`" + ` histograms (but for ` + "`…_last_…`" + `), all others gauges. Labels in braces
come besides the group's. A daemon that shares shards with others also has ` + "`waymark_replicas`" + `: how many they are.
`
