package serve

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// A renamed metric must be renamed in the alerts and the dashboard, too.
func TestMetrics_AlertsAndDashboard_NameExisting(t *testing.T) {
	t.Parallel()
	families, err := aRegistry(t).Gather()
	require.NoError(t, err)
	shown := make(map[string]bool)
	for _, f := range families {
		shown[f.GetName()] = true
		if strings.EqualFold(f.GetType().String(), "histogram") {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				shown[f.GetName()+suffix] = true
			}
		}
	}
	described := make(chan *prometheus.Desc, 100)
	newFleetMetrics("default", nil).Describe(described) // a lone server in good order has not all of them
	close(described)
	for d := range described {
		shown[regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(d.String())[1]] = true
	}
	agents := ""
	for _, name := range []string{
		filepath.Join("prometheus", "alerts.yaml"), filepath.Join("prometheus", "alerts_test.yaml"),
		filepath.Join("grafana", "waymark.json"), filepath.Join("grafana", "agents.json"),
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "deploy", name))
		require.NoError(t, err)
		named := regexp.MustCompile(`\bwaymark_[a-z_]+`).FindAllString(string(text), -1)
		require.Greater(t, len(named), 15, name)
		for _, metric := range named {
			require.True(t, shown[metric], "%s names %s, which the daemon does not show", name, metric)
		}
		agents = string(text)
	}
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "waymark_agent_") {
			require.True(t, strings.Contains(agents, f.GetName()), "no panel of deploy/grafana/agents.json shows %s", f.GetName()) //nolint:testifylint // it would print the file
		}
	}
}
