//go:build unix

package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// heldRounds are the rounds of the full test, heldSample those of a sample, heldLanes the runs of a round.
	heldRounds, heldSample, heldLanes = 300, 6, 3
	// proofLasts is how old the proof of an epoch may be when a tool begins that must not run twice.
	proofLasts = 2 * time.Second
)

// heldTest is three servers, and pairs of executors with a run each in every round.
type heldTest struct {
	*round
	// first are cut off, next take their runs over.
	first, next []*publisher.Fleet
	// played are the rounds that are not judged yet.
	played []playedRound

	mu sync.Mutex
	// saw counts the events of the rounds, takeovers are their durations since the partition.
	saw       map[string]int
	takeovers []time.Duration
}

// playedRound is all actions in a round.
type playedRound struct {
	n       int
	history *checker.History
	lanes   []*heldLane
}

// heldLane is one run in one round.
type heldLane struct {
	*heldTest
	record *checker.Recorder
	rnd    *rand.Rand
	lane   int
	run    string
	calls  []publisher.ToolCall
	// at is the step before which no acknowledgement reaches the first executor any more, think its pause there.
	at    int
	think time.Duration
	cut   chan struct{}

	mu sync.Mutex
	// begun is the epoch in which the tool of a call first began.
	begun map[string]schema.Epoch
}

// It plays rounds. In each, executors lose their acknowledgements, then one of three servers is cut off from the
// others; the executors are with it, with the others, or alone. Others take their runs over, a person settles calls
// in doubt as rerun or abandoned, and the partition heals: the first executors try again.
func TestPartitionOfThreeServers_HeldCallsAndSettlements_NoSideEffectTwice(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers are cut off from each other")
	}
	if number(t, "WAYMARK_CHAOS_SERVERS", 3) != 3 {
		t.Skip("one server has no partition")
	}
	rounds, seed := heldRounds, number(t, "WAYMARK_CHAOS_SEED", 1)
	if !testbin.Whole() {
		rounds = heldSample
		t.Logf("sample: %d of %d rounds", rounds, heldRounds)
	}
	rounds = int(number(t, "WAYMARK_CHAOS_ROUNDS", uint64(rounds))) //nolint:gosec // small
	s := scaleOf(3)
	// A silent partition is found soon: most of a round is waiting for that.
	s.executors, s.ping = 0, time.Second
	h := newHeldTest(t, s, seed)
	begun := time.Now()
	for i := range rounds {
		h.play(t.Context(), seed, i)
		// The fold of a round has caught up while the next one was played.
		h.judgeRounds(seed, 1)
		if t.Failed() {
			return
		}
	}
	h.judgeRounds(seed, 0)
	slices.Sort(h.takeovers)
	t.Logf("%d rounds of seed %d in %s: %v; a run was taken over %s behind the partition in the median, %s at most", rounds, seed,
		time.Since(begun).Round(time.Second), h.saw, h.takeovers[len(h.takeovers)/2].Round(time.Millisecond), h.takeovers[len(h.takeovers)-1].Round(time.Millisecond))
	require.Positive(t, h.saw["settled rerun"])
	require.Positive(t, h.saw["settled abandoned"])
	require.Positive(t, h.saw["leader cut off"])
}

func newHeldTest(t *testing.T, s scale, seed uint64) *heldTest {
	t.Helper()
	w := newWorld(t, s, seed)
	js, err := jetstream.New(w.dial("nemesis", 0))
	require.NoError(t, err)
	w.js = js
	h := &heldTest{round: &round{world: w, fleet: w.fleet("judge", 0, 10*time.Second)}, saw: make(map[string]int)}
	h.storm = &storm{world: w, rnd: rand.New(rand.NewPCG(seed, 2))} //nolint:gosec // a seed
	for lane := range heldLanes {
		h.first = append(h.first, h.sdk("first", lane))
		h.next = append(h.next, h.sdk("next", lane))
	}
	return h
}

