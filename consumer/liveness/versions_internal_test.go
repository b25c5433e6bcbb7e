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
	reply := func(agent string) (reply schema.ExecutorsReply) {
		w.hb.Fill(&reply, &schema.ExecutorsRequest{VersionsOf: agent}, time.Minute)
		return reply
	}
	require.Len(t, reply("coder").Versions, schema.MaxVersions)
	require.InDelta(t, 100-schema.MaxVersions, reply("coder").MoreVersions, 1, "two executors have the same")
	require.Empty(t, reply("writer").Versions)
	require.Zero(t, reply("").MoreVersions)
}

func TestHeartbeats_Builds_AreThoseOfLivingExecutors(t *testing.T) {
	t.Parallel()
	w := newLifeWorld(t)
	beat := func(executor, build string, leaving bool, agents ...string) {
		require.NoError(t, w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: executor, Instance: "i1", Build: build, Agents: agents, Leaving: leaving})))
	}
	lives := func(agent, build string) bool { return w.hb.Builds(time.Minute)(agent, build) }
	require.True(t, lives("coder", "v1"), "an executor of it may be unheard")
	w.Clock.Forward(time.Minute)
	require.False(t, lives("coder", "v1"))
	beat("executor-1", "v1", false, "coder", "writer")
	beat("executor-2", "v2", false, schema.AnyAgent)
	beat("executor-3", "v3", true, "coder")
	beat("executor-4", "v4", false)
	for agent, builds := range map[string]string{"coder": "v1 v2", "writer": "v1 v2", "poet": "v2"} {
		for build := range strings.FieldsSeq("v1 v2 v3 v4 v5") {
			require.Equal(t, strings.Contains(builds, build), lives(agent, build), "%s %s", agent, build)
		}
	}
	w.Clock.Forward(30 * time.Second)
	beat("executor-5", "v1", true, "coder")
	require.True(t, lives("coder", "v1"), "another one has not left")
	w.Clock.Forward(31 * time.Second)
	require.False(t, lives("coder", "v1"), "it is silent")
	w.hb.reset("the daemon was stopped")
	require.True(t, lives("coder", "v5"))
	w.hb.setSteady(nil, time.Time{})
	w.Clock.Forward(time.Hour)
	require.True(t, lives("coder", "v5"), "no executor is heard")
	require.Error(t, w.hb.executor(heartbeatMsg(t, &schema.Heartbeat{Executor: "executor-1", Instance: "i1", Build: strings.Repeat("v", schema.MaxBuild+1)})))
}
