package output

import (
	"fmt"
	"io"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/term"

	"github.com/waymarkio/waymark/schema"
)

// PipeWidth is the text width if standard output is not a terminal, and leastWidth the minimum on a terminal.
const (
	PipeWidth  = 100
	leastWidth = 40
)

// Page is standard output with the width for its tables and text.
type Page struct {
	io.Writer
	width int
	// whole: the reader is a program. Text is still wrapped at width, but tables have all of their columns, and nothing
	// is cut.
	whole bool
}

// NewPage determines the width: from COLUMNS, otherwise from the terminal. If there is neither, the page is whole.
func NewPage(w io.Writer, getenv func(string) string) Page {
	if width, err := strconv.Atoi(getenv("COLUMNS")); err == nil && width > 0 {
		return Page{w, max(width, leastWidth), false}
	}
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 { //nolint:gosec // a file descriptor
			return Page{w, max(columns, leastWidth), false}
		}
	}
	return Page{w, PipeWidth, true}
}

// WidthOf is the width at which text on w is wrapped.
func WidthOf(w io.Writer) int {
	if p, ok := w.(Page); ok {
		return p.width
	}
	return PipeWidth
}

// PageLike writes to w with the width of another page.
func PageLike(other, w io.Writer) Page { return Page{w, WidthOf(other), MostOf(other) == math.MaxInt} }

// MostOf is the width beyond which a line on w is shortened.
func MostOf(w io.Writer) int {
	if p, ok := w.(Page); ok && !p.whole {
		return p.width
	}
	return math.MaxInt
}

// MinColumn is the minimum width of a column that may shrink.
const MinColumn = 6

// Document prints one JSON document.
func Document(w io.Writer, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	_, err = w.Write(append(Escaped(b), '\n'))
	return err
}

// Line prints one JSON document on a line of its own.
func Line(w io.Writer, v any) error {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		return fmt.Errorf("encoding the answer: %w", err)
	}
	_, err = w.Write(append(Escaped(b), '\n'))
	return err
}

// Column is a column of a table.
type Column struct {
	Title string
	// Right aligns numbers.
	Right bool
	// Drop: the column may be left out if the table is too wide; 1 goes first, 0 stays.
	Drop int
	// Shrinks: the column may be cut if the table is still too wide. Columns of ids never are, because ids are pasted.
	Shrinks bool
	// Wraps: a column that shrinks is wrapped instead of cut.
	Wraps bool
}

