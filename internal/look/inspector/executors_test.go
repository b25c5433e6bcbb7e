package inspector

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// An executor dies while pages are open. They show its silence, the orphaned run and the takeover without a reload.
func TestLive_ExecutorKilled_SilenceOrphanAndTakeoverAreSent(t *testing.T) {
	t.Parallel()
	d := deskOf(t, waymarktest.StartWith(t, waymarktest.Config{Silence: 2 * time.Second}), nil, nil)
	nc := d.world.Conn()
	box, err := publisher.Connect(t.Context(), publisher.Config{Conn: nc, Executor: "box-1", Agent: "coder"})
	require.NoError(t, err)
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "watched", Agent: "coder"})
	require.NoError(t, err)
	require.NoError(t, run.Sync(t.Context()))
	require.Eventually(t, func() bool {
		page := d.page("/executors")
		return strings.Contains(page, "box-1") && strings.Contains(page, "in 1.") && strings.Contains(page, `<td data-label="runs" class="n">1</td>`)
	}, 20*time.Second, 20*time.Millisecond)
	one := d.page("/executors?executor=box-1")
	require.Contains(t, one, `href="/run/watched"`)
	require.Contains(t, one, "waymark fleet executors box-1")
	require.Contains(t, d.page("/executors?executor=none"), "No executor of this name is heard")
	require.Regexp(t, `<span class="live">heard \d+s ago</span>`, d.page("/run/watched"))

	page, list := d.lines("/live/run/watched"), d.lines("/live/executors")
	d.finds(page, "started")
	nc.Close() // as if its machine failed
	d.finds(list, "silent for")
	d.finds(page, "silent for")
	d.finds(page, "orphaned")
	other := d.stage.Executor("box-2")
	_, err = other.Resume(t.Context(), "watched", publisher.ResumeSpec{})
	require.NoError(t, err)
	d.finds(page, "by box-2")
	require.Equal(t, schema.StatusRunning, d.world.State("watched").Head.Status)
}

// Green is an executor that is heard, and was heard in time; never one of which nothing is known.
func TestRowOf_SilentOrUnknown_IsNeverGreen(t *testing.T) {
	t.Parallel()
	ms := func(n int64) *int64 { return &n }
	const silence = 10_000
	for name, test := range map[string]struct {
		e     schema.ExecutorState
		heard bool
		want  string
	}{
		"heard":                          {schema.ExecutorState{SeenMS: ms(900), IntervalMS: 3000}, true, "live"},
		"heard, with a run":              {schema.ExecutorState{SeenMS: ms(900), IntervalMS: 3000, InHand: 1, OrphanedInMS: ms(9100)}, true, "live"},
		"slow heartbeats":                {schema.ExecutorState{SeenMS: ms(20_000), IntervalMS: 60_000}, true, "live"},
		"never heard":                    {schema.ExecutorState{}, true, "off"},
		"never heard, with a run":        {schema.ExecutorState{InHand: 1}, true, "wait"},
		"no interval, long ago":          {schema.ExecutorState{SeenMS: ms(395_000)}, true, "off"},
		"no interval, long ago, a run":   {schema.ExecutorState{SeenMS: ms(395_000), InHand: 1}, true, "wait"},
		"silent":                         {schema.ExecutorState{SeenMS: ms(5000), IntervalMS: 3000, Silent: true}, true, "off"},
		"its runs are orphaned":          {schema.ExecutorState{SeenMS: ms(11_000), InHand: 1, OrphanedInMS: ms(0)}, true, "bad"},
		"leaves":                         {schema.ExecutorState{SeenMS: ms(10), IntervalMS: 3000, Leaving: true}, true, "off"},
		"the daemon hears no heartbeats": {schema.ExecutorState{SeenMS: ms(10), IntervalMS: 3000}, false, "off"},
	} {
		require.Equal(t, test.want, rowOf(&test.e, silence, test.heard).Class, name)
	}
}
