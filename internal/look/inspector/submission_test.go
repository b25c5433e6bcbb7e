package inspector

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// formTo returns the hidden fields of the form of a page that is sent to an address.
func (d *desk) formTo(page, action string) url.Values {
	d.Helper()
	text := d.page(page)
	at := strings.Index(text, `action="`+action+`"`)
	require.Positive(d, at, text)
	text, _, _ = strings.Cut(text[at:], "</form>")
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(text, -1) {
		form.Set(m[1], m[2])
	}
	return form
}

// clicks sends a form several times at once, and then once more, and returns the one page that all lead to.
func (d *desk) clicks(action string, form url.Values) string {
	d.Helper()
	const times = 5
	type answer struct {
		status     int
		path, body string
		err        error
	}
	answers := make(chan answer, times)
	send := func() {
		response, err := d.viewer.PostForm(d.url+action, form)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // what was read counts
		answers <- answer{response.StatusCode, response.Request.URL.Path, string(body), err}
	}
	for range times - 1 {
		go send()
	}
	path := ""
	for i := range times {
		if i == times-1 {
			send()
		}
		a := <-answers
		require.NoError(d, a.err)
		require.Equal(d, http.StatusOK, a.status, a.body)
		if path == "" {
			path = a.path
		}
		require.Equal(d, path, a.path)
	}
	return path
}

func (d *desk) runs() []string {
	d.Helper()
	var names []string
	reply := new(schema.ListReply)
	require.NoError(d, d.pages.Fleet.Ask(d.Context(), schema.VerbList, "", schema.ListRequest{}, reply))
	for i := range reply.Runs {
		names = append(names, reply.Runs[i].Run)
	}
	return names
}

func TestForms_SentSeveralTimes_AreDoneOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "busy", Agent: "coder"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Begin.", "I begin.")
	require.NoError(t, run.Sync(t.Context()))

	const signal = "/run/busy/act/signal"
	form := d.formTo("/run/busy/act", signal)
	form.Set("text", "hurry")
	require.Equal(t, "/run/busy/act", d.clicks(signal, form))
	require.Len(t, d.world.State("busy").Signals, 1)
	// Other content, or the page loaded again, is another message.
	form.Set("text", "wait")
	d.clicks(signal, form)
	require.Len(t, d.world.State("busy").Signals, 2)
	maps.Copy(form, d.formTo("/run/busy/act", signal))
	d.clicks(signal, form)
	require.Len(t, d.world.State("busy").Signals, 3)

	const fork = "/run/busy/act/fork"
	form = d.formTo("/run/busy/act", fork)
	form.Set("at", "record:1")
	form.Set("hold", "yes")
	path := d.clicks(fork, form)
	require.True(t, strings.HasPrefix(path, "/run/busy-fork-"), path)
	require.Eventually(t, func() bool { return len(d.runs()) > 1 }, 20*time.Second, 20*time.Millisecond)
	require.ElementsMatch(t, []string{"busy", strings.TrimPrefix(path, "/run/")}, d.runs())

	require.Equal(t, "/run/busy", d.clicks("/run/busy/act/rewind", d.sureForm("/run/busy/act/rewind?at=record:1")))
	require.Len(t, d.world.State("busy").Takeovers, 1)
}

// A browser ends the first request on a second click.
func TestForm_ViewerGoes_IsDoneToTheEnd(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := 0
	var failed error
	handler := d.pages.form(func(ctx context.Context, _ *http.Request) (string, string, error) {
		cancel()
		done++
		if err := ctx.Err(); err != nil {
			return "", "", err
		}
		return "/", "", failed
	})
	post := func(ctx context.Context, text string) int {
		form := url.Values{"csrf": {d.pages.csrf + "-1"}, "text": {text}}
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/x", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		handler(w, r)
		return w.Code
	}
	post(ctx, "a")
	require.Equal(t, http.StatusSeeOther, post(t.Context(), "a"))
	require.Equal(t, 1, done)
	failed = errors.New("not now")
	require.Equal(t, http.StatusInternalServerError, post(t.Context(), "b"))
	failed = nil
	require.Equal(t, http.StatusSeeOther, post(t.Context(), "b"), "what failed may be sent again")
	require.Equal(t, 3, done)
}

// A second click on the button of an action that panics is not left waiting.
func TestForm_ActionPanics_MayBeSentAgain(t *testing.T) {
	t.Parallel()
	var forms submissions
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/x", http.NoBody)
	waiting, second := make(chan struct{}), make(chan outcome, 1)
	require.Panics(t, func() {
		forms.once(r, func() outcome {
			go func() {
				close(waiting)
				second <- forms.once(r, func() outcome { return outcome{next: "/"} })
			}()
			<-waiting
			panic("a mistake")
		})
	})
	<-second // it is told, or was the one that is carried out
	require.Equal(t, outcome{next: "/"}, forms.once(r, func() outcome { return outcome{next: "/"} }))
}

// A page shows no command with a foreign text, and a form without a run sends no request.
func TestNames_OfPathAndForm_AreChecked(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	status, page := d.get("/in/$(id);x/")
	require.Equal(t, http.StatusBadRequest, status, page)
	require.NotContains(t, page, "--also")
	status, page = d.get("/in/none/")
	require.Equal(t, http.StatusNotFound, status, page)
	require.Contains(t, page, "--also none=CONTEXT")
	for _, action := range []string{"/act/cancel", "/act/release", "/needs-you/answer", "/needs-you/settle"} {
		for _, thing := range []string{"run=&seen=1", "seen=1", "run=a.b&seen=1", "run=..%2fx&seen=1"} {
			form := url.Values{"csrf": {d.pages.loaded()}, "sure": {"yes"}, "do": {"answer"}, "thing": {thing}}
			status, page = d.ask(http.MethodPost, action, form, nil)
			require.Equal(t, http.StatusBadRequest, status, page)
			require.Contains(t, page, "the form cannot be read", "%s %s", action, thing)
		}
	}
}
