package bench

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// comparedWith is the system that the aims of a turn speak of. Only its lines of turnSource count: they were measured in the same
// minutes as Waymark's.
const (
	comparedWith = "Restate"
	turnSource   = "make bench-turn"
)

// turnAims compare with the other system's turns of as many runs, all in one process.
var turnAims = []struct {
	runs      int
	executors bool // each run has an executor process of its own
	rate      bool // turns a second, else p50
	limit     float64
}{
	{1, false, false, 0.55},
	{16, false, false, 1},
	{64, false, true, 2},
	{64, true, true, 3},
	{256, true, true, 3},
}

// turnLines are the lines of one system under the same circumstances. The figures are their medians.
type turnLines struct {
	system, where                            string
	runs, executors                          int
	lines                                    int
	quick                                    bool
	rate, p50, p99, stored, device, cpuMicro []float64
}

// turnsOf gathers the lines of whole turns, in the order in which a kind first comes.
func turnsOf(results []Result) []*turnLines {
	var all []*turnLines
	of := func(t turnLines) *turnLines {
		i := slices.IndexFunc(all, func(o *turnLines) bool {
			return o.system == t.system && o.where == t.where && o.runs == t.runs && o.executors == t.executors && o.quick == t.quick
		})
		if i < 0 {
			all = append(all, &t)
			i = len(all) - 1
		}
		all[i].lines++
		return all[i]
	}
	keep := func(list *[]float64, v *float64) {
		if v != nil {
			*list = append(*list, *v)
		}
	}
	for _, r := range results {
		switch p := r.Peer; {
		case p != nil && p.TurnP50 != nil:
			t := of(turnLines{system: p.System, where: p.Store + ", " + p.Source, runs: p.Runs, quick: p.Quick})
			keep(&t.rate, p.TurnsPerSecond)
			keep(&t.p50, p.TurnP50)
			keep(&t.p99, p.TurnP99)
			keep(&t.stored, p.StoredPerPayload)
			keep(&t.device, p.DevicePerPayload)
		case p == nil && r.Case == "turn" && r.Parameters["steps"] == "full" && r.Ours != nil:
			runs, _ := r.parameter("runs")
			executors, _ := r.parameter("executors")
			t := of(turnLines{system: "Waymark", where: r.where(), runs: int(runs), executors: int(executors), quick: r.Quick})
			keep(&t.rate, r.Ours.PerSecond)
			keep(&t.p50, r.Ours.P50)
			keep(&t.p99, r.Ours.P99)
			keep(&t.stored, r.StoredPerPayload)
			keep(&t.device, r.DevicePerPayload)
			keep(&t.cpuMicro, figureOf(r.CPU, "all"))
		}
	}
	return all
}

// wholeTurns is the table of turns of all systems, by runs, and of what is to be reached. It writes nothing where no other system
// was measured: the section of case turn has Waymark's lines.
func wholeTurns(b *bytes.Buffer, results []Result) {
	all := turnsOf(results)
	if !slices.ContainsFunc(all, func(t *turnLines) bool { return t.system != "Waymark" }) {
		return
	}
	slices.SortStableFunc(all, func(x, y *turnLines) int { return x.runs - y.runs })
	b.WriteString("## Whole turns of several systems\n\n")
	b.WriteString("A turn is the model's answer with two calls and two results, each durable before the next. Figures are medians over the lines of\n" +
		"all files given. \"Executors\" are processes that share the runs; without a number all runs are in one process.\n\n")
	rows := make([][]string, len(all))
	for i, t := range all {
		executors := ""
		if t.executors > 0 {
			executors = fmt.Sprint(t.executors)
		}
		name := t.system
		if t.quick {
			name += " (quick: means nothing)"
		}
		rows[i] = []string{
			name, t.where, fmt.Sprint(t.runs), executors, number(median(t.rate)), number(median(t.p50)), number(median(t.p99)),
			number(median(t.stored)), number(median(t.device)), number(median(t.cpuMicro)), fmt.Sprint(t.lines),
		}
	}
	table(b, []string{"system", "server", "runs", "executors", "turns/s", "p50 us", "p99 us", "stored/payload", "device/payload", "CPU us", "lines"}, rows)
	var aims [][]string
	for _, a := range turnAims {
		for _, ours := range all {
			if ours.system != "Waymark" || ours.quick || ours.runs != a.runs || (ours.executors == ours.runs) != a.executors {
				continue
			}
			theirs := slices.IndexFunc(all, func(t *turnLines) bool {
				return strings.HasPrefix(t.system, comparedWith+" ") && strings.HasSuffix(t.where, turnSource) && t.runs == a.runs && !t.quick
			})
			if theirs < 0 {
				continue
			}
			what, limit, mine, other := "p50 us", "at most ", median(ours.p50), median(all[theirs].p50)
			if a.rate {
				what, limit, mine, other = "turns/s", "at least ", median(ours.rate), median(all[theirs].rate)
			}
			by := ratio(mine, other)
			verdict := "**missed**"
			if by != nil && (a.rate && *by >= a.limit || !a.rate && *by <= a.limit) {
				verdict = "reached"
			}
			size := runsText(a.runs)
			if a.executors {
				size += ", an executor process each"
			}
			aims = append(aims, []string{size, ours.where, what, limit + number(&a.limit), number(mine), number(other), number(by), verdict})
		}
	}
	if len(aims) > 0 {
		markdown(b, []string{"turns", "server", "what", "to reach, by " + comparedWith, "Waymark", comparedWith, "by " + comparedWith, ""}, aims)
	}
}