func (h *heldTest) sdk(role string, lane int) (fleet *publisher.Fleet) {
	h.tb.Helper()
	name := fmt.Sprintf("%s-%d", role, lane)
	nc := h.dial(name, lane)
	h.eventually("the fleet is not there", func() (err error) {
		fleet, err = publisher.Connect(h.tb.Context(), publisher.Config{
			Conn: nc, Executor: name, Agent: Agent, PublishTimeout: 30 * time.Second, TryTimeout: 500 * time.Millisecond, RequestTimeout: 2 * time.Second,
		})
		return err
	})
	h.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = fleet.Close(ctx) // the servers may be gone
	})
	return fleet
}

func (h *heldTest) count(what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saw[what]++
}

// play plays one round, and judges it.
func (h *heldTest) play(ctx context.Context, seed uint64, n int) {
	h.tb.Helper()
	rnd := rand.New(rand.NewPCG(seed, uint64(n)))              //nolint:gosec // a seed
	record := checker.NewRecorder(h.own, int64(n+1)*1_000_000) // the files of the world are kept when the test fails
	var lanes []*heldLane
	for i := range heldLanes {
		l := &heldLane{
			heldTest: h, record: record, rnd: rand.New(rand.NewPCG(rnd.Uint64(), uint64(i))), lane: i, run: fmt.Sprintf("held-%d-%d", n, i), //nolint:gosec // a seed
			calls: []publisher.ToolCall{{ID: "look", Name: "look", Replay: schema.ReplayPure}, {ID: "mail", Name: "mail"}, {ID: "pay", Name: "pay"}},
			cut:   make(chan struct{}), begun: make(map[string]schema.Epoch),
		}
		l.at = l.rnd.IntN(len(l.calls) + 1)
		if l.rnd.IntN(2) == 0 {
			l.think = time.Duration(l.rnd.Int64N(int64(proofLasts)))
		}
		lanes = append(lanes, l)
	}
	var first, next sync.WaitGroup
	for _, l := range lanes {
		first.Go(func() { l.loses(ctx) })
	}
	for _, l := range lanes {
		<-l.cut
	}
	pause(ctx, time.Duration(rnd.IntN(300))*time.Millisecond)
	op := record.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: "partition"})
	h.partition(ctx, rnd)
	parted := time.Now()
	for _, l := range lanes {
		next.Go(func() { l.goesOn(ctx, parted) })
	}
	next.Wait()
	h.must(h.heal())
	record.End(op, func(op *checker.Op) { op.Outcome = checker.OK })
	first.Wait()
	h.played = append(h.played, playedRound{n: n, history: record.History(), lanes: lanes})
	h.eventually("the servers do not catch up", func() error { return h.replicated(ctx, h.js) })
}

// partition cuts one server off from the others, and clients from the servers that are not on their side.
func (h *heldTest) partition(ctx context.Context, rnd *rand.Rand) {
	h.tb.Helper()
	leader, err := h.storm.leader(ctx)
	h.must(err)
	victim := leader
	if rnd.IntN(2) == 0 {
		victim = (leader + 1 + rnd.IntN(2)) % len(h.nodes)
		h.count("follower cut off")
	} else {
		h.count("leader cut off")
	}
	cut := Weather{Hold: [2]bool{true, true}}
	if rnd.IntN(2) == 0 {
		cut = Weather{Cut: true}
	}
	for i := range h.nodes {
		if i != victim {
			h.routes[i][victim].Set(cut)
			h.routes[victim][i].Set(cut)
		}
	}
	sides := make(map[string]int)
	for lane := range heldLanes {
		sides[fmt.Sprintf("first-%d", lane)] = rnd.IntN(4)
	}
	for name, links := range h.links {
		side, isFirst := sides[name]
		for i, link := range links {
			switch {
			case !isFirst || side == 0: // with the majority, a first executor without acknowledgements
				if i == victim {
					link.Set(cut)
				}
			case side == 1: // alone
				link.Set(cut)
			case i != victim:
				link.Set(cut)
			case side == 2: // with the isolated server, and receives its messages
				link.Set(Weather{})
			}
		}
	}
}

