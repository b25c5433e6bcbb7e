package nemesis_test

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Agent is the agent of all runs of the world.
const Agent = "victim"

// ExecutorSettings are the load of an executor.
type ExecutorSettings struct {
	Name string `json:"name"`
	// URLs of the servers, separated by commas.
	URLs     string `json:"urls"`
	User     string `json:"user"`
	Password string `json:"password"`
	// History is the file of its recorded operations, First the id of the first.
	History string `json:"history"`
	First   int64  `json:"first"`
	Seed    uint64 `json:"seed"`
	// Slots is its number of active runs, each with Pause between two boundaries, in milliseconds.
	Slots int   `json:"slots"`
	Pause int64 `json:"pause_ms"`
	// Turns that a run has before it ends.
	Turns int `json:"turns"`
	// Steal is how often in a hundred a slot takes over another executor's active run, instead of claiming or
	// starting one.
	Steal int `json:"steal"`
	// Heartbeat is its interval in milliseconds; 0 means the SDK's own.
	Heartbeat int64 `json:"heartbeat_ms,omitzero"`
	// Timeout of a publish and of a request, in milliseconds.
	Timeout int64 `json:"timeout_ms"`
	// ClockOff is how far its clock is off, in milliseconds.
	ClockOff int64 `json:"clock_off_ms,omitzero"`
	// Outside is the directory that tools change. Empty means that no tool is called.
	Outside string `json:"outside,omitzero"`
	// Tool is how long a tool takes at most before its effect, and again after it, in milliseconds.
	Tool int `json:"tool_ms,omitzero"`
	// Loops is its number of active runs that Loops work on, with the SDK's own settings, in place of slots. 0 means slots.
	Loops int `json:"loops,omitzero"`
	// Leak builds a mistake in, for the proof that a soak finds it: "goroutine" or "memory" for each run. Empty means none.
	Leak string `json:"leak,omitzero"`
}

// leaveTimeout is how long an executor that stops tries to release each run.
const leaveTimeout = 5 * time.Second

// loader is an executor under load.
type loader struct {
	ExecutorSettings
	fleet  *publisher.Fleet
	record *checker.Recorder
	log    zerolog.Logger
	mu     sync.Mutex
	rnd    *rand.Rand
	// effects counts the runs of tools.
	effects int
	// leaked is the memory that a built-in mistake keeps.
	leaked [][]byte
}

// runExecutor loads the fleet until ctx ends, then lets its runs go, cleanly.
func runExecutor(ctx context.Context, settings, metrics string, stdout io.Writer, log zerolog.Logger) (err error) {
	l := &loader{log: log}
	if err := json.Unmarshal([]byte(settings), &l.ExecutorSettings); err != nil {
		return fmt.Errorf("%s: %w", ExecutorVariable, err)
	}
	l.rnd = rand.New(rand.NewPCG(l.Seed, 1)) //nolint:gosec // chooses the load
	file, err := os.OpenFile(l.History, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	l.record = checker.NewWriter(file, l.First)
	defer func() { err = errors.Join(err, l.record.Err(), file.Close()) }()
	if err := say(stdout, Ready{Metrics: metrics}); err != nil {
		return err
	}
	if l.Loops > 0 {
		return l.loopExecutor(ctx)
	}
	nc, err := Dial(ctx, l.Name, l.URLs, l.User, l.Password)
	if err != nil {
		return nil // ctx ended while no server was there
	}
	defer nc.Close()
	timeout := time.Duration(l.Timeout) * time.Millisecond
	for l.fleet == nil {
		l.fleet, err = publisher.Connect(ctx, publisher.Config{
			Conn: nc, Executor: l.Name, Agent: Agent, PublishTimeout: timeout, RequestTimeout: timeout,
			FullPatience: 2 * timeout,
			Heartbeat:    time.Duration(l.Heartbeat) * time.Millisecond,
			Now:          func() time.Time { return time.Now().Add(time.Duration(l.ClockOff) * time.Millisecond) },
		})
		if err != nil && !wait(ctx, 200*time.Millisecond) {
			return nil // ctx ended while the fleet was not there
		}
	}
	if l.Outside != "" {
		stop, err := l.serveVerify(nc)
		if err != nil {
			return err
		}
		defer func() { _ = stop() }() // the connection is closed after it
	}
	var slots sync.WaitGroup
	for i := range l.Slots {
		s := &slot{loader: l, actor: fmt.Sprintf("%s.%s/%d", l.Name, l.fleet.Instance(), i)}
		slots.Go(func() { s.work(ctx) })
	}
	slots.Wait()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	return l.fleet.Close(closing)
}

// Dial connects like all processes of this world: forever, without buffering. It tries until ctx ends.
func Dial(ctx context.Context, name, urls, user, password string) (*nats.Conn, error) {
	for {
		nc, err := nats.Connect(urls, nats.Name(name), nats.UserInfo(user, password), nats.DontRandomize(), nats.MaxReconnects(-1),
			nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1), nats.Timeout(2*time.Second),
			// A half-open connection is noticed by its pings alone.
			nats.PingInterval(2*time.Second), nats.MaxPingsOutstanding(2))
		if err == nil {
			return nc, nil
		}
		if !wait(ctx, 100*time.Millisecond) {
			return nil, errors.Join(err, context.Cause(ctx))
		}
	}
}