// Table prints rows below their titles, within the width of w as far as its columns allow. Without rows it prints
// nothing.
func Table(w io.Writer, columns []Column, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	widths := make([]int, len(columns))
	for i, c := range columns {
		widths[i] = text.StringWidthWithoutEscSequences(c.Title)
	}
	for _, row := range rows {
		for i := range row {
			row[i] = Printable(row[i])
			widths[i] = max(widths[i], text.StringWidthWithoutEscSequences(row[i]))
		}
	}
	columns, rows, widths = dropped(columns, rows, widths, MostOf(w))
	fit(columns, widths, MostOf(w))
	t := table.NewWriter()
	t.SetStyle(plain)
	header := make(table.Row, len(columns))
	configs := make([]table.ColumnConfig, len(columns))
	for i, c := range columns {
		header[i] = c.Title
		configs[i] = table.ColumnConfig{Number: i + 1, Align: text.AlignLeft, AlignHeader: text.AlignLeft}
		if c.Right {
			configs[i].Align, configs[i].AlignHeader = text.AlignRight, text.AlignRight
		}
		if c.Wraps {
			configs[i].WidthMax, configs[i].WidthMaxEnforcer = widths[i], text.WrapSoft
		}
	}
	t.AppendHeader(header)
	t.SetColumnConfigs(configs)
	for _, row := range rows {
		cells := make(table.Row, len(row))
		for i := range row {
			cells[i] = row[i]
			if !columns[i].Wraps {
				cells[i] = text.Snip(row[i], widths[i], "…")
			}
		}
		t.AppendRow(cells)
	}
	var b strings.Builder
	for l := range strings.Lines(t.Render()) {
		b.WriteString(strings.TrimRight(l, " \n"))
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// plain is a table without lines, two spaces between columns.
var plain = table.Style{
	Box:     table.BoxStyle{PaddingRight: "  "},
	Format:  table.FormatOptions{Header: text.FormatUpper},
	Options: table.OptionsNoBordersAndSeparators,
}

// tableWidth is the width of a table with two spaces between columns.
func tableWidth(widths []int) int {
	total := -2
	for _, w := range widths {
		total += w + 2
	}
	return total
}

// dropped leaves out optional columns, one after the other, until the table fits.
func dropped(columns []Column, rows [][]string, widths []int, most int) ([]Column, [][]string, []int) {
	for tableWidth(widths) > most {
		first := -1
		for i, c := range columns {
			if c.Drop > 0 && (first < 0 || c.Drop < columns[first].Drop) {
				first = i
			}
		}
		if first < 0 {
			break
		}
		columns, widths = slices.Delete(slices.Clone(columns), first, first+1), slices.Delete(widths, first, first+1)
		for i, row := range rows {
			rows[i] = slices.Delete(row, first, first+1)
		}
	}
	return columns, rows, widths
}

// fit reduces the columns that may shrink, the widest first, until the table fits.
func fit(columns []Column, widths []int, most int) {
	for total := tableWidth(widths); total > most; total-- {
		widest := -1
		for i, c := range columns {
			if c.Shrinks && widths[i] > MinColumn && (widest < 0 || widths[i] >= widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return
		}
		widths[widest]--
	}
}

// commandInLine finds a line that is a command or ends with one.
var commandInLine = regexp.MustCompile(`(^|: +)waymark `)

// Hanging is a line that begins with head, which is printable; text beyond the width of w is wrapped and aligned below
// the start of the text. Words are never broken, because ids are pasted, and a command stays on its line. A page for a
// program has one line.
func Hanging(w io.Writer, head, s string) string {
	s = Printable(s)
	indent := text.StringWidthWithoutEscSequences(head)
	most := MostOf(w)
	if indent+text.StringWidthWithoutEscSequences(s) <= most || commandInLine.MatchString(s) {
		return head + s
	}
	var b strings.Builder
	b.WriteString(head)
	at := indent
	for i, word := range strings.Split(s, " ") {
		width := text.StringWidthWithoutEscSequences(word)
		switch {
		case i == 0:
		case at+1+width > most:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			at = indent
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += width
	}
	return b.String()
}

// Fields prints pairs of name and value; empty values are left out. No value is cut, because values are pasted.
func Fields(w io.Writer, pairs ...string) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			width = max(width, len(pairs[i]))
		}
	}
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			b.WriteString(Hanging(w, fmt.Sprintf("%-*s  ", width, pairs[i]), pairs[i+1]) + "\n")
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Printable makes text from outside safe for a terminal and fit for one line: control characters, escapes
// and direction overrides become visible escapes.
func Printable(s string) string {
	clean := true
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			clean = false
			break
		}
	}
	if clean {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			b.WriteByte(' ')
		case r == utf8.RuneError && !strings.HasPrefix(s[i:], "\uFFFD"):
			fmt.Fprintf(&b, `\x%02x`, s[i])
		case !unicode.IsPrint(r):
			quoted := strconv.QuoteRuneToASCII(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Number prints a number, nothing for zero.
func Number[T ~int | ~int32 | ~int64 | ~uint32 | ~uint64](n T) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d", n)
}

// PastLabel is the label of an action that a command, or an earlier one, has done.
func PastLabel(past string, already bool) string {
	if already {
		return past + " already"
	}
	return past
}

// Plural is a count with its noun, which takes an s unless another plural is given.
func Plural[T ~int | ~int32 | ~int64 | ~uint64](n T, noun string, more ...string) string {
	return fmt.Sprintf("%d %s", n, InNumber(n, noun, append(more, noun+"s")[0]))
}

// InNumber is the form of a word for a count.
func InNumber[T ~int | ~int32 | ~int64 | ~uint64](n T, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// Bytes prints a size for people.
func Bytes(n int64) string {
	const unit = 1024
	if n < unit {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, units := float64(n), "KMGTPE"
	i := -1
	for f >= unit && i < len(units)-1 {
		f /= unit
		i++
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[i:i+1] + "iB"
}

// Ago prints how long before now an RFC 3339 time was; other text stays unchanged.
func Ago(at string, now time.Time) string {
	if at == "" {
		return ""
	}
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return at
	}
	d := now.Sub(t)
	switch {
	case d < 0:
		return t.Local().Format(time.DateTime)
	case d < time.Minute:
		return fmt.Sprintf("%ds ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh ago", int(d.Hours()))
	}
	return t.Local().Format(time.DateOnly)
}

// LocalTime prints an RFC 3339 time in the local time zone; other text stays unchanged.
func LocalTime(at string) string {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return at
	}
	return t.Local().Format(time.DateTime)
}

// Wrapped is text from outside as a block: indented by two, within a width, with its own line breaks.
func Wrapped(s string, width int) string { return block(s, width, text.WrapSoft) }

// Indented is a JSON value from outside as a block; nothing for none. Its lines are not broken, so that it can be pasted.
func Indented(v jsontext.Value) string {
	if len(v) == 0 {
		return ""
	}
	v = v.Clone()
	_ = v.Indent(jsontext.WithIndent("  ")) // invalid JSON stays unchanged
	return block(string(v), 0, nil)
}

// block indents text by two and breaks its lines, unless wrap is nil; the indent of a line is kept for its parts.
func block(s string, width int, wrap func(string, int) string) string {
	var b strings.Builder
	for l := range strings.Lines(s) {
		l = Printable(strings.TrimRight(l, "\r\n"))
		if wrap == nil {
			b.WriteString(strings.TrimRight("  "+l, " ") + "\n")
			continue
		}
		rest := strings.TrimLeft(l, " ")
		indent := "  " + l[:min(len(l)-len(rest), width/2)]
		for part := range strings.Lines(wrap(rest, width-len(indent))) {
			b.WriteString(strings.TrimRight(indent+strings.TrimRight(part, "\n"), " ") + "\n")
		}
	}
	return b.String()
}

// IsTerminal reports whether a stream is a terminal, or a [Page] on one.
func IsTerminal(stream any) bool {
	if p, ok := stream.(Page); ok {
		stream = p.Writer
	}
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor
}

// Words joins the non-empty words.
func Words(list ...string) string {
	kept := list[:0]
	for _, w := range list {
		if w != "" {
			kept = append(kept, w)
		}
	}
	return strings.Join(kept, ", ")
}

// Position is a position in the log with its event.
func Position(p schema.Position) string { return fmt.Sprintf("%d (%s)", p.Stream, p.ID) }

// Clock is the local time of day of an event's time.
func Clock(at string) string {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return ""
	}
	return t.Local().Format("15:04:05.000")
}

// InColumn is an id in a column of an endless table: padded to that width, within limits, and never cut.
func InColumn(id string, width int) string {
	return text.Pad(Printable(id), min(max(width, 12), schema.MaxName), ' ')
}
