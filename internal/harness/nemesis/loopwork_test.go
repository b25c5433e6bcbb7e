package nemesis_test

import (
	"context"
	cryptorand "crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// loopAgent is the agent of the runs that Loops work on.
const loopAgent = "loop"

// largeResult is the size of a result of a Loop's tool, in bytes.
const largeResult = 1_200_000

// loopSignal is the name of the signals to Loops. Their payload is their id.
const loopSignal = "word"

// heard is what a Loop's model says in each answer: what it was told by then.
type heard struct {
	// Signals are the ids, as often as the request has them.
	Signals []string `json:"signals"`
	// Results counts the large results that arrived whole, Damaged names the other ones.
	Results int      `json:"results"`
	Damaged []string `json:"damaged,omitzero"`
}

// loopExecutor works on Loops with the SDK's own settings until ctx ends.
func (l *loader) loopExecutor(ctx context.Context) (err error) {
	for l.fleet == nil {
		l.fleet, err = publisher.Connect(ctx, publisher.Config{
			URL: l.URLs, Options: []nats.Option{nats.UserInfo(l.User, l.Password)}, Executor: l.Name, Agent: loopAgent, Logger: &l.log,
			Now: func() time.Time { return time.Now().Add(time.Duration(l.ClockOff) * time.Millisecond) },
		})
		if err != nil && !wait(ctx, 200*time.Millisecond) {
			return nil // ctx ended while the fleet was not there
		}
	}
	stop, err := l.serveVerify(l.fleet.Conn())
	if err != nil {
		return err
	}
	defer func() { _ = stop() }() // the connection is closed after it
	executor, err := l.fleet.NewExecutor(publisher.ExecutorSpec{
		Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
			loopAgent: func(_ context.Context, run *publisher.Run) (publisher.Work, error) { return l.loop(run).Work, nil },
		},
		Capacity: l.Loops,
		OnOutcome: func(run string, outcome publisher.Outcome, err error) {
			l.log.Info().Str("run", run).Str("outcome", string(outcome)).Err(err).Msg("finished")
		},
	})
	if err != nil {
		return err
	}
	if err := executor.Serve(ctx); err != nil { // runs whose outcome could not be published: another executor resumes them
		l.log.Error().Err(err).Msg("runs were left")
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	return l.fleet.Close(closing)
}

// loopRun is the work on one run.
type loopRun struct {
	*loader
	run   *publisher.Run
	actor string

	mu sync.Mutex
	// op is an event that the Loop publishes, or will publish, behind the sequence from.
	op   *checker.Op
	from schema.Sequence
}

// loop is the Loop of one run. Model and tools follow from the run's id alone, so each executor plays it alike.
func (l *loader) loop(run *publisher.Run) publisher.Loop {
	r := &loopRun{loader: l, run: run, actor: fmt.Sprintf("%s.%s/%s", l.Name, l.fleet.Instance(), run.ID())}
	loop := publisher.Loop{Model: r.model}
	for _, replay := range loopPolicies() {
		tool := publisher.Tool{Name: "change_" + string(replay), Replay: replay, Run: func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			return r.tool(ctx, inv, replay)
		}}
		if replay == schema.ReplayVerify {
			tool.VerifySubject = verifySubject
		}
		loop.Tools = append(loop.Tools, tool)
	}
	return loop
}

func loopPolicies() []schema.Replay {
	return []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayVerify, schema.ReplayHold}
}

// loopPolicy draws a policy. Most draw one whose calls may come into doubt.
func loopPolicy(chance uint32) schema.Replay {
	return loopPolicies()[[]int{0, 0, 1, 2, 2, 3, 3, 3}[chance%8]]
}

// look records the latest acknowledged event. The Loop publishes by itself, so that an operation is recorded at one of
// its steps, and ends at the first later one that finds another event.
func (r *loopRun) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	head := r.run.Head()
	if head.Epoch != r.run.Epoch() {
		return // another executor's
	}
	if r.op != nil {
		if head.Sequence <= r.from {
			return
		}
		r.record.End(r.op, func(op *checker.Op) {
			place(op, r.run)
			op.Outcome = checker.OK
			if op.Event == "" { // a control event follows it
				op.Outcome, op.Epoch, op.Sequence = checker.Unknown, 0, 0
			}
		})
	}
	r.from = head.Sequence
	r.op = r.record.Begin(checker.Op{Actor: r.actor, Kind: checker.Publish, Run: r.run.ID(), Detail: "an event of a Loop"})
}

