package inspector

import (
	"bufio"
	"context"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/prompt"
	"github.com/waymarkio/waymark/internal/harness/showcase"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// desk is an inspector over a fleet, and a viewer of it.
type desk struct {
	testing.TB
	pages *Inspector
	// url is the host of the pages; clients connect to the server whatever the host.
	url       string
	transport *http.Transport
	viewer    *http.Client
	stage     *showcase.Stage
	world     *waymarktest.World
}

func newDesk(tb testing.TB, change func(*Config)) *desk {
	tb.Helper()
	return deskOf(tb, waymarktest.Start(tb), nil, change)
}

// deskOf is an inspector with keys over the fleet of a world.
func deskOf(tb testing.TB, w *waymarktest.World, keys *publisher.Encryption, change func(*Config)) *desk {
	tb.Helper()
	fleet, err := Connect(tb.Context(), publisher.Config{Conn: w.Conn(), Fleet: schema.DefaultFleet, RequestTimeout: 30 * time.Second, Encryption: keys})
	require.NoError(tb, err)
	cfg := Config{Fleet: fleet, Prompt: prompt.Prompt{}, By: "ann", Acts: true, Now: w.Now}
	if change != nil {
		change(&cfg)
	}
	pages, err := New(cfg)
	require.NoError(tb, err)
	server := httptest.NewServer(pages)
	tb.Cleanup(func() {
		pages.Close()
		server.Close()
	})
	d := &desk{TB: tb, pages: pages, url: server.URL, stage: showcase.New(tb, w), world: w}
	if pages.Host() != "" {
		d.url = "http://" + pages.Host() + ":" + server.URL[strings.LastIndexByte(server.URL, ':')+1:]
	}
	d.transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", server.Listener.Addr().String())
	}}
	d.viewer = d.enter(pages.NewToken())
	return d
}

// enter is a viewer that a token lets in.
func (d *desk) enter(token string) *http.Client {
	d.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(d, err)
	viewer := &http.Client{Jar: jar, Transport: d.transport}
	response, err := viewer.Get(d.url + "/enter?t=" + token)
	require.NoError(d, err)
	require.NoError(d, response.Body.Close())
	require.Equal(d, http.StatusOK, response.StatusCode)
	return viewer
}

// get asks for a page, and returns it with its status.
func (d *desk) get(path string) (int, string) {
	d.Helper()
	response, err := d.viewer.Get(d.url + path)
	require.NoError(d, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(d, err)
	require.NoError(d, response.Body.Close())
	return response.StatusCode, string(body)
}

// page asks for a page that must be there.
func (d *desk) page(path string) string {
	d.Helper()
	status, body := d.get(path)
	require.Equal(d, http.StatusOK, status, "%s: %s", path, body)
	return body
}

// ask sends a request as it is, with the viewer's cookies unless there are others.
func (d *desk) ask(method, path string, form url.Values, change func(*http.Request)) (int, string) {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), method, d.url+path, strings.NewReader(form.Encode()))
	require.NoError(d, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if change != nil {
		change(r)
	}
	response, err := d.viewer.Do(r)
	require.NoError(d, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(d, err)
	require.NoError(d, response.Body.Close())
	return response.StatusCode, string(body)
}

var hiddenField = regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)

// formOf are the hidden fields of the form of a run on the page of what needs a person.
func (d *desk) formOf(run string) url.Values {
	d.Helper()
	values := url.Values{}
	require.Eventually(d, func() bool {
		for _, article := range strings.Split(d.page("/needs-you"), "<article")[1:] {
			if !strings.Contains(article, `href="/run/`+run+`"`) {
				continue
			}
			for _, m := range hiddenField.FindAllStringSubmatch(article, -1) {
				values.Set(m[1], html.UnescapeString(m[2]))
			}
			return values.Has("csrf")
		}
		return false
	}, 20*time.Second, 20*time.Millisecond, "no form of %s", run)
	return values
}

