package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// mission is the fleet of docs/mission.md. What its executors did is said in the rows of the page.
type mission struct {
	*world
	dir    string   // what the commands read and write
	http   string   // where a daemon serves its metrics, once it was asked
	slow   string   // where the daemon of row 18 does
	failed []string // rows that are not shown
	nc     *nats.Conn

	signalled chan struct{} // is closed once helper was sent its message

	mu    sync.Mutex
	heard []*nats.Msg // what subscribers heard, from before the first run on
}

// patchDigest is that of the artifact.
var patchDigest = fmt.Sprintf("sha256-%x", sha256.Sum256([]byte("+ cookie\n")))

// agents are agents that are no Loop, by their names.
type agents = map[string]func(context.Context, *publisher.Run) (publisher.Work, error)

// speaks is a model that gives the answer of its turn.
func speaks(answers ...publisher.Answer) publisher.Model {
	return func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		return answers[min(int(q.Turn), len(answers))-1], nil
	}
}

// says is an answer of a model, with the calls that it asks for: pairs of id and name.
func says(text string, calls ...string) publisher.Answer {
	a := publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(text)}},
		Usage:   &schema.Usage{InputTokens: 812, OutputTokens: 40}, Model: "m-1",
	}
	for pair := range slices.Chunk(calls, 2) {
		a.Message.Parts = append(a.Message.Parts, schema.Part{Type: schema.PartToolCall, ID: pair[0], Name: pair[1]})
		a.Calls = append(a.Calls, publisher.ToolCall{ID: pair[0], Name: pair[1], Arguments: []byte(`{}`)})
	}
	return a
}

// does is a tool of a model.
func does(name string, replay schema.Replay, run func(context.Context, publisher.Invocation) error) publisher.Tool {
	return publisher.Tool{Name: name, Replay: replay, Run: func(ctx context.Context, call publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{Result: []byte(`"` + name + ` is done"`), Duration: time.Second}, run(ctx, call)
	}}
}

func works(context.Context, publisher.Invocation) error { return nil }

// firstLife is work that does not return before its executor is killed or stopped, and returns at once in the next executor.
type firstLife struct {
	begun chan struct{}
	mu    sync.Mutex
	over  map[string]bool
}

func (f *firstLife) of(ctx context.Context, run string) error {
	f.mu.Lock()
	over := f.over[run]
	f.over[run] = true
	f.mu.Unlock()
	if over {
		return nil
	}
	f.begun <- struct{}{}
	<-ctx.Done()
	return context.Cause(ctx)
}

// missioned makes the runs of the page.
func missioned(t *testing.T) *mission {
	t.Helper()
	m := &mission{world: &world{waymarktest.Start(t), t}, dir: t.TempDir(), signalled: make(chan struct{})}
	m.nc = m.Conn()
	_, err := m.nc.Subscribe("waymark.>", func(msg *nats.Msg) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.heard = append(m.heard, msg)
	})
	require.NoError(t, err)
	require.NoError(t, m.nc.Flush())
	m.killed()
	m.ended()
	m.handedOn()
	m.checkpointed()
	return m
}

// submit hands a run in.
func (m *mission) submit(f *publisher.Fleet, spec publisher.RunSpec) {
	m.t.Helper()
	spec.Model, spec.ModelTier = "m-1", "large"
	_, err := f.Submit(m.t.Context(), spec)
	require.NoError(m.t, err)
}