// wait waits unless ctx ends before.
func wait(ctx context.Context, d time.Duration) bool { return pause.For(ctx, d) == nil }

func (l *loader) number(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rnd.IntN(n)
}

// token is a text that is unique in the world, and filler the rest of a message.
func (s *slot) token() (token, filler string) {
	l := s.loader
	l.mu.Lock()
	defer l.mu.Unlock()
	s.tokens++
	size := 50 + l.rnd.IntN(1500)
	switch n := l.rnd.IntN(300); {
	case n < 3: // a blob of some chunks
		size = 300<<10 + l.rnd.IntN(700<<10)
	case n < 14:
		size = 20 << 10
	}
	// Each is different: equal content is stored once.
	return checker.Token(s.actor, s.tokens), cryptorand.Text() + strings.Repeat(" all work and no play", size/21)
}

// slot has one active run after the other.
type slot struct {
	*loader
	actor  string
	tokens int
}

func (s *slot) work(ctx context.Context) {
	for ctx.Err() == nil {
		run := s.take(ctx)
		if run != nil {
			s.leak(ctx)
			s.drive(ctx, run)
		} else if !wait(ctx, 100*time.Millisecond) {
			return
		}
	}
}

// leak is the mistake that is built in.
func (s *slot) leak(ctx context.Context) {
	switch s.Leak {
	case "goroutine":
		go func() { <-ctx.Done() }()
	case "memory":
		s.mu.Lock()
		defer s.mu.Unlock()
		s.leaked = append(s.leaked, make([]byte, 100<<10))
	}
}

// take finds a run to continue, or begins one.
func (s *slot) take(ctx context.Context) *publisher.Run {
	if s.number(100) < s.Steal {
		if run := s.steal(ctx); run != nil {
			return run
		}
	}
	run, err := Takeover(s.record, checker.Op{Actor: s.actor, Executor: s.Name, Detail: checker.DetailClaim}, func() (*publisher.Run, error) {
		return s.fleet.Claim(ctx, publisher.ClaimSpec{})
	})
	if run != nil || !errors.Is(err, publisher.ErrNothing) {
		return run
	}
	id := fmt.Sprintf("%s-%08x", s.Name, uint32(s.number(1<<31-1))^uint32(time.Now().UnixNano())) //nolint:gosec // any bits will do
	token, _ := s.token()
	op := s.record.Begin(checker.Op{Actor: s.actor, Kind: checker.Publish, Run: id, Epoch: 1, Sequence: 1, Token: token, Detail: schema.RunStarted})
	run, err = s.fleet.Start(ctx, publisher.RunSpec{ID: id, Task: token})
	s.record.End(op, func(op *checker.Op) {
		Ended(op, err)
		if err == nil {
			place(op, run)
		} else {
			op.Outcome = checker.Unknown // Start gives no handle to find out with
		}
	})
	if err != nil {
		return nil // an executor that finds it claims it
	}
	return run
}

