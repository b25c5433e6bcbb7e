package cli

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inspector"
	"github.com/waymarkio/waymark/internal/look/operate"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

var csrfField = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// post sends a form of a page with more fields, and returns the page behind it.
func (b *browser) post(from, to string, fields url.Values) (int, string) {
	b.Helper()
	found := csrfField.FindStringSubmatch(b.page(from))
	require.NotNil(b, found, "%s has no form", from)
	fields.Set("csrf", found[1])
	response, err := b.PostForm(b.url+to, fields)
	require.NoError(b, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	require.NoError(b, response.Body.Close())
	return response.StatusCode, string(body)
}

// dialing connects to this machine whatever the name: browsers resolve *.localhost, and resolvers of Go need not.
var dialing = &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
}}

// browser is a viewer of the pages of a command that runs.
type browser struct {
	*testing.T
	http.Client
	url string
	// file has the address that lets a browser in.
	file string
	// out is all that the command printed.
	out *lockedBuffer
}

// browse runs waymark ui until the test ends, and enters.
func browse(t *testing.T, getenv func(string) string, args ...string) *browser {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	stdout, out, done := newLineWriter(), new(lockedBuffer), make(chan int, 1)
	go func() {
		done <- Run(ctx, append([]string{"ui", "--json"}, args...), getenv, strings.NewReader(""), stdout, out)
	}()
	t.Cleanup(func() {
		cancel()
		require.Zero(t, <-done, out.String())
	})
	var line struct {
		URL  string `json:"url"`
		File string `json:"file"`
	}
	select {
	case text := <-stdout.first:
		require.NoError(t, json.Unmarshal([]byte(text), &line))
	case code := <-done:
		done <- 0
		t.Fatalf("waymark ui ended with %d: %s", code, out)
	}
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	require.Empty(t, line.URL, "this output is no terminal")
	b := &browser{T: t, Client: http.Client{Jar: jar, Transport: dialing}, file: line.File, out: out}
	b.url = b.address()
	if at, entrance, ok := strings.Cut(b.url, "/enter"); ok {
		b.url = at
		b.page("/enter" + entrance)
	}
	return b
}

// address is the one in the file now.
func (b *browser) address() string {
	b.Helper()
	text, err := os.ReadFile(b.file)
	require.NoError(b, err)
	return strings.TrimSpace(string(text))
}

func (b *browser) page(path string) string {
	b.Helper()
	response, err := b.Get(b.url + path)
	require.NoError(b, err)
	defer func() { require.NoError(b, response.Body.Close()) }()
	body, err := io.ReadAll(response.Body)
	require.NoError(b, err)
	require.Equal(b, http.StatusOK, response.StatusCode, "%s: %s", path, body)
	return string(body)
}

