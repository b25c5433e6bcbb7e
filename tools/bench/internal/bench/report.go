package bench

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// ReportName is the page of a report; its plots are in the same directory.
const ReportName = "report.md"

// WriteReport writes a page of the results and plots of what grows into a directory, which is made if it is missing, and
// returns the names of the files. Of several lines of the same case and circumstances the last counts,
// save in the table of whole turns, which has their medians.
func WriteReport(dir string, results []Result) (files []string, err error) {
	if len(results) == 0 {
		return nil, fmt.Errorf("%w: there is no line to report", ErrResult)
	}
	all := results
	results, peers := splitPeers(latest(all))
	plots, err := draw(results)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // a report is to be read
		return nil, err
	}
	for _, p := range plots {
		files = append(files, p.file)
		if err := os.WriteFile(filepath.Join(dir, p.file), p.svg, 0o644); err != nil { //nolint:gosec // as above
			return nil, err
		}
	}
	files = append([]string{ReportName}, files...)
	return files, os.WriteFile(filepath.Join(dir, ReportName), page(all, results, peers, plots), 0o644) //nolint:gosec // as above
}

// latest drops lines that a later one measured again.
func latest(results []Result) []Result {
	var kept []Result
	for _, r := range results {
		same := func(o Result) bool { return o.circumstances() == r.circumstances() }
		if i := slices.IndexFunc(kept, same); i >= 0 {
			kept[i] = r
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}

// circumstances are what tells a line from others of its case.
func (r *Result) circumstances() string {
	return fmt.Sprint(title(r.Case, r.Parameters), r.Quick, r.Server, r.Sync, r.Replicas, r.Shards, r.Daemons, r.Peer.circumstances())
}

// where is the server in words: "embedded, R1, sync always".
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

// page is the report in Markdown: results are the last lines of their circumstances, and all has those before them, too.
func page(all, results []Result, peers []Peer, plots []plot) []byte {
	var b bytes.Buffer
	b.WriteString("# Waymark compared with raw JetStream\n\n")
	b.WriteString("Made by `bench report`. Raw and Waymark were measured in turns within each line; rates and p50 are medians over the\n" +
		"rounds. Every event that was written was read back, and its count and digest compared.\n\n")
	if slices.ContainsFunc(results, func(r Result) bool { return r.Quick }) {
		b.WriteString("**Lines of `--quick` only say that a case works; their figures mean nothing.**\n\n")
	}
	machines(&b, results)
	goals(&b, results)
	furtherAims(&b, results)
	wholeTurns(&b, all)
	peerTable(&b, peers, results)
	for _, p := range plots {
		fmt.Fprintf(&b, "## %s\n\n![%s](%s)\n\n", p.title, p.title, p.file)
	}
	var names []string
	for _, r := range results {
		if !slices.Contains(names, r.Case) {
			names = append(names, r.Case)
		}
	}
	for _, name := range names {
		section(&b, name, results)
	}
	return b.Bytes()
}

// machines says where it was measured.
func machines(b *bytes.Buffer, results []Result) {
	var told []string
	for _, r := range results {
		m := r.Machine
		line := fmt.Sprintf("- %s/%s, %d CPUs (%s), GOMAXPROCS %d, kernel %s, store on %s, %s; waymark %s",
			m.OS, m.Arch, m.CPUs, m.CPU, m.GOMAXPROCS, m.Kernel, m.Filesystem, m.Go, r.Version)
		if !slices.Contains(told, line) {
			told = append(told, line)
		}
	}
	b.WriteString(strings.Join(told, "\n") + "\n\n")
}

// furtherAims is the table of the aims that the design's table does not have.
func furtherAims(b *bytes.Buffer, results []Result) {
	var rows [][]string
	for _, r := range results {
		for _, a := range r.Aims {
			if a.Goal != "" && !r.Quick {
				continue
			}
			verdict := a.verdict()
			if !a.Reached {
				verdict = "**" + verdict + "**"
			}
			rows = append(rows, []string{title(r.Case, r.Parameters), r.where(), a.What, a.limit(), number(&a.Value), verdict})
		}
	}
	if len(rows) > 0 {
		b.WriteString("## Further aims\n\n")
		markdown(b, []string{"line", "server", "what", "to reach", "measured", ""}, rows)
	}
}

// figureColumns are the figures of a line that a table may have.
var figureColumns = []struct {
	title string
	of    func(r *Result) *float64
}{
	{"per second", func(r *Result) *float64 { return r.Ours.PerSecond }},
	{"MB/s", func(r *Result) *float64 { return r.Ours.MBPerSecond }},
	{"p50 us", func(r *Result) *float64 { return r.Ours.P50 }},
	{"p99 us", func(r *Result) *float64 { return r.Ours.P99 }},
	{"p99.9 us", func(r *Result) *float64 { return r.Ours.P999 }},
	{"spread", func(r *Result) *float64 { return r.Ours.Spread }},
	{"raw per second", func(r *Result) *float64 { return r.Raw.PerSecond }},
	{"raw MB/s", func(r *Result) *float64 { return r.Raw.MBPerSecond }},
	{"raw p50 us", func(r *Result) *float64 { return r.Raw.P50 }},
	{"rate by raw", func(r *Result) *float64 { return r.RateRatio }},
	{"p50 by raw", func(r *Result) *float64 { return r.P50Ratio }},
	{"stored/payload", func(r *Result) *float64 { return r.StoredPerPayload }},
	{"device/payload", func(r *Result) *float64 { return r.DevicePerPayload }},
	{"kept/payload", func(r *Result) *float64 { return r.KeptPerPayload }},
	{"lag p50 us", func(r *Result) *float64 { return r.FoldLagP50 }},
	{"lag p99 us", func(r *Result) *float64 { return r.FoldLagP99 }},
	{"events/checkpoint", func(r *Result) *float64 { return r.EventsPerCheckpoint }},
	{"CPU us", func(r *Result) *float64 { return figureOf(r.CPU, "all") }},
}

func figureOf(m map[string]float64, name string) *float64 {
	if v, ok := m[name]; ok {
		return &v
	}
	return nil
}

// section is a case: a row for each line, with the columns that any line has.
func section(b *bytes.Buffer, name string, results []Result) {
	fmt.Fprintf(b, "## %s\n\n", name)
	if found, err := Find(name); err == nil {
		b.WriteString(found[0].About + "\n\n")
	}
	header := []string{"line", "server"}
	var lines [][]string
	var failed []string
	var extras []Result
	for _, r := range results {
		if r.Case != name {
			continue
		}
		if r.Error != "" {
			failed = append(failed, fmt.Sprintf("- %s, %s FAILED: %s", title(name, r.Parameters), r.where(), r.Error))
			continue
		}
		if len(r.Extra) > 0 {
			extras = append(extras, r)
		}
		if r.Ours == nil {
			r.Ours = new(Figures)
		}
		if r.Raw == nil {
			r.Raw = new(Figures)
		}
		line := []string{title(name, r.Parameters), r.where()}
		for _, c := range figureColumns {
			line = append(line, number(c.of(&r)))
		}
		lines = append(lines, line)
	}
	for _, c := range figureColumns {
		header = append(header, c.title)
	}
	table(b, header, lines)
	further(b, extras)
	if len(failed) > 0 {
		b.WriteString(strings.Join(failed, "\n") + "\n\n")
	}
}

// further is the table of what the case alone measures.
func further(b *bytes.Buffer, results []Result) {
	names := make(map[string]bool)
	for _, r := range results {
		for name := range r.Extra {
			names[name] = true
		}
	}
	columns := sortedKeys(names)
	lines := make([][]string, len(results))
	for i, r := range results {
		lines[i] = []string{title(r.Case, r.Parameters), r.where()}
		for _, name := range columns {
			lines[i] = append(lines[i], number(figureOf(r.Extra, name)))
		}
	}
	header := []string{"line", "server"}
	for _, name := range columns {
		header = append(header, strings.ReplaceAll(name, "_", " "))
	}
	table(b, header, lines)
}

// table writes the columns that any line has; the first two always. It writes nothing for no line.
func table(b *bytes.Buffer, header []string, lines [][]string) {
	for i := len(header) - 1; i >= 2; i-- {
		if !slices.ContainsFunc(lines, func(l []string) bool { return l[i] != "" }) {
			header = slices.Delete(header, i, i+1)
			for j := range lines {
				lines[j] = slices.Delete(lines[j], i, i+1)
			}
		}
	}
	if len(lines) > 0 {
		markdown(b, header, lines)
	}
}

// markdown writes a table.
func markdown(b *bytes.Buffer, header []string, rows [][]string) {
	row := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", "\\|")
		}
		b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
	}
	row(header)
	b.WriteString(strings.Repeat("|---", len(header)) + "|\n")
	for _, r := range rows {
		row(r)
	}
	b.WriteString("\n")
}
