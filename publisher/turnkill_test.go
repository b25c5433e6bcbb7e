package publisher_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// agent plays turns as docs/first-agent.md tells users, and counts what it does. An agent that died does nothing any more.
type agent struct {
	mu      sync.Mutex
	asked   map[int32]int
	effects map[schema.CallKey]int
	// answer is what the model says in a turn.
	answer func(turn int32) []publisher.ToolCall
	turns  int32
	// inTool is called in the middle of each tool.
	inTool func(key schema.CallKey)
	dead   atomic.Bool
	// late are tools that ran in an agent that had died.
	late atomic.Int64
}

func newAgent(turns int32, answer func(turn int32) []publisher.ToolCall) *agent {
	return &agent{asked: map[int32]int{}, effects: map[schema.CallKey]int{}, answer: answer, turns: turns, inTool: func(schema.CallKey) {}}
}

// play goes on with a run until it ends, and returns the calls that are held.
func (a *agent) play(ctx context.Context, run *publisher.Run) (held []schema.CallKey, err error) {
	for {
		number, calls, answered := int32(0), []publisher.ToolCall(nil), false
		run.View(func(s *schema.State) {
			number, answered = s.Head.Turn, s.Head.TurnOpen && s.Head.TurnAnswered
			for i := range s.Calls {
				if c := &s.Calls[i]; answered && c.Turn == number {
					calls = append(calls, publisher.ToolCall{ID: c.ToolCallID, Name: c.Name, Replay: c.Replay, VerifySubject: c.VerifySubject, Occurrence: c.Occurrence})
				}
			}
			if !s.Head.TurnOpen {
				number++
			}
		})
		if number > a.turns {
			return held, run.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted})
		}
		turn := run.Turn(number)
		if !answered {
			if turn, err = run.StartTurn(ctx, publisher.TurnSpec{Number: number}); err != nil {
				return held, err
			}
			a.mu.Lock()
			a.asked[number]++
			a.mu.Unlock()
			calls = a.answer(number)
			if _, err := turn.Answer(ctx, publisher.Answer{Message: assistant(schema.Text(fmt.Sprint("turn ", number))), Calls: calls}); err != nil {
				return held, err
			}
		}
		before := len(held)
		for _, call := range calls {
			_, err := turn.Tool(ctx, call, a.tool)
			var hold *publisher.HeldError
			switch {
			case errors.As(err, &hold):
				held = append(held, hold.Key)
			case err != nil:
				return held, err
			}
		}
		if len(held) > before {
			return held, nil // a person decides
		}
	}
}

func (a *agent) tool(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
	if a.dead.Load() {
		a.late.Add(1)
	}
	a.mu.Lock()
	a.effects[inv.Key]++
	a.mu.Unlock()
	a.inTool(inv.Key)
	return publisher.Result("done")
}

// mortal is the connection of a process that dies at its nth event: before it is sent, or before it is acknowledged.
type mortal struct {
	net.Conn
	subject []byte
	left    *atomic.Int64
	sent    bool
	dead    *atomic.Bool
}

func (m *mortal) Write(b []byte) (int, error) {
	if m.dead.Load() {
		return 0, net.ErrClosed
	}
	if bytes.Contains(b, m.subject) && m.left.Add(-1) == 0 {
		m.dead.Store(true)
		if m.sent {
			_, _ = m.Conn.Write(b) // its answer ends Read
		} else {
			_ = m.SetReadDeadline(time.Now())
		}
		return 0, net.ErrClosed
	}
	return m.Conn.Write(b)
}

// Read hears nothing once the process is dead.
func (m *mortal) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	if m.dead.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

// dialer makes mortal connections.
type dialer func(net.Conn) net.Conn

func (d dialer) Dial(network, address string) (net.Conn, error) {
	c, err := net.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return d(c), nil
}