func TestDoor_WithoutToken_NothingIsShown(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	inside := d.viewer
	d.viewer = &http.Client{Transport: d.transport}
	for _, p := range d.pages.pages() {
		status, body := d.get(strings.NewReplacer("{$}", "", "{run}", "r").Replace(p.path))
		require.Equal(t, http.StatusUnauthorized, status)
		require.NotContains(t, body, d.pages.csrf)
	}
	for _, path := range []string{"/live/", "/live/health", "/run/r/whole?event=x"} {
		status, _ := d.get(path)
		require.Equal(t, http.StatusUnauthorized, status, path)
	}
	status, _ := d.ask(http.MethodPost, "/needs-you/answer", url.Values{"csrf": {d.pages.loaded()}}, nil)
	require.Equal(t, http.StatusUnauthorized, status)
	status, _ = d.get("/enter?t=wrong")
	require.Equal(t, http.StatusForbidden, status)
	token := d.pages.NewToken()
	d.enter(token)
	status, body := d.get("/enter?t=" + token)
	require.Equal(t, http.StatusForbidden, status, "a token lets one browser in")
	require.Contains(t, body, "was used")
	// A strict cookie is left out behind a link of another site: the page asks for itself, once.
	status, body = d.ask(http.MethodGet, "/health?x=1", nil, func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
	})
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `content="0; url=/health?x=1"`)
	status, body = d.ask(http.MethodGet, "//evil.example/x", nil, func(r *http.Request) {
		r.Header.Set("Sec-Fetch-Site", "cross-site")
		r.Header.Set("Sec-Fetch-Mode", "navigate")
	})
	require.Equal(t, http.StatusOK, status)
	require.Contains(t, body, `content="0; url=/"`)
	d.viewer = inside
	require.Contains(t, d.page("/"), "Waymark")
}

func TestDoor_Cookie_IsStrictAndOfNoScript(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	response, err := (&http.Client{Transport: d.transport}).Get(d.url + "/enter?t=" + d.pages.NewToken())
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	cookie := response.Header.Get("Set-Cookie")
	for _, part := range []string{"HttpOnly", "SameSite=Strict", "Path=/"} {
		require.Contains(t, cookie, part)
	}
	require.NotContains(t, cookie, "Max-Age", "it ends with the browser")
}

// Browsers, like this jar, send a cookie to each port of its host: a page of another program at 127.0.0.1 or localhost
// must not get one.
func TestDoor_OtherPortsOfTheMachine_GetNoCookie(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	for _, host := range []string{"127.0.0.1", "localhost", "another.localhost", "[::1]"} {
		at, err := url.Parse("http://" + host + ":5091/")
		require.NoError(t, err)
		require.Empty(t, d.viewer.Jar.Cookies(at), host)
	}
	own, err := url.Parse(d.url)
	require.NoError(t, err)
	require.Len(t, d.viewer.Jar.Cookies(own), 1)
	other := newDesk(t, nil)
	require.NotEqual(t, d.pages.Host(), other.pages.Host())
}

func TestGuard_RebindingAndOtherOrigins_AreRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	for name, change := range map[string]func(*http.Request){
		"a name that others resolve":  func(r *http.Request) { r.Host = "evil.example" },
		"the host of other programs":  func(r *http.Request) { r.Host = "127.0.0.1:" + r.URL.Port() },
		"a host of another process":   func(r *http.Request) { r.Host = "another.localhost:" + r.URL.Port() },
		"another origin":              func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"an origin without a name":    func(r *http.Request) { r.Header.Set("Origin", "null") },
		"another port of the machine": func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") },
		"a fetch of another site":     func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		status, body := d.ask(http.MethodPost, "/needs-you/answer", url.Values{"csrf": {d.pages.loaded()}}, change)
		require.Equal(t, http.StatusForbidden, status, name)
		require.NotContains(t, body, d.pages.csrf, name)
		status, body = d.ask(http.MethodGet, "/", nil, change)
		require.Equal(t, http.StatusForbidden, status, name)
		require.NotContains(t, body, "csrf", name)
	}
	for _, form := range []url.Values{nil, {"csrf": {""}}, {"csrf": {"wrong"}}} {
		status, body := d.ask(http.MethodPost, "/needs-you/answer", form, nil)
		require.Equal(t, http.StatusForbidden, status)
		require.Contains(t, body, "not of a page of this process")
	}
	response, err := d.viewer.Get(d.url + "/")
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, policy, response.Header.Get("Content-Security-Policy"))
	require.Equal(t, "same-origin", response.Header.Get("Referrer-Policy"))
	require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
}

