package inspector

import (
	"bufio"
	"context"
	"html"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// lines hands over what an open page is sent.
func (d *desk) lines(path string) <-chan string {
	d.Helper()
	r, err := http.NewRequestWithContext(d.Context(), http.MethodGet, d.url+path, nil)
	require.NoError(d, err)
	response, err := d.viewer.Do(r)
	require.NoError(d, err)
	require.Equal(d, http.StatusOK, response.StatusCode)
	d.Cleanup(func() { _ = response.Body.Close() })
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(response.Body); in.Scan(); {
			lines <- in.Text()
		}
	}()
	return lines
}

// finds waits until an open page is sent a text.
func (d *desk) finds(lines <-chan string, text string) {
	d.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case line, open := <-lines:
			require.True(d, open, "the stream has ended before %q", text)
			if strings.Contains(line, text) {
				return
			}
		case <-limit:
			require.Fail(d, "not sent", text)
		}
	}
}

// slow is a fleet whose runs cannot be read in time.
type slow struct {
	Fleet
	stand chan struct{}
}

func (s *slow) Ask(ctx context.Context, verb, run string, request, reply any) error {
	select {
	case <-s.stand:
		<-ctx.Done()
		return ctx.Err()
	default:
		return s.Fleet.Ask(ctx, verb, run, request, reply)
	}
}

// A page that cannot be read in time says so, and does not stand still without a word.
func TestLive_PageTakesTooLong_SaysSo(t *testing.T) {
	t.Parallel()
	s := &slow{stand: make(chan struct{})}
	d := newDesk(t, func(c *Config) {
		s.Fleet = c.Fleet
		c.Fleet = s
	})
	run, err := d.stage.Executor("box-1").Start(t.Context(), publisher.RunSpec{ID: "live", Agent: "coder"})
	require.NoError(t, err)
	lines := d.lines("/live/run/live")
	d.finds(lines, "started")
	close(s.stand)
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "odd", Message: "seen late"}, "run"))
	d.finds(lines, "takes longer than")
}

// The whole of a call's arguments is that of the point which the page shows.
func TestWhole_AtAPointBeforeARewind_IsThatOfThePoint(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "twice", Agent: "coder"})
	require.NoError(t, err)
	first := strings.Repeat("first ", 4000)
	require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(first)}}))
	require.NoError(t, run.Mark(t.Context(), "before"))
	run, err = box.Resume(t.Context(), "twice", publisher.ResumeSpec{At: schema.Point{Kind: schema.PointRecord, Number: 1}})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	page := d.page("/run/twice/conversation?at=record:2")
	m := regexp.MustCompile(`href="(/run/twice/whole[^"]*)"`).FindStringSubmatch(page)
	require.NotNil(t, m, page)
	require.Equal(t, strings.TrimSpace(first), strings.TrimSpace(d.page(html.UnescapeString(m[1]))))
	status, _ := d.get("/run/twice/whole?event=none&part=0")
	require.Equal(t, http.StatusNotFound, status)
}

// What is asked at length is cut, and can be read whole.
func TestNeedsYou_LongQuestion_IsCutAndReadWhole(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	long := strings.Repeat("Which colour? <b> ", 6000) + "the end"
	for _, id := range []string{"long-1", "long-2", "long-3"} {
		run, err := box.Start(t.Context(), publisher.RunSpec{ID: id, Agent: "coder"})
		require.NoError(t, err)
		require.NoError(t, run.Wait(t.Context(), schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: long}))
	}
	var page string
	require.Eventually(t, func() bool {
		page = d.page("/needs-you")
		return strings.Count(page, "<article") == 3
	}, 20*time.Second, 20*time.Millisecond)
	require.Less(t, len(page), 150<<10)
	require.NotContains(t, page, "the end")
	m := regexp.MustCompile(`href="(/run/long-1/asked[^"]*)"`).FindStringSubmatch(page)
	require.NotNil(t, m, page)
	require.Equal(t, long, d.page(html.UnescapeString(m[1])))
	status, _ := d.get("/run/long-1/asked?id=none&field=message")
	require.Equal(t, http.StatusNotFound, status)
	private := deskOf(t, d.world, nil, func(c *Config) { c.NoContent = true })
	status, _ = private.get(html.UnescapeString(m[1]))
	require.Equal(t, http.StatusForbidden, status)
}
