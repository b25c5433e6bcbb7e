package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
)

// plot is a picture of a report.
type plot struct {
	file, title string
	svg         []byte
}

// rawName begins the names of curves of raw JetStream, which are dashed.
const rawName = "raw JetStream"

// point is a figure of a line of a case, over one of its parameters.
type point struct{ x, y float64 }

// curve is a line of a plot: points in the order of x.
type curve struct {
	name   string
	points []point
	// aim is a limit: drawn straight and dashed.
	aim bool
}

// draw makes the plots for which there are at least two points.
func draw(results []Result) ([]plot, error) {
	var plots []plot
	for _, p := range []struct {
		file, title, x, y string
		curves            []curve
	}{
		{
			"growth-bytes.svg", "Bytes stored per payload byte, by the length of a run", "turns", "bytes per payload byte",
			growthCurves(results, func(r *Result) *float64 { return r.StoredPerPayload }, growthFullAim, growthPacedAim),
		},
		{
			"growth-p50.svg", "Time of a durable boundary, by the length of a run", "turns", "p50, us",
			append(growthCurves(results, func(r *Result) *float64 { return r.Ours.P50 }), rawGrowthCurves(results)...),
		},
		{"boundaries.svg", "Durable boundaries a second, by runs in one process", "runs", "boundaries/s", boundariesCurves(results)},
	} {
		if !slices.ContainsFunc(p.curves, func(c curve) bool { return len(c.points) > 1 && !c.aim }) {
			continue
		}
		svg, err := picture(p.x, p.y, p.curves)
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", p.file, err)
		}
		plots = append(plots, plot{p.file, p.title, svg})
	}
	return plots, nil
}

// parameter is a number among the parameters of a line.
func (r *Result) parameter(name string) (float64, bool) {
	switch v := r.Parameters[name].(type) {
	case float64:
		return v, true
	case int:
		return float64(v), true
	}
	return 0, false
}

// rawGrowthCurves are the times of raw publishes, measured in turns with the runs at full speed.
func rawGrowthCurves(results []Result) []curve {
	return pointsOf(results, "growth", "turns", func(r *Result) map[string]*float64 {
		if r.Raw == nil || r.Parameters["speed"] != "full" {
			return nil
		}
		return map[string]*float64{rawName + " (" + r.where() + ")": r.Raw.P50}
	})
}

// growthCurves are those of the two paces, and the aims over the same lengths.
func growthCurves(results []Result, of func(*Result) *float64, limits ...float64) []curve {
	curves := pointsOf(results, "growth", "turns", func(r *Result) map[string]*float64 {
		return map[string]*float64{fmt.Sprintf("%v (%s)", r.Parameters["speed"], r.where()): of(r)}
	})
	return append(curves, limitsOver(curves, limits)...)
}

func boundariesCurves(results []Result) []curve {
	return pointsOf(results, "boundaries", "runs", func(r *Result) map[string]*float64 {
		m := map[string]*float64{"Waymark (" + r.where() + ")": r.Ours.PerSecond}
		if r.Raw != nil {
			m[rawName+" ("+r.where()+")"] = r.Raw.PerSecond
		}
		return m
	})
}

// pointsOf collects the figures of a case by the names of their curves.
func pointsOf(results []Result, name, x string, of func(*Result) map[string]*float64) []curve {
	byName := make(map[string][]point)
	for _, r := range results {
		at, ok := r.parameter(x)
		if r.Case != name || !ok || r.Ours == nil {
			continue
		}
		for c, y := range of(&r) {
			if y != nil {
				byName[c] = append(byName[c], point{at, *y})
			}
		}
	}
	var curves []curve
	for _, c := range sortedKeys(byName) {
		points := byName[c]
		slices.SortFunc(points, func(a, b point) int { return cmp.Compare(a.x, b.x) })
		curves = append(curves, curve{name: c, points: points})
	}
	return curves
}

// limitsOver are straight lines over all that the curves span.
func limitsOver(curves []curve, limits []float64) []curve {
	var xs []float64
	for _, c := range curves {
		for _, p := range c.points {
			xs = append(xs, p.x)
		}
	}
	if len(xs) == 0 {
		return nil
	}
	var straight []curve
	for _, limit := range limits {
		straight = append(straight, curve{
			name: "to reach: at most " + number(&limit), aim: true,
			points: []point{{slices.Min(xs), limit}, {slices.Max(xs), limit}},
		})
	}
	return straight
}