// steal takes over another executor's active run.
func (s *slot) steal(ctx context.Context) *publisher.Run {
	page, err := s.fleet.List(ctx, schema.ListRequest{Agent: Agent, Status: []schema.Status{schema.StatusRunning}, Limit: 50})
	if err != nil || len(page.Runs) == 0 {
		return nil
	}
	id := page.Runs[s.number(len(page.Runs))].Run
	run, _ := Resume(ctx, s.record, s.actor, s.fleet, id)
	return run
}

// Resume takes a run over, and records it.
func Resume(ctx context.Context, record *checker.Recorder, actor string, fleet *publisher.Fleet, id string) (*publisher.Run, error) {
	request := cryptorand.Text()
	return Takeover(record, checker.Op{Actor: actor, Executor: fleet.Executor(), Run: id, Request: request, Detail: "resume"}, func() (*publisher.Run, error) {
		return fleet.Resume(ctx, id, publisher.ResumeSpec{RequestID: request})
	})
}

// DetailClaim is the detail of a takeover that the daemon chose the run of.
const DetailClaim = checker.DetailClaim

// Takeover takes a run over and records it. An error, too, may stand for a takeover that succeeded and whose answer
// was lost.
func Takeover(record *checker.Recorder, op checker.Op, do func() (*publisher.Run, error)) (*publisher.Run, error) {
	op.Kind = checker.Takeover
	o := record.Begin(op)
	run, err := do()
	record.End(o, func(op *checker.Op) {
		Ended(op, err)
		if run == nil {
			switch {
			case errors.Is(err, publisher.ErrNothing):
			case errors.Is(err, publisher.ErrRunNotFound):
				op.Answer = checker.Absent()
			default: // of a run that has ended, too: an earlier try may have been the one whose answer was lost
				op.Outcome = checker.Unknown
			}
			return
		}
		head := run.Head()
		answer := checker.AnswerOf(&head, true)
		op.Run, op.Epoch, op.Answer = run.ID(), run.Epoch(), &answer
		if op.Request == "" { // a claim's is the SDK's own
			op.Request = head.RequestID
		}
	})
	return run, err
}

// Ended sets what an operation's error says about it.
func Ended(op *checker.Op, err error) {
	switch {
	case err == nil:
		op.Outcome = checker.OK
		return
	case errors.Is(err, publisher.ErrUnresolved), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		op.Outcome = checker.Unknown
	default:
		op.Outcome = checker.Failed
	}
	op.Error, op.Fenced = err.Error(), errors.Is(err, publisher.ErrFenced)
}

// place sets the place of the event just published. If another one was folded after it already (a control event), its
// place is unknown, and its token finds it.
func place(op *checker.Op, run *publisher.Run) {
	run.View(func(s *schema.State) {
		h := &s.Head
		op.Epoch, op.Sequence = h.Epoch, h.Sequence
		if strings.HasPrefix(h.Position.ID, fmt.Sprintf("%s.%d.%d.", h.Run, h.Epoch, h.Sequence)) {
			op.Event, op.Stream = h.Position.ID, h.Position.Stream
		}
	})
}

// publish publishes one event of a run.
func (s *slot) publish(ctx context.Context, run *publisher.Run, name, token string, do func(context.Context) error) error {
	return Publish(ctx, s.record, checker.Op{Actor: s.actor, Token: token, Detail: name}, run, do)
}

// Publish publishes one event of a run, and records it. It does not return before its outcome is known, the handle is
// over, or ctx is.
func Publish(ctx context.Context, record *checker.Recorder, op checker.Op, run *publisher.Run, do func(context.Context) error) (err error) {
	op.Kind, op.Run, op.Epoch, op.Sequence = checker.Publish, run.ID(), run.Epoch(), run.Head().Sequence+1
	o := record.Begin(op)
	for err = do(ctx); errors.Is(err, publisher.ErrUnresolved) && ctx.Err() == nil && !over(run); {
		err = run.Resolve(ctx)
	}
	record.End(o, func(op *checker.Op) {
		Ended(op, err)
		if err == nil {
			place(op, run)
		}
	})
	return err
}