// playMortal begins a run and plays it until the agent dies at its nth event, or in the tool of a call.
func (w *world) playMortal(a *agent, run string, nth int64, sent bool, inTool schema.CallKey) {
	w.tb.Helper()
	left := new(atomic.Int64)
	left.Store(nth)
	subject := []byte("HPUB " + w.names.EventSubject(run) + " ")
	nc, err := nats.Connect(w.server.URL(), append(w.server.Options(), nats.NoReconnect(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}), nats.SetCustomDialer(dialer(func(c net.Conn) net.Conn {
		return &mortal{Conn: c, subject: subject, left: left, sent: sent, dead: &a.dead}
	})))...)
	require.NoError(w.tb, err)
	defer nc.Close()
	f, err := publisher.Connect(w.tb.Context(), publisher.Config{Conn: nc, Executor: "exec-1", Agent: "coder"})
	require.NoError(w.tb, err)
	publisher.SetOutwait(f, 0)
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = f.Close(ctx) // its connection is gone
	}()
	a.inTool = func(key schema.CallKey) {
		if key == inTool {
			a.dead.Store(true)
			nc.Close()
		}
	}
	r, err := f.Start(w.tb.Context(), publisher.RunSpec{ID: run})
	if err == nil {
		_, err = a.play(w.tb.Context(), r)
	}
	require.Equal(w.tb, a.dead.Load(), err != nil, "%v", err)
	a.inTool = func(schema.CallKey) {}
}

