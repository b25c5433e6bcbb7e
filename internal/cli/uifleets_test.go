package cli

import (
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// One look at the switch tells which fleet is in trouble: what is stuck, what needs a person, and which one is not reached.
// The second fleet comes, goes and comes again while the pages are open.
func TestUI_SeveralFleets_TheSwitchTellsWhichIsInTrouble(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon is started twice")
	}
	k := startKeyed(t)
	k.serve(t)
	run, err := k.executor(t, "box-1").Start(t.Context(), publisher.RunSpec{ID: "asks"})
	require.NoError(t, err)
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which?"}))
	state := filepath.Join(t.TempDir(), "state")
	b := browse(t, k.getenv, "--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Operator),
		"--also", "default="+filepath.Join(state, "nats", "waymark.json"), "--also", "search=nowhere")
	has := func(path string, parts ...string) {
		t.Helper()
		require.Eventually(t, func() bool {
			page := b.page(path)
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(page, part) })
		}, securedWait, pollEvery, "%s has not all of %q", path, parts)
	}
	unreachable := `>default <b class="bad">unreachable</b></a>`
	has("/", `<a href="/in/payments/" aria-current="true">payments <b class="bad">1 stuck</b> <b class="count">1 need you</b></a>`, unreachable, `>search <b class="bad">unreachable</b></a>`)
	response, err := b.Get(b.url + "/in/search/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusBadRequest, response.StatusCode)
	response, err = b.Get(b.url + "/in/none/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusNotFound, response.StatusCode)

	start := func() func() (int, string) {
		_, stop, err := startDaemon([]string{"--state-dir", state, "--quota", "64MiB", "--shards", "1"}, k.getenv)
		require.NoError(t, err)
		return stop
	}
	stop := start()
	k.waymark(t, 0, "--state-dir", state, "start", "coder", "--id", "submitted")
	switched := `<a href="/in/default/">default <b class="bad">1 stuck</b></a>`
	has("/", switched)
	code, text := stop()
	require.Zero(t, code, text)
	has("/needs-you", unreachable, "Which?")
	stop = start()
	t.Cleanup(func() { stop() })
	has("/", switched)

	// The pages of the second fleet link to each other, have its forms, and know the first one.
	has("/in/default/", `href="/in/default/run/submitted"`, `data-live="/in/default/live/"`, `>payments <b class="bad">1 stuck</b> <b class="count">1 need you</b></a>`, `src="/in/default/assets/app.js"`)
	require.NotContains(t, b.page("/in/default/"), `="/run/`)
	code, page := b.post("/in/default/run/submitted/act", "/in/default/run/submitted/act/fork", url.Values{"at": {"end"}, "as": {"forked"}, "hold": {"yes"}})
	require.Equal(t, http.StatusOK, code, page)
	require.Contains(t, page, "Forked submitted at end as forked")
	require.Contains(t, page, "<code>waymark runs show forked</code>")
	k.waymark(t, int(failure.NotFound), "--fleet", keyedFleet, "--context", k.context(keyedFleet, access.Operator), "runs", "get", "forked")

	// A form of one fleet is no form of another, and one door is that of all.
	fields := url.Values{"csrf": {csrfField.FindStringSubmatch(b.page("/in/default/run/submitted/act"))[1]}}
	response, err = b.PostForm(b.url+"/run/asks/act/fork", fields)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, http.StatusForbidden, response.StatusCode)
	b.Jar, err = cookiejar.New(nil)
	require.NoError(t, err)
	for _, path := range []string{"/in/default/", "/in/default/live/", "/in/none/", "/in/default/in/payments/"} {
		response, err := b.Get(b.url + path)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusUnauthorized, response.StatusCode, path)
	}
}

func TestUI_AlsoNamesNoOtherFleet_IsRefused(t *testing.T) {
	t.Parallel()
	for _, also := range []string{"default=x", "a.b=x"} {
		code, text := command(t, t.TempDir(), "ui", "--also", also)
		require.Equal(t, int(failure.Usage), code, text)
		require.Contains(t, text, "--also FLEET=CONTEXT")
	}
}
