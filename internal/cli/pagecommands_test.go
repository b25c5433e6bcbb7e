package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// commandPages are the pages whose commands are run in their order, with the ids of the runs that the fleet has before the first one.
var commandPages = map[string][]string{
	"alerts.md":    nil,
	"backup.md":    {"fix", "fix-login"},
	"deploy.md":    nil,
	"history.md":   {"fix"},
	"retention.md": {"fix", "fix-login"},
	"security.md":  nil,
}

// pageBlock is a block of commands on a page: text to be pasted (sh), or commands behind "$ " with what they print (console). A comment
// before it says why it is not run, or which other test runs it.
var pageBlock = regexp.MustCompile("(?ms)(^<!-- (?:not run: [^\n]+|run by `internal/cli.Test(?:SecuredFleet|Fleet)Page[^\n]+) -->\n)?^```(sh|console)\n(.*?)^```$")

// bareCommand is a command outside of a block.
var bareCommand = regexp.MustCompile(`(?m)^ {4,}(?:\$ )?(?:waymark|nats|\.bin/bench|go|make|curl) .*$`)

// Each command on these pages runs, and prints each line that the page shows, in that order. "…" stands for lines, or for the rest of a
// line; numbers and times may differ. -update replaces lines that were printed in other words.
func TestPages_Commands_PrintWhatThePageShows(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("the pages are for a POSIX shell")
	}
	for page, runs := range commandPages {
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join("..", "..", "docs", page)
			written, err := os.ReadFile(file)
			require.NoError(t, err)
			text := strings.ReplaceAll(string(written), "\r\n", "\n")
			require.Empty(t, bareCommand.FindAllString(text, -1), "put commands into a block: ```sh, or ```console with their output")
			w := newPageWorld(t)
			for _, run := range runs {
				w.write(t, run)
			}
			ran := 0
			updated := text
			for _, block := range pageBlock.FindAllStringSubmatch(text, -1) {
				switch {
				case block[1] != "":
					continue
				case block[2] == "sh":
					w.run(t, "-euc", block[3])
				default:
					for _, shown := range strings.Split("\n"+block[3], "\n$ ")[1:] {
						command, want, _ := strings.Cut(shown, "\n")
						out := w.run(t, "-uc", command)
						if *update && want != "" {
							now := reworded(want, out)
							updated = strings.Replace(updated, "\n$ "+shown, "\n$ "+command+"\n"+now, 1)
							want = now
						}
						require.Empty(t, unprinted(want, out), "%s shows of %q what it does not print", page, command)
					}
				}
				ran++
			}
			require.NotZero(t, ran)
			if *update && updated != text {
				require.NoError(t, os.WriteFile(file, []byte(updated), 0o644)) //nolint:gosec // a page
			}
		})
	}
}

// pageWorld is a fleet with a daemon, and the directory in which a page's commands run.
type pageWorld struct {
	dir, http string
}

func newPageWorld(t *testing.T) pageWorld {
	t.Helper()
	return newPageWorldWith(t, "--silence", "10m")
}

func newPageWorldWith(t *testing.T, flags ...string) pageWorld {
	t.Helper()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	require.NoError(t, err)
	w := pageWorld{dir: t.TempDir()}
	for _, part := range []string{"deploy", "docs", "internal"} {
		require.NoError(t, os.Symlink(filepath.Join(root, part), filepath.Join(w.dir, part)))
	}
	args := []string{"--http", "127.0.0.1:0", "--quota", "64MiB"}
	line, stop, err := startDaemon(append(args, flags...), env("WAYMARK_STATE_DIR", filepath.Join(w.dir, "state")))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	w.http = regexp.MustCompile(` http=http://(\S+)`).FindStringSubmatch(line)[1]
	return w
}

// pageRun has the events of each run that the pages show.
const pageRun = `
run.started {"agent":"coder","executor":"coder-1","task":"Mend the sum."}
turn.started@1 {"turn":1,"messages":[{"role":"system","parts":[{"type":"text","content":"You mend code."}]},{"role":"user","parts":[{"type":"text","content":"The sum is wrong."}]}]}
turn.answered@1 {"turn":1,"message":{"role":"assistant","parts":[{"type":"text","content":"I list the files."}]},"calls":[{"tool_call_id":"c1","name":"bash","arguments":{"command":"ls"}}]}
tool.returned@1 {"tool_call_id":"c1","result":"sum.py"}
turn.answered@2 {"turn":2,"message":{"role":"assistant","parts":[{"type":"text","content":"I read it."}]},"calls":[{"tool_call_id":"c2","name":"bash","arguments":{"command":"cat sum.py"}}]}
tool.returned@2 {"tool_call_id":"c2","result":"a - b"}
turn.answered@3 {"turn":3,"message":{"role":"assistant","parts":[{"type":"text","content":"It is a plus."}]},"calls":[{"tool_call_id":"c3","name":"submit","arguments":{}}]}
tool.returned@3 {"tool_call_id":"c3","result":"submitted"}
run.ended {"status":"completed"}
`