func TestUI_TokenWasUsed_AnotherIsInTheFile(t *testing.T) {
	t.Parallel()
	w := hanging(t)
	getenv := func(name string) string { return map[string]string{"WAYMARK_STATE_DIR": w.StateDir()}[name] }
	b := browse(t, getenv)
	require.Eventually(t, func() bool { return strings.Contains(b.page("/"), "quarantined") }, securedWait, pollEvery)
	require.Eventually(t, func() bool { return strings.Contains(b.page("/needs-you"), `href="/run/quarantined"`) }, securedWait, pollEvery)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	second := &browser{T: t, Client: http.Client{Jar: jar, Transport: dialing}, url: b.url}
	at, token, _ := strings.Cut(b.address(), "/enter")
	require.Equal(t, b.url, at)
	second.page("/enter" + token)
	second.page("/health")
	require.NotContains(t, b.out.String(), "enter", "standard error may be a log")
	if runtime.GOOS != "windows" {
		info, err := os.Stat(b.file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
}

func TestUI_ObserversCredentials_HaveNoButtonsAndNoRights(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	k.serve(t)
	run, err := k.executor(t, "box-1").Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which?"}))
	where := func(role access.Role) []string {
		return []string{"--fleet", keyedFleet, "--context", k.context(keyedFleet, role)}
	}
	observer, operator := browse(t, k.getenv, where(access.Observer)...), browse(t, k.getenv, where(access.Operator)...)
	for _, b := range []*browser{observer, operator} {
		require.Eventually(t, func() bool { return strings.Contains(b.page("/needs-you"), "Which?") }, securedWait, pollEvery)
		for _, path := range []string{"/", "/run/asks", "/run/asks/conversation", "/run/asks/recovery", "/run/asks/act", "/executors", "/executors?executor=box-1", "/health"} {
			require.NotContains(t, b.page(path), `role="alert">These credentials`, path)
		}
	}
	require.Contains(t, operator.page("/needs-you"), `action="/needs-you/answer"`)
	require.NotContains(t, observer.page("/needs-you"), `method="post"`)
	response, err := observer.PostForm(observer.url+"/needs-you/answer", url.Values{})
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.NotEqual(t, http.StatusOK, response.StatusCode)

	// Whatever the page shows, the server refuses what the credentials may not do.
	options := k.options(t, keyedFleet, access.Observer)
	own, err := nats.Connect(k.addr, options[0], options[2], options[3], nats.ErrorHandler(nil))
	require.NoError(t, err)
	defer own.Close()
	source, err := inspector.Connect(t.Context(), publisher.Config{Conn: own, Fleet: keyedFleet, RequestTimeout: securedWait})
	require.NoError(t, err)
	err = source.Ask(t.Context(), schema.VerbInput, "asks", schema.InputRequest{InterruptID: "q", Payload: []byte(`1`), By: "eve"}, new(schema.ControlReply))
	require.ErrorIs(t, err, publisher.ErrNotPermitted)
	require.Equal(t, failure.Refused, failure.Explain(t.Context(), err).Code)
	err = source.As(t.Context(), "eve", func(f *publisher.Fleet) error {
		_, err := operate.Release(t.Context(), f, "asks", 1, schema.TakeoverRequest)
		return err
	})
	require.ErrorIs(t, err, publisher.ErrNotPermitted)

	// What an operator's page does passes the server.
	code, page := operator.post("/run/asks/act", "/run/asks/act/fork", url.Values{"at": {"end"}, "as": {"asks-2"}, "hold": {"yes"}})
	require.Equal(t, http.StatusOK, code, page)
	require.Contains(t, page, "Forked asks at end as asks-2")
}

func TestUI_OtherAddress_IsRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", "example.org:80", "[::]:0", "127.0.0.1", "127.0.0.2:0"} {
		code, text := command(t, t.TempDir(), "ui", "--listen", address)
		require.Equal(t, int(failure.Usage), code, "%v: %s", address, text)
		require.Contains(t, text, "hint: ")
	}
}

// A colleague may paste the commands of the pages: they name no file of the viewer.
func TestUI_ContextIsAFile_CommandsNameNoFileOfTheViewer(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	k.serve(t)
	path := k.context(keyedFleet, access.Operator)
	b := browse(t, os.Getenv, "--fleet", keyedFleet, "--context", path)
	page := b.page("/?status=stuck")
	require.Contains(t, page, "<code>waymark --fleet "+keyedFleet+" runs ls --stuck</code>")
	require.Contains(t, page, "The same in a terminal, with your own --context:")
	require.NotContains(t, page, filepath.Dir(path))
	home := t.TempDir()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(home, "nats", "context"), 0o700))
	named := filepath.Join(home, "nats", "context", "harbour.json")
	require.NoError(t, os.WriteFile(named, text, 0o600))
	getenv := func(name string) string { return map[string]string{"XDG_CONFIG_HOME": home}[name] }
	b = browse(t, getenv, "--fleet", keyedFleet, "--context", named)
	page = b.page("/?status=stuck")
	require.Contains(t, page, "<code>waymark --context harbour --fleet "+keyedFleet+" runs ls --stuck</code>")
	require.Contains(t, page, "The same in a terminal:")
}
