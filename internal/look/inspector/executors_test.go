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
