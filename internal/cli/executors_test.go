package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

func TestFleetExecutors_RunInHand_SaysWhenItIsOrphaned(t *testing.T) {
	t.Parallel()
	w := waymarktest.Start(t)
	box := w.Fleet("box-1", nil)
	_, err := box.Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	run := func(args ...string) string {
		var out, stderr lockedBuffer
		code := Run(t.Context(), args, func(name string) string { return map[string]string{"WAYMARK_STATE_DIR": w.StateDir()}[name] }, strings.NewReader(""), &out, &stderr)
		require.Zero(t, code, stderr.String())
		return out.String()
	}
	var reply schema.ExecutorsReply
	require.Eventually(t, func() bool {
		require.NoError(t, json.Unmarshal([]byte(run("fleet", "executors", "box-1", "--json")), &reply))
		return len(reply.Executors) == 1 && reply.Executors[0].InHand == 1 && reply.Executors[0].SeenMS != nil
	}, securedWait, pollEvery)
	e := reply.Executors[0]
	require.Equal(t, []string{"r1"}, e.Runs)
	require.Equal(t, box.Instance(), e.Instance)
	require.NotNil(t, e.OrphanedInMS)
	require.LessOrEqual(t, *e.OrphanedInMS, reply.SilenceMS)
	require.Positive(t, reply.SilenceMS)
	text := run("fleet", "executors", "box-1")
	require.Regexp(t, `(?m)^box-1 +\S+ ago +1 +in \S+ `, text)
	require.Regexp(t, `(?m)^  r1 *$`, text)
	require.NotContains(t, run("fleet", "executors", "box-2"), "box-1")
}
