package inspector

import (
	"context"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// bulkForm returns the hidden fields of the form of a page that posts to an address, with all values of a name.
func (d *desk) bulkForm(path, action string) url.Values {
	d.Helper()
	page := d.page(path)
	at := strings.Index(page, `method="post" action="`+action+`"`)
	require.Positive(d, at, page)
	form := url.Values{}
	for _, m := range hiddenField.FindAllStringSubmatch(strings.SplitN(page[at:], "</form>", 2)[0], -1) {
		form.Add(m[1], html.UnescapeString(m[2]))
	}
	return form
}

// rows awaits a page that lists so many rows.
func (d *desk) rows(path string, n int) {
	d.Helper()
	require.Eventually(d, func() bool { return strings.Count(d.page(path), `<tr class="row`) == n }, 40*time.Second, 50*time.Millisecond, path)
}

func TestBulk_CancelOfAFilter_TellsEachResultAndIsHarmlessAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Night()
	d.rows("/?status=stuck&agent=coder", 14)
	list := d.page("/?status=stuck&agent=coder")
	require.Equal(t, 14, strings.Count(list, `form="bulk"`))
	require.Contains(t, list, `formaction="/act/cancel"`)

	preview := d.page("/act/cancel?status=stuck&agent=coder")
	require.Contains(t, plain(preview), "Cancel 14 runs?")
	require.Contains(t, plain(preview), "no executor of coder is alive: its runs wait until one starts.")
	require.Equal(t, 14, strings.Count(preview, "the next executor that claims it winds it up"))
	require.Contains(t, plain(preview), "; do waymark cancel $run; done")
	form := d.bulkForm("/act/cancel?status=stuck&agent=coder", "/act/cancel")
	require.Len(t, form["thing"], 14)
	require.False(t, d.world.State("coder-1").Head.CancelRequested, "the preview writes nothing")

	// One of them moved on between the preview and the click, as one would after the death of the pages in between.
	_, err := d.stage.Executor("late").Resume(t.Context(), "coder-7", publisher.ResumeSpec{})
	require.NoError(t, err)
	forged := url.Values{"sure": {"yes"}, "thing": form["thing"], "csrf": {"x-1"}}
	status, body := d.ask(http.MethodPost, "/act/cancel", forged, nil)
	require.Equal(t, http.StatusForbidden, status)
	require.Contains(t, body, "not of a page of this process")
	unsure := url.Values{"thing": form["thing"], "csrf": form["csrf"]}
	_, body = d.ask(http.MethodPost, "/act/cancel", unsure, nil)
	require.Equal(t, 14, strings.Count(body, "NOT DONE: this form does not say that you are sure"))
	require.False(t, d.world.State("coder-1").Head.CancelRequested)

	form.Set("reason", "the night is over")
	status, body = d.ask(http.MethodPost, "/act/cancel", form, nil)
	require.Equal(t, http.StatusOK, status)
	require.Equal(t, 13, strings.Count(body, "Asked for the end of coder-"))
	require.Contains(t, plain(body), "coder-7 NOT DONE:")
	require.Contains(t, body, "in epoch 2, with executor late")
	require.True(t, d.world.State("coder-14").Head.CancelRequested)
	require.False(t, d.world.State("coder-7").Head.CancelRequested)
	events := d.world.State("coder-2").Head.Counts.Events
	_, again := d.ask(http.MethodPost, "/act/cancel", form, nil)
	require.Equal(t, 13, strings.Count(again, "was asked for already, by ann"), "a form with a failed row is carried out again")
	form["thing"] = slices.DeleteFunc(form["thing"], func(thing string) bool { return strings.Contains(thing, "coder-7") })[:2]
	for range 2 { // a form without a failed row is not
		_, again = d.ask(http.MethodPost, "/act/cancel", form, nil)
		require.Equal(t, 2, strings.Count(again, "was asked for already, by ann"))
	}
	require.Equal(t, events, d.world.State("coder-2").Head.Counts.Events, "nothing is asked for twice")
}

// busy starts the runs work-0 to work-2 of the agent coder.
func (d *desk) busy() (runs [3]*publisher.Run) {
	d.Helper()
	box := d.stage.Executor("box-1")
	for i := range runs {
		run, err := box.Start(d.Context(), publisher.RunSpec{ID: fmt.Sprintf("work-%d", i), Agent: "coder"})
		require.NoError(d, err)
		d.stage.Say(run, time.Second, "Begin.", "I begin.")
		runs[i] = run
	}
	return runs
}

