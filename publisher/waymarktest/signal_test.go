package waymarktest_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// listener is an agent whose model waits for messages until it has seen all of them, and checks each request.
type listener struct {
	each int

	mu     sync.Mutex
	seen   map[string]int
	asked  int
	broken []string
}

// numbers are the payloads of the messages that a conversation has, in order.
func numbers(conversation []schema.Message) (list []string) {
	for i := range conversation {
		for _, p := range conversation[i].Parts {
			if p.Content == nil {
				continue
			}
			if n, ok := strings.CutPrefix(*p.Content, "Message \"m\" from sender:\n"); ok {
				list = append(list, n)
			}
		}
	}
	return list
}

// inOrder reports whether messages are the first of a run's, each once and in order.
func inOrder(list []string) bool {
	for i, n := range list {
		if n != fmt.Sprint(i) {
			return false
		}
	}
	return true
}

func (l *listener) model(_ context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	list := numbers(request.Messages)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.seen[request.Run] = max(l.seen[request.Run], len(list)); !inOrder(list) {
		l.broken = append(l.broken, fmt.Sprintf("%s, turn %d: %v", request.Run, request.Turn, list))
	}
	if len(list) == l.each {
		return publisher.Answer{Message: message("assistant", "I have heard all of it.")}, nil
	}
	return publisher.Answer{Calls: []publisher.ToolCall{{ID: "w", Name: "wait"}}}, nil
}

func (l *listener) all() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seen := range l.seen {
		n += seen
	}
	return n
}

func (l *listener) loop() publisher.Loop {
	wait := publisher.NewTool("wait", "Waits for the next message.", publisher.Pure, func(ctx context.Context, _ struct{}) (string, error) {
		_, err := publisher.InvocationOf(ctx).Run().AwaitSignal(ctx)
		return "A message has come.", err
	})
	return publisher.Loop{Model: l.model, Tools: []publisher.Tool{wait}}
}

// latencies are how long signals took until they were heard.
type latencies struct {
	mu    sync.Mutex
	begun map[string]time.Time
	took  []time.Duration
}

func (l *latencies) sending(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun[id] = time.Now()
}

func (l *latencies) heard(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if begun, ok := l.begun[id]; ok {
		l.took = append(l.took, time.Since(begun))
		delete(l.begun, id)
	}
}

func (l *latencies) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.took)
}

func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.took) == 0 {
		return "none"
	}
	slices.Sort(l.took)
	at := func(q float64) time.Duration {
		return l.took[int(q*float64(len(l.took)-1))].Round(100 * time.Microsecond)
	}
	return fmt.Sprintf("%d heard, p50 %s, p99 %s, max %s", len(l.took), at(0.5), at(0.99), at(1))
}

// Signals go into runs whose executors are killed and whose runs are taken over, and into a daemon that is killed: the model of each run is
// shown each of them once, in the order in which they were sent.
func TestSignals_ExecutorsAndDaemonKilled_EachToldOnceInOrder(t *testing.T) {
	t.Parallel()
	runs, each, perKill := 20, 25, 60
	if testbin.Full(t) {
		runs, each, perKill = 100, 100, 300
	}
	if testing.Short() {
		runs, each, perKill = 6, 10, 15
		t.Log("short: 60 signals of 500; WAYMARK_E2E_FULL=1 sends 10000")
	}
	w := waymarktest.Start(t)
	l := &listener{each: each, seen: map[string]int{}}
	spec := publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"agent": l.loop()}}
	executors := make([]*waymarktest.Executor, 3)
	for i := range executors {
		executors[i] = w.Serve(fmt.Sprint("ex-", i), spec, nil)
	}
	sender := w.Fleet("sender", func(c *publisher.Config) { c.RequestTimeout = 5 * time.Second }) // what a dead daemon was asked is asked again
	for i := range runs {
		submit(t, sender, fmt.Sprint("r", i))
	}
	var sent, full atomic.Int64
	var group errgroup.Group
	atOnce := make(chan struct{}, 8) // senders of a burst
	for i := range runs {
		run := fmt.Sprint("r", i)
		group.Go(func() error {
			for n := range each {
				if n%10 == 0 {
					atOnce <- struct{}{}
				}
				id := fmt.Sprint("s", n)
				for {
					err := sender.Signal(context.Background(), run, publisher.SignalSpec{ID: id, Name: "m", Payload: fmt.Append(nil, n)})
					if err == nil {
						break
					}
					if errors.Is(err, publisher.ErrSignalsFull) {
						full.Add(1)
						<-time.After(20 * time.Millisecond)
						continue
					}
					if !errors.Is(err, publisher.ErrUnavailable) && !errors.Is(err, publisher.ErrNoService) { // the daemon is dead
						return fmt.Errorf("signal %s to %s: %w", id, run, err)
					}
				}
				if sent.Add(1); n%10 == 9 || n == each-1 {
					<-atOnce
				}
			}
			return nil
		})
	}
	begun, kills, daemons, next := time.Now(), 0, 0, perKill
	for l.all() < runs*each {
		require.Less(t, time.Since(begun), time.Hour, "%d of %d were told", l.all(), runs*each)
		if int(sent.Load()) < next || next >= runs*each {
			<-time.After(5 * time.Millisecond)
			continue
		}
		next = int(sent.Load()) + perKill
		if kills++; kills%8 == 4 {
			daemons++
			w.Daemon.Kill()
			w.Daemon.Start()
			continue
		}
		e := executors[rand.IntN(len(executors))]
		e.Kill()
		w.Advance(15 * time.Second)
		e.Start()
	}
	require.NoError(t, group.Wait())
	took := time.Since(begun)
	takeovers, restarts := 0, 0
	for i := range runs {
		run := fmt.Sprint("r", i)
		require.Equal(t, schema.StatusCompleted, w.Ended(run).Status)
		s := w.State(run)
		require.Empty(t, s.Head.Signals, run)
		require.Zero(t, s.Head.Counts.DeadLetters, run)
		require.Len(t, s.Signals, each, run)
		told := numbers(s.Conversation())
		require.Len(t, told, each, run)
		require.True(t, inOrder(told), "%s: %v", run, told)
		takeovers += len(s.Takeovers)
		restarts += int(s.Head.Epoch) - 1
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	require.Empty(t, l.broken, "requests with messages out of order, or twice")
	require.Greater(t, takeovers, runs, "each run is claimed once: the kills met no run")
	t.Logf("%d signals into %d runs in %s: %d kills of executors, %d of the daemon, %d takeovers, %d requests to the model, %d times a run had 64 open",
		runs*each, runs, took.Round(time.Millisecond), kills-daemons, daemons, takeovers, l.asked, full.Load())
}