// picture draws curves over a logarithmic x, from 0.
func picture(x, y string, curves []curve) ([]byte, error) {
	c := chart{X: x, Y: y, Width: chartWidth, Height: chartTop + legendLine*len(curves) + chartHeight + chartBottom, Left: chartLeft, Right: chartWidth - chartRight}
	c.Top, c.Bottom = chartTop+legendLine*len(curves), c.Height-chartBottom
	top, low, high := 0.0, math.Inf(1), math.Inf(-1)
	for _, curve := range curves {
		for _, p := range curve.points {
			top, low, high = max(top, p.y), min(low, p.x), max(high, p.x)
		}
	}
	step := roundStep(top)
	ceiling := step * max(math.Ceil(top/step), 1)
	atX := func(v float64) float64 {
		if high == low {
			return float64(c.Left)
		}
		return float64(c.Left) + math.Log(v/low)/math.Log(high/low)*float64(c.Right-c.Left)
	}
	atY := func(v float64) float64 { return float64(c.Bottom) - v/ceiling*float64(c.Bottom-c.Top) }
	for i, curve := range curves {
		l := line{Name: curve.name, Color: colors[i%len(colors)], Width: 2, Legend: chartTop + legendLine*i - 8}
		switch {
		case curve.aim:
			l.Color, l.Width, l.Dash = "888888", 1, "4 4"
		case strings.HasPrefix(curve.name, rawName):
			l.Dash = "8 4"
		}
		for _, p := range curve.points {
			l.Points = append(l.Points, spot{atX(p.x), atY(p.y)})
			if !curve.aim {
				l.Dots = append(l.Dots, spot{atX(p.x), atY(p.y)})
				c.XTicks = append(c.XTicks, tick{atX(p.x), label(p.x)})
			}
		}
		c.Lines = append(c.Lines, l)
	}
	for n := 0.0; n*step <= ceiling; n++ {
		c.YTicks = append(c.YTicks, tick{atY(n * step), label(n * step)})
	}
	slices.SortFunc(c.XTicks, func(a, b tick) int { return cmp.Compare(a.At, b.At) })
	apart := c.XTicks[:0]
	for _, t := range c.XTicks {
		// Labels that would touch each other are left out.
		if len(apart) == 0 || t.At-apart[len(apart)-1].At >= labelWidth {
			apart = append(apart, t)
		}
	}
	c.XTicks = apart
	var b bytes.Buffer
	err := chartSVG.Execute(&b, &c)
	return b.Bytes(), err
}

// Sizes of a chart, in pixels.
const (
	chartWidth, chartHeight                      = 900, 340
	chartTop, chartBottom, chartLeft, chartRight = 24, 56, 80, 30
	// legendLine is the height of a line of the legend, labelWidth the room of a label below the chart.
	legendLine, labelWidth = 18, 40
)

// chart is what the template draws.
type chart struct {
	X, Y                                    string
	Width, Height, Left, Right, Top, Bottom int
	XTicks, YTicks                          []tick
	Lines                                   []line
}

// tick is a label at an axis.
type tick struct {
	At    float64
	Label string
}

// line is a curve and its line of the legend.
type line struct {
	Name, Color, Dash string
	Width, Legend     int
	Points, Dots      []spot
}

// spot is a place in the picture.
type spot struct{ X, Y float64 }

func label(v float64) string { return strconv.FormatFloat(v, 'g', 6, 64) }

// chartSVG escapes names and labels as HTML does, which SVG reads the same way.
var chartSVG = template.Must(template.New("chart").Funcs(template.FuncMap{
	"px": func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }, "half": func(a, b int) int { return (a + b) / 2 },
	"add": func(a, b int) int { return a + b },
}).Parse(`<svg xmlns="http://www.w3.org/2000/svg" width="{{.Width}}" height="{{.Height}}" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="12" fill="#333">
<rect width="100%" height="100%" fill="#fff"/>
{{range .Lines}}<path d="M 30 {{.Legend}} h 34" stroke="#{{.Color}}" stroke-width="{{.Width}}" stroke-dasharray="{{.Dash}}"/>
<text x="74" y="{{add .Legend 4}}">{{.Name | html}}</text>
{{end}}{{range .YTicks}}<path d="M {{$.Left}} {{px .At}} H {{$.Right}}" stroke="#e4e4e4"/>
<text x="{{add $.Left -8}}" y="{{px .At}}" dy="4" text-anchor="end">{{.Label}}</text>
{{end}}{{range .XTicks}}<path d="M {{px .At}} {{$.Bottom}} v 5" stroke="#333"/>
<text x="{{px .At}}" y="{{add $.Bottom 20}}" text-anchor="middle">{{.Label}}</text>
{{end}}<path d="M {{.Left}} {{.Top}} V {{.Bottom}} H {{.Right}}" fill="none" stroke="#333"/>
<text x="{{half .Left .Right}}" y="{{add .Bottom 42}}" text-anchor="middle">{{.X | html}}</text>
<text transform="translate(18 {{half .Top .Bottom}}) rotate(-90)" text-anchor="middle">{{.Y | html}}</text>
{{range $l := .Lines}}<polyline points="{{range .Points}}{{px .X}},{{px .Y}} {{end}}" fill="none" stroke="#{{.Color}}" stroke-width="{{.Width}}" stroke-dasharray="{{.Dash}}"/>
{{range .Dots}}<circle cx="{{px .X}}" cy="{{px .Y}}" r="3" fill="#{{$l.Color}}"/>
{{end}}{{end}}</svg>
`))

// colors tell eight curves apart, also for people who do not see red and green apart.
var colors = []string{"0072b2", "d55e00", "009e73", "cc79a7", "e69f00", "56b4e9", "000000", "8c564b"}

// roundStep divides what reaches up to top into four to ten steps of 1, 2 or 5 times a power of ten.
func roundStep(top float64) float64 {
	if top <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(top)))
	switch digits := top / power; {
	case digits > 5:
		return power
	case digits > 2:
		return power / 2
	}
	return power / 5
}
