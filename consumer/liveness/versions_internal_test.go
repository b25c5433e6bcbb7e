package liveness

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// versioned is a heartbeat of an executor that claims coder, with versions.
func (w *lifeWorld) versioned(t *testing.T, executor string, versions map[string]schema.Version) error {
	t.Helper()
	return w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: executor, Instance: "i1", Agents: []string{"coder"}, Versions: versions}))
}

func TestHeartbeats_VersionsThatAreRefused_LeaveASignOfLife(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	large := schema.Version{}
	for i := range schema.MaxVersionTools {
		large.Tools = append(large.Tools, schema.ToolVersion{Name: fmt.Sprint(i), Required: []string{strings.Repeat("x", 250), strings.Repeat("y", 250)}})
	}
	for name, versions := range map[string]map[string]schema.Version{
		"of another agent": {"writer": {Build: "v1"}},
		"a long name":      {strings.Repeat("x", 1000): {Build: "v1"}},
		"a long build":     {"coder": {Build: strings.Repeat("x", schema.MaxBuild+1)}},
		"too large":        {"coder": large},
	} {
		require.ErrorIs(t, w.versioned(t, "executor-1", versions), errHeartbeat, name)
		l, seen := w.hb.last("executor-1", "i1", time.Minute)
		require.True(t, seen, name)
		require.Empty(t, l.versions, name)
	}
	require.Less(t, w.hb.held, 10)
}

// A hundred executors have different versions: an answer has [schema.MaxVersions] of them.
func TestExecutors_VeryManyVersions_AnswerHasAFew(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	for i := range 100 {
		require.NoError(t, w.versioned(t, fmt.Sprintf("executor-%d", i), map[string]schema.Version{"coder": {Build: fmt.Sprint("v", i), Prompt: strings.Repeat("p", 16)}}))
	}
	require.NoError(t, w.versioned(t, "executor-100", map[string]schema.Version{"coder": {Build: "v1", Prompt: strings.Repeat("p", 16)}}))
	reply := func(agent string) []schema.Version {
		var reply schema.ExecutorsReply
		w.hb.Fill(&reply, &schema.ExecutorsRequest{VersionsOf: agent}, time.Minute)
		return reply.Versions
	}
	require.Len(t, reply("coder"), schema.MaxVersions)
	require.Empty(t, reply("writer"))
	require.Empty(t, reply(""))
}
