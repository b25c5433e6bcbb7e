package inspector

import (
	"context"
	"fmt"
	"html"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// headOf is where a run stands.
func (d *desk) headOf(run string) *schema.Head {
	d.Helper()
	reply := new(schema.GetReply)
	require.NoError(d, d.pages.Fleet.Ask(d.Context(), schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, reply))
	return &reply.Head
}

// said are the lines of a story without what only a whole reading knows: how long what is open has taken.
func said(beats []*story.Beat) (list []story.Beat) {
	for _, b := range beats {
		b := *b
		if b.Open {
			b.DurationMS = nil
		}
		list = append(list, b)
	}
	return list
}

// rerun makes a run whose calls the second executor runs.
func (d *desk) rerun(id string) {
	d.Helper()
	run, err := d.world.Fleet("ex-1", nil).Start(d.Context(), publisher.RunSpec{ID: id, Agent: "coder"})
	require.NoError(d, err)
	turn, err := run.StartTurn(d.Context(), publisher.TurnSpec{})
	require.NoError(d, err)
	calls := []publisher.ToolCall{{ID: "z", Name: "zip", Replay: publisher.Idempotent}, {ID: "b", Name: "mail", Replay: publisher.Idempotent}}
	_, err = turn.Answer(d.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant}, Calls: calls})
	require.NoError(d, err)
	run, err = d.world.Fleet("ex-2", nil).Resume(d.Context(), id, publisher.ResumeSpec{})
	require.NoError(d, err)
	for _, call := range calls {
		_, err = run.OpenTurn().Tool(d.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.ToolResult{Result: []byte(`"ok"`), Duration: 2 * time.Millisecond}, nil
		})
		require.NoError(d, err)
	}
}

// The windows of a run add up to its story, whatever is in it: failures, takeovers, waits, calls in doubt, and a run that was handed in.
func TestTimeline_Windows_AddUpToTheStory(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Fill()
	hostile := d.stage.Hostile()
	d.rerun("again-1")
	for _, run := range append([]string{"again-1", "fix-login", "report-2", "invoice-91", "payout-7", "triage-3", "triage-4"}, hostile...) {
		head := d.headOf(run)
		read, err := story.Read(t.Context(), d.pages.Fleet, head)
		require.NoError(t, err)
		want := said(read.Tell(0, d.world.Now()).Story)
		for _, limit := range []int{3, 7, 400} {
			var got []*story.Beat
			for from := int64(1); ; {
				w, err := story.ReadWindow(t.Context(), d.pages.Fleet, head, from, 0, limit)
				require.NoError(t, err)
				require.Equal(t, head.Records, w.Total)
				got = append(got, w.Beats...)
				if from = w.Through + 1; from > w.Total {
					break
				}
			}
			require.Equal(t, want, said(got), "run %s in windows of %d", run, limit)
		}
		last, err := story.ReadWindow(t.Context(), d.pages.Fleet, head, 0, 0, 5)
		require.NoError(t, err)
		require.Equal(t, head.Records, last.Through)
		require.Subset(t, want, said(last.Beats))
	}
}

var lineID = regexp.MustCompile(`<tr class="row line[^"]*" id="r(\d+)\.\d+"`)

// linesOf are the records of the lines of a page.
func linesOf(page string) (records []string) {
	for _, m := range lineID.FindAllStringSubmatch(page, -1) {
		records = append(records, m[1])
	}
	return records
}

// A timeline opens at its end, and its links go through all of it, by pages of few rows.
func TestTimeline_LongRun_OpensAtItsEndAndIsPagedThrough(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	d.stage.Long("long", 300)
	head := d.headOf("long")
	read, err := story.Read(t.Context(), d.pages.Fleet, head)
	require.NoError(t, err)
	all := len(read.Tell(0, d.world.Now()).Story)
	prev := regexp.MustCompile(`<a rel="prev" href="([^"]*)"`)
	next := regexp.MustCompile(`<a rel="next" href="([^"]*)"`)
	page := d.page("/run/long")
	lines := linesOf(page)
	require.NotContains(t, page, `rel="next"`)
	require.Contains(t, page, "300 turns")
	pages := 1
	for m := prev.FindStringSubmatch(page); m != nil; m = prev.FindStringSubmatch(page) {
		page = d.page(html.UnescapeString(m[1]))
		older := linesOf(page)
		require.LessOrEqual(t, len(older), timelineRows)
		require.Contains(t, page, `rel="next"`)
		lines = append(older, lines...)
		pages++
	}
	require.Len(t, lines, all)
	require.Len(t, lines, len(slices.Compact(slices.Clone(lines))), "each line once")
	require.Greater(t, pages, 2)
	forth := 1
	for m := next.FindStringSubmatch(page); m != nil; m = next.FindStringSubmatch(page) {
		page = d.page(html.UnescapeString(m[1]))
		forth++
	}
	require.Equal(t, linesOf(page)[len(linesOf(page))-1], lines[len(lines)-1])
	require.LessOrEqual(t, forth, pages+1)

	// A point is on the page that is opened at it.
	page = d.page("/run/long?at=turn:100")
	require.Contains(t, page, `aria-current="true"`)
	require.Contains(t, page, `>100</a>`)
	status, _ := d.get("/run/long?at=nonsense")
	require.Equal(t, 400, status)
}

// A run that goes on while its page is open shows what is new, at the next look.
func TestTimeline_RunGoesOn_PageFollows(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "live", Agent: "coder", Model: "claude-sonnet"})
	require.NoError(t, err)
	require.Contains(t, d.page("/run/live"), "0 turns")
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "odd", Message: "look here"}, "run"))
	require.Contains(t, d.page("/run/live"), "look here")
}

// counted counts what is asked of the service.
type counted struct {
	Fleet
	asked atomic.Int64
}

func (c *counted) Ask(ctx context.Context, verb, run string, request, reply any) error {
	c.asked.Add(1)
	return c.Fleet.Ask(ctx, verb, run, request, reply)
}

// A page that fifty have open is read once: it costs the service what one viewer costs.
func TestLive_FiftyViewers_CostTheServiceWhatOneDoes(t *testing.T) {
	t.Parallel()
	c := new(counted)
	d := newDesk(t, func(cfg *Config) { c.Fleet, cfg.Fleet = cfg.Fleet, c })
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "seen", Agent: "coder"})
	require.NoError(t, err)
	n := 0
	watch := func(viewers []<-chan string) (asked, events int64) {
		before := c.asked.Load()
		for range 5 {
			n++
			text := fmt.Sprintf("event %d of many", n)
			require.NoError(t, run.Error(t.Context(), schema.Error{Type: "odd", Message: text}, "run"))
			for _, lines := range viewers {
				d.finds(lines, text)
			}
		}
		return c.asked.Load() - before, 5
	}
	viewers := []<-chan string{d.lines("/live/run/seen")}
	one, events := watch(viewers)
	for range 49 {
		viewers = append(viewers, d.lines("/live/run/seen"))
	}
	fifty, _ := watch(viewers)
	t.Logf("%d events: one viewer has the service asked %d times, fifty %d times", events, one, fifty)
	require.Less(t, fifty, 4*one+20, "and not fifty times as often")
}
