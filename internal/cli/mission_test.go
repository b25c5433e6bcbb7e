package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// missionRow is a row of the mission: what it asks for, and the commands that show it.
type missionRow struct {
	number int
	title  string
	did    string // what the executors did, and what to look for
	shown  []shown
}

// shown is a command, as a user types it, and what its output has to say.
type shown struct {
	command string
	// first is the number of lines of the output that the page has in any case; it has those with one of the wanted texts, too.
	first int
	// want are expressions that the output matches, and not are those that it does not.
	want, not []string
	// later: the output is of what the daemon does in its own time, so the command is repeated until its output is as wanted.
	later bool
	// before is what another process does before the command, and after what the next command waits for.
	before, after func(m *mission)
}

// The page has each row with its commands and their output. -update writes it.
func TestMission_EachRow_IsShownByItsCommands(t *testing.T) {
	t.Parallel()
	m := missioned(t)
	outputs := make(map[string]string)
	number := 0
	for _, row := range missionRows {
		number++
		require.Equal(t, number, row.number)
		require.NotEmpty(t, row.shown, "row %d", number)
		for _, s := range row.shown {
			require.NotContains(t, outputs, s.command, "a command is in one row")
			outputs[s.command] = m.show(row.number, s)
		}
	}
	require.Equal(t, 31, number)
	require.Empty(t, strings.Join(m.failed, "\n"))
	file := filepath.Join("..", "..", "docs", "mission.md")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(missionPage(outputs)), 0o644))
	}
	stored, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/cli -run Mission -update")
	page := strings.ReplaceAll(string(stored), "\r\n", "\n")
	written := writtenOutputs(page)
	require.Equal(t, missionPage(written), page, "docs/mission.md has other rows or commands; write it with: go test ./internal/cli -run Mission -update")
	for _, row := range missionRows {
		for _, s := range row.shown {
			require.Empty(t, s.missing(written[s.command]), "row %d in docs/mission.md: %s; write it with: go test ./internal/cli -run Mission -update", row.number, s.command)
		}
	}
}

// show runs the command, and returns its output as the page has it.
func (m *mission) show(row int, s shown) string {
	m.t.Helper()
	if s.before != nil {
		s.before(m)
	}
	out := normalised(m.types(s.command))
	if s.later {
		limit := time.Now().Add(20 * time.Second)
		for len(s.missing(out)) > 0 && time.Now().Before(limit) {
			out = normalised(m.types(s.command))
		}
	}
	if missing := s.missing(out); len(missing) > 0 {
		m.failed = append(m.failed, fmt.Sprintf("row %d: %s\n%s\n%s", row, s.command, strings.Join(missing, "\n"), out))
	}
	if s.after != nil {
		s.after(m)
	}
	return s.shortened(out)
}

// missing are the expressions that an output does not keep.
func (s shown) missing(out string) []string {
	var list []string
	for _, want := range s.want {
		if !regexp.MustCompile(`(?m)` + want).MatchString(out) {
			list = append(list, "wanted: "+want)
		}
	}
	for _, not := range s.not {
		if regexp.MustCompile(`(?m)` + not).MatchString(out) {
			list = append(list, "not wanted: "+not)
		}
	}
	return list
}

