package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Table is a table of a report. Rows begin with the titles; an empty cell was not measured.
type Table struct {
	// Name is that of its file in docs/performance.
	Name string
	Rows [][]string
}

// record is a line of a table before lines of the same thing are joined: figures become medians.
type record struct {
	key    []string
	values []*float64
}

// Tables are the tables of a report, without those that would be empty: "turns" compares whole turns of several systems, "cases"
// has the lines of all cases, "shown" what they show by the goals.
func Tables(results []Result) (tables []Table) {
	var turns, cases []record
	for _, r := range results {
		if r.Peer != nil {
			turns = append(turns, r.Peer.record())
		} else if r.Ours != nil {
			cases = append(cases, r.record())
			if r.Case == "turn" && r.Parameters["steps"] == "full" {
				turns = append(turns, r.turn("Waymark", r.Ours, r.CPU, r.StoredPerPayload), r.turn("raw JetStream", r.Raw, r.RawCPU, nil))
			}
		}
	}
	for _, t := range []Table{
		medians("turns", "system,server,runs,executors,turns/s,p50 ms,p99 ms,stored/payload,CPU ms,executors' CPU ms,daemon's CPU ms,server's CPU ms,lines", turns),
		medians("cases", "case,server,rate/s,p50 us,p99 us,spread,raw/s,raw p50 us,rate/raw,p50/raw,stored/payload,CPU us,raw CPU us,CPU/raw,lines", cases),
		shown(results),
	} {
		if len(t.Rows) > 1 {
			tables = append(tables, t)
		}
	}
	return tables
}

// medians joins records of the same key, in the order in which each first appears. The last column is the number of records.
func medians(name, titles string, records []record) Table {
	t := Table{Name: name, Rows: [][]string{strings.Split(titles, ",")}}
	lines := make(map[string][]record)
	for _, r := range records {
		key := strings.Join(r.key, "\n")
		if lines[key] = append(lines[key], r); len(lines[key]) == 1 {
			t.Rows = append(t.Rows, r.key)
		}
	}
	for i, row := range t.Rows[1:] {
		all := lines[strings.Join(row, "\n")]
		for column := range all[0].values {
			row = append(row, number(medianOf(all, func(r record) *float64 { return r.values[column] })))
		}
		t.Rows[i+1] = append(row, strconv.Itoa(len(all)))
	}
	return t
}

// medianOf is the median of a figure of several lines, without those that do not have it.
func medianOf[T any](lines []T, figure func(T) *float64) *float64 {
	var values []float64
	for _, l := range lines {
		if v := figure(l); v != nil {
			values = append(values, *v)
		}
	}
	return median(values)
}

// record is the line of a case.
func (r *Result) record() record {
	raw := r.Raw
	if raw == nil {
		raw = new(Figures)
	}
	return record{[]string{r.name(r.title()), r.where()}, []*float64{
		r.Ours.PerSecond, r.Ours.P50, r.Ours.P99, r.Ours.Spread, raw.PerSecond, raw.P50, r.RateRatio, r.P50Ratio,
		r.StoredPerPayload, cpu(r.CPU, "all"), cpu(r.RawCPU, "all"), r.cpuRatio(),
	}}
}

// turn is the line of one side's whole turns.
func (r *Result) turn(system string, f *Figures, used map[string]float64, stored *float64) record {
	executors := "in this process"
	if n, ok := r.Parameters["executors"]; ok {
		executors = fmt.Sprint(n)
	}
	return record{[]string{r.name(system), r.where(), fmt.Sprint(r.Parameters["runs"]), executors}, []*float64{
		f.PerSecond, ms(f.P50), ms(f.P99), stored,
		ms(cpu(used, "all")), ms(cpu(used, "executor")), ms(cpu(used, "daemon")), ms(cpu(used, "server")),
	}}
}

// record is the line of another system, whose runs are all in one process.
func (p *Peer) record() record {
	return record{[]string{(&Result{Quick: p.Quick}).name(p.System), p.Store, strconv.Itoa(p.Runs), "1"}, []*float64{
		p.TurnsPerSecond, ms(p.TurnP50), ms(p.TurnP99), p.StoredPerPayload, ms(sum(p.ClientCPU, p.ServerCPU)), ms(p.ClientCPU), nil, ms(p.ServerCPU),
	}}
}

// name marks what a quick line means.
func (r *Result) name(of string) string {
	if r.Quick {
		return of + " (quick: means nothing)"
	}
	return of
}

// cpu is the processor time of a kind of process in us; nil without one.
func cpu(used map[string]float64, kind string) *float64 {
	if v, ok := used[kind]; ok {
		return &v
	}
	return nil
}

// ms is a time in ms of one in us.
func ms(us *float64) *float64 { return ratio(us, new(1e3)) }

func (r *Result) cpuRatio() *float64 { return ratio(cpu(r.CPU, "all"), cpu(r.RawCPU, "all")) }

// where names the server: "embedded, R1, sync always".
func (r *Result) where() string {
	s := fmt.Sprintf("%s, %s, sync %s", r.Server, r.Replicas, r.Sync)
	if r.Shards > 1 {
		s += fmt.Sprintf(", %d shards", r.Shards)
	}
	if r.Daemons > 0 {
		s += fmt.Sprintf(", %d daemon processes", r.Daemons)
	}
	return s
}

// number formats a figure with three or four significant digits; nil is empty.
func number(v *float64) string {
	switch {
	case v == nil:
		return ""
	case *v >= 100 || *v <= -100:
		return strconv.FormatFloat(*v, 'f', 0, 64)
	case *v >= 10 || *v <= -10:
		return strconv.FormatFloat(*v, 'f', 1, 64)
	}
	return strconv.FormatFloat(*v, 'f', 2, 64)
}

