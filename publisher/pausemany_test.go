package publisher_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// payer works on many runs at once: each of its turns is answered with a hold call, which pays.
type payer struct {
	// pace is the pause between two turns, and done ends the runs.
	pace time.Duration
	done atomic.Bool

	mu   sync.Mutex
	paid map[string]int
	runs map[string]bool
}

func (p *payer) work(ctx context.Context, run *publisher.Run) error {
	for !p.done.Load() || run.Head().TurnOpen {
		turn := run.OpenTurn()
		if turn == nil {
			var err error
			if turn, err = run.StartTurn(ctx, publisher.TurnSpec{}); err != nil {
				return err
			}
			if _, err = turn.Answer(ctx, publisher.Answer{
				Message: assistant(), Calls: []publisher.ToolCall{{ID: "c", Name: "pay", Replay: publisher.Hold, Arguments: []byte(`{}`)}},
			}); err != nil {
				return err
			}
		}
		calls, err := turn.Calls(ctx) // of an answer that was recorded before, too
		if err != nil {
			return err
		}
		for _, call := range calls {
			if _, err := turn.Tool(ctx, call, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				p.mu.Lock()
				defer p.mu.Unlock()
				p.paid[inv.IdempotencyKey]++
				p.runs[run.ID()] = true
				return publisher.Result("paid")
			}); err != nil {
				return err
			}
		}
		select {
		case <-time.After(p.pace):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// working returns how many runs have paid.
func (p *payer) working() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.runs)
}

// twice are the payments that were made twice.
func (p *payer) twice() (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, n := range p.paid {
		if n > 1 {
			keys = append(keys, key)
		}
	}
	return keys
}

// startPayers starts an executor with n runs that pay.
func startPayers(t *testing.T, w *waymarktest.World, p *payer, n int) {
	t.Helper()
	p.paid, p.runs = make(map[string]int), make(map[string]bool)
	f := w.Fleet("exec", func(c *publisher.Config) { c.PublishTimeout = patience })
	e, err := f.NewExecutor(publisher.ExecutorSpec{
		Capacity: n, Grace: 5 * time.Second, Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"coder": working(p.work)},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- e.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-served)
	})
	for i := range n {
		_, err := e.Start(t.Context(), publisher.RunSpec{ID: fmt.Sprint("r", i), Agent: "coder"})
		require.NoError(t, err)
	}
	require.Eventually(t, func() bool { return p.working() == n }, patience, 10*time.Millisecond)
}

// pausedRuns counts the runs that are listed as paused, and those of all statuses.
func pausedRuns(t *testing.T, nc *nats.Conn) (paused, all int) {
	t.Helper()
	var page schema.ListReply
	for req := (schema.ListRequest{Limit: schema.MaxList}); ; req.After = page.Next {
		body, err := json.Marshal(&req)
		require.NoError(t, err)
		m, err := nc.Request(schema.ServiceSubject(schema.VerbList, schema.DefaultFleet, ""), body, patience)
		require.NoError(t, err)
		page = schema.ListReply{}
		require.NoError(t, json.Unmarshal(m.Data, &page))
		for i := range page.Runs {
			all++
			if page.Runs[i].Status == schema.StatusPaused {
				paused++
			}
		}
		if page.Next == "" {
			return paused, all
		}
	}
}

