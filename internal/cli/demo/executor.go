package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// turns is how many calls an agent makes, one a turn; then it is done.
	turns = 5
	// slowTurn is the turn with the calls in the middle of which the executor is killed.
	slowTurn = 2
	// thinkTime is how long the model takes, toolTime a tool, and slowTime a tool in the slow turn.
	thinkTime, toolTime, slowTime = 200 * time.Millisecond, 600 * time.Millisecond, 3 * time.Second
	// patience is how long an executor tries to get an event acknowledged: longer than the server is away.
	patience = 30 * time.Second
)

// agent is one of the three agents: its run has its name, and its tool the policy that the demonstration is about. fate is what the kill
// means for a call of it.
type agent struct {
	name, tool string
	replay     schema.Replay
	fate       string
}

var agents = []agent{
	{"scout", "look", publisher.Pure, "it only reads, and ran again after the kill"},
	{"clerk", "book", publisher.Idempotent, "it ran again after the kill, with the same key"},
	{"courier", "send", publisher.Hold, "a person was asked, and it did not run again"},
}

// parcel is the argument of each call.
type parcel struct {
	Number int32 `json:"number"`
}

// result of the call in a turn: the same whenever it is made.
func result(turn int32) string { return fmt.Sprintf("parcel %d", turn) }

// note is what an executor tells outside of Waymark: a line of its output.
type note struct {
	Op   string `json:"op"`
	Run  string `json:"run"`
	Turn int32  `json:"turn,omitzero"`
	// Epoch and Sequence of the last event that was acknowledged to this executor.
	Epoch    schema.Epoch    `json:"epoch,omitzero"`
	Sequence schema.Sequence `json:"sequence,omitzero"`
	// Outcome of the run for this executor, and why.
	Outcome publisher.Outcome `json:"outcome,omitzero"`
	Text    string            `json:"text,omitzero"`
}

// Operations of notes.
const (
	opReady  = "ready"  // the daemon is ready
	opAt     = "at"     // the run is claimed, its model is asked, or its work is done
	opBegin  = "begin"  // a tool begins
	opEffect = "effect" // the tool's effect has happened
	opLeft   = "left"   // the executor has no more to do with the run
)

// ExecutorCmd is an executor of the demonstration.
type ExecutorCmd struct {
	Name  string `required:"" help:"Name of the executor."`
	World string `required:"" help:"Directory of the tools' effects."`
}

// Run works on the runs of all agents until ctx ends.
func (c ExecutorCmd) Run(ctx context.Context, a *base.App) (err error) {
	dir, err := a.StateDirectory()
	if err != nil {
		return err
	}
	fleet, err := connect(ctx, a, dir, c.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, base.CloseFleet(ctx, fleet)) }()
	w := worker{world: c.World, out: a.Stdout}
	work := make(map[string]func(context.Context, *publisher.Run) (publisher.Work, error))
	for _, g := range agents {
		work[g.name] = func(_ context.Context, run *publisher.Run) (publisher.Work, error) {
			return func(ctx context.Context, run *publisher.Run) error {
				if err := w.loop(g, run).Work(ctx, run); err != nil {
					return err
				}
				return w.tell(note{Op: opAt}, run)
			}, w.tell(note{Op: opAt}, run)
		}
	}
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{
		Agents: work, WaitDetached: true, Grace: time.Second,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			n := note{Op: opLeft, Run: run, Outcome: outcome}
			if err != nil {
				n.Text = err.Error()
			}
			_ = w.tell(n, nil) // without a reader this process ends
		},
	})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// connect connects to the demonstration's server, and waits for it while it is away.
func connect(ctx context.Context, a *base.App, dir, executor string) (*publisher.Fleet, error) {
	end, err := natsconn.Discover(ctx, dir)
	if err != nil {
		return nil, err
	}
	opts, err := end.Options()
	if err != nil {
		return nil, err
	}
	return publisher.Connect(ctx, publisher.Config{
		URL: end.URL, Executor: executor, PublishTimeout: patience, RequestTimeout: patience, Now: a.Now,
		Options: append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond)),
	})
}

// worker is what the agents of an executor share.
type worker struct {
	world string
	out   io.Writer
}

// tell writes a note, with the last acknowledged event of a run. A note is one write, so those of several runs do not mix.
func (w worker) tell(n note, run *publisher.Run) error {
	if run != nil {
		run.View(func(s *schema.State) { n.Run, n.Epoch, n.Sequence = s.Head.Run, s.Head.Epoch, s.Head.Sequence })
	}
	return json.NewEncoder(w.out).Encode(n)
}

// loop is the agent: a model that follows a script, and one tool.
func (w worker) loop(g agent, run *publisher.Run) publisher.Loop {
	model := func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
		if err := w.tell(note{Op: opAt, Turn: request.Turn}, run); err != nil {
			return publisher.Answer{}, err
		}
		if err := pause.For(ctx, thinkTime); err != nil {
			return publisher.Answer{}, err
		}
		if request.Turn > turns {
			return publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text("All parcels are done.")}}}, nil
		}
		arguments, err := json.Marshal(parcel{request.Turn})
		return publisher.Answer{Calls: []publisher.ToolCall{{ID: fmt.Sprintf("%s-%d", g.tool, request.Turn), Name: g.tool, Arguments: arguments}}}, err
	}
	tool := publisher.NewTool(g.tool, "Works on a parcel.", g.replay, func(ctx context.Context, in parcel) (string, error) {
		if err := w.tell(note{Op: opBegin, Turn: in.Number}, run); err != nil {
			return "", err
		}
		if err := w.effect(g, in.Number, publisher.InvocationOf(ctx).IdempotencyKey); err != nil {
			return "", err
		}
		if err := w.tell(note{Op: opEffect, Turn: in.Number}, run); err != nil {
			return "", err
		}
		takes := toolTime
		if in.Number == slowTurn {
			takes = slowTime
		}
		return result(in.Number), pause.For(ctx, takes)
	})
	// The model is asked only once all results are acknowledged, so that its note says which are.
	return publisher.Loop{System: "You look after parcels.", Model: model, Tools: []publisher.Tool{tool}}
}

// effect is what a tool changes in the world outside: nothing, an entry for the key, or a letter that cannot be unsent.
func (w worker) effect(g agent, number int32, key string) error {
	switch g.replay {
	case publisher.Idempotent:
		return os.WriteFile(filepath.Join(w.world, ledgerDir, key), []byte(result(number)), 0o600)
	case publisher.Hold:
		f, err := os.OpenFile(filepath.Join(w.world, outboxFile), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, result(number))
		return errors.Join(err, f.Close())
	default:
		return nil
	}
}