// over reports whether a handle has ended.
func over(run *publisher.Run) bool {
	err := run.Err()
	return err != nil && !errors.Is(err, publisher.ErrUnresolved)
}

// drive does the rest of a run, until it has ended or belongs to another executor. When ctx ends, the run is
// released.
func (s *slot) drive(ctx context.Context, run *publisher.Run) {
	for !run.Head().Status.Terminal() {
		err := s.step(ctx, run)
		switch {
		case err == nil:
			if wait(ctx, time.Duration(s.Pause/2+int64(s.number(int(max(1, s.Pause)))))*time.Millisecond) {
				continue
			}
		case over(run):
			if !errors.Is(err, publisher.ErrFenced) {
				s.log.Error().Err(err).Str("run", run.ID()).Msg("a handle ended otherwise than by a takeover")
			}
			return
		case errors.Is(err, publisher.ErrUnavailable), errors.Is(err, publisher.ErrFleetFull), errors.Is(err, publisher.ErrNoService):
			if wait(ctx, 200*time.Millisecond) {
				continue
			}
		case ctx.Err() == nil:
			s.log.Error().Err(err).Str("run", run.ID()).Msg("unexpected")
		}
		s.leave(ctx, run)
		return
	}
}

// leave lets a run go: this process stops, or something was not foreseen.
func (s *slot) leave(ctx context.Context, run *publisher.Run) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if err := run.Resolve(ctx); err != nil || run.Head().Status.Terminal() {
		return // it is orphaned, or has ended a moment ago
	}
	token, _ := s.token()
	_ = s.publish(ctx, run, schema.RunInterrupted, token, func(ctx context.Context) error {
		extra, err := json.Marshal(map[string]string{"token": token})
		if err != nil {
			return err
		}
		return run.Publish(ctx, &schema.RunInterruptedData{Reason: "shutdown", Extra: extra}, 0)
	})
}

// step publishes the next event.
func (s *slot) step(ctx context.Context, run *publisher.Run) error {
	head := run.Head()
	turn := run.OpenTurn()
	if turn != nil && head.TurnAnswered {
		return s.call(ctx, run, turn, head.OpenCalls)
	}
	token, filler := s.token()
	message := func(role string) schema.Message {
		return schema.Message{Role: role, Parts: []schema.Part{schema.Text(token), schema.Text(filler)}}
	}
	start := func(number int32) error {
		return s.publish(ctx, run, schema.TurnStarted, token, func(ctx context.Context) error {
			_, err := run.StartTurn(ctx, publisher.TurnSpec{Number: number, Messages: []schema.Message{message(schema.RoleUser)}})
			return err
		})
	}
	number := head.Turn + 1
	if turn != nil {
		number = turn.Number()
	}
	chance := chanceOf(run.ID(), number)
	switch {
	case turn == nil && int(head.Turn) >= s.Turns:
		return s.publish(ctx, run, schema.RunEnded, token, func(ctx context.Context) error {
			return run.End(ctx, publisher.RunEnd{Summary: token})
		})
	case turn == nil && chance%2 == 0: // something is new to the model
		return start(0)
	case turn != nil && head.TurnEpoch < head.Epoch: // an earlier executor left it without an answer
		return start(number)
	case turn != nil && chance%16 == 0: // the model fails
		return s.publish(ctx, run, schema.TurnEnded, token, func(ctx context.Context) error {
			return turn.End(ctx, publisher.TurnEnd{Error: &schema.Error{Type: "overloaded", Message: token}})
		})
	}
	answer := publisher.Answer{Message: message(schema.RoleAssistant), Calls: s.calls(run.ID(), number)}
	for i := range answer.Calls {
		answer.Message.Parts = append(answer.Message.Parts, schema.CallPart(answer.Calls[i].ID, answer.Calls[i].Name))
	}
	return s.publish(ctx, run, schema.TurnAnswered, token, func(ctx context.Context) (err error) {
		if turn == nil {
			turn, err = run.StartTurn(ctx, publisher.TurnSpec{})
		}
		if err == nil {
			_, err = turn.Answer(ctx, answer)
		}
		return err
	})
}
