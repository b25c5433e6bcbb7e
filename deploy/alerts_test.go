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

// The module tools/deploycheck runs the same tests with Prometheus' engine, where promtool is not installed.
func TestAlerts_Promtool_FiresEachAlert(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not on this machine: make deploycheck tries the alerts, or install Prometheus (Debian: apt-get install prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		cmd := exec.CommandContext(t.Context(), promtool, args...)
		cmd.Dir = "prometheus"
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "promtool %s: %s", strings.Join(args, " "), out)
	}
}

func TestAlerts_EachAlert_HasAPlaceOnThePageAndATest(t *testing.T) {
	t.Parallel()
	rules, err := os.ReadFile(filepath.Join("prometheus", "alerts.yaml"))
	require.NoError(t, err)
	tests, err := os.ReadFile(filepath.Join("prometheus", "alerts_test.yaml"))
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join("..", "docs", "alerts.md"))
	require.NoError(t, err)
	named := make(map[string]string) // the heading of each alert's name
	for _, heading := range regexp.MustCompile(`(?m)^### (.+)$`).FindAllStringSubmatch(string(page), -1) {
		for name := range strings.SplitSeq(heading[1], ", ") {
			named[name] = strings.ReplaceAll(strings.ToLower(heading[1]), ", ", "-")
		}
	}
	alerts := strings.Split(string(rules), "\n      - alert: ")[1:]
	require.Greater(t, len(alerts), 30)
	for _, alert := range alerts {
		name, body, _ := strings.Cut(alert, "\n")
		require.Contains(t, named, name, "write what to do into docs/alerts.md")
		require.Contains(t, body+"\n", "\n          runbook_url: https://github.com/waymarkio/waymark/blob/main/docs/alerts.md#"+named[name]+"\n", name)
		delete(named, name)
		for _, annotation := range []string{"summary", "description"} {
			require.Regexp(t, `(?m)^          `+annotation+`: \S`, body)
		}
		require.Regexp(t, `(?m)^      - alertname: `+name+"\n.*\n        exp_alerts:\n", string(tests), "write a test of it in deploy/prometheus/alerts_test.yaml")
	}
	require.Empty(t, named, "docs/alerts.md explains alerts that do not exist")
}
