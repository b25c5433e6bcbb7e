package inspector

import (
	"bytes"
	"context"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// bisect asks for the page of an expression.
func (d *desk) bisect(run, expression string) string {
	d.Helper()
	return d.page("/run/" + run + "/bisect?" + url.Values{"expr": {expression}}.Encode())
}

func TestBisect_Expression_ShowsTheFirstRecordAndItsChanges(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "long", Agent: "coder"})
	require.NoError(t, err)
	for range 3 {
		call := publisher.ToolCall{ID: "c", Name: "test", Replay: schema.ReplayPure, Arguments: []byte(`{"text":"<b>"}`)}
		d.stage.Do(d.stage.Say(run, time.Second, "Go on.", "I test.", call), call, time.Second, "fine", nil)
	}
	require.NoError(t, run.Sync(t.Context()))

	page := d.bisect("long", `run.counts.tool_results > 1`)
	found := regexp.MustCompile(`It is true first after record (\d+) of (\d+)`).FindStringSubmatch(page)
	require.NotNil(t, found, page)
	for _, want := range []string{"tool.returned", "results 1 → 2", "the state before it", `href="/run/long?at=record:` + found[1], `waymark bisect long &#39;run.counts.tool_results &gt; 1&#39;`} {
		require.Contains(t, page, want)
	}
	there := d.page("/run/long/state?at=record:" + found[1])
	require.Contains(t, page, `href="/run/long/state?at=record:`+found[1])
	require.Contains(t, there, "results 1 → 2", "the record is the one of the state page")
	require.Contains(t, page, `<a href="/run/long/bisect" aria-current="page">`)
	require.NotContains(t, page, "data-live", "a search is not repeated by itself")

	require.Contains(t, d.bisect("long", `event.sequence > 0`), "It is true from the first record on")
	require.Contains(t, d.bisect("long", `run.turn > 99`), "It is never true")
	page = d.bisect("long", `event.data.missing.deeper == "<script>"`)
	require.Contains(t, page, "It cannot be evaluated after each event")
	require.NotContains(t, page, "<script>")
	page = d.bisect("long", `event.name == == "<script>"`)
	for _, want := range []string{"The expression cannot be used", "(1:15)", "..............^", "&lt;script&gt;"} {
		require.Contains(t, page, want)
	}
	require.Contains(t, d.bisect("long", strings.Repeat("1", 5000)), "at most 4096 are possible")
	page = d.page("/run/long/bisect")
	for _, text := range history.Examples {
		require.Contains(t, page, "<code>"+html.EscapeString(text))
	}
	require.NotContains(t, page, "It is never true")
	status, _ := d.get("/run/none/bisect?expr=true")
	require.Equal(t, http.StatusNotFound, status)
}

// The first three records are cheap, the fourth would take hours.
func TestBisect_TimeIsOver_SaysWhereAndGoesOnFromThere(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Long("long", 2)
	d.pages.patience = 500 * time.Millisecond
	const slow = `let a = 1..2000; run.records > 3 and all(a, all(a, all(a, # > 0)))`
	page := d.bisect("long", slow)
	require.Contains(t, page, "Looked at records 1 to 3 of ")
	next := regexp.MustCompile(`<a href="([^"]*)">Go on from there`).FindStringSubmatch(page)
	require.NotNil(t, next, page)
	require.Contains(t, next[1], "from=4")
	page = d.page(html.UnescapeString(next[1]))
	require.Contains(t, page, "Not found yet")
	require.NotContains(t, page, "Go on from there", "the fourth record takes longer than a page may")
	require.Contains(t, page, "The command has no such limit.")
	page = d.page("/run/long/bisect?" + url.Values{"expr": {`event.sequence > 0`}, "from": {"4"}}.Encode())
	require.Contains(t, page, "It is true first after record 4 of ")
	require.Contains(t, page, "looked at from record 4 on")
}

