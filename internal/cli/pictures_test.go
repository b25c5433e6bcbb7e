package cli

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pictures are the terminal pictures of docs/looking.md: a command in colour, at the width that the page shows. -update draws them.
var pictures = []struct {
	name, command string
	world         func(*testing.T) *world
	width         int
}{
	{"show", "runs show fix-login", storied, 100},
	{"artifacts", "artifacts fix-login", storied, 100},
	{"stuck", "runs ls --stuck", stalled, 100},
	{"inbox", "inbox", stalled, 100},
}

func TestPictures_Page_Exist(t *testing.T) {
	t.Parallel()
	for _, p := range pictures {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join("..", "..", "docs", "pictures", fmt.Sprintf("%s-%d.svg", p.name, p.width))
			if *update {
				require.NoError(t, os.WriteFile(file, draw(p.world(t).coloured(p.width, strings.Fields(p.command)...), p.command, p.width), 0o644))
			}
			text, err := os.ReadFile(file)
			require.NoError(t, err, "draw it with: go test ./internal/cli -run Pictures -update")
			require.NoError(t, xml.Unmarshal(text, new(struct{})))
			require.Contains(t, string(text), "waymark "+p.command)
		})
	}
}

// stalled is hanging, once all of it hangs.
func stalled(t *testing.T) *world {
	t.Helper()
	w := hanging(t)
	w.until(func() bool {
		return len(w.stuck()) == 7 && w.stuck()["overdue"].Kind == "overdue" && w.stuck()["quarantined"].Kind == "quarantined"
	})
	moved := w.Now()
	w.until(func() bool { return time.Now().After(moved) }) // nothing on a picture is of the future
	return w
}

// coloured runs a command as on a terminal in colour.
func (w *world) coloured(width int, args ...string) string {
	w.t.Helper()
	getenv := func(name string) string {
		return map[string]string{"COLUMNS": strconv.Itoa(width), "WAYMARK_STATE_DIR": w.StateDir(), "FORCE_COLOR": "1"}[name]
	}
	var out bytes.Buffer
	require.Zero(w.t, Run(w.t.Context(), args, getenv, nil, &out, &out))
	return out.String()
}

// colours of a terminal's foreground, on the dark ground of the pictures.
var colours = map[string]string{"31": "#ff7b72", "32": "#7ee787", "33": "#f2cc60", "36": "#79c0ff"}

var escape = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// draw is the picture of a terminal.
func draw(out, command string, width int) []byte {
	const cell, height = 8.4, 18
	lines := append([]string{"$ waymark " + command}, strings.Split(strings.TrimRight(out, "\n"), "\n")...)
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" role="img" aria-label="%s in a terminal of %d columns">`+"\n",
		float64(width)*cell+24, len(lines)*height+24, "waymark "+command, width)
	b.WriteString(`<rect width="100%" height="100%" rx="6" fill="#0d1117"/>` + "\n")
	b.WriteString(`<g font-family="ui-monospace,Menlo,Consolas,monospace" font-size="14" fill="#e6edf3" xml:space="preserve">` + "\n")
	for i, line := range lines {
		fmt.Fprintf(&b, `<text x="12" y="%d">`, i*height+26)
		at, colour := 0, ""
		span := func(text string) {
			if text == "" {
				return
			}
			if colour != "" {
				fmt.Fprintf(&b, `<tspan fill="%s">`, colour)
			}
			_ = xml.EscapeText(&b, []byte(text)) // a buffer takes all
			if colour != "" {
				b.WriteString("</tspan>")
			}
		}
		for _, m := range escape.FindAllStringSubmatchIndex(line, -1) {
			span(line[at:m[0]])
			at, colour = m[1], colours[line[m[2]:m[3]]]
		}
		span(line[at:])
		b.WriteString("</text>\n")
	}
	b.WriteString("</g>\n</svg>\n")
	return b.Bytes()
}
