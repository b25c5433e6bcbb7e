package deploycheck_test

import (
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func promQL() parser.Parser { return parser.NewParser(parser.Options{}) }

func TestAlerts_Rules_Load(t *testing.T) {
	var said strings.Builder
	groups, errs := rulefmt.Parse(read(t, "prometheus", "alerts.yaml"), false, model.UTF8Validation, promQL(),
		slog.New(slog.NewTextHandler(&said, nil)))
	require.Empty(t, errs)
	require.Empty(t, said.String())
	var names []string
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			require.NotContains(t, names, rule.Alert)
			names = append(names, rule.Alert)
			require.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
			require.NotEmpty(t, rule.Annotations["description"], rule.Alert)
			require.Contains(t, []string{"warning", "critical"}, rule.Labels["severity"], rule.Alert)
		}
	}
	require.Greater(t, len(names), 10)
}

// Prometheus' reader of whole configurations brings every cloud's client along. The file is small: it names the rules in its directory.
func TestPrometheus_Config_NamesRules(t *testing.T) {
	var config struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName       string `json:"job_name"`
			StaticConfigs []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	require.NoError(t, yaml.UnmarshalStrict(read(t, "prometheus", "prometheus.yaml"), &config))
	require.Equal(t, []string{"alerts.yaml"}, config.RuleFiles)
	require.Len(t, config.ScrapeConfigs, 1)
	require.Equal(t, "waymark", config.ScrapeConfigs[0].JobName)
	require.Equal(t, []string{"waymark-1:9477", "waymark-2:9477"}, config.ScrapeConfigs[0].StaticConfigs[0].Targets)
	for _, text := range config.Global {
		_, err := model.ParseDuration(text)
		require.NoError(t, err)
	}
}
