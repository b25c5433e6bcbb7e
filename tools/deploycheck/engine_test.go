package deploycheck_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// Prometheus' package of rules brings every cloud's client along. This file has its own loop over the rules ("for", labels, annotations);
// expressions and templates are those of Prometheus.

type sample struct {
	at int64
	v  float64
}

func (s sample) T() int64                      { return s.at }
func (s sample) ST() int64                     { return 0 }
func (s sample) F() float64                    { return s.v }
func (s sample) H() *histogram.Histogram       { return nil }
func (s sample) FH() *histogram.FloatHistogram { return nil }
func (s sample) Type() chunkenc.ValueType      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample           { return s }

// series are samples by the text of their labels.
type series struct {
	labels  map[string]labels.Labels
	samples map[string][]chunks.Sample
}

func newSeries() *series {
	return &series{labels: make(map[string]labels.Labels), samples: make(map[string][]chunks.Sample)}
}

func (s *series) add(l labels.Labels, at int64, v float64) {
	s.labels[l.String()] = l
	s.samples[l.String()] = append(s.samples[l.String()], sample{at, v})
}

func (s *series) Querier(_, _ int64) (storage.Querier, error) { return s, nil }
func (s *series) Close() error                                { return nil }

func (s *series) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s *series) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

func (s *series) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &set{at: -1}
next:
	for _, key := range slices.Sorted(maps.Keys(s.labels)) {
		for _, m := range matchers {
			if !m.Matches(s.labels[key].Get(m.Name)) {
				continue next
			}
		}
		found.list = append(found.list, storage.NewListSeries(s.labels[key], s.samples[key]))
	}
	return found
}

type set struct {
	list []storage.Series
	at   int
}

func (s *set) Next() bool                        { s.at++; return s.at < len(s.list) }
func (s *set) At() storage.Series                { return s.list[s.at] }
func (s *set) Err() error                        { return nil }
func (s *set) Warnings() annotations.Annotations { return nil }

// alert is a firing one, as the receiver of a page sees it.
type alert struct {
	labels, annotations map[string]string
}

// rules are the alerts of deploy, and since when each of their series has been true.
type rules struct {
	list   []rulefmt.Rule
	engine *promql.Engine
	since  map[string]time.Time
}

func newRules(t *testing.T) *rules {
	t.Helper()
	groups, errs := rulefmt.Parse(read(t, "prometheus", "alerts.yaml"), false, model.UTF8Validation, promQL(), nil)
	require.Empty(t, errs)
	r := &rules{
		since:  make(map[string]time.Time),
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 50e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, EnableAtModifier: true, EnableNegativeOffset: true}),
	}
	for _, group := range groups.Groups {
		r.list = append(r.list, group.Rules...)
	}
	return r
}

// eval evaluates all rules at a time, and returns the alerts that fire, by name.
func (r *rules) eval(t *testing.T, s *series, at time.Time) map[string][]alert {
	t.Helper()
	firing, seen := make(map[string][]alert), make(map[string]bool)
	for _, rule := range r.list {
		query, err := r.engine.NewInstantQuery(t.Context(), s, nil, rule.Expr, at)
		require.NoError(t, err, rule.Alert)
		vector, err := query.Exec(t.Context()).Vector()
		require.NoError(t, err, rule.Alert)
		for _, v := range vector {
			own := v.Metric.Map()
			delete(own, model.MetricNameLabel)
			a := alert{labels: maps.Clone(own), annotations: make(map[string]string)}
			maps.Copy(a.labels, rule.Labels)
			key := rule.Alert + fmt.Sprint(a.labels)
			seen[key] = true
			if _, ok := r.since[key]; !ok {
				r.since[key] = at
			}
			if at.Sub(r.since[key]) < time.Duration(rule.For) {
				continue
			}
			data := template.AlertTemplateData(own, nil, "", v)
			for name, text := range rule.Annotations {
				const head = "{{$labels := .Labels}}{{$value := .Value}}"
				a.annotations[name], err = template.NewTemplateExpander(t.Context(), head+text, rule.Alert, data, model.TimeFromUnixNano(at.UnixNano()), nil, new(url.URL), nil).Expand()
				require.NoError(t, err, rule.Alert)
			}
			firing[rule.Alert] = append(firing[rule.Alert], a)
		}
		query.Close()
	}
	maps.DeleteFunc(r.since, func(key string, _ time.Time) bool { return !seen[key] })
	return firing
}

// TestAlerts_UnitTests_Fire runs deploy/prometheus/alerts_test.yaml as promtool does.
func TestAlerts_UnitTests_Fire(t *testing.T) {
	var file struct {
		EvaluationInterval model.Duration `json:"evaluation_interval"`
		Tests              []struct {
			Name        string
			Interval    model.Duration
			InputSeries []struct{ Series, Values string } `json:"input_series"`
			Alerts      []struct {
				Alertname string
				EvalTime  model.Duration `json:"eval_time"`
				Exp       []struct {
					Labels      map[string]string `json:"exp_labels"`
					Annotations map[string]string `json:"exp_annotations"`
				} `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		}
	}
	require.NoError(t, yaml.Unmarshal(read(t, "prometheus", "alerts_test.yaml"), &file))
	require.Greater(t, len(file.Tests), 15)
	for _, test := range file.Tests {
		t.Run(test.Name, func(t *testing.T) {
			s, epoch := newSeries(), time.Unix(0, 0)
			for _, in := range test.InputSeries {
				l, values, err := promQL().ParseSeriesDesc(in.Series + " " + in.Values)
				require.NoError(t, err)
				for i, v := range values {
					if !v.Omitted {
						s.add(l, epoch.Add(time.Duration(i)*time.Duration(test.Interval)).UnixMilli(), v.Value)
					}
				}
			}
			sort.SliceStable(test.Alerts, func(i, j int) bool { return test.Alerts[i].EvalTime < test.Alerts[j].EvalTime })
			r, left := newRules(t), test.Alerts
			for at := time.Duration(0); len(left) > 0; at += time.Duration(file.EvaluationInterval) {
				firing := r.eval(t, s, epoch.Add(at))
				for ; len(left) > 0 && time.Duration(left[0].EvalTime) == at; left = left[1:] {
					want := make([]alert, 0, len(left[0].Exp))
					for _, e := range left[0].Exp {
						want = append(want, alert{e.Labels, e.Annotations})
					}
					require.ElementsMatch(t, want, firing[left[0].Alertname], "%s at %s", left[0].Alertname, at)
				}
				require.LessOrEqual(t, at, 48*time.Hour, "an eval_time that is no multiple of the interval")
			}
		})
	}
}
