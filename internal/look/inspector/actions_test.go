package inspector

import (
	"html"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// sureForm returns the hidden fields of the page that confirms an action.
func (d *desk) sureForm(path string) url.Values {
	d.Helper()
	form := url.Values{}
	page := d.page(path)
	at := strings.Index(page, `<form class="act" method="post" action="`+strings.SplitN(path, "?", 2)[0]+`"`)
	require.Positive(d, at, page)
	for _, m := range hiddenField.FindAllStringSubmatch(page[at:], -1) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	return form
}

func TestActions_Fork_BeginsARunAtThePoint(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	page := d.page("/run/fix-login/act")
	require.Contains(t, page, `action="/run/fix-login/act/fork"`)
	require.Contains(t, page, `<label>Fork at <input name="at" value="end"`)
	form := url.Values{"csrf": {d.pages.loaded()}, "at": {"record:4"}, "as": {"fix-2"}, "hold": {"yes"}}
	status, body := d.ask(http.MethodPost, "/run/fix-login/act/fork", form, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "Forked fix-login at record:4 as fix-2, as ann. It is held")
	head := d.world.State("fix-2").Head
	require.Equal(t, "fix-login", head.Base.Run)
	require.Equal(t, "ann", head.Executor)
	require.Equal(t, schema.StatusWaiting, head.Status)
	form.Set("csrf", d.pages.loaded())
	status, body = d.ask(http.MethodPost, "/run/fix-login/act/fork", form, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, body, "choose another id")
	for _, bad := range []url.Values{
		{"at": {"nonsense"}, "as": {"x"}}, {"at": {"end"}, "as": {"fix-login"}}, {"at": {"end"}, "as": {"../x"}},
	} {
		bad.Set("csrf", d.pages.loaded())
		status, body = d.ask(http.MethodPost, "/run/fix-login/act/fork", bad, nil)
		require.Equal(t, http.StatusBadRequest, status, body)
	}
	status, _ = d.ask(http.MethodPost, "/run/fix-login/act/fork", url.Values{"at": {"end"}}, nil)
	require.Equal(t, http.StatusForbidden, status, "a form of another page")
}

func TestActions_Rewind_SaysWhatIsLeftBehindAndIsDoneOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "back", Agent: "coder"})
	require.NoError(t, err)
	for range 2 {
		call := publisher.ToolCall{ID: "m", Name: "send_mail", Replay: schema.ReplayHold, Arguments: []byte(`{}`)}
		d.stage.Do(d.stage.Say(run, time.Second, "Go on.", "I send it.", call), call, time.Second, "sent", nil)
	}
	require.NoError(t, run.Sync(t.Context()))
	const path = "/run/back/act/rewind"
	page := d.page(path + "?at=result:1")
	for _, want := range []string{"Continue after result:1?", "send_mail", "did something outside", "box-1 may be working on it", "waymark resume back --at result:1 --force"} {
		require.Contains(t, page, want)
	}
	require.NotContains(t, page, "data-live", "it stays as it was read")
	status, _ := d.ask(http.MethodPost, path, url.Values{"csrf": {d.pages.loaded()}, "at": {"result:1"}, "seen": {"1"}, "force": {"yes"}}, nil)
	require.Equal(t, http.StatusBadRequest, status, "the viewer did not confirm")
	form := d.sureForm(path + "?at=result:1")
	calm := maps.Clone(form)
	calm.Del("force")
	status, body := d.ask(http.MethodPost, path, calm, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, body, "box-1, which may be working on it")
	require.Len(t, d.world.State("back").Calls, 2, "nothing was changed")

	status, body = d.ask(http.MethodPost, path, form, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "back continues after result:1, as ann decided")
	state := d.world.State("back")
	require.Len(t, state.Calls, 1)
	require.Equal(t, "ann", state.Takeovers[len(state.Takeovers)-1].Executor)
	form.Set("csrf", d.pages.loaded())
	status, body = d.ask(http.MethodPost, path, form, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, body, "was taken over: it is in epoch 2, with executor ann", "the second of two is told")
	status, _ = d.get(path + "?at=end")
	require.Equal(t, http.StatusBadRequest, status)
}

