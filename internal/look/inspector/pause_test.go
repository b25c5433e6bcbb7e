package inspector

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestPause_FilterOfThePage_IsPausedShownAndEnded(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	runs := d.busy()
	const filtered = "/?agent=coder&status=running"
	d.rows(filtered, 3)
	form := d.bulkForm(filtered, "/pause")
	require.Equal(t, []string{"coder"}, form["agent"])
	require.Contains(t, plain(d.page(filtered)), "Executors of runs of --agent coder finish the calls that are under way")
	require.Contains(t, plain(d.page("/")), "Executors of all runs finish the calls that are under way")

	forged := url.Values{"csrf": {"x-1"}, "reason": {"why"}}
	status, _ := d.ask(http.MethodPost, "/pause", forged, nil)
	require.Equal(t, http.StatusForbidden, status)
	status, body := d.ask(http.MethodPost, "/pause", form, nil)
	require.Equal(t, http.StatusBadRequest, status, body)
	require.Contains(t, body, "people ask why their runs stand still")
	require.NotContains(t, d.page("/"), "Unpause")
	require.False(t, d.world.State("work-0").Head.Paused)

	form.Set("reason", "it bills <twice>")
	status, body = d.ask(http.MethodPost, "/pause", form, nil)
	require.Equal(t, http.StatusOK, status, body)
	page := d.page("/")
	require.Contains(t, plain(page), "Paused: runs of --agent coder")
	require.Contains(t, page, "by ann")
	require.Contains(t, page, "it bills &lt;twice&gt;")
	require.Regexp(t, `paused · paused since \S+T[0-9:]+Z, by .*; ends with: waymark .*unpause --agent coder`, plain(d.page("/run/work-0")))
	require.Contains(t, plain(d.page("/run/work-0/recovery")), "nothing: the run is paused")
	require.True(t, d.world.State("work-0").Head.Paused)
	d.rows("/?status=paused", 3)
	_, err := runs[0].StartTurn(t.Context(), publisher.TurnSpec{})
	require.ErrorIs(t, err, publisher.ErrPaused)
	require.NoError(t, runs[0].Interrupt(t.Context(), schema.InterruptedPaused))

	status, body = d.ask(http.MethodPost, "/pause", d.bulkForm("/", "/pause"), nil) // the first form is the banner's
	require.Equal(t, http.StatusOK, status, body)
	require.Eventually(t, func() bool { return !strings.Contains(d.page("/"), "Unpause") }, 40*time.Second, 50*time.Millisecond)
	d.rows("/?status=interrupted", 1)
}