func TestPages_AFleetAtWork_SayWhatItDoes(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	require.Eventually(t, func() bool {
		page := d.page("/")
		return strings.Contains(page, "fix-login") && strings.Contains(page, "approval of deploy") && strings.Contains(page, "triage-3") && strings.Contains(page, "<b>3</b> need you")
	}, 20*time.Second, 20*time.Millisecond)
	page := d.page("/")
	for _, want := range []string{
		"<b>5</b> live", "tool search", "waymark runs ls", `href="/run/payout-7"`, "in doubt", "report-2", `data-live="/live/"`, `aria-current="page">Fleet`,
	} {
		require.Contains(t, page, want)
	}
	filtered := d.page("/?status=failed&agent=writer")
	require.Contains(t, filtered, "report-2")
	require.NotContains(t, filtered, "report-1<")
	require.Contains(t, filtered, "waymark runs ls --status failed --agent writer")

	timeline := d.page("/run/fix-login")
	for _, want := range []string{
		"3 of 214 tests fail", "taken over", "by box-2", "mark", "before-deploy", "for approval of deploy", "<rect", "waymark runs show fix-login",
	} {
		require.Contains(t, timeline, want)
	}

	conversation := d.page("/run/fix-login/conversation")
	for _, want := range []string{
		"The cookie lacks SameSite", "12345678901234567890", "1e2", "HttpOnly: true", "calls <b>deploy</b>",
	} {
		require.Contains(t, conversation, want, "numbers are as they were recorded")
	}

	require.Contains(t, d.page("/run/fix-login/conversation?at=record:3"), "As it was at record:3.")

	require.Contains(t, d.page("/health"), "<caption>Shards</caption>")
	status, body := d.get("/run/none")
	require.Equal(t, http.StatusNotFound, status)
	require.Contains(t, body, "none")
	status, _ = d.get("/run/fix-login/conversation?at=nonsense:1")
	require.Equal(t, http.StatusBadRequest, status)
}

func TestRecovery_Page_IsThePlanOfTheCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	reader := d.world.Reader()
	for _, run := range []string{"fix-login", "payout-7", "triage-3", "invoice-91", "report-1"} {
		want, err := reader.Plan(t.Context(), run)
		require.NoError(t, err)
		page := d.page("/run/" + run + "/recovery")
		require.Contains(t, page, want.From.Position.ID)
		require.Contains(t, page, schema.NextText(want.Next))
		for _, c := range want.Calls {
			require.Contains(t, page, html.EscapeString(c.Why))
		}
		require.Contains(t, page, "waymark plan "+run)
	}
}

func TestNeedsYou_TwoPersons_TheSecondIsToldWhoWasFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	approval, doubt, question := d.formOf("fix-login"), d.formOf("payout-7"), d.formOf("invoice-91")
	page := d.page("/needs-you")
	for _, want := range []string{"Deploy build 412 to production?", "Which discount do they get", "Discount in percent", "new customer", "129900", "changes payment"} {
		require.Contains(t, page, want)
	}

	bad := url.Values{"as": {"fields"}, "do": {"answer"}, "f.1": {"99"}, "f.2": {"1"}}
	for k, v := range question {
		bad[k] = append(v, bad[k]...)
	}
	bad.Set("as", "fields")
	status, body := d.ask(http.MethodPost, "/needs-you/answer", bad, nil)
	require.Equal(t, http.StatusBadRequest, status, body)
	require.Contains(t, body, "/percent", "the schema of the question is kept")
	bad.Set("f.1", "15")
	bad.Set("f.0", "true")
	status, body = d.ask(http.MethodPost, "/needs-you/answer", bad, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "invoice-91: answered, as ann.")
	state := d.world.State("invoice-91")
	require.JSONEq(t, `{"percent":15,"reason":"volume","notify":true}`, string(state.Waits[0].Input.Payload))

	for _, test := range []struct {
		path, do, second, said string
		form                   url.Values
	}{
		{"/needs-you/answer", "deny", "allow", "answered meanwhile by ann", approval},
		{"/needs-you/settle", "abandoned", "rerun", "settled meanwhile as abandoned by ann", doubt},
	} {
		test.form.Set("do", test.do)
		status, body = d.ask(http.MethodPost, test.path, test.form, nil)
		require.Equal(t, http.StatusOK, status, body)
		require.Contains(t, body, "as ann.")
		test.form.Set("do", test.second)
		status, body = d.ask(http.MethodPost, test.path, test.form, nil)
		require.Equal(t, http.StatusConflict, status)
		require.Contains(t, body, test.said)
	}
	require.JSONEq(t, `{"decision":"deny"}`, string(d.world.State("fix-login").Waits[0].Input.Payload))
	require.Equal(t, schema.OutcomeAbandoned, d.world.State("payout-7").Calls[0].Outcome)
	require.Eventually(t, func() bool { return strings.Contains(d.page("/needs-you"), "Nothing needs a person.") }, 20*time.Second, 20*time.Millisecond)

	mark := url.Values{"csrf": {d.pages.loaded()}, "name": {"here"}}
	status, body = d.ask(http.MethodPost, "/run/fix-login/mark", mark, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "Marked fix-login as here.")
}

