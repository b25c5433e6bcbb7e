package cli

import (
	"bytes"
	"context"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
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
		{[]string{"serve", "--ui", "--ui-listen", "[::]:80"}, "waymark ui --listen"},
	} {
		code, text := command(t, dir, test.args...)
		require.Equal(t, int(failure.Usage), code, "%v: %s", test.args, text)
		require.Contains(t, text, test.says, "%v", test.args)
	}
}
