package serve

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
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
	d, err := grammar.Serve.start(t.Context(), a, func(*base.Finding) {}, registry, &open, zerolog.Nop())
	require.NoError(t, err)
	return d, registry
}

// metricKind is the kind that a name promises.
func metricKind(name string) string {
	switch {
	case strings.HasSuffix(name, "_total"):
		return "counter"
	case strings.HasSuffix(name, "_duration_seconds"):
		return "histogram"
	}
	return "gauge"
}

// fleetMetric is the name of a metric on a page; a prefix ends with an underscore.
var fleetMetric = regexp.MustCompile(`\bwaymark_[a-z_]+`)

func TestMetrics_NamesOnPage_AreServed(t *testing.T) {
	t.Parallel()
	families, err := aRegistry(t).Gather()
	require.NoError(t, err)
	served := map[string]bool{}
	for _, f := range families {
		name := f.GetName()
		served[name] = true
		if strings.HasPrefix(name, "waymark_") {
			require.Equal(t, metricKind(name), strings.ToLower(f.GetType().String()), "%s: the page tells kinds by names", name)
			require.NotEmpty(t, f.GetHelp(), "%s: the page refers to the help of /metrics", name)
		}
	}
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "observability.md"))
	require.NoError(t, err)
	named := fleetMetric.FindAllString(string(page), -1)
	require.Greater(t, len(named), 10)
	for _, name := range named {
		if !strings.HasSuffix(name, "_") {
			require.True(t, served[strings.TrimSuffix(name, "_bucket")], "docs/observability.md names %s, which a daemon does not serve", name)
		}
	}
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