func TestBulk_CheckedRuns_AreReleasedAndReopened(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	runs := d.busy()
	require.NoError(t, runs[2].End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "odd"}}))
	const release, reopen = "/act/release?run=work-0&run=work-1&run=work-2&run=none", "/act/reopen?run=work-0&run=work-2"
	page := plain(d.page(release))
	require.Contains(t, page, "Release 2 runs to the fleet?")
	require.Contains(t, page, "executor box-1 may be working on it: it is fenced")
	require.Contains(t, page, "work-2 coder failed has ended")
	require.Contains(t, page, "none")
	_, body := d.ask(http.MethodPost, "/act/release", d.bulkForm(release, "/act/release"), nil)
	require.Equal(t, 2, strings.Count(body, "as ann: the fleet may claim it."))
	require.Equal(t, schema.StatusInterrupted, d.world.State("work-1").Head.Status)
	require.Contains(t, plain(d.page(reopen)), "work-0 coder interrupted has not ended")
	_, body = d.ask(http.MethodPost, "/act/reopen", d.bulkForm(reopen, "/act/reopen"), nil)
	require.Contains(t, body, "Reopened work-2, as ann")
	require.Equal(t, schema.StatusInterrupted, d.world.State("work-2").Head.Status)
	for _, path := range []string{"/act/cancel", "/act/cancel?status=odd"} {
		status, _ := d.get(path)
		require.Equal(t, http.StatusBadRequest, status, "without a filter no run is chosen")
	}
}

func TestNeedsYou_QuestionsAlike_AreAnsweredTogether(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Night()
	page := d.eventually("/needs-you", "12 similar questions of agent support: waiting. Answer several at once")
	require.Equal(t, 13, strings.Count(page, `method="post"`), "one for each, and one for all of them")
	require.Equal(t, 12, strings.Count(page, "wants the money back"))
	require.Equal(t, 12, strings.Count(page, `type="checkbox" name="thing"`))
	form := d.bulkForm("/needs-you", "/needs-you/answer")
	require.Len(t, form["every"], 12)
	form.Set("do", "answer")
	form.Set("f.0", "100")
	status, _ := d.ask(http.MethodPost, "/needs-you/answer", form, nil)
	require.Equal(t, http.StatusBadRequest, status, "none is checked")
	form["thing"] = form["every"][:2]
	_, body := d.ask(http.MethodPost, "/needs-you/answer", form, nil)
	require.Equal(t, 2, strings.Count(body, ": answered, as ann."))
	form.Set("f.0", "101")
	form.Set("all", "yes")
	_, body = d.ask(http.MethodPost, "/needs-you/answer", form, nil)
	require.Equal(t, 12, strings.Count(body, "NOT DONE:"), "the schema holds for each, and two were answered")
	require.Equal(t, 2, strings.Count(body, "answered meanwhile by ann"))
	form.Set("f.0", "50")
	_, body = d.ask(http.MethodPost, "/needs-you/answer", form, nil)
	require.Equal(t, 10, strings.Count(body, ": answered, as ann."))
	for i := range 12 {
		require.NotNil(t, d.world.State(fmt.Sprintf("refund-%d", i+1)).Waits[0].Input)
	}
}

// The printed commands do what the button does: they fence the executors that the page says it fences, and no other.
func TestBulk_ReleaseOfBusyRuns_CommandsHaveForce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	runs := d.busy()
	require.NoError(t, runs[0].Interrupt(t.Context(), schema.InterruptedPreempted))
	require.Contains(t, plain(d.page("/act/release?run=work-0&run=work-1")), "waymark release work-1 --force")
	require.Contains(t, plain(d.page("/act/release?run=work-1&run=work-2")), "for run in work-1 work-2; do waymark release $run --force; done")
	require.NotContains(t, d.page("/act/cancel?run=work-1&run=work-2"), "--force")
	mixed := []bulkRow{{Run: "a", Thing: "x", Force: true}, {Run: "b", Thing: "x"}, {Run: "c", Thing: "x"}, {Run: "d"}}
	require.Equal(t, "for run in b c; do waymark release $run; done; waymark release a --force", d.pages.commandFor("release", mixed))
}

// away is a fleet without a daemon while it is down. It counts the requests to cancel.
type away struct {
	Fleet
	down  atomic.Bool
	asked atomic.Int64
}

func (a *away) Ask(ctx context.Context, verb, run string, request, reply any) error {
	if verb == schema.VerbCancel {
		a.asked.Add(1)
		if a.down.Load() {
			return &schema.ServiceError{Code: schema.CodeUnavailable, Message: "no daemon answers"}
		}
	}
	return a.Fleet.Ask(ctx, verb, run, request, reply)
}

func TestBulk_DaemonWasAway_TheSameFormIsCarriedOutAgain(t *testing.T) {
	t.Parallel()
	a := new(away)
	d := newDesk(t, func(c *Config) { a.Fleet, c.Fleet = c.Fleet, a })
	d.busy()
	form := d.bulkForm("/act/cancel?run=work-0&run=work-1", "/act/cancel")
	send := func() string {
		_, body := d.ask(http.MethodPost, "/act/cancel", form, nil)
		return body
	}
	a.down.Store(true)
	require.Equal(t, 2, strings.Count(send(), "NOT DONE:"))
	a.down.Store(false)
	require.Equal(t, 2, strings.Count(send(), "Asked for the end of work-"))
	require.Equal(t, 2, strings.Count(send(), "Asked for the end of work-"), "a reload shows the same results")
	require.EqualValues(t, 4, a.asked.Load(), "a reload sends nothing")
	require.True(t, d.world.State("work-1").Head.CancelRequested)
}