// killed are the runs of executors that are killed in the middle of them: one executor is started again, another one is not.
func (m *mission) killed() {
	m.t.Helper()
	life := &firstLife{begun: make(chan struct{}), over: map[string]bool{}}
	dies := func(ctx context.Context, call publisher.Invocation) error { return life.of(ctx, call.Run().ID()) }
	coder := publisher.Loop{
		System: "You mend programs.",
		Model: speaks(says("I read the code first.", "a", "read_file", "b", "run_tests"), says("I mend it.", "c", "edit"),
			says("Does it work now?", "d", "run_tests"), says("It does.", "e", "submit")),
		Tools: []publisher.Tool{
			does("read_file", publisher.Pure, works),
			does("run_tests", publisher.Pure, func(_ context.Context, call publisher.Invocation) error {
				if call.Key.Turn == 1 {
					return errors.New("3 tests fail")
				}
				return nil
			}),
			does("edit", publisher.Idempotent, func(ctx context.Context, call publisher.Invocation) error {
				if err := dies(ctx, call); err != nil {
					return err
				}
				run := call.Run()
				return errors.Join(
					run.SetState(ctx, "todo", []string{"test it", "tell the customer"}),
					run.Artifact(ctx, schema.ArtifactAddedData{ArtifactID: "patch", Name: "login.patch", MediaType: "text/x-diff", Content: []byte(`"+ cookie\n"`), Digest: patchDigest}))
			}),
			does("submit", publisher.Pure, works),
		},
		Complete: "submit", Parallel: 1, // the order of the calls is that of the page
	}
	watcher := publisher.Loop{
		Model: speaks(says("I look.", "a", "look"), says("I look again.", "a", "look"), says("All is quiet.")),
		Tools: []publisher.Tool{does("look", publisher.Pure, func(ctx context.Context, call publisher.Invocation) error {
			if call.Key.Turn == 1 {
				return nil
			}
			return dies(ctx, call)
		})},
	}
	clerk := publisher.Loop{Model: speaks(says("I look.", "a", "look"), says("I pay.", "b", "pay")), Tools: []publisher.Tool{
		does("look", publisher.Pure, works), does("pay", publisher.Hold, dies),
	}}
	releaser := func(ctx context.Context, run *publisher.Run) error {
		done := func(what string) func(context.Context) (any, error) {
			return func(context.Context) (any, error) { return what, nil }
		}
		build := func(ctx context.Context) (any, error) { return "built", life.of(ctx, run.ID()) }
		_, err := run.Phase(ctx, "plan", done("planned"))
		if err == nil {
			_, err = run.Phase(ctx, "build", build)
		}
		if err == nil {
			_, err = run.Phase(ctx, "deploy", done("deployed"), publisher.AfterApproval("Deploy to production?"))
		}
		return err
	}
	restarted := m.Serve("ex-1", publisher.ExecutorSpec{
		Loops:  map[string]publisher.Loop{"watcher": watcher, "clerk": clerk},
		Agents: agents{"releaser": func(context.Context, *publisher.Run) (publisher.Work, error) { return releaser, nil }},
	}, nil)
	one := m.Serve("ex-2", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": coder}}, nil)
	acme := map[string]string{"tenant": "acme"}
	for _, spec := range []publisher.RunSpec{
		{ID: "nightly", Agent: "watcher", Task: "Look after the house."},
		{ID: "invoice", Agent: "clerk", Task: "Pay the invoice.", Labels: acme},
		{ID: "release", Agent: "releaser", Task: "Release 1.2."},
		{ID: "fix-login", Agent: "coder", Task: "Fix the login.", Labels: acme},
		{ID: "fix-logout", Agent: "coder", Task: "Fix the logout.", Labels: acme},
	} {
		m.submit(restarted.Fleet(), spec)
		<-life.begun // one after the other, for the page
	}
	one.Kill()
	restarted.Kill()
	m.Advance(11 * time.Second)
	restarted.Start()
	other := m.Serve("ex-3", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"coder": coder}}, nil)
	for _, run := range []string{"nightly", "fix-login", "fix-logout"} {
		require.Equal(m.t, schema.StatusCompleted, m.Ended(run).Status, run)
	}
	other.Stop() // what a later row leaves for the fleet stays
	m.Await("invoice", schema.StatusWaiting)
	m.Await("release", schema.StatusWaiting)
}