func TestActions_ReleaseSignalAndCancel_AreRecordedByTheViewer(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "busy", Agent: "coder"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Begin.", "I begin.")
	page := d.page("/run/busy/act")
	for _, want := range []string{"Release it to the fleet…", "Cancel it…", `action="/run/busy/act/signal"`, "waymark resume busy --at POINT"} {
		require.Contains(t, page, want)
	}
	status, body := d.ask(http.MethodPost, "/run/busy/act/signal", url.Values{"csrf": {d.pages.loaded()}, "text": {"hurry <b>up</b>"}, "name": {"note"}}, nil)
	require.Equal(t, http.StatusOK, status, body)
	status, body = d.ask(http.MethodPost, "/act/release", d.sureForm("/act/release?run=busy"), nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "Released busy, as ann")
	state := d.world.State("busy")
	require.Equal(t, schema.StatusInterrupted, state.Head.Status)
	require.JSONEq(t, `"hurry <b>up</b>"`, string(state.Signals[0].Payload))
	require.Equal(t, "ann", state.Signals[0].By)
	body = d.page("/act/release?run=busy")
	require.Contains(t, body, "there is nothing to release")
	require.NotContains(t, body, `method="post"`)
	cancel := d.sureForm("/act/cancel?run=busy")
	cancel.Set("reason", "the customer left")
	status, body = d.ask(http.MethodPost, "/act/cancel", cancel, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.True(t, d.world.State("busy").Head.CancelRequested)
	cancel.Set("csrf", d.pages.loaded())
	status, body = d.ask(http.MethodPost, "/act/cancel", cancel, nil)
	require.Equal(t, http.StatusOK, status, body)
	require.Contains(t, body, "was asked for already, by ann")
	status, _ = d.ask(http.MethodPost, "/act/dance", cancel, nil)
	require.Equal(t, http.StatusNotFound, status)
}

// Each has loaded the page, and decides at the same time.
func TestActions_SeveralAtOnce_OneIsDone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	for _, id := range []string{"once-1", "once-2", "once-3"} {
		run, err := box.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "coder"})
		require.NoError(t, err)
		d.stage.Say(run, time.Second, "Begin.", "I begin.")
		require.NoError(t, run.Sync(t.Context()))
		const tries = 6
		statuses := make(chan int, tries)
		var forms []url.Values
		for range tries {
			forms = append(forms, d.sureForm("/run/"+id+"/act/rewind?at=record:2"))
		}
		for _, form := range forms {
			go func() {
				response, err := d.viewer.PostForm(d.url+"/run/"+id+"/act/rewind", form)
				if err != nil {
					statuses <- 0
					return
				}
				_ = response.Body.Close() // the status is all that counts
				statuses <- response.StatusCode
			}()
		}
		count := make(map[int]int)
		for range tries {
			count[<-statuses]++
		}
		require.Equal(t, map[int]int{http.StatusOK: 1, http.StatusConflict: tries - 1}, count)
		require.Len(t, d.world.State(id).Takeovers, 1)
	}
}

func TestActions_CancelOfARunTakenOverMeanwhile_IsNotDone(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "moved", Agent: "coder"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Begin.", "I begin.")
	form := d.sureForm("/act/cancel?run=moved")
	_, err = d.stage.Executor("box-2").Resume(t.Context(), "moved", publisher.ResumeSpec{})
	require.NoError(t, err)
	status, body := d.ask(http.MethodPost, "/act/cancel", form, nil)
	require.Equal(t, http.StatusConflict, status)
	require.Contains(t, body, "in epoch 2, with executor box-2")
	require.False(t, d.world.State("moved").Head.CancelRequested)
}

func TestFleet_LabelIsNotUTF8_IsTheViewersMistake(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	status, body := d.get("/?label=%ff=1")
	require.Equal(t, http.StatusBadRequest, status, body)
}

// What is larger than a message is never sent: it was tried again for half a minute, and then perhaps stored.
func TestActions_SignalLargerThanAMessage_IsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "big", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	form := url.Values{"csrf": {d.pages.loaded()}, "text": {strings.Repeat("x", 1<<20)}}
	_, body := d.ask(http.MethodPost, "/run/big/act/signal", form, nil)
	require.Contains(t, body, "a message at most 1048576")
	require.NotContains(t, body, "may be stored")
	require.Empty(t, d.world.State("big").Signals)
}

func TestTimeline_HugeNumbersInTheAddress_AreTheEnd(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "short", Agent: "coder"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Begin.", "I begin.")
	require.NoError(t, run.Sync(t.Context()))
	require.NotEmpty(t, linesOf(d.page("/run/short?through=9223372036854775807")))
	require.Empty(t, linesOf(d.page("/run/short?from=9223372036854775807")))
}