func TestPages_ReadOnly_HaveNoButtonsAndTakeNone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *Config) { c.Acts, c.NoContent = false, true })
	d.stage.Fill()
	require.Eventually(t, func() bool { return strings.Contains(d.page("/needs-you"), "fix-login") }, 20*time.Second, 20*time.Millisecond)
	for _, path := range []string{
		"/needs-you", "/", "/run/fix-login", "/run/fix-login/conversation", "/run/fix-login/recovery", "/run/fix-login/act",
		"/run/fix-login/act/rewind?at=record:2", "/act/release?run=triage-3", "/act/cancel?run=triage-3", "/act/cancel?status=stuck",
	} {
		page := d.page(path)
		require.NotContains(t, page, `method="post"`, path)
		for _, content := range []string{"Deploy build 412", "SameSite", "129900", "Which discount", "tests fail", "signed out"} {
			require.NotContains(t, page, content, path)
		}
	}
	for _, path := range []string{"/needs-you/answer", "/needs-you/settle", "/needs-you/command", "/run/fix-login/mark", "/run/fix-login/act/fork", "/run/fix-login/act/rewind", "/act/cancel", "/act/release"} {
		status, _ := d.ask(http.MethodPost, path, url.Values{"csrf": {d.pages.loaded()}}, nil)
		require.Contains(t, []int{http.StatusNotFound, http.StatusMethodNotAllowed}, status, path)
	}
	status, _ := d.get("/run/fix-login/whole?call=a&turn=1&occurrence=1&field=arguments")
	require.Equal(t, http.StatusForbidden, status)
}

func TestPages_HostileText_IsText(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	runs := d.stage.Hostile()
	require.Eventually(t, func() bool { return strings.Count(d.page("/needs-you"), "<article") == 2 }, 20*time.Second, 20*time.Millisecond)
	paths := []string{"/", "/needs-you", "/health", "/executors", "/?label=" + url.QueryEscape("team="+showcase.HostileTexts[1])}
	for _, run := range runs {
		for _, tab := range []string{"", "/conversation", "/recovery", "/act", "/act/rewind?at=record:1"} {
			paths = append(paths, "/run/"+run+tab)
		}
	}
	for _, path := range paths {
		page := d.page(path)
		require.Less(t, len(page), 300<<10, path)
		for _, bad := range []string{"\x1b", "\u202e", "\u2066", "\u200b", "\x07"} {
			require.NotContains(t, page, bad, path)
		}
		// Nothing of the corpus stands outside of escaped text: each of its opening brackets is one.
		for _, text := range []string{"<script>window", "<img src=/pwned", "<svg/onload", "<script src=/pwned", "<b>long"} {
			require.NotContains(t, page, text, path)
		}
		require.NotContains(t, page, `href="javascript`, path)
		require.NotContains(t, page, "ZgotmplZ", path)
	}
	conversation := d.page("/run/hostile/conversation")
	require.Contains(t, conversation, `\u202e`, "direction overrides are visible marks")
	require.Contains(t, conversation, `\x1b[31m`)
	require.Contains(t, conversation, html.EscapeString("<script>window.pwned=1</script>"))
	require.NotContains(t, conversation, "data:image/png", "no page loads content as an image")
	require.NotContains(t, conversation, "image/svg+xml;base64")
}