// Heard by a run that works, by one that waits for a message, and by one that waits for a person without an executor, which is claimed for it.
func TestSignals_LiveAndWaitingRuns_HeardAtOnce(t *testing.T) {
	t.Parallel()
	most := 100
	if testing.Short() {
		most = 20
		t.Log("short: 20 signals of 100")
	}
	w := waymarktest.Start(t)
	live, claimed := &latencies{begun: map[string]time.Time{}}, &latencies{begun: map[string]time.Time{}}
	heard := make(chan struct{}, 1)
	consume := func(ctx context.Context, run *publisher.Run) error {
		signals, err := run.Signals(ctx)
		for _, s := range signals {
			live.heard(run.ID() + s.ID)
			claimed.heard(run.ID() + s.ID)
			err = errors.Join(err, run.ConsumeSignals(ctx, s.ID))
			select {
			case heard <- struct{}{}:
			case <-ctx.Done():
			}
		}
		return err
	}
	work := func(work publisher.Work) func(context.Context, *publisher.Run) (publisher.Work, error) {
		return func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil }
	}
	spec := publisher.ExecutorSpec{
		WaitDetached: true,
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			"agent": work(func(ctx context.Context, run *publisher.Run) error {
				for {
					if _, err := run.AwaitSignal(ctx); err != nil {
						return err
					}
					if err := consume(ctx, run); err != nil {
						return err
					}
				}
			}),
			"asker": work(func(ctx context.Context, run *publisher.Run) error {
				if err := consume(ctx, run); err != nil {
					return err
				}
				_, err := run.Ask(ctx, schema.RunWaitingData{InterruptID: "q", Reason: schema.WaitHumanInput, Message: "when?"})
				return err
			}),
		},
	}
	e := w.Serve("ex-1", spec, nil)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "live", Agent: "agent"})
	require.NoError(t, err)
	_, err = e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "asker", Agent: "asker"})
	require.NoError(t, err)
	w.Await("live", schema.StatusRunning, schema.StatusWaiting) // it waits as soon as it runs
	sender := w.Fleet("sender", nil)
	for n := range most {
		id := fmt.Sprint("s", n)
		live.sending("live" + id)
		require.NoError(t, sender.Signal(t.Context(), "live", publisher.SignalSpec{ID: id, Name: "m"}))
		<-heard
	}
	for n := range most / 20 {
		w.Await("asker", schema.StatusWaiting)
		id := fmt.Sprint("s", n)
		claimed.sending("asker" + id)
		require.NoError(t, sender.Signal(t.Context(), "asker", publisher.SignalSpec{ID: id, Name: "m"}))
		<-heard
	}
	require.Equal(t, most, live.count())
	t.Logf("by a run at work: %s", live)
	t.Logf("by a run that waits, which is claimed: %s", claimed)
	require.Equal(t, most/20, claimed.count())
}