// loses is the executor that loses its acknowledgements, until the partition heals.
func (l *heldLane) loses(ctx context.Context) {
	fleet := l.first[l.lane]
	reached := func(step int) {
		if step == l.at {
			for _, link := range l.links[fmt.Sprintf("first-%d", l.lane)] {
				link.Set(Weather{Hold: [2]bool{Back: true}})
			}
			close(l.cut)
		}
	}
	actor := fleet.Executor()
	token := checker.Token(l.run, 1)
	op := l.record.Begin(checker.Op{Actor: actor, Kind: checker.Publish, Run: l.run, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: l.run, Task: token})
	l.record.End(op, func(op *checker.Op) { Ended(op, err) })
	var turn *publisher.Turn
	if err == nil {
		token = checker.Token(l.run, 2)
		err = Publish(ctx, l.record, checker.Op{Actor: actor, Token: token, Detail: schema.TurnStarted}, run, func(ctx context.Context) error {
			turn, err = run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{said(schema.RoleUser, token)}})
			return err
		})
	}
	if err != nil {
		l.tb.Errorf("run %s cannot begin: %v", l.run, err)
		close(l.cut)
		return
	}
	reached(0)
	err = l.asks(ctx, actor, run, "answer", "", func(again bool) error {
		if again {
			return nil
		}
		_, err := turn.Answer(ctx, publisher.Answer{Message: said(schema.RoleAssistant, checker.Token(l.run, 3)), Calls: l.calls})
		return err
	})
	for i := 0; i < len(l.calls) && err == nil; i++ {
		reached(i + 1)
		if i+1 == l.at {
			pause(ctx, l.think) // others take the run over while the proof of its epoch is young
		}
		err = l.tool(ctx, actor, run, turn, l.calls[i])
	}
	if !errors.Is(err, publisher.ErrFenced) {
		l.tb.Errorf("the first executor of run %s came to %v, and not to the takeover", l.run, err)
	}
}

func said(role, text string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// asks records the events of one SDK call, and repeats it once their outcome is known.
func (l *heldLane) asks(ctx context.Context, actor string, run *publisher.Run, call string, replay schema.Replay, do func(again bool) error) (err error) {
	op := l.record.Begin(checker.Op{
		Actor: actor, Kind: checker.Call, Run: l.run, Epoch: run.Epoch(), Sequence: run.Head().Sequence + 1, Tool: call, Replay: replay,
	})
	for err = do(false); errors.Is(err, publisher.ErrUnresolved) && ctx.Err() == nil; {
		if err = run.Resolve(ctx); err == nil {
			err = do(true)
		}
	}
	l.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if head := run.Head(); head.Epoch == op.Epoch {
			op.Last = head.Sequence
		}
	})
	return err
}

func (l *heldLane) tool(ctx context.Context, actor string, run *publisher.Run, turn *publisher.Turn, call publisher.ToolCall) error {
	replay := call.Replay
	if replay == "" {
		replay = schema.ReplayHold
	}
	return l.asks(ctx, actor, run, call.ID, replay, func(bool) error {
		_, err := turn.Tool(ctx, call, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			op := l.record.Begin(checker.Op{Actor: actor, Kind: checker.Execute, Run: l.run, Epoch: inv.Epoch, Tool: call.ID, Replay: replay})
			l.mu.Lock()
			if l.begun[call.ID] == 0 {
				l.begun[call.ID] = inv.Epoch
			}
			l.mu.Unlock()
			result := actor + " " + call.ID
			l.record.End(op, func(op *checker.Op) { op.Outcome, op.Result = checker.OK, `"`+result+`"` })
			return publisher.Result(result)
		})
		return err
	})
}