func TestWhole_ALongText_IsThereWithoutMarkup(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "long", Agent: "coder"})
	require.NoError(t, err)
	text := strings.Repeat("<i>0123456789</i>\n", 2000) + "\u202eend"
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}))
	page := d.page("/run/long/conversation")
	require.NotContains(t, page, "end")
	m := regexp.MustCompile(`href="(/run/long/whole[^"]*)"`).FindStringSubmatch(page)
	require.NotNil(t, m)
	response, err := d.viewer.Get(d.url + html.UnescapeString(m[1]))
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	require.Equal(t, strings.TrimSuffix(text, "\u202eend")+`\u202eend`, string(body))
	require.Equal(t, "text/plain; charset=utf-8", response.Header.Get("Content-Type"))
	require.Contains(t, response.Header.Get("Content-Security-Policy"), "sandbox")
}

func TestLive_AnEvent_ReachesAnOpenPageOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "live", Agent: "coder"})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := make(chan string, 100)
	for range 3 { // viewers of the same page
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/live/run/live", nil)
		require.NoError(t, err)
		response, err := d.viewer.Do(r)
		require.NoError(t, err)
		require.Equal(t, "text/event-stream", response.Header.Get("Content-Type"))
		t.Cleanup(func() { _ = response.Body.Close() })
		go func() {
			for in := bufio.NewScanner(response.Body); in.Scan(); {
				select {
				case events <- in.Text():
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	find := func(text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			for range len(events) {
				if strings.Contains(<-events, text) {
					return true
				}
			}
			return false
		}, 20*time.Second, 5*time.Millisecond, text)
	}
	find("started")
	d.pages.live.mu.Lock()
	require.Len(t, d.pages.live.streams, 1, "one making for all viewers of a page")
	d.pages.live.mu.Unlock()
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "odd", Message: "line\nevent: page"}, "run"))
	find("odd: line event: page")
	cancel()
	require.Eventually(t, func() bool {
		d.pages.live.mu.Lock()
		defer d.pages.live.mu.Unlock()
		return len(d.pages.live.streams) == 0
	}, 20*time.Second, 5*time.Millisecond, "a page that no viewer has open is not rendered")
}

func TestScript_Size_IsSmall(t *testing.T) {
	t.Parallel()
	script, err := assets.ReadFile("assets/app.js")
	require.NoError(t, err)
	require.Less(t, len(script), 25<<10)
	d := newDesk(t, nil)
	status, body := d.get("/assets/app.js")
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, string(script), body)
	status, _ = d.get("/assets/")
	require.NotEqual(t, http.StatusInternalServerError, status)
}

// The timeline tells at which turn another build went on, and the recovery page what differs at the living executors.
func TestVersions_OfRunAndExecutors_AreCompared(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	executor := func(build string) *publisher.Fleet {
		f, err := publisher.Connect(t.Context(), publisher.Config{Conn: d.world.Conn(), Fleet: schema.DefaultFleet, Executor: "box-" + build, Agent: "coder", Build: build})
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close(context.Background()) })
		return f
	}
	run, err := executor("v1").Start(t.Context(), publisher.RunSpec{ID: "deployed"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Begin.", "I begin.")
	run, err = executor("v2").Resume(t.Context(), "deployed", publisher.ResumeSpec{})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Go on.", "I go on.")
	require.Contains(t, plain(d.page("/run/deployed")), "build v2, was v1")
	_, err = executor("v3").Claim(t.Context(), publisher.ClaimSpec{})
	require.ErrorIs(t, err, publisher.ErrNothing)
	require.Eventually(t, func() bool {
		return strings.Contains(plain(d.page("/run/deployed/recovery")), "Executors with build v3 would go on with other code than that of turn 2")
	}, time.Minute, 100*time.Millisecond)
}