// shortened are the first lines of an output and those that prove the row.
func (s shown) shortened(out string) string {
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	kept := make([]bool, len(lines))
	for i := range min(s.first, len(lines)) {
		kept[i] = true
	}
	for _, want := range s.want {
		if at := regexp.MustCompile(`(?m)` + want).FindStringIndex(out); at != nil {
			for i := strings.Count(out[:at[0]], "\n"); i <= strings.Count(strings.TrimRight(out[:at[1]], "\n"), "\n"); i++ {
				kept[i] = true
			}
		}
	}
	var b strings.Builder
	last := -1 // the last line that was kept
	for i, line := range lines {
		if !kept[i] {
			continue
		}
		if last >= 0 && last < i-1 {
			b.WriteString("…\n")
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
		last = i
	}
	return b.String()
}

// changing are the parts of outputs that differ from run to run, and what the page has in place of them.
var changing = []struct {
	what *regexp.Regexp
	page string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z`), "2026-01-02T03:04:05Z"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-01-02 03:04:05"},
	{regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3} +\d+ `), "03:04:05.678        1 "},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), strings.Repeat("0123456789abcdef", 4)},
	{regexp.MustCompile(`\b[0-9a-f]{16}\b`), "0123456789abcdef"},
	{regexp.MustCompile(`(\.\d+\.\d+)\.[0-9a-f]{8}\b`), "$1.01234567"},
	{regexp.MustCompile(`\.c\.[\w-]{12}\.`), ".c.0123456789ab."},
	{regexp.MustCompile(`\b[A-Z2-7]{26}\b`), "ABCDEFGHIJKLMNOPQRSTUVWXYZ"},
	{regexp.MustCompile(`ed25519-[\w-]{43}`), "ed25519-0123456789012345678901234567890123456789012"},
	{regexp.MustCompile(`(stream_sequence": ?|\nposition +)\d+`), "${1}1"},
	{regexp.MustCompile(`\d+(?:ms|s|m) ago`), "1s ago"},
	{regexp.MustCompile(`(\.checkpoint)\.\d+`), "$1.1"},
	{regexp.MustCompile(`( seq) \d+( /)`), "$1 1$2"},
	{regexp.MustCompile(`nats://127\.0\.0\.1:\d+`), "nats://127.0.0.1:4222"},
	{regexp.MustCompile(`(?m)^ *\+(?:\d+m )?[\d.]+m?s\b`), "    +1ms"},
	{regexp.MustCompile(`[▏▎▍▌▋▊▉█]+ +[\d.]+m?s\b *`), "█  1ms  "},
	{regexp.MustCompile(`\b\d+(?:\.\d+)?ms\b`), "1ms"},
	{regexp.MustCompile(`(took +)[\dms.]+`), "${1}1s"},
	{regexp.MustCompile(`[\d.]+ KiB`), "1.5 KiB"},
	{regexp.MustCompile(`(waits +)[\d.]+s`), "${1}1s"},
	{regexp.MustCompile(`(\|) \d{4} (\|)`), "$1 1500 $2"},
}

func normalised(out string) string {
	for _, c := range changing {
		out = c.what.ReplaceAllString(out, c.page)
	}
	return out
}

const missionIntro = `# The mission

After this page you have seen each thing that Waymark was asked to do, with a command to type and what it printed.

` + "`go test ./internal/cli -run Mission`" + ` runs all of it on one fleet, and writes this page with ` + "`-update`" + `. Outputs are
shortened; times, ids, positions, ports and durations are fixed. The test plays ` + "`nats`, `curl`, `jq` and `grep`" + ` itself.

`

// missionPage is the page with these outputs, by their commands.
func missionPage(outputs map[string]string) string {
	var b strings.Builder
	b.WriteString(missionIntro)
	for i, row := range missionRows {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %d. %s\n\n%s\n\n```console\n", row.number, row.title, prose(row.did))
		for _, s := range row.shown {
			fmt.Fprintf(&b, "$ %s\n%s", s.command, outputs[s.command])
		}
		b.WriteString("```\n")
	}
	return b.String()
}

// writtenOutputs are the outputs on the page, by their commands.
func writtenOutputs(page string) map[string]string {
	outputs, command, fenced := make(map[string]string), "", false
	for line := range strings.Lines(page) {
		switch {
		case strings.HasPrefix(line, "```"):
			fenced = !fenced
		case !fenced:
		case strings.HasPrefix(line, "$ "):
			command = strings.TrimSpace(strings.TrimPrefix(line, "$ "))
			outputs[command] = ""
		default:
			outputs[command] += line
		}
	}
	return outputs
}