// ended are runs that end in each way, or wait.
func (m *mission) ended() {
	m.t.Helper()
	life := &firstLife{begun: make(chan struct{}), over: map[string]bool{}}
	look := does("look", publisher.Pure, works)
	sleeper := publisher.Loop{Model: speaks(says("I begin.", "a", "look"), says("I wait.", "b", "sleep")), Tools: []publisher.Tool{
		look, does("sleep", publisher.Pure, func(ctx context.Context, call publisher.Invocation) error { return life.of(ctx, call.Run().ID()) }),
	}}
	stopped := m.Serve("ex-4", publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"sleeper": sleeper}}, nil)
	for _, run := range []string{"left", "lost"} {
		m.submit(stopped.Fleet(), publisher.RunSpec{ID: run, Agent: "sleeper", Task: "Watch the gate."})
		<-life.begun
	}
	stopped.Stop()
	m.Await("left", schema.StatusInterrupted)
	m.Await("lost", schema.StatusInterrupted)

	broken := publisher.Loop{Tools: []publisher.Tool{look}, Model: func(_ context.Context, q publisher.ModelRequest) (publisher.Answer, error) {
		if q.Turn == 1 {
			return says("I look.", "a", "look"), nil
		}
		return publisher.Answer{}, publisher.Permanent(errors.New("the provider refuses the key"))
	}}
	bounded := publisher.Loop{Tools: []publisher.Tool{look}, MaxTurns: 2, Model: speaks(says("I look.", "a", "look"), says("I look on.", "b", "look"), says("Two rooms are searched, one is left."))}
	talker := publisher.Loop{
		Tools: []publisher.Tool{look}, Window: 1000, Model: speaks(says("I read chapter one.", "a", "look"), says("I read chapter two.", "b", "look"), says("It is a good book.")),
		Compact: func(context.Context, *publisher.Run, []schema.Message) (string, error) {
			return "Two chapters: a ship, and a storm.", nil
		},
	}
	m.delegates(map[string]publisher.Loop{"broken": broken, "bounded": bounded, "talker": talker})

	policy := func(_ context.Context, _ *publisher.Run, call publisher.ToolCall) (publisher.Decision, error) {
		if call.Name == "rm" {
			return publisher.Decision{Decision: schema.DecisionDeny, Policy: "no-delete", Reason: "Agents delete nothing here."}, nil
		}
		return publisher.Decision{Decision: schema.DecisionAllow, Policy: "inside"}, nil
	}
	var fetched int
	cleaner := publisher.Loop{
		ToolTries: 2, Model: speaks(says("I delete it.", "a", "rm"), says("I fetch it.", "b", "fetch"), says("Once more.", "c", "fetch"), says("There it is.")),
		Tools: []publisher.Tool{does("rm", publisher.Pure, works), does("fetch", publisher.Pure, func(context.Context, publisher.Invocation) error {
			if fetched++; fetched <= 2 {
				return publisher.Retryable(errors.New("the line is busy"))
			}
			return nil
		})},
	}
	for _, mode := range []publisher.PolicyMode{publisher.PolicyEnforce, publisher.PolicyObserve} {
		name := map[publisher.PolicyMode]string{publisher.PolicyEnforce: "guarded", publisher.PolicyObserve: "watched"}[mode]
		fetched = 0
		e := m.Serve("ex-"+name, publisher.ExecutorSpec{Loops: map[string]publisher.Loop{name: cleaner}}, func(c *publisher.Config) { c.Policy, c.PolicyMode = policy, mode })
		m.submit(e.Fleet(), publisher.RunSpec{ID: name, Agent: name, Task: "Tidy up."})
		m.Ended(name)
	}
}

// delegates serves loops, the agents that talk to each other, and one that ends its runs by its word alone.
func (m *mission) delegates(loops map[string]publisher.Loop) {
	m.t.Helper()
	var e *waymarktest.Executor
	waits := does("wait", publisher.Pure, func(ctx context.Context, call publisher.Invocation) error {
		_, err := call.Run().AwaitSignal(ctx)
		if call.Run().ID() == "helper" {
			<-m.signalled // the command that sends it shows the run as it is before it goes on
		}
		return err
	})
	loops["boss"] = publisher.Loop{
		Model: speaks(says("A helper does it.", "a", "delegate"), says("I wait.", "b", "wait"), says("The helper says that it is done.")),
		Tools: []publisher.Tool{waits, does("delegate", publisher.Idempotent, func(ctx context.Context, call publisher.Invocation) error {
			parent := &schema.Parent{Run: call.Run().ID(), Turn: call.Key.Turn, ToolCallID: call.Key.ToolCallID}
			_, err := e.Fleet().Submit(ctx, publisher.RunSpec{ID: "helper", Agent: "helper", Task: "Count the chairs.", Parent: parent})
			return err
		})},
	}
	loops["helper"] = publisher.Loop{
		Model: speaks(says("I wait for the room.", "a", "wait"), says("I count.", "b", "report"), says("Done.")), Tools: []publisher.Tool{
			waits, does("report", publisher.Idempotent, func(ctx context.Context, call publisher.Invocation) error {
				return e.Fleet().Signal(ctx, call.Run().Head().Parent.Run, publisher.SignalSpec{ID: call.IdempotencyKey, Name: "result", Payload: []byte(`{"chairs":12}`)})
			}),
		},
	}
	word := func(ctx context.Context, run *publisher.Run) error {
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		if err == nil {
			_, err = turn.Answer(ctx, says("I think that it is done."))
		}
		return err
	}
	e = m.Serve("ex-5", publisher.ExecutorSpec{Loops: loops, Agents: agents{
		"closer": func(context.Context, *publisher.Run) (publisher.Work, error) { return word, nil },
	}}, nil)
	for _, spec := range []publisher.RunSpec{
		{ID: "broken", Agent: "broken", Task: "Try it."}, {ID: "bounded", Agent: "bounded", Task: "Search the rooms."}, {ID: "talk", Agent: "talker", Task: "Read the book."},
	} {
		m.submit(e.Fleet(), spec)
		m.Ended(spec.ID)
	}
	m.submit(e.Fleet(), publisher.RunSpec{ID: "boss", Agent: "boss", Task: "Seat the guests."})
	m.until(func() bool { return m.Status("helper") == schema.StatusRunning && len(m.State("helper").Calls) == 1 })
}