// write publishes a run of the pages.
func (w pageWorld) write(t *testing.T, run string) {
	t.Helper()
	events, err := parseScriptEvents(pageRun)
	require.NoError(t, err)
	end, err := natsconn.Discover(t.Context(), filepath.Join(w.dir, "state"))
	require.NoError(t, err)
	require.NoError(t, publishEvents(t.Context(), end, run, events))
}

// run runs commands in a shell and returns what they print. With -e each of them has to succeed, without the last one.
func (w pageWorld) run(t *testing.T, flags, commands string) string {
	t.Helper()
	commands = strings.NewReplacer("127.0.0.1:9477", w.http, "/etc/waymark", filepath.Join(w.dir, "etc")).Replace(commands)
	shell := exec.CommandContext(t.Context(), "sh", flags, commands)
	shell.Dir = w.dir
	shell.Env = []string{
		"HOME=" + w.dir, "PATH=" + os.Getenv("PATH"), "WAYMARK_STATE_DIR=" + filepath.Join(w.dir, "state"), "WAYMARK_QUOTA=64MiB", "COLUMNS=100",
		"GORACE=atexit_sleep_ms=0",
	}
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	require.NoError(t, shell.Run(), "%s\n%s", commands, &out)
	return out.String()
}

var (
	pageNumber = regexp.MustCompile(`\d+`)
	pageSpace  = regexp.MustCompile(` +`)
)

// comparable are the lines of an output without what differs from run to run.
func comparableLines(out string) []string {
	out = pageNumber.ReplaceAllString(normalised(out), "0")
	return strings.Split(strings.TrimRight(pageSpace.ReplaceAllString(out, " "), "\n "), "\n")
}

// unprinted is the first line that a page shows and that the output does not have behind the lines shown before it.
func unprinted(want, out string) string {
	have := comparableLines(out)
	for _, line := range comparableLines(want) {
		if line == "…" || line == "" {
			continue
		}
		at := 0
		for ; at < len(have); at++ {
			begin, cut := strings.CutSuffix(line, "…")
			if have[at] == line || cut && strings.HasPrefix(have[at], begin) {
				break
			}
		}
		if at == len(have) {
			return line + "\n\nit prints:\n" + out
		}
		have = have[at+1:]
	}
	return ""
}

// reworded are the lines that a page shows, each that was not printed replaced by the printed line that has most of its words,
// or its first one.
func reworded(want, out string) string {
	lines, have := strings.Split(want, "\n"), strings.Split(strings.TrimRight(out, "\n"), "\n")
	at := 0
	for i, line := range lines {
		if line == "" || line == "…" {
			continue
		}
		begin, cut := strings.CutSuffix(line, "…")
		words := strings.Fields(comparableLines(begin)[0])
		best, most := -1, len(words)/2
		for n := at; n < len(have); n++ {
			if unprinted(line, have[n]) == "" {
				best, most = n, len(words)+1
				break
			}
			common, first := 0, true
			for word := range strings.FieldsSeq(comparableLines(have[n])[0]) {
				if slices.Contains(words, word) {
					common++
				}
				if first && word == words[0] {
					common += len(words) / 2 // the label of a line
				}
				first = false
			}
			if common = min(common, len(words)); common > most {
				best, most = n, common
			}
		}
		if best < 0 {
			continue
		}
		at = best + 1
		if most > len(words) {
			continue // as it was printed
		}
		lines[i] = strings.TrimRight(have[best], " ")
		if fields := strings.Fields(lines[i]); cut && len(fields) > len(words) {
			last := strings.Index(lines[i], fields[len(words)])
			lines[i] = strings.TrimRight(lines[i][:last], " ") + " …"
		}
	}
	return strings.Join(lines, "\n")
}

func TestReworded_LineInOtherWords_IsReplaced(t *testing.T) {
	t.Parallel()
	const out = "restored  fleet default\nas of     2026-11-27T21:24:26Z, 4s ago\nmessages  58\nstart a daemon, which recreates the checkpoints: waymark serve\n"
	const want = "restored   fleet default\n…\nmessages  57\nstart a daemon, which makes the checkpoints: waymark …\nno such line\n"
	require.Equal(t, "restored   fleet default\n…\nmessages  57\nstart a daemon, which recreates the checkpoints: waymark …\nno such line\n", reworded(want, out))
	require.NotEmpty(t, unprinted(reworded(want, out), out))
}

func TestUnprinted_EachKindOfLine_IsFoundOrPasses(t *testing.T) {
	t.Parallel()
	const out = "run  fix-1\nturn 12  3s ago\n\nnext: go on behind it\n"
	for want, missing := range map[string]bool{
		"run fix-7\n":                false,
		"run fix-1\nturn 9 1s ago":   false,
		"…\nnext: go …":              false,
		"run fix-1\n…\nnext: stop …": true,
		"turn 12 3s ago\nrun fix-1":  true,
		"runs fix-1":                 true,
	} {
		require.Equal(t, missing, unprinted(want, out) != "", want)
	}
}
