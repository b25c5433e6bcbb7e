package uicheck

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// looks are the checked pages.
var looks = []struct{ name, path string }{
	{"fleet", "/"},
	{"needs", "/needs-you"},
	{"timeline", "/run/fix-login"},
	{"conversation", "/run/fix-login/conversation"},
	{"recovery", "/run/fix-login/recovery"},
	{"actions", "/run/triage-3/act"},
	{"rewind", "/run/fix-login/act/rewind?at=record:4"},
	{"executors", "/executors"},
	{"health", "/health"},
	{"held", "/run/payout-7/recovery"},
	{"trouble", "/run/none"},
}

// violation is a finding of axe-core.
type violation struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML    string `json:"html"`
		Summary string `json:"failureSummary"`
	} `json:"nodes"`
}

// violations returns the findings of axe-core on the page.
func (b *tab) violations(name, rules string) (wrong []string) {
	b.Helper()
	eval[bool](b, rules+"; true")
	found := eval[[]violation](b, `axe.run({runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]}).then((r) => r.violations)`)
	for _, v := range found {
		wrong = append(wrong, fmt.Sprintf("%s: %s: %s: %+v", name, v.ID, v.Help, v.Nodes))
	}
	return wrong
}

func TestPages_LightAndDarkAtAllWidths_AreAccessibleAndFit(t *testing.T) {
	const silence = 5 * time.Minute
	s := newSceneWith(t, waymarktest.Config{Silence: silence})
	s.stage.Fill()
	s.stage.Silent("box-4", silence*2/3)
	rules := axe(t)
	if rules == "" {
		t.Log("NOT TESTED: accessibility: WAYMARK_AXE names no axe.min.js of axe-core")
	}
	b := s.open()
	b.show("/needs-you")
	b.await(`document.querySelectorAll("article.thing").length === 3`)
	var wrong []string
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int64{320, 400, 1000, 1800} { // 320 is 1,280 at 400 %
			b.sized(width, scheme)
			for _, look := range looks {
				name := fmt.Sprintf("%s-%s-%d", look.name, scheme, width)
				b.show(look.path)
				if wide := eval[int](b, "document.documentElement.scrollWidth"); wide > int(width) {
					wrong = append(wrong, fmt.Sprintf("%s scrolls sideways: it is %d wide", name, wide))
				}
				b.draw(name)
				if rules == "" || width == 1800 {
					continue
				}
				wrong = append(wrong, b.violations(name, rules)...)
			}
		}
	}
	require.Empty(t, wrong)
	b.mu.Lock()
	b.troubles = slices.DeleteFunc(b.troubles, func(text string) bool {
		return text == "network: Failed to load resource: the server responded with a status of 404 (Not Found) ("+b.url+"/run/none)"
	})
	b.mu.Unlock()
	b.clean()
}

func TestPages_HostileText_RunsNothingAndLoadsNothing(t *testing.T) {
	s := newScene(t)
	runs := s.stage.Hostile()
	b := s.open()
	b.show("/needs-you")
	b.await(`document.querySelectorAll("article.thing").length === 2`)
	paths := []string{"/", "/needs-you", "/executors"}
	for _, run := range runs {
		for _, tab := range []string{"", "/conversation", "/recovery", "/act"} {
			paths = append(paths, "/run/"+run+tab)
		}
	}
	for _, path := range paths {
		b.show(path)
		// The script runs, and receives updates on pages that have some.
		b.await(`document.querySelector("#keys").hidden === false && (!document.querySelector("#page").dataset.live || document.querySelector("#pause").hidden === false)`)
		require.False(t, eval[bool](b, `"pwned" in window`), path)
		require.Zero(t, eval[int](b, `document.querySelectorAll("main script, main iframe, main object, [onerror], [onload]").length`), path)
		// A link in a drawing has an object for its address, which is not resolved.
		require.Empty(t, eval[[]string](b, `[...document.querySelectorAll("a[href], img[src], form[action]")]
			.map((e) => new URL(e.getAttribute("href") ?? e.getAttribute("src") ?? e.getAttribute("action"), location).href)
			.filter((url) => !url.startsWith(location.origin + "/") && !url.startsWith("data:image/"))`), path)
	}
	b.clean()
}

