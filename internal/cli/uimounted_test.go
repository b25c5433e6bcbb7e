package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// enter is a viewer of the pages at an address that lets one browser in.
func enter(t *testing.T, address string) *browser {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	at, entrance, ok := strings.Cut(address, "/enter")
	require.True(t, ok, address)
	b := &browser{T: t, Client: http.Client{Jar: jar}, url: at}
	b.page("/enter" + entrance)
	return b
}

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// post sends a form of a page with more fields, and returns the page behind it.
func (b *browser) post(from, to string, fields url.Values) (int, string) {
	b.Helper()
	found := csrfField.FindStringSubmatch(b.page(from))
	require.NotNil(b, found, "%s has no form", from)
	fields.Set("csrf", found[1])
	response, err := b.PostForm(b.url+to, fields)
	require.NoError(b, err)
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	require.NoError(b, err)
	require.NoError(b, response.Body.Close())
	return response.StatusCode, body.String()
}

func TestServe_UI_ServesThePagesOfItsOwnServer(t *testing.T) {
	t.Parallel()
	nc, ready := startServe(t, "--ui")
	b := enter(t, ready.UI)
	f, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "box-1", Agent: "coder"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which?"}))
	require.Eventually(t, func() bool {
		page := b.page("/needs-you")
		return strings.Contains(page, "Which?") && strings.Contains(page, `action="/needs-you/answer"`)
	}, securedWait, pollEvery)
}

func TestServe_UIOfAServerThatIsJoined_NamesTheCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{"serve", "--ui", "--nats", "nats://127.0.0.1:1", "--http", "off"}, "waymark --nats nats://127.0.0.1:1 ui"},
		{[]string{"serve", "--ui", "--ui-listen", "0.0.0.0:0"}, "waymark ui --listen"},
		{[]string{"serve", "--ui", "--ui-listen", "here"}, "is not an address"},
		{[]string{"demo", "--ui", "--ui-listen", "[::]:80"}, "not of this machine alone"},
	} {
		code, text := command(t, dir, test.args...)
		require.Equal(t, int(failure.Usage), code, "%v: %s", test.args, text)
		require.Contains(t, text, test.says, "%v", test.args)
	}
}

// A viewer kills an executor of the demonstration, and sees another go on with its runs.
func TestDemo_UIKillsAnExecutor_AnotherGoesOn(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes, and a silence")
	}
	if runtime.GOOS == "windows" {
		t.Skip("windows cannot send an interrupt to one process: run this test on another system")
	}
	t.Parallel()
	// A process begun by nohup ignores it, and so do its children, unless it is caught.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	temp := t.TempDir()
	cmd := exec.CommandContext(context.Background(), "waymark", "demo", "--ui", "--json")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
	stderr := new(lockedBuffer)
	cmd.Stderr = stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // gone, unless the test failed
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err, stderr)
	var ready struct {
		URL string `json:"url"`
	}
	require.NoError(t, json.Unmarshal(line, &ready))
	b := enter(t, ready.URL)
	require.Eventually(t, func() bool {
		return strings.Contains(b.page("/tail?type=turn.started"), "executor ada") || strings.Contains(b.page("/tail?type=run.resumed"), "executor ada")
	}, securedWait, pollEvery)
	code, page := b.post("/", "/stage/kill", url.Values{"name": {"ada"}, "here": {"/health"}})
	require.Equal(t, http.StatusOK, code, page)
	require.Contains(t, page, "Killed ada with SIGKILL")
	require.Contains(t, page, "Health", "it goes on where the button was")
	code, page = b.post("/", "/stage/kill", url.Values{"name": {"ada"}, "here": {"/"}})
	require.Equal(t, http.StatusConflict, code)
	require.Contains(t, page, "ada was killed already")
	orphaned := regexp.MustCompile(`href="/run/(order-\d+)"[^!]*?run\.orphaned</th><td class="detail">executor ada`)
	var run string
	require.Eventually(t, func() bool {
		if found := orphaned.FindStringSubmatch(b.page("/tail?type=run.orphaned")); found != nil {
			run = found[1]
		}
		return run != "" && regexp.MustCompile(`run\.resumed</th><td class="detail">executor (bob|cleo), claim`).MatchString(b.page("/tail?type=run.resumed&run="+run))
	}, securedWait, pollEvery)
	require.Contains(t, b.page("/run/"+run), "taken over")
	for _, bad := range []url.Values{{"name": {"eve"}, "here": {"/"}}, {"name": {"bob"}, "here": {"//elsewhere"}}} {
		code, page = b.post("/", "/stage/kill", bad)
		require.NotEqual(t, http.StatusOK, code, page)
	}
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), stderr.String())
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is still there")
}

func TestDemo_PortOfThePagesIsTaken_SaysSoAndStartsNothing(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close() //nolint:errcheck // a test's
	code, text := command(t, t.TempDir(), "demo", "--ui", "--no-open", "--ui-listen", taken.Addr().String())
	require.Equal(t, int(failure.Unavailable), code, text)
	require.Contains(t, text, "choose another address")
}

// A terminal that is closed ends the demonstration as Ctrl-C does.
func TestDemo_TerminalIsClosed_LeavesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes")
	}
	if runtime.GOOS == "windows" {
		t.Skip("windows has no hangup: its consoles end processes otherwise")
	}
	t.Parallel()
	// A process begun by nohup ignores it, and so do its children, unless it is caught.
	caught := make(chan os.Signal, 1)
	signal.Notify(caught, syscall.SIGHUP)
	defer signal.Stop(caught)
	temp := t.TempDir()
	cmd := exec.CommandContext(context.Background(), "waymark", "demo", "--ui", "--json", "--no-open")
	cmd.Env = append(os.Environ(), "TMPDIR="+temp, "GORACE=atexit_sleep_ms=0")
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // gone, unless the test failed
	_, err = bufio.NewReader(stdout).ReadBytes('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	require.NoError(t, cmd.Wait())
	left, err := os.ReadDir(temp)
	require.NoError(t, err)
	require.Empty(t, left)
}