// goal is what a figure of the report is to reach: at most, or at least; neither is only told.
type goal struct {
	what          string
	most, atLeast float64
	figure        func([]Result) *float64
}

// goals are those of the design.
func goals() []goal {
	rate := func(r Result) *float64 { return r.RateRatio }
	p50 := func(r Result) *float64 { return r.P50Ratio }
	cpus := func(r Result) *float64 { return r.cpuRatio() }
	stored := func(r Result) *float64 { return r.StoredPerPayload }
	p50MS := func(r Result) *float64 { return ms(r.Ours.P50) }
	p99MS := func(r Result) *float64 { return ms(r.Ours.P99) }
	const full, one, own = "turn steps=full server=process ", "turn steps=full server=process executors=1 ", "boundary server=process runs="
	list := []goal{
		{"turn of 1 run, p50 by raw's three messages", 1.4, 0, of(one+"runs=1", p50)},
		{"turns/s by raw, 16 runs of one process", 0, 0.8, of(one+"runs=16", rate)},
		{"turns/s by raw, 64 runs of one process", 0, 0.9, of(one+"runs=64", rate)},
		{"turns/s by raw, 64 executors", 0, 0.75, of(full+"executors=64", rate)},
		{"turns/s by raw, 256 executors", 0, 0.55, of(full+"executors=256", rate)},
	}
	for _, client := range []string{"JavaScript", "Go"} {
		for _, c := range []struct {
			what, runs, executors string
			least                 float64
		}{{"16 runs of one process", "16", "1", 3}, {"64 runs of one process", "64", "1", 3}, {"64 executors", "64", "64", 2}} {
			ours := of(full+"runs="+c.runs+" executors="+c.executors, func(r Result) *float64 { return r.Ours.PerSecond })
			theirs := of("peer Restate client="+client+" runs="+c.runs, func(r Result) *float64 { return r.Peer.TurnsPerSecond })
			list = append(list, goal{
				"turns/s, " + c.what + ", by Restate's in one process, " + client, 0, c.least,
				func(all []Result) *float64 { return ratio(ours(all), theirs(all)) },
			})
		}
	}
	return append(list, []goal{
		{"CPU of a turn by raw's writer and server, 1 run", 0, 0, of(one+"runs=1", cpus)},
		{"CPU of a turn by raw's writer and server, 16 runs of one process", 0, 0, of(one+"runs=16", cpus)},
		{"CPU of a turn by raw's writer and server, 16 executors", 0, 0, of(full+"executors=16", cpus)},
		{"turn of 16 executors whose model takes 200 ms, its time apart, p50 ms", 0.8, 0, of("turn steps=timed executors=16", p50MS)},
		{"lone boundary, server apart, p50 by raw", 1.2, 0, of(own+"1", p50)},
		{"lone boundary, server embedded, p50 by raw", 1.2, 0, of("boundary server=embedded runs=1", p50)},
		{"boundaries/s by raw, 64 runs of one process", 0, 1, of(own+"64", rate)},
		{"boundaries/s by raw, 256 runs of one process", 0, 1, of(own+"256", rate)},
		{"fold catching up by raw async publishes", 0, 0.4, of("fold", rate)},
		{"fold lag at 400 boundaries/s, p99 ms", 50, 0, of("lag", p99MS)},
		{"recovery of 20,000 events by raw reads", 0, 0.6, of("recovery view=events turns=6666", rate)},
		{"recovery of 20,000 events, first event, p50 ms", 3, 0, of("recovery view=events turns=6666", p50MS)},
		{"head of a run of 100 events, p50 ms", 3, 0, of("recovery view=head turns=33", p50MS)},
		{"head of a run of 100,000 events, p50 ms", 3, 0, of("recovery view=head turns=33333", p50MS)},
		{"turn of 1 run, bytes stored by payload", 1.6, 0, of(one+"runs=1", stored)},
		{"small steps, bytes stored by payload", 12, 0, of("turn steps=small", stored)},
	}...)
}

// of makes the median of a figure of the lines whose names have all of the words.
func of(words string, figure func(Result) *float64) func([]Result) *float64 {
	return func(all []Result) *float64 {
		return medianOf(all, func(r Result) *float64 {
			name := strings.Fields(r.title() + " server=" + string(r.Server))
			if p := r.Peer; p != nil {
				name = strings.Fields(fmt.Sprintf("peer %s runs=%d client=%s", p.System, p.Runs, p.Client))
			} else if r.Ours == nil {
				return nil
			}
			for word := range strings.FieldsSeq(words) {
				if !slices.Contains(name, word) {
					return nil
				}
			}
			return figure(r)
		})
	}
}

// shown compares the figures with the goals.
func shown(results []Result) Table {
	verdict := map[bool]string{true: "reached", false: "missed"}
	t := Table{Name: "shown", Rows: [][]string{{"line", "measured", "to reach", "verdict"}}}
	for _, g := range goals() {
		v := g.figure(results)
		if v == nil {
			continue
		}
		row := []string{g.what, number(v), "", ""}
		switch {
		case g.most > 0:
			row[2], row[3] = "at most "+number(&g.most), verdict[*v <= g.most]
		case g.atLeast > 0:
			row[2], row[3] = "at least "+number(&g.atLeast), verdict[*v >= g.atLeast]
		}
		t.Rows = append(t.Rows, row)
	}
	return t
}