// An executor dies at each event of a run, before and behind it, and in each tool. Behind its takeover a requested call is made once, a
// begun hold call is held, a begun verify call runs if its tool had no effect, and nothing else is asked about; the model is asked again only for an answer that was not stored.
func TestTurn_ExecutorDiesAnywhere_RequestedCallsAreMadeOnceAndBegunOnesHeld(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	calls := []publisher.ToolCall{
		{ID: "c1", Name: "read", Replay: schema.ReplayPure},
		{ID: "c2", Name: "mail", Replay: schema.ReplayHold},
		{ID: "c3", Name: "put", Replay: schema.ReplayIdempotent},
		{ID: "c2", Name: "mail"},
		{ID: "c4", Name: "book", Replay: schema.ReplayVerify, VerifySubject: verifySubject},
	}
	var playing atomic.Pointer[agent]
	serveVerify(t, w, func(_ context.Context, q schema.VerifyRequest) (schema.VerifyReply, error) {
		a := playing.Load()
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.effects[q.CallKey] > 0 {
			return schema.VerifyReply{Outcome: schema.VerifyDone, Result: []byte(`"done"`)}, nil
		}
		return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
	})
	answer := func(turn int32) []publisher.ToolCall {
		if turn == 1 {
			return calls
		}
		return nil
	}
	type death struct {
		nth  int64
		sent bool
		in   schema.CallKey
	}
	var deaths []death
	const events = 12 // of the run, start and end included
	for n := range int64(events) {
		deaths = append(deaths, death{nth: n + 1}, death{nth: n + 1, sent: true})
	}
	for _, key := range []schema.CallKey{
		{Turn: 1, ToolCallID: "c1", Occurrence: 1},
		{Turn: 1, ToolCallID: "c2", Occurrence: 1},
		{Turn: 1, ToolCallID: "c3", Occurrence: 1},
		{Turn: 1, ToolCallID: "c2", Occurrence: 2},
		{Turn: 1, ToolCallID: "c4", Occurrence: 1},
	} {
		deaths = append(deaths, death{in: key})
	}
	heldOnce := 0
	for i, d := range append(deaths, death{nth: events + 1}) {
		name := fmt.Sprintf("event %d sent %v tool %s/%d", d.nth, d.sent, d.in.ToolCallID, d.in.Occurrence)
		a, run := newAgent(2, answer), fmt.Sprint("r", i)
		playing.Store(a)
		w.playMortal(a, run, d.nth, d.sent, d.in)
		require.Equal(t, d.nth <= events, a.dead.Load(), name)
		require.Zero(t, a.late.Load(), name)
		begun := map[schema.CallKey]bool{}
		stored := int64(0)
		before := &schema.State{}
		if log := w.log(run); len(log) > 0 {
			before, stored = w.fold(run), int64(len(log))
		}
		for _, c := range before.Head.OpenCalls {
			begun[c.CallKey] = !c.State.Requested()
		}
		a.dead.Store(false)
		f := w.fleet()
		var held []schema.CallKey
		switch {
		case stored == 0:
			r, err := f.Start(t.Context(), publisher.RunSpec{ID: run})
			require.NoError(t, err, name)
			held, err = a.play(t.Context(), r)
			require.NoError(t, err, name)
		case !before.Head.Status.Terminal():
			r, err := f.Resume(t.Context(), run, publisher.ResumeSpec{})
			require.NoError(t, err, name)
			held, err = a.play(t.Context(), r)
			require.NoError(t, err, name)
		}
		for key, n := range a.effects {
			again := d.in == key || d.nth > 0 && !d.sent && before.Head.CallsOf(1, key.ToolCallID) >= key.Occurrence && slices.ContainsFunc(before.Head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key })
			hold := key.ToolCallID == "c2"
			switch {
			case hold:
				require.LessOrEqual(t, n, 1, "%s: a mail was sent twice: %v", name, key)
			case key.ToolCallID == "c4":
				require.Equal(t, 1, n, "%s: the tool tells what became of %v", name, key)
			case n != 1:
				require.True(t, again && n == 2, "%s: %v ran %d times", name, key, n)
			}
		}
		for _, key := range []schema.CallKey{{Turn: 1, ToolCallID: "c2", Occurrence: 1}, {Turn: 1, ToolCallID: "c2", Occurrence: 2}} {
			require.Equal(t, begun[key], slices.Contains(held, key), "%s: %v", name, key)
			if !begun[key] {
				require.Equal(t, 1, a.effects[key], "%s: %v", name, key)
			}
		}
		for _, id := range []string{"c1", "c3", "c4"} {
			require.Positive(t, a.effects[schema.CallKey{Turn: 1, ToolCallID: id, Occurrence: 1}], "%s: %s is forgotten", name, id)
		}
		heldOnce += len(held)
		answers := 1
		if d.nth == 2 && !d.sent {
			answers = 2
		}
		require.Equal(t, answers, a.asked[1], "%s: the model was asked %d times", name, a.asked[1])
		require.Zero(t, w.fold(run).Head.Counts.DeadLetters, name)
		if len(held) == 0 {
			require.Equal(t, schema.StatusCompleted, w.fold(run).Head.Status, name)
		}
	}
	require.Equal(t, 6, heldOnce, "each mail dies behind its begin, in its tool, and before its outcome")
}

// recordedRun plays a run of random answers, some of whose executors die between two events.
func (w *world) recordedRun(f *publisher.Fleet, id string, rnd *rand.Rand) {
	w.tb.Helper()
	answers := map[int32][]publisher.ToolCall{}
	answer := func(turn int32) []publisher.ToolCall {
		if _, ok := answers[turn]; !ok {
			answers[turn] = nil
			for i := range rnd.IntN(4) {
				policy := []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayHold, schema.ReplayHold}[rnd.IntN(4)]
				answers[turn] = append(answers[turn], publisher.ToolCall{ID: fmt.Sprint("c", i/2), Name: "tool-" + string(policy), Replay: policy})
			}
		}
		return answers[turn]
	}
	stop := errors.New("stop")
	run := start(w.tb, f, id)
	for {
		a := newAgent(3, answer)
		ctx, cancel := context.WithCancelCause(w.tb.Context())
		left := rnd.IntN(6)
		a.inTool = func(schema.CallKey) {
			if left--; left == 0 {
				cancel(stop) // the tool ran, its outcome is not recorded
			}
		}
		held, err := a.play(ctx, run)
		cancel(nil)
		if err == nil && len(held) == 0 {
			return
		}
		for _, key := range held {
			how := []schema.Settlement{schema.SettledRerun, schema.SettledDecided, schema.SettledAbandoned}[rnd.IntN(3)]
			w.control(id, run.Epoch(), &schema.ToolSettledData{ToolCallID: key.ToolCallID, Occurrence: key.Occurrence, How: how})
		}
		run, err = f.Resume(w.tb.Context(), id, publisher.ResumeSpec{})
		require.NoError(w.tb, err)
	}
}

