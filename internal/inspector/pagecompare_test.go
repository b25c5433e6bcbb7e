package inspector

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestCompare_ForkThatWentAnotherWay_ShowsTheFirstDifference(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "one", Agent: "coder"})
	require.NoError(t, err)
	step := func(run *publisher.Run, id, arguments, result string) {
		call := publisher.ToolCall{ID: id, Name: "test", Replay: schema.ReplayPure, Arguments: []byte(arguments)}
		d.stage.Do(d.stage.Say(run, time.Second, "Go on.", "I test.", call), call, time.Second, result, nil)
	}
	step(run, "a", `{"n":1}`, "ok")
	require.NoError(t, run.Sync(t.Context()))
	other, err := box.Fork(t.Context(), publisher.ForkSpec{ID: "two", Base: "one"})
	require.NoError(t, err)
	step(run, "b", `{"n":3}`, "fine <b>")
	step(other, "c", `{"n":4}`, "broken")
	require.NoError(t, run.Sync(t.Context()))
	require.NoError(t, other.Sync(t.Context()))
	page := d.page("/compare?a=one&b=two")
	for _, want := range []string{"the first <b>1</b> are the same", "First difference", `&#34;n&#34;: 3`, `&#34;n&#34;: 4`, "fine &lt;b&gt;", "broken", "waymark diff one two"} {
		require.Contains(t, page, want)
	}
	require.Contains(t, d.page("/compare?a=one@result:1&b=one@result:1"), "They do not differ")
	require.Contains(t, d.page("/compare?a=one@result:1&b=one"), "It has no such step.")
	require.Contains(t, d.page("/compare"), "Name two runs")
	status, _ := d.get("/compare?a=one&b=none")
	require.Equal(t, http.StatusNotFound, status)
	status, _ = d.get("/compare?a=one@nonsense:1&b=two")
	require.Equal(t, http.StatusBadRequest, status)

	private := deskOf(t, d.world, nil, func(c *Config) { c.NoContent = true })
	require.NotContains(t, private.page("/compare?a=one&b=two"), "broken")
	require.Eventually(t, func() bool {
		page = d.page("/run/one/lineage")
		return strings.Contains(page, `id="t-two"`)
	}, 20*time.Second, 20*time.Millisecond)
	for _, want := range []string{`<li class="here"><div class="node row" id="t-one">`, "continues it", `href="/compare?a=one&amp;b=two"`, "waymark tree one"} {
		require.Contains(t, page, want)
	}
	require.Less(t, strings.Index(page, `id="t-one"`), strings.Index(page, `id="t-two"`))
	require.Contains(t, d.page("/run/two/lineage"), `<li class="here"><div class="node row" id="t-two">`)
}

func TestHealth_DoctorsFindings_AreShownWorstFirst(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *Config) {
		c.Doctor = func(context.Context) ([]Finding, error) {
			return []Finding{
				{Name: "clock", Result: "ok", Detail: "agrees"},
				{Name: "disk", Result: "unknown", Detail: "look on its machine"},
				{Name: "replicas", Result: "warning", Detail: "one <b>behind</b>", Do: "wait"},
				{Name: "lock", Result: "FAILED", Detail: "no lease", Do: "start the daemon"},
			}, nil
		}
	})
	var page string
	require.Eventually(t, func() bool {
		page = d.page("/health")
		return strings.Contains(page, "1 check found nothing wrong")
	}, 20*time.Second, 20*time.Millisecond)
	for _, pair := range [][2]string{{"no lease", "one &lt;b&gt;behind&lt;/b&gt;"}, {"do: wait", "look on its machine"}} {
		require.Positive(t, strings.Index(page, pair[0]))
		require.Less(t, strings.Index(page, pair[0]), strings.Index(page, pair[1]))
	}
	require.NotContains(t, page, "agrees")
}