// goesOn is the next executor, with a person who settles what it may not decide.
func (l *heldLane) goesOn(ctx context.Context, parted time.Time) {
	fleet := l.next[l.lane]
	actor := fleet.Executor()
	var run *publisher.Run
	var err error
	for end := time.Now().Add(patience); ; pause(ctx, 50*time.Millisecond) {
		// Each try is the same request: one that was acted on late does not take the run over again.
		op := checker.Op{Actor: actor, Executor: actor, Run: l.run, Request: l.run + "-next", Detail: "resume"}
		run, err = Takeover(l.record, op, func() (*publisher.Run, error) {
			return fleet.Resume(ctx, l.run, publisher.ResumeSpec{RequestID: op.Request})
		})
		if err == nil || time.Now().After(end) {
			break
		}
	}
	if err != nil {
		l.tb.Errorf("run %s cannot be taken over: %v", l.run, err)
		return
	}
	l.heldTest.mu.Lock()
	l.takeovers = append(l.takeovers, time.Since(parted))
	l.heldTest.mu.Unlock()
	turn := run.OpenTurn()
	for _, open := range run.Head().OpenCalls {
		call := l.calls[slices.IndexFunc(l.calls, func(c publisher.ToolCall) bool { return c.ID == open.ToolCallID })]
		err = l.tool(ctx, actor, run, turn, call)
		if errors.Is(err, publisher.ErrHeld) {
			if err = l.settle(ctx, fleet, open.CallKey); err != nil {
				l.tb.Errorf("run %s, call %s cannot be settled: %v", l.run, call.ID, err)
				return
			}
			for err = publisher.ErrHeld; errors.Is(err, publisher.ErrHeld) && ctx.Err() == nil; {
				pause(ctx, 10*time.Millisecond) // a replica may show the settlement a moment late
				if err = run.Sync(ctx); err == nil {
					err = l.tool(ctx, actor, run, turn, call)
				}
			}
		}
		if err != nil && !errors.Is(err, publisher.ErrAbandoned) {
			l.tb.Errorf("run %s, call %s: %v", l.run, call.ID, err)
			return
		}
	}
	if run.OpenTurn() != nil && turn != nil && run.Head().TurnAnswered {
		l.tb.Errorf("run %s: the turn has not ended with the last of its calls", l.run)
	}
}

// settle is a person, who checks whether the tool ran and decides.
func (l *heldLane) settle(ctx context.Context, fleet *publisher.Fleet, key schema.CallKey) (err error) {
	l.mu.Lock()
	ran := l.begun[key.ToolCallID] != 0
	l.mu.Unlock()
	how := schema.SettledRerun
	switch {
	case ran:
		how = schema.SettledAbandoned
		l.count("the first executor's tool had run")
	case l.rnd.IntN(3) == 0:
		how = schema.SettledAbandoned
	}
	l.count("settled " + string(how))
	request := schema.SettleRequest{CallKey: key, How: how, By: "person", RequestID: l.run + "-" + key.ToolCallID}
	op := l.record.Begin(checker.Op{Actor: "person-" + l.run, Kind: checker.Control, Run: l.run, Tool: key.ToolCallID, Detail: "settled " + string(how)})
	var reply *schema.SettleReply
	for end := time.Now().Add(patience); time.Now().Before(end); pause(ctx, 50*time.Millisecond) {
		if reply, err = fleet.Settle(ctx, l.run, request); err == nil || errors.Is(err, publisher.ErrNotInDoubt) {
			break
		}
	}
	l.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if err == nil {
			op.Event, op.Stream = reply.EventID, reply.Stream
		} else {
			op.Outcome = checker.Unknown
		}
	})
	return err
}

// judgeRounds makes the checker compare all recorded answers with the final state of the runs, of all rounds but the
// latest ones.
func (h *heldTest) judgeRounds(seed uint64, latest int) {
	h.tb.Helper()
	for ; len(h.played) > latest && !h.tb.Failed(); h.played = h.played[1:] {
		r := &h.played[0]
		var finals []checker.Final
		for _, l := range r.lanes {
			f, there := h.final(l.run)
			require.True(h.tb, there, l.run)
			finals = append(finals, f)
		}
		stored(r.history, finals)
		report := checker.Check(r.history, finals, checker.Options{Fleet: schema.DefaultFleet, Keys: schema.NoKeys, Least: map[checker.Kind]int{checker.Takeover: heldLanes}})
		if err := report.Error(); err != nil {
			var story strings.Builder
			_ = report.Write(&story, r.history) // into memory
			h.tb.Errorf("round %d of seed %d: %v\n%s", r.n, seed, err, story.String())
		}
	}
}
