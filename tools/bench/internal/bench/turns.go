package bench

import (
	"fmt"
	"slices"
)

// turnLines are the lines of one system under the same conditions. The figures are their medians.
type turnLines struct {
	system, where                            string
	runs, executors                          int
	lines                                    int
	quick                                    bool
	rate, p50, p99, stored, device, cpuMicro []float64
}

// turnsOf groups the lines of whole turns, in the order in which each group first appears.
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
			t := of(turnLines{system: "Waymark", where: r.where(), runs: r.parameter("runs"), executors: r.parameter("executors"), quick: r.Quick})
			keep(&t.rate, r.Ours.PerSecond)
			keep(&t.p50, r.Ours.P50)
			keep(&t.p99, r.Ours.P99)
			keep(&t.stored, r.StoredPerPayload)
			keep(&t.device, r.DevicePerPayload)
			keep(&t.cpuMicro, r.cpu())
		}
	}
	return all
}

// WholeTurnsTable returns a row for each system and condition, by runs: system, server, runs, executor processes (empty:
// all runs in one process), turns/s, p50 and p99 in us, stored and device bytes by payload, CPU in us, and the number of
// lines behind the medians.
func WholeTurnsTable(results []Result) [][]string {
	all := turnsOf(results)
	slices.SortStableFunc(all, func(x, y *turnLines) int { return x.runs - y.runs })
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
	return rows
}
