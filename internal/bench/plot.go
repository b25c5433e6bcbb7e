package bench

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	chart "github.com/wcharczuk/go-chart/v2"
	"github.com/wcharczuk/go-chart/v2/drawing"
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

// rawGrowthCurves are the times of raw publishes that were measured beside the runs at full speed.
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
	c := chart.Chart{
		Width: 900, Height: 440 + legendLine*len(curves),
		Background: chart.Style{Padding: chart.Box{Top: legendLine*len(curves) + 30, Left: 20, Right: 30, Bottom: 20}},
		XAxis:      chart.XAxis{Name: x, Range: &chart.LogarithmicRange{}},
		YAxis:      chart.YAxis{Name: y},
		// Without series it would be a spot in the corner.
		YAxisSecondary: chart.YAxis{Style: chart.Hidden()},
	}
	top := 0.0
	var ticks []float64
	for i, curve := range curves {
		color := drawing.ColorFromHex(colors[i%len(colors)])
		series := chart.ContinuousSeries{Name: curve.name, Style: chart.Style{
			StrokeColor: color, StrokeWidth: 2, DotColor: color, DotWidth: 3,
		}}
		if curve.aim {
			series.Style = chart.Style{StrokeColor: drawing.ColorFromHex("888888"), StrokeWidth: 1, StrokeDashArray: []float64{4, 4}}
		} else if strings.HasPrefix(curve.name, rawName) {
			series.Style.StrokeDashArray = []float64{8, 4}
		}
		for _, p := range curve.points {
			series.XValues, series.YValues = append(series.XValues, p.x), append(series.YValues, p.y)
			top = max(top, p.y)
			ticks = append(ticks, p.x)
		}
		c.Series = append(c.Series, series)
	}
	step := roundStep(top)
	c.YAxis.Range = &chart.ContinuousRange{Min: 0, Max: step * math.Ceil(top/step)}
	for at := 0.0; at < top+step; at += step {
		c.YAxis.Ticks = append(c.YAxis.Ticks, chart.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', 6, 64)})
	}
	slices.Sort(ticks)
	for _, at := range slices.Compact(ticks) {
		c.XAxis.Ticks = append(c.XAxis.Ticks, chart.Tick{Value: at, Label: strconv.FormatFloat(at, 'g', 6, 64)})
	}
	c.Elements = []chart.Renderable{legend(&c)}
	var b bytes.Buffer
	if err := c.Render(chart.SVG, &b); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// colors tell eight curves apart, also for people who do not see red and green apart.
var colors = []string{"0072b2", "d55e00", "009e73", "cc79a7", "e69f00", "56b4e9", "000000", "8c564b"}

// legendLine is the height of a line of the legend.
const legendLine = 18

// legend has a line above the chart for each curve: a stroke as it is drawn, and its name.
func legend(c *chart.Chart) chart.Renderable {
	const left, stroke = 30, 34
	return func(r chart.Renderer, _ chart.Box, defaults chart.Style) {
		for i, s := range c.Series {
			style, y := s.GetStyle(), 20+i*legendLine
			r.SetStrokeColor(style.StrokeColor)
			r.SetStrokeWidth(style.StrokeWidth)
			r.SetStrokeDashArray(style.StrokeDashArray)
			r.MoveTo(left, y-4)
			r.LineTo(left+stroke, y-4)
			r.Stroke()
			text := chart.Style{FontColor: chart.DefaultTextColor, FontSize: 9}.InheritFrom(defaults)
			text.GetTextOptions().WriteToRenderer(r)
			r.Text(s.GetName(), left+stroke+10, y)
		}
	}
}

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