// The web server of another program of this machine, such as one that an agent started, gets no cookie of the pages.
func TestDoor_PageOfAnotherPort_GetsNoCookie(t *testing.T) {
	s := newScene(t)
	b := s.open()
	got := make(chan string, 1)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			got <- r.Header.Get("Cookie")
		}
		_, _ = io.WriteString(w, `<p id="page">your agent's preview</p>`)
	}))
	t.Cleanup(other.Close)
	for _, host := range []string{"127.0.0.1", "localhost", "another.localhost"} {
		b.do(chromedp.Navigate("http://"+host+other.URL[strings.LastIndexByte(other.URL, ':'):]+"/"), chromedp.WaitReady(chromedp.CSS("#page")))
		require.Empty(t, <-got, host)
	}
	b.show("/")
	require.NotContains(t, eval[string](b, "document.body.innerText"), "Who is there?", "the viewer is still inside")
}

func TestLive_EventsWhileAPageIsOpen_AppearWithoutReload(t *testing.T) {
	s := newScene(t)
	box := s.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "watched", Agent: "coder"})
	require.NoError(t, err)
	b := s.open()
	b.show("/run/watched")
	b.await(`document.querySelector("#pause").hidden === false && document.querySelectorAll("tr.line").length === 1`)
	eval[bool](b, `window.kept = document.querySelector("tr.line"); window.reloaded = false; true`)
	began := time.Now()
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "odd", Message: "look here"}, "run"))
	b.await(`document.body.innerText.includes("look here")`)
	took := time.Since(began)
	t.Logf("an event is seen within %s", took.Round(time.Millisecond))
	require.Less(t, took, 3*time.Second)
	require.True(t, eval[bool](b, `window.reloaded === false && document.contains(window.kept)`), "what was there stays")

	// Text that a person writes stays while the page changes, and is then sent as the answer.
	require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Which colour?"}))
	b.show("/needs-you")
	b.await(`document.querySelector("textarea") !== null`)
	b.do(chromedp.SendKeys(chromedp.CSS(`article[id^="watched."] textarea`), "blue"))
	other, err := box.Start(t.Context(), publisher.RunSpec{ID: "other", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, other.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "Another?"}))
	b.await(`document.querySelectorAll("article.thing").length === 2`)
	require.Equal(t, "blue", eval[string](b, `document.querySelector('article[id^="watched."] textarea').value`))
	b.click(`article[id^="watched."] button[value=answer]`)
	b.await(`document.querySelector(".said")?.innerText.includes("watched: answered, as ann")`)
	b.clean()

	// The page reports a lost connection.
	b.await(`document.querySelector("#pause").hidden === false`)
	s.pages.Close()
	s.server.CloseClientConnections()
	require.NoError(t, s.server.Listener.Close())
	b.await(`document.querySelector("#alert").innerText.includes("connection to waymark ui is lost")`)
}

func TestKeys_RowsAndPages_AreReached(t *testing.T) {
	s := newScene(t)
	s.stage.Fill()
	b := s.open()
	b.show("/")
	b.await(`document.querySelectorAll("table.runs tr.row").length > 5 && document.querySelector("#pause").hidden === false`)
	b.do(chromedp.KeyEvent("h"))
	b.awaitPath("/health")
	b.do(chromedp.KeyEvent("f"))
	b.awaitPath("/")
	b.do(chromedp.KeyEvent("/"))
	require.Equal(t, "SELECT", eval[string](b, "document.activeElement.nodeName"))
	eval[bool](b, "document.activeElement.blur(); true")
	b.do(chromedp.KeyEvent("j"))
	for !eval[bool](b, `document.activeElement.closest("table.runs:not(.agents)") !== null`) {
		b.do(chromedp.KeyEvent("j"))
	}
	run := eval[string](b, "document.activeElement.innerText")
	b.do(chromedp.KeyEvent(kb.Enter))
	b.awaitPath("/run/" + run)

	// Single letters can be switched off, for good.
	b.await(`document.querySelector("#keys").hidden === false && document.querySelector("#keys").ariaPressed === "true"`)
	b.click("#keys")
	b.show("/executors")
	b.await(`document.querySelector("#keys").ariaPressed === "false" && document.querySelector("#pause").hidden === false`)
	b.do(chromedp.KeyEvent("h"), chromedp.KeyEvent("p"))
	require.Equal(t, "/executors", eval[string](b, "location.pathname"))
	require.Equal(t, "false", eval[string](b, `document.querySelector("#pause").ariaPressed`))
	b.click("#keys")
	b.do(chromedp.KeyEvent("h"))
	b.awaitPath("/health")
	b.clean()
}