// callsAt reads a run's log without the fold's open calls. It returns the calls that the run begins anywhere in its log, but for those that
// were cleared before record n, and the calls that are open at record n.
func callsAt(run string, log []schema.Record, n int) (began map[schema.CallKey]bool, open []schema.CallKey) {
	began = map[schema.CallKey]bool{}
	closed := map[schema.CallKey]bool{}
	head := schema.NewHead("default", run)
	for i := range log {
		v := head.Apply(schema.NoKeys, &log[i]) // names the calls of an event
		rerun := false
		switch d := v.Data.(type) {
		case *schema.TurnAnsweredData:
			if i < n {
				open = append(open, v.Calls...)
			}
		case *schema.ToolCalledData:
			began[v.Call] = true
		case *schema.ToolSettledData:
			rerun = d.How == schema.SettledRerun
			if rerun && i < n {
				delete(began, v.Call)
			}
		}
		switch v.Data.(type) {
		case *schema.ToolReturnedData, *schema.ToolFailedData, *schema.ToolSettledData:
			closed[v.Call] = closed[v.Call] || i < n && !rerun
		}
	}
	return began, slices.DeleteFunc(open, func(k schema.CallKey) bool { return closed[k] })
}

func keysOf(open []schema.OpenCall) []schema.CallKey {
	keys := make([]schema.CallKey, len(open))
	for i := range open {
		keys[i] = open[i].CallKey
	}
	return keys
}

// Forks at every record of 20 recorded runs are played to their end: no call that may run is forgotten, and no hold call that the base began
// runs unasked.
func TestFork_EveryRecordOfRecordedRuns_MakesWhatMayRunAndAsksAboutTheRest(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a fork behind each record of the recorded runs")
	}
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	forks, inDoubt, made := 0, 0, 0
	for seed := range uint64(20) {
		base := fmt.Sprint("base", seed)
		w.recordedRun(f, base, rand.New(rand.NewPCG(seed, 15))) //nolint:gosec // chooses a run
		log := w.log(base)
		for n := 1; n <= len(log); n++ {
			name := fmt.Sprintf("%s at record %d of %d", base, n, len(log))
			began, want := callsAt(base, log, n)
			fork, err := f.Fork(t.Context(), publisher.ForkSpec{Base: base, ID: fmt.Sprintf("%s-%d", base, n), At: schema.Point{Kind: schema.PointRecord, Number: uint64(n)}}) //nolint:gosec // small
			require.NoError(t, err, name)
			forks++
			open := fork.Head().OpenCalls
			require.ElementsMatch(t, want, keysOf(open), "%s: the base had these calls open", name)
			a := newAgent(3, func(int32) []publisher.ToolCall { return nil })
			held, err := a.play(t.Context(), fork)
			require.NoError(t, err, name)
			for _, c := range open {
				if c.Replay == schema.ReplayHold && began[c.CallKey] {
					inDoubt++
					require.True(t, c.State.InDoubt(), "%s: %v", name, c)
					require.Zero(t, a.effects[c.CallKey], "%s: %v ran unasked", name, c)
					require.Contains(t, held, c.CallKey, name)
					continue
				}
				made++
				require.Equal(t, 1, a.effects[c.CallKey], "%s: %v is forgotten", name, c)
				require.NotContains(t, held, c.CallKey, name)
			}
		}
	}
	t.Logf("%d forks, %d calls made, %d asked about", forks, made, inDoubt)
	require.Greater(t, forks, 150)
	require.Greater(t, made, 50)
	require.Greater(t, inDoubt, 30)
}
