package cli

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// interrupted runs a command line, ends it as Ctrl-C does once ready says so, and returns its exit code.
func interrupted(t *testing.T, ready func(complaints string) bool, args ...string) int {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out, complaints lockedBuffer
	ended := make(chan int, 1)
	getenv := env("WAYMARK_STATE_DIR", t.TempDir())
	go func() {
		ended <- Run(ctx, args, getenv, strings.NewReader(""), &out, &complaints)
	}()
	require.Eventually(t, func() bool { return ready(complaints.String()) }, time.Minute, time.Millisecond, "%v", args)
	cancel()
	return <-ended
}

func TestEvents_RunIsNotThere_SaysThatItWaits(t *testing.T) {
	t.Parallel()
	where, _, _ := provisioned(t)
	_, stop, err := startDaemon(append([]string{"--http", "off"}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	code := interrupted(t, func(complaints string) bool {
		return strings.Contains(complaints, "fleet default has no run unknown: waiting for its events")
	}, append([]string{"events", "unknown"}, where...)...)
	require.Zero(t, code)
}

func TestEvents_RunHasEnded_SaysThatItWaits(t *testing.T) {
	t.Parallel()
	where, _, fleet := provisioned(t)
	_, stop, err := startDaemon(append([]string{"--http", "off"}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "run-1"})
	require.NoError(t, err)
	require.NoError(t, r.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	require.Zero(t, interrupted(t, func(complaints string) bool {
		return strings.Contains(complaints, "run run-1 has ended as completed: waiting for new events anyway") &&
			strings.Contains(complaints, "events run-1 --all --no-follow")
	}, append([]string{"events", "run-1"}, where...)...))
}

// The server acknowledges an event that breaks a rule. A follower sees that it does not count.
func TestEvents_FollowedRun_MarksRefusedEvents(t *testing.T) {
	t.Parallel()
	where, js, fleet := provisioned(t)
	_, stop, err := startDaemon(append([]string{"--http", "off"}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	_, err = fleet.Start(t.Context(), publisher.RunSpec{ID: "run-1"})
	require.NoError(t, err)
	for args, want := range map[string]string{
		"run-1":       `"refused":"unknown_call, `,
		"run-1 --all": `"refused":"unknown_call, `,
		"--type tool": `"refused":"invalid_data, `,
	} {
		data := `{"tool_call_id":"zz","result":1}`
		if strings.Contains(want, "invalid") {
			data = `{"tool_call_id":"zz","result":"\ud83d"}`
		}
		ctx, cancel := context.WithCancel(t.Context())
		out, ended, n := new(lockedBuffer), make(chan int, 1), 0
		go func() {
			ended <- Run(ctx, slices.Concat([]string{"events", "--json"}, strings.Fields(args), where), env("WAYMARK_STATE_DIR", t.TempDir()), strings.NewReader(""), out, out)
		}()
		require.Eventually(t, func() bool {
			n++
			m := nats.NewMsg(schema.NamesOf(schema.DefaultFleet, 0).EventSubject("run-1"))
			for name, value := range map[string]string{
				"specversion": "1.0", "id": args + strconv.Itoa(n), "source": "/waymark/default/py-1", "subject": "run-1", "epoch": "1", "turn": "1", "type": "io.waymark.tool.returned.v1",
			} {
				m.Header.Set("ce-"+name, strings.ReplaceAll(value, " ", "%20"))
			}
			m.Data = []byte(data)
			_, err := js.PublishMsg(t.Context(), m)
			return err == nil && strings.Contains(out.String(), want)
		}, time.Minute, 20*time.Millisecond, "%s", out)
		cancel()
		require.Zero(t, <-ended, out.String())
	}
}
