package uicheck

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"html"
	"image/png"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// scripted is the address of a provider of the Messages API whose model deploys, and is done once it is told the outcome.
func scripted(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		kind, block, delta, stop := "text", `,"text":""`, `"type":"text_delta","text":"Version 1.4 is live. I did not deploy it again."`, "end_turn"
		if strings.Contains(string(body), `"tools":[{`) && !strings.Contains(string(body), "1.4 is live") {
			kind, block, delta, stop = "tool_use", `,"id":"toolu_01","name":"Bash","input":{}`, `"type":"input_json_delta","partial_json":"{\"command\":\"deploy 1.4\"}"`, "tool_use"
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{
			`"type":"message_start","message":{"id":"m","type":"message","role":"assistant","model":"scripted","content":[],"usage":{"input_tokens":1,"output_tokens":1}}`,
			`"type":"content_block_start","index":0,"content_block":{"type":"` + kind + `"` + block + `}`,
			`"type":"content_block_delta","index":0,"delta":{` + delta + `}`,
			`"type":"content_block_stop","index":0`,
			`"type":"message_delta","delta":{"stop_reason":"` + stop + `"},"usage":{"output_tokens":1}`,
			`"type":"message_stop"`,
		} {
			name, _, _ := strings.Cut(strings.TrimPrefix(event, `"type":"`), `"`)
			_, _ = fmt.Fprintf(w, "event: %s\ndata: {%s}\n\n", name, event)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// machine has a home, and a terminal.
type machine struct {
	*testing.T
	name, home string
	env        []string
	screen     *os.File
}

// run runs a command line in the machine's terminal. Its output is on the screen once it has ended.
func (m *machine) run(line string) *exec.Cmd {
	m.Helper()
	cmd := exec.CommandContext(context.Background(), "sh", "-c", "exec "+line)
	_, err := fmt.Fprintf(m.screen, "%s$ %s\n", m.name, line)
	require.NoError(m, err)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = m.home, m.env, m.screen, m.screen
	require.NoError(m, cmd.Start())
	m.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func (m *machine) text() string {
	text, err := os.ReadFile(m.screen.Name())
	require.NoError(m, err)
	return string(text)
}

func TestClaudeCode_KilledInATool_GoesOnElsewhereOncePersonHasSettled(t *testing.T) {
	needsChromium(t)
	claude := os.Getenv("WAYMARK_CLAUDE")
	if claude == "" {
		t.Skip("no Claude Code: make uicheck fetches it by npm, and names it with WAYMARK_CLAUDE")
	}
	dir, model := t.TempDir(), scripted(t)
	bin, state, live := filepath.Join(dir, "bin"), filepath.Join(dir, "state"), filepath.Join(dir, "live")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-w", "-o", bin+"/", "github.com/waymarkio/waymark/cmd/waymark").CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Symlink(claude, filepath.Join(bin, "claude")))
	// A deployment takes as long as its machine is there.
	require.NoError(t, os.WriteFile(filepath.Join(bin, "deploy"), []byte("#!/bin/sh\n[ $1 = log ] && exec cat "+live+"\necho deployed $1 >>"+live+"\nwhile [ -d \"$HOME\" ]; do sleep 0.1; done\n"), 0o755))
	on := func(name string) *machine {
		m := &machine{T: t, name: name, home: filepath.Join(dir, name)}
		require.NoError(t, os.Mkdir(m.home, 0o700))
		var err error
		m.screen, err = os.OpenFile(filepath.Join(dir, name+".screen"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.screen.Close()) })
		m.env = []string{
			"HOME=" + m.home, "PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "WAYMARK_STATE_DIR=" + state, "WAYMARK_EXECUTOR=" + name, "TMPDIR=" + m.home,
			"ANTHROPIC_API_KEY=sk-ant-scripted", "ANTHROPIC_BASE_URL=" + model, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1",
		}
		return m
	}
	serving(t, "serve", "--state-dir", state, "--http", "off", "--json", "--silence", "2s")
	var line struct{ File string }
	require.NoError(t, json.Unmarshal(serving(t, "ui", "--state-dir", state, "--by", "ann", "--json"), &line))
	s := &scene{T: t, entrance: func() string {
		address, err := os.ReadFile(line.File)
		require.NoError(t, err)
		return strings.TrimSpace(string(address))
	}}
	b := s.open()
	b.sized(960, "dark")
	deployed := func() string {
		text, _ := os.ReadFile(live)
		return string(text)
	}

	laptop, told := on("laptop"), regexp.MustCompile(`waymark plan (\S+)`)
	bridge := laptop.run(`waymark agent run -- claude -p "Deploy 1.4." --allowedTools Bash`)
	require.Eventually(t, func() bool { return deployed() == "deployed 1.4\n" }, time.Minute, 20*time.Millisecond)
	session, err := exec.CommandContext(t.Context(), "sh", "-c", fmt.Sprintf("kill -9 $(cat /proc/%d/task/*/children)", bridge.Process.Pid)).CombinedOutput()
	require.NoError(t, err, string(session))
	require.Error(t, bridge.Wait())
	require.NoError(t, os.Rename(laptop.home, laptop.home+"-is-gone"))
	require.Regexp(t, told, laptop.text())
	id := told.FindStringSubmatch(laptop.text())[1]

	server := on("server")
	worker := server.run("waymark agent serve -- claude --allowedTools Bash 2>>agent.log")
	b.show("/needs-you")
	b.await(`document.querySelector("article.held .why")?.innerText.includes("requires a person") && document.querySelector("#pause").hidden === false`)
	b.do(chromedp.SendKeys(chromedp.CSS("article.held textarea"), `"I looked: 1.4 is live"`+kb.Tab))
	card, asked := b.taken("article.held"), eval[string](b, `document.querySelector("article.held").innerText`)
	b.click("article.held button[value=decided]")
	b.await(`document.querySelector(".said")?.innerText.includes("settled as decided, as ann")`)
	b.show("/run/" + id)
	b.await(`document.body.innerText.includes("completed")`)
	require.NoError(t, worker.Process.Signal(os.Interrupt))
	_, err = fmt.Fprintln(server.screen, "^C")
	require.NoError(t, errors.Join(err, worker.Wait()))
	require.NoError(t, server.run("waymark runs show "+id+" | grep -E 'Bash|taken'").Wait())
	require.NoError(t, server.run("deploy log").Wait())
	b.clean()

	volatile := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}| *\+?[0-9.]+m?s\b`)
	story := volatile.ReplaceAllString(strings.Join([]string{laptop.text(), asked, server.text()}, "\n"), "*")
	t.Log(story)
	for _, said := range []string{"(signal: killed)", "Bash may have run", "settled as decided by ann", "I did not deploy it again."} {
		require.Contains(t, story, said)
	}
	require.True(t, strings.HasSuffix(story, "deploy log\ndeployed 1.4\n"), "it was deployed once")
	name := filepath.Join(folder, "claude-killed.png")
	if *update {
		b.compose(name, story, card, laptop.text(), server.text())
	}
	picture, err := os.ReadFile(name)
	require.NoError(t, err)
	_, drawn, _ := bytes.Cut(picture, []byte("tEXtDescription\x00"))
	require.Contains(t, string(drawn), story, "the picture is of another story: draw it with go test -C tools/uicheck -run ClaudeCode -update")
}

// taken is a picture of an element, two points for each of the page.
func (b *tab) taken(selector string) []byte {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, stepWithin)
	defer cancel()
	taken, err := chromedp.Run(ctx, chromedp.ScreenshotScale(chromedp.CSS(selector), 2))
	require.NoError(b, err)
	return taken
}

// compose writes the picture of a story, with the story's text in it.
func (b *tab) compose(name, story string, card []byte, laptop, server string) {
	b.Helper()
	terminal := func(text string) string {
		text = regexp.MustCompile(`(?m)^(\w+\$) (.*)$`).ReplaceAllString(html.EscapeString(strings.TrimSpace(text)), "<i>$1</i> <b>$2</b>")
		return "<pre>" + text + "</pre>"
	}
	page := `<!doctype html><style>
body { margin: 0; width: 830px; background: #0d1117; color: #c9d1d9; font: 14px/1.35 "DejaVu Sans", sans-serif }
main { border: 1px solid #444c56; padding: 2px 14px 14px }
h1 { font-size: 15px; color: #f0f6fc; margin: 14px 0 7px } h1 i { color: #79c0ff; margin-right: 6px }
pre { margin: 0; padding: 9px 12px; border: 1px solid #30363d; border-radius: 6px; background: #010409; font: 12.5px/1.4 "DejaVu Sans Mono", monospace; white-space: pre-wrap }
i { font-style: normal; color: #7ee787 } b { color: #f0f6fc } img { display: block; width: 100% }
</style><main>
<h1><i>1</i>Laptop: Claude Code is killed with kill -9, in the middle of a tool</h1>` + terminal(laptop) + `
<h1><i>2</i>Inspector: the tool may have had its effect, so a person says what became of it</h1><img src="data:image/png;base64,` + base64.StdEncoding.EncodeToString(card) + `">
<h1><i>3</i>Server: another Claude Code goes on, and deploys nothing twice</h1>` + terminal(server) + `
</main>`
	b.do(chromedp.Navigate("data:text/html;base64,"+base64.StdEncoding.EncodeToString([]byte(page))), chromedp.WaitReady(chromedp.CSS("main")))
	whole, err := png.Decode(bytes.NewReader(b.taken("body")))
	require.NoError(b, err)
	var small bytes.Buffer
	require.NoError(b, (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&small, reduced(whole, 32)))
	chunk := append([]byte("tEXtDescription\x00"), story...)
	at := small.Len() - 12 // before the last chunk
	file := slices.Concat(small.Bytes()[:at], binary.BigEndian.AppendUint32(nil, uint32(len(chunk)-4)), chunk, binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(chunk)), small.Bytes()[at:])
	require.Less(b, len(file), 150<<10)
	require.NoError(b, os.WriteFile(name, file, 0o644))
}
