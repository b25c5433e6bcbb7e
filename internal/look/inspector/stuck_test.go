package inspector

import (
	"html"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/showcase"
)

// plain is the text of a page without its tags.
func plain(page string) string {
	return strings.Join(strings.Fields(html.UnescapeString(regexp.MustCompile(`<[^>]*>`).ReplaceAllString(page, " "))), " ")
}

// eventually awaits a page that says all of it, and returns its source.
func (d *desk) eventually(path string, want ...string) (page string) {
	d.Helper()
	missing := func() string {
		page = d.page(path)
		for _, text := range want {
			if !strings.Contains(plain(page), text) {
				return text
			}
		}
		return ""
	}
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	left := missing()
	for end := time.Now().Add(time.Minute); left != "" && time.Now().Before(end); left = missing() {
		<-again.C
	}
	require.Empty(d, left, "%s does not say it: %s", path, plain(page))
	return page
}

// The questions of an operator on call, on the pages of a fleet with 31 orphaned runs of three agents.
func TestNight_EachQuestionOfAnOperator_IsAnsweredByAPage(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Night()
	// Is anything wrong? Which agents are stuck, how many runs each? Is an executor of them alive? How many need a person, or failed?
	first := d.eventually("/", "43 live · 43 stuck · 12 need you · 2 failed in 24 h",
		"coder 14 stuck 14 orphaned no executor of coder is alive", "billing 11 stuck", "generator 6 stuck", "importer 2 failed",
		"support 12 stuck 12 waiting 1 executor of support alive", "Runs wait for an executor, and no executor of coder is alive ( 14 stuck ), no executor of billing is alive ( 11 stuck ), no executor of generator is alive ( 6 stuck ): start it.")
	for _, link := range []string{"/?status=stuck", "/?status=stuck&amp;agent=coder", "/?status=orphaned&amp;agent=billing", "/?status=failed&amp;agent=importer"} {
		require.Contains(t, first, `href="`+link+`"`)
	}
	require.NotContains(t, plain(first), "no executor of support", "it is alive")
	require.NotContains(t, plain(d.page("/?status=stuck&agent=support")), "no executor of")
	require.NotContains(t, plain(first), "no executor of importer is alive (", "none of its runs waits for one")

	// Why, and since when?
	for agent, n := range showcase.Orphans {
		page := d.page("/?status=stuck&agent=" + agent)
		require.Equal(t, n, strings.Count(page, `<tr class="row`), agent)
		require.Equal(t, n, strings.Count(page, "orphaned: its executor is gone <time"), agent)
		require.Contains(t, plain(page), "waymark runs ls --stuck --agent "+agent)
	}
	require.Equal(t, 43, strings.Count(d.page("/?status=stuck"), `<tr class="row`))
	require.Contains(t, d.page("/?status=stuck&agent=writer"), "No run is stuck, of agent writer.")

	// What failed, and with which error?
	failed := d.page("/?status=failed")
	require.Regexp(t, `class="now bad">rate_limit: the model refused: 429, quota of project harbour used up`, failed)
	require.Regexp(t, `class="now bad">tool: git push: permission denied`, failed)
	require.Contains(t, d.page("/run/import-1"), `class="note bad">rate_limit: the model refused`)

	// Where does the run hang, and what would happen?
	run := d.page("/run/coder-3")
	require.Contains(t, plain(run), "orphaned: its executor is gone")
	require.Contains(t, plain(run), "no executor of coder is alive")
	require.Contains(t, d.page("/run/coder-3/recovery"), "If an executor took it over now")
	require.Contains(t, plain(d.page("/run/coder-3/act")), "There is nothing to release: it waits, and no executor of coder is alive.")
	require.Contains(t, run, `class="dot lost"`)
	require.Contains(t, d.page("/run/refund-1"), `class="dot wait"`, "a run that waits has another sign")
}