// handedOn are runs that a program drives by itself: one that goes on in a child, one whose handle an executor adopts, and one that is
// recorded nowhere.
func (m *mission) handedOn() {
	m.t.Helper()
	ctx := m.t.Context()
	f := m.Fleet("ex-6", func(c *publisher.Config) { c.Agent = "porter" })
	turn := func(run *publisher.Run, text string) {
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
		require.NoError(m.t, err)
		_, err = turn.Answer(ctx, says(text))
		require.NoError(m.t, err)
	}
	run, err := f.Start(ctx, publisher.RunSpec{ID: "port", Task: "Port the parser."})
	require.NoError(m.t, err)
	turn(run, "Half of it is ported.")
	handoff := run.Handoff(schema.HandoffOfferedData{
		Reason:    "threshold_critical",
		HandoffID: "half",
		Completed: []schema.HandoffCompleted{{File: "lexer.go", Status: "done", Tests: &schema.HandoffTests{Passed: 14, Skipped: 1, Failed: 2}, Notes: "as in C"}},
		Remaining: []schema.HandoffRemaining{{File: "parser.go", Description: "Port the statements.", ReferencePattern: "lexer.go", Priority: "high"}},
		Context:   &schema.HandoffContext{Decisions: []string{"The parser stays recursive."}, Patterns: []string{"one function a rule"}, Issues: []string{"labels of loops"}, FilesModified: []string{"lexer.go", "./lexer.go"}},
	})
	child, err := run.Continue(ctx, handoff, publisher.RunSpec{ID: "port-2"})
	require.NoError(m.t, err)
	turn(child, "The rest is ported.")
	require.NoError(m.t, child.End(ctx, publisher.RunEnd{Summary: "The parser is ported."}))

	spec := publisher.RunSpec{ID: "adopted", Task: "Water the plants.", Model: "m-2", ModelTier: "small", Labels: map[string]string{"tenant": "acme"}}
	run, err = f.Start(ctx, spec)
	require.NoError(m.t, err)
	turn(run, "The first pot is done.")
	goesOn := func(context.Context, *publisher.Run) (publisher.Work, error) {
		return func(_ context.Context, run *publisher.Run) error { turn(run, "And the second one."); return nil }, nil
	}
	e, err := f.NewExecutor(publisher.ExecutorSpec{Agents: agents{"porter": goesOn}, Capacity: -1})
	require.NoError(m.t, err)
	serving, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- e.Serve(serving) }()
	require.NoError(m.t, e.Adopt(run))
	require.Equal(m.t, schema.StatusCompleted, m.Ended("adopted").Status)
	stop()
	require.NoError(m.t, <-served)

	spec.ID, spec.Agent = "scratch", "porter"
	run, err = publisher.Unrecorded(ctx, publisher.Config{Executor: "ex-6"}, spec)
	require.NoError(m.t, err)
	turn(run, "Nothing of this is kept.")
	require.NoError(m.t, run.End(ctx, publisher.RunEnd{}))
}

// checkpointed are runs with a checkpoint behind each of their events. The latest one of damaged was changed in the bucket.
func (m *mission) checkpointed() {
	m.t.Helper()
	ctx := m.t.Context()
	js, err := jetstream.New(m.nc)
	require.NoError(m.t, err)
	kv, err := js.KeyValue(ctx, schema.NamesOf(schema.DefaultFleet, 0).CheckpointBucket())
	require.NoError(m.t, err)
	f := m.Fleet("ex-7", func(c *publisher.Config) { c.Agent = "coder" })
	var stored []byte
	for _, id := range []string{"whole", "damaged"} {
		run, err := f.Start(ctx, publisher.RunSpec{ID: id, Task: "Fix the door."})
		require.NoError(m.t, err)
		for i := range 7 {
			if i < 6 {
				require.NoError(m.t, run.AddMessage(ctx, textMessage(schema.RoleUser, "It squeaks.")))
			} else {
				require.NoError(m.t, run.End(ctx, publisher.RunEnd{Summary: "It closes."}))
			}
			m.until(func() bool {
				entry, err := kv.Get(ctx, id)
				if err == nil {
					stored = entry.Value()
				}
				return err == nil && bytes.Contains(stored, []byte(run.Head().Position.ID))
			})
		}
	}
	_, err = kv.Put(ctx, "damaged", bytes.Replace(stored, []byte(`"status":"completed"`), []byte(`"status":"cancelled"`), 1))
	require.NoError(m.t, err)
}
