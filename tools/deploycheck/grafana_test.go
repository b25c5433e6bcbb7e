package deploycheck_test

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type source struct{ Type, UID string }

// board is what the dashboard may consist of, as Grafana's own schema names it (version 41). A member that is not here is
// misspelled, or is to be looked up and added.
type board struct {
	UID, Title, Refresh, Timezone string
	Tags                          []string
	Editable                      bool
	SchemaVersion, Version        int
	Time                          struct{ From, To string }
	Annotations                   struct{ List []json.RawMessage }
	Links                         []json.RawMessage
	Templating                    struct{ List []variable }
	Panels                        []panel
}

type variable struct {
	Name, Type, Label, Definition, AllValue string
	Query                                   json.RawMessage
	Datasource                              *source
	IncludeAll, Multi                       bool
	Refresh, Hide                           int
	Current                                 struct{ Text, Value string }
}

type panel struct {
	ID                       int
	Type, Title, Description string
	Datasource               *source
	GridPos                  struct{ X, Y, W, H int }
	Collapsed                bool
	Panels                   []panel
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Min, Max   *float64
			Thresholds struct {
				Mode  string
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
		Overrides []json.RawMessage
	}
	Options struct {
		ColorMode, GraphMode, TextMode string
		ReduceOptions                  *struct {
			Calcs  []string
			Fields string
			Values bool
		}
		Legend *struct {
			DisplayMode, Placement string
			ShowLegend             bool
		}
		Tooltip *struct{ Mode, Sort string }
	}
}

// boards are the dashboards, by the names of their files.
var boards = map[string]string{"waymark": "waymark.json", "waymark-agents": "agents.json"}

func readBoard(t *testing.T, file string) board {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(read(t, "grafana", file)))
	decoder.DisallowUnknownFields()
	var b board
	require.NoError(t, decoder.Decode(&b))
	return b
}

func TestDashboard_Panels_FitPage(t *testing.T) {
	for uid, file := range boards {
		t.Run(uid, func(t *testing.T) { requireOnThePage(t, uid, readBoard(t, file)) })
	}
}

func requireOnThePage(t *testing.T, uid string, b board) {
	t.Helper()
	require.Equal(t, uid, b.UID)
	ids, taken := make(map[int]bool), make(map[[2]int]string)
	for _, p := range b.Panels {
		require.False(t, ids[p.ID], "panel %d is there twice", p.ID)
		ids[p.ID] = true
		require.Contains(t, []string{"row", "stat", "timeseries"}, p.Type, p.Title)
		require.NotEmpty(t, p.Title)
		at := p.GridPos
		require.True(t, at.X >= 0 && at.W > 0 && at.H > 0 && at.X+at.W <= 24, p.Title)
		for x := at.X; x < at.X+at.W; x++ {
			for y := at.Y; y < at.Y+at.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies on another panel", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, "%s shows something, or is the head of a row", p.Title)
	}
}

func TestDashboard_Expressions_Parse(t *testing.T) {
	for uid, file := range boards {
		t.Run(uid, func(t *testing.T) { requireParsed(t, readBoard(t, file)) })
	}
}

func requireParsed(t *testing.T, b board) {
	t.Helper()
	variables := regexp.MustCompile(`\$[{a-z_]\w*}?`)
	known := map[string]string{"$__rate_interval": "5m", "$__range": "3h", "$fleet": ".*", "$agent": ".*"}
	expressions := 0
	for _, p := range b.Panels {
		refs := make(map[string]bool)
		for _, target := range p.Targets {
			expressions++
			require.False(t, refs[target.RefID], "%s has query %s twice", p.Title, target.RefID)
			refs[target.RefID] = true
			require.Equal(t, source{"prometheus", "${datasource}"}, target.Datasource, p.Title)
			expr := variables.ReplaceAllStringFunc(target.Expr, func(name string) string {
				require.Contains(t, known, name, "%s: %s", p.Title, target.Expr)
				return known[name]
			})
			_, err := promQL().ParseExpr(expr)
			require.NoError(t, err, "%s: %s", p.Title, target.Expr)
		}
	}
	require.Greater(t, expressions, 20)
	for _, v := range b.Templating.List {
		if inner, ok := strings.CutPrefix(v.Definition, "label_values("); ok {
			metric, label, _ := strings.Cut(strings.TrimSuffix(inner, ")"), ",")
			_, err := promQL().ParseExpr(metric)
			require.NoError(t, err, v.Name)
			require.Equal(t, v.Name, strings.TrimSpace(label))
		}
	}
}
