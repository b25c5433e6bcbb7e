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

func TestAlerts_EachAlert_SaysWhatItMeansAndWhatToDo(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join("prometheus", "alerts.yaml"))
	require.NoError(t, err)
	alerts := strings.Split(string(rules), "\n      - alert: ")[1:]
	require.Greater(t, len(alerts), 20)
	for _, alert := range alerts {
		for _, annotation := range []string{"summary", "description", "action"} {
			require.Regexp(t, `(?m)^          `+annotation+`: \S`, alert)
		}
	}
}
