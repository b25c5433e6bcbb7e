package waymarktest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// The daemon is killed, or the server restarted, after each event of a run that waits for a time, in turn: before the wait's
// event is folded, while the run waits, at its expiry, at the claim and after it.
func TestTimers_DaemonOrServerGoneAtEachEvent_WaitOnce(t *testing.T) {
	t.Parallel()
	faults := map[string]func(*waymarktest.World){
		"daemon": func(w *waymarktest.World) { w.Daemon.Kill(); w.Daemon.Start() },
		"server": func(w *waymarktest.World) { w.Server.Stop(); w.Server.Start() },
	}
	for _, agent := range []string{"sleeper", "loop"} {
		for name, fault := range faults {
			t.Run(agent+"/"+name, func(t *testing.T) {
				t.Parallel()
				step := 1
				if testing.Short() {
					t.Log("short: after one event of four")
					step = 4
				}
				for at := 1; timerFault(t, agent, at, fault); at += step {
				}
			})
		}
	}
}

// timerFault drives one run of an agent, has the fault after an event of it, and reports whether there was such an event.
func timerFault(t *testing.T, agent string, at int, fault func(*waymarktest.World)) (happened bool) {
	t.Helper()
	w := waymarktest.Start(t)
	events := make(chan string, 256)
	watch := w.Conn()
	_, err := watch.Subscribe(schema.NamesOf(schema.DefaultFleet, 0).EventSubjects(), func(m *nats.Msg) {
		select {
		case events <- m.Subject[strings.LastIndex(m.Subject, ".")+1:]:
		default:
			t.Errorf("run %s has too many events", agent)
		}
	})
	require.NoError(t, err)
	require.NoError(t, watch.Flush())
	p := &provider{script: status(429, 2, "3600")}
	e := w.Serve("ex-1", publisher.ExecutorSpec{
		Loops: map[string]publisher.Loop{"loop": p.loop(t)},
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"sleeper": func(context.Context, *publisher.Run) (publisher.Work, error) {
				return func(ctx context.Context, run *publisher.Run) error {
					return run.Sleep(ctx, "night", time.Now().Add(time.Hour))
				}, nil
			},
		},
	}, nil)
	_, err = e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: agent, Agent: agent, Task: "Go."})
	require.NoError(t, err)

	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	deadline := time.After(2 * time.Minute)
	for seen, rung := 0, false; ; {
		select {
		case <-events:
			if seen++; seen == at {
				fault(w)
				happened = true
			}
			continue
		case <-look.C:
		case <-deadline:
			require.Fail(t, "the run does not end", "fault after event %d: %+v", at, w.State(agent).Head)
		}
		switch head := w.State(agent).Head; {
		case head.Status.Terminal() && len(events) == 0:
			requireOneWait(t, agent, at, w.State(agent))
			if agent == "loop" {
				require.Equal(t, 2, p.count(), "fault after event %d: once before its time, once after it", at)
			}
			return happened
		case head.Status == schema.StatusWaiting && head.Unattended != "" && !rung:
			rung = true
			w.Advance(time.Hour + 2*time.Minute) // with the jitter
		}
	}
}

// requireOneWait requires a completed run that waited once, until its time.
func requireOneWait(t *testing.T, run string, at int, state *schema.State) {
	t.Helper()
	which := fmt.Sprintf("run %s, fault after event %d", run, at)
	require.Equal(t, schema.StatusCompleted, state.Head.Status, which)
	require.Len(t, state.Waits, 1, which)
	require.NotNil(t, state.Waits[0].Input, which)
	require.Equal(t, schema.InputExpired, state.Waits[0].Input.Status, which)
	require.GreaterOrEqual(t, len(state.Takeovers), 2, "%s: its first claim, and one after the wait", which)
}
