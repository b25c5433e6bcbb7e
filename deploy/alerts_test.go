package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// alerts are the names of the alerts, in their order.
func alerts(t *testing.T) (names []string) {
	t.Helper()
	rules, err := os.ReadFile(filepath.Join("prometheus", "alerts.yaml"))
	require.NoError(t, err)
	for _, found := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(string(rules), -1) {
		names = append(names, found[1])
	}
	require.Greater(t, len(names), 20)
	return names
}

func TestAlerts_Promtool_FiresEachAlertAboutAgents(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on this machine, and the alerts are unproven here: install Prometheus (Debian: apt-get install prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "prometheus"
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), out)
	}
}

func TestAlerts_UnitTests_HaveEachAlertAboutAgents(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join("prometheus", "alerts.yaml"))
	require.NoError(t, err)
	_, agents, ok := strings.Cut(string(rules), "\n  - name: waymark-agents\n")
	require.True(t, ok)
	tests, err := os.ReadFile(filepath.Join("prometheus", "alerts_test.yaml"))
	require.NoError(t, err)
	tried := regexp.MustCompile(`(?m)^ +- alertname: (\w+)$`).FindAllStringSubmatch(string(tests), -1)
	named := make([]string, 0, len(tried))
	for _, found := range tried {
		named = append(named, found[1])
	}
	for _, found := range regexp.MustCompile(`(?m)^ +- alert: (\w+)$`).FindAllStringSubmatch(agents, -1) {
		require.Contains(t, named, found[1], "write a test of it in deploy/prometheus/alerts_test.yaml")
	}
}

func TestAlerts_EachAlert_HasARowOfThePage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "observability.md"))
	require.NoError(t, err)
	var rows []string
	for _, found := range regexp.MustCompile(`(?m)^\| (Waymark\w+) \|`).FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, found[1])
	}
	require.Equal(t, alerts(t), rows, "docs/observability.md has a row for each alert of deploy/prometheus/alerts.yaml, in the same order")
}