// model thinks for a moment, and answers with what it was told.
func (r *loopRun) model(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
	r.look()
	defer r.look()
	said := told(request.Run, request.Messages)
	if !wait(ctx, time.Duration(r.number(int(2*r.Pause+1)))*time.Millisecond) {
		return publisher.Answer{}, context.Cause(ctx)
	}
	text, err := json.Marshal(said)
	if err != nil {
		return publisher.Answer{}, err
	}
	answer := publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.Text(string(text))}}}
	if int(request.Turn) > r.Turns {
		return answer, nil // the last one
	}
	chance := chanceOf(request.Run, request.Turn) / 16
	for i := range 1 + chance%2 {
		replay := loopPolicy(chance >> (1 + 3*i))
		id := fmt.Sprintf("%s-%d-%d", replay, request.Turn, i)
		answer.Calls = append(answer.Calls, publisher.ToolCall{ID: id, Name: "change_" + string(replay), Arguments: []byte(`{"call":"` + id + `"}`)})
	}
	return answer, nil
}

// told is what the messages of a request tell a model.
func told(run string, messages []schema.Message) (said heard) {
	for i := range messages {
		for k := range messages[i].Parts {
			part := &messages[i].Parts[k]
			switch {
			case part.Type == schema.PartText && messages[i].Role == schema.RoleUser && part.Content != nil:
				if first, id, found := strings.Cut(*part.Content, "\n"); found && strings.HasPrefix(first, fmt.Sprintf("Message %q from ", loopSignal)) {
					said.Signals = append(said.Signals, id)
				}
			case part.Type == schema.PartToolCallResponse && !part.IsError:
				var text string
				err := json.Unmarshal(part.Response, &text)
				token, _, large := strings.Cut(text, " ")
				if err != nil || !strings.HasPrefix(token, run+"."+part.ID+".") || large && text != enlarged(token) {
					said.Damaged = append(said.Damaged, part.ID)
				} else if large {
					said.Results++
				}
			}
		}
	}
	return said
}

// enlarged is a large text that follows from a short one, and differs from that of any other.
func enlarged(token string) string {
	random := make([]byte, largeResult/4*3)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(token))).Read(random) // it never fails
	return token + " " + base64.StdEncoding.EncodeToString(random)
}

// tool has its effect outside of the fleet, and returns a large result.
func (r *loopRun) tool(ctx context.Context, inv publisher.Invocation, replay schema.Replay) (publisher.ToolResult, error) {
	r.look()
	defer r.look()
	id, call := r.run.ID(), inv.Key.ToolCallID
	token := strings.Join([]string{id, call, cryptorand.Text()}, ".")
	there, err := r.acts(ctx, checker.Op{
		Actor: r.actor + "/" + call, Kind: checker.Execute, Run: id, Epoch: inv.Epoch, Tool: call, Replay: replay, Detail: inv.IdempotencyKey,
	}, func() (string, error) {
		there, err := outside(r.Outside).effect(replay, id, call, inv, token)
		if err == nil && !replay.Rerunnable() && there != token {
			err = outside(r.Outside).again(id, call, inv.Epoch)
		}
		return there, err
	})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	return publisher.Result(enlarged(there))
}

// again notes that a call's tool ran more than once in an epoch.
func (o outside) again(run, call string, epoch schema.Epoch) error {
	_, err := o.put(attempt(run, call, epoch)+"."+cryptorand.Text(), "again")
	return err
}

// settle is a person, who checks what became of a call in doubt. The call stays with that: an effect that an earlier
// executor has not had by now, it never has.
func (o outside) settle(call *schema.OpenCall, run string, epoch schema.Epoch) (schema.SettleRequest, error) {
	request := schema.SettleRequest{CallKey: call.CallKey, CallEpoch: call.Epoch, How: schema.SettledRerun, By: "person"}
	result, err := o.ask(run, call.ToolCallID, max(epoch, call.Epoch+1))
	if err == nil && result != "" {
		request.How = schema.SettledDecided
		request.Result, err = json.Marshal(result)
	}
	return request, err
}

// leftOpen reports whether the person leaves a call in doubt: the run waits.
func leftOpen(run, call string) bool { return chanceOf(run+"."+call, 0)%4 == 0 }