// Searches that take long leave the process to other pages, and end with their viewers.
func TestBisect_ManyAtOnce_AFewSearchAndTheOthersAreTold(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Long("long", 2)
	d.pages.searches = make(chan struct{}, 1)
	const slow = `let a = 1..2000; run.records > 3 and all(a, all(a, all(a, # > 0)))`
	path := "/run/long/bisect?" + url.Values{"expr": {slow}}.Encode()
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	d.pages.patience = time.Hour
	gone := make(chan error, 1)
	go func() {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.server.URL+path, http.NoBody)
		if err == nil {
			var response *http.Response
			if response, err = d.viewer.Do(r); err == nil {
				_ = response.Body.Close()
			}
		}
		gone <- err
	}()
	require.Eventually(t, func() bool { return len(d.pages.searches) == 1 }, 20*time.Second, time.Millisecond)
	d.page("/run/long")
	require.Contains(t, d.page("/run/long/bisect"), "examples", "a page without a search does not wait")
	leave()
	require.ErrorIs(t, <-gone, context.Canceled)
	require.Eventually(t, func() bool { return len(d.pages.searches) == 0 }, 20*time.Second, time.Millisecond, "the search ended with its viewer")
	require.Contains(t, d.bisect("long", `run.turn > 0`), "It is true first after record")

	d.pages.patience = time.Millisecond
	d.pages.searches <- struct{}{}
	status, body := d.get(path)
	require.Equal(t, http.StatusServiceUnavailable, status)
	require.Contains(t, body, "other searches are under way: at most 1 at once")
}

// A search tells whether content has a text: without the right to read content it sees none.
func TestBisect_Content_IsSeenByWhoMayReadIt(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	keys := &publisher.Encryption{Current: "k1", Key: func(context.Context, string) ([]byte, error) { return bytes.Repeat([]byte{7}, 32), nil }}
	for id, e := range map[string]*publisher.Encryption{"plain": nil, "closed": keys} {
		f, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.Conn(), Executor: "worker-" + id, Agent: "clerk", Encryption: e})
		require.NoError(t, err)
		t.Cleanup(func() { _ = f.Close(context.WithoutCancel(t.Context())) })
		run, err := f.Start(t.Context(), publisher.RunSpec{ID: id, Task: "canary"})
		require.NoError(t, err)
		require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("canary")}}))
		failure := schema.Error{Type: "refused", Message: "canary", Code: "canary", Extra: []byte(`{"more":"canary"}`)}
		require.NoError(t, run.Error(t.Context(), failure, "run"))
		require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "canary"}))
		require.NoError(t, run.Sync(t.Context()))
	}
	const never = "It is never true"
	message := `event.name == "message.added" and event.data.message.parts[0].content contains "canary"`
	all, bare := deskOf(t, w, keys, nil), deskOf(t, w, keys, func(c *Config) { c.NoContent = true })
	closed := deskOf(t, w, nil, nil)
	require.Contains(t, all.bisect("plain", message), "It is true first after record 2")
	require.Contains(t, all.bisect("closed", message), "It is true first after record 2")
	require.Contains(t, closed.bisect("plain", message), "It is true first after record 2")
	require.Contains(t, closed.bisect("closed", message), never)
	for _, run := range []string{"plain", "closed"} {
		for _, text := range []string{
			message, `run.task contains "canary"`, `event.data?.task contains "canary"`, `any(run.interrupts ?? [], #.message contains "canary")`, `event.data?.message contains "canary"`,
			`run.last_error?.code == "canary"`, `run.last_error?.message == "canary"`, `event.data.error.code == "canary"`, `event.data.error.more == "canary"`,
		} {
			require.NotContains(t, all.bisect("plain", text), never, text)
			require.Contains(t, bare.bisect(run, text), never, text)
		}
		require.Contains(t, bare.bisect(run, `run.status == "waiting" and event.data.reason == "human_input"`), "It is true first after record 4")
	}
}