// logged are the events of all runs, and when the server stored each.
func logged(t *testing.T, nc *nats.Conn) (events []*schema.Event, stored []time.Time) {
	t.Helper()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	names := schema.NamesOf(schema.DefaultFleet, 0)
	stream, err := js.Stream(t.Context(), names.EventStream())
	require.NoError(t, err)
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	c, err := js.OrderedConsumer(t.Context(), names.EventStream(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	messages, err := c.Messages()
	require.NoError(t, err)
	defer messages.Stop()
	for {
		m, err := messages.Next()
		require.NoError(t, err)
		meta, err := m.Metadata()
		require.NoError(t, err)
		if e, err := schema.Decode(m.Headers(), m.Data()); err == nil && e.Subject != schema.BarrierRun {
			events, stored = append(events, e), append(stored, meta.Timestamp)
		}
		if meta.Sequence.Stream >= info.State.LastSeq {
			return events, stored
		}
	}
}

// A thousand runs at work are paused: nothing begins once the pause was answered, all go on afterwards, none has failed,
// and nothing was paid twice.
func TestPause_ThousandRuns_NoneBeginsAfterTheAnswer(t *testing.T) {
	t.Parallel()
	n := 1000
	if testing.Short() {
		t.Log("short: 50 runs instead of 1,000")
		n = 50
	}
	w := waymarktest.Start(t)
	nc := w.Conn()
	p := &payer{pace: time.Duration(n) * 10 * time.Millisecond}
	startPayers(t, w, p, n)

	asked := time.Now()
	reply := askPause(t, nc, schema.PauseRequest{Reason: "it bills twice"})
	answered := time.Now()
	for reply.Doubt() != "" { // a slow machine needs longer than a request may take
		t.Logf("%s, after %s", reply.Doubt(), answered.Sub(asked).Round(time.Millisecond))
		reply = askPause(t, nc, schema.PauseRequest{Reason: "it bills twice"})
		require.True(t, reply.Already)
		answered = time.Now()
	}
	require.Equal(t, n, reply.Runs)
	paused, all := pausedRuns(t, nc)
	require.Equal(t, []int{n, n}, []int{paused, all})
	// Each is given back once its executor has finished what is under way.
	require.Eventually(t, func() bool {
		back := 0
		events, _ := logged(t, nc)
		for _, e := range events {
			if e.Name() == schema.RunInterrupted {
				back++
			}
		}
		return back == n
	}, patience, 100*time.Millisecond)
	head, err := w.Reader().Head(t.Context(), "r0")
	require.NoError(t, err)
	require.Equal(t, schema.StatusInterrupted, head.Status)

	p.done.Store(true)
	ending := time.Now()
	askPause(t, nc, schema.PauseRequest{End: true})
	ended := time.Now()
	for i := range n {
		w.Await(fmt.Sprint("r", i), schema.StatusCompleted)
	}
	require.Empty(t, p.twice())
	events, stored := logged(t, nc)
	behind, first, last := make(map[string]bool), time.Time{}, time.Time{}
	for i, e := range events {
		switch e.Name() {
		case schema.RunPaused:
			behind[e.Subject] = true
			if first.IsZero() {
				first = stored[i]
			}
			last = stored[i]
		case schema.RunResumed:
			require.True(t, stored[i].After(ending), "%s was taken over during the pause", e.Subject)
			behind[e.Subject] = false
		}
		if begins(t, events, i) {
			require.False(t, behind[e.Subject], "%s begins behind the pause", e.ID)
			require.False(t, stored[i].After(answered) && stored[i].Before(ending), "%s begins %s after the answer", e.ID, stored[i].Sub(answered))
		}
	}
	t.Logf("%d runs: answered after %s, from the first pause in a log to the last %s, all completed %s after its end", n,
		answered.Sub(asked).Round(time.Millisecond), last.Sub(first).Round(time.Millisecond), time.Since(ended).Round(time.Millisecond))
}

// The daemon is killed at some moment after it got a request to pause or to end a pause, or the server and then the daemon:
// the request, repeated, holds, and so does a pause that was stored before the daemon wrote it into a run.
func TestPause_DaemonKilledMeanwhile_HoldsAfterwards(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon is killed twenty times, and the server ten times")
	}
	w := waymarktest.Start(t)
	nc := w.Conn()
	p := &payer{pace: 10 * time.Millisecond}
	startPayers(t, w, p, 20)
	ask := func(req schema.PauseRequest, dies time.Duration, server bool) {
		req.By = "ann"
		body, err := json.Marshal(&req)
		require.NoError(t, err)
		require.NoError(t, nc.PublishRequest(schema.ServiceSubject(schema.VerbPause, schema.DefaultFleet, ""), nc.NewRespInbox(), body))
		require.NoError(t, nc.Flush())
		timer := time.NewTimer(dies)
		<-timer.C
		if server {
			w.Server.Stop()
		}
		w.Daemon.Kill()
		w.Server.Start()
		w.Daemon.Start()
		require.Eventually(t, func() bool {
			m, err := nc.Request(schema.ServiceSubject(schema.VerbPause, schema.DefaultFleet, ""), body, patience)
			return err == nil && m.Header.Get("Nats-Service-Error-Code") == ""
		}, patience, 10*time.Millisecond)
	}
	for round := range 10 {
		dies, server := time.Duration(round/2*(round/2))*time.Millisecond, round%2 == 1
		ask(schema.PauseRequest{Reason: "it bills twice"}, dies, server)
		require.Eventually(t, func() bool {
			events, _ := logged(t, nc)
			held := make(map[string]bool)
			for _, e := range events {
				switch e.Name() {
				case schema.RunPaused:
					held[e.Subject] = true
				case schema.RunResumed:
					held[e.Subject] = false
				}
			}
			for i := range 20 {
				if run := fmt.Sprint("r", i); !held[run] && w.Status(run) != schema.StatusInterrupted {
					return false
				}
			}
			return true
		}, patience, 200*time.Millisecond, "round %d", round) // each look reads the whole log
		paused, _ := pausedRuns(t, nc)
		require.Equal(t, 20, paused, "round %d", round)
		before := p.working()
		ask(schema.PauseRequest{End: true}, dies, server)
		p.mu.Lock()
		clear(p.runs)
		p.mu.Unlock()
		require.Eventually(t, func() bool { return p.working() == 20 }, patience, 10*time.Millisecond, "round %d: all %d go on", round, before)
	}
	p.done.Store(true)
	for i := range 20 {
		w.Await(fmt.Sprint("r", i), schema.StatusCompleted)
	}
	require.Empty(t, p.twice())
	events, _ := logged(t, nc)
	behind := make(map[string]bool)
	for i, e := range events {
		switch e.Name() {
		case schema.RunPaused:
			behind[e.Subject] = true
		case schema.RunResumed:
			behind[e.Subject] = false
		}
		require.False(t, behind[e.Subject] && begins(t, events, i), "%s begins behind the pause", e.ID)
	}
}
