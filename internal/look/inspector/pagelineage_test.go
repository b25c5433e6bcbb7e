package inspector

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
)

func TestLineage_Fork_StandsBelowItsBase(t *testing.T) {
	t.Parallel()
	d := newDesk(t, nil)
	box := d.stage.Executor("box-1")
	run, err := box.Start(t.Context(), publisher.RunSpec{ID: "one", Agent: "coder"})
	require.NoError(t, err)
	d.stage.Say(run, time.Second, "Go on.", "I test.")
	require.NoError(t, run.Sync(t.Context()))
	_, err = box.Fork(t.Context(), publisher.ForkSpec{ID: "two", Base: "one"})
	require.NoError(t, err)
	var page string
	require.Eventually(t, func() bool {
		page = d.page("/run/one/lineage")
		return strings.Contains(page, `id="t-two"`)
	}, 20*time.Second, 20*time.Millisecond)
	for _, want := range []string{`<li class="here"><div class="node row" id="t-one">`, "continues it", "waymark tree one"} {
		require.Contains(t, page, want)
	}
	require.Less(t, strings.Index(page, `id="t-one"`), strings.Index(page, `id="t-two"`))
	require.Contains(t, d.page("/run/two/lineage"), `<li class="here"><div class="node row" id="t-two">`)
}
