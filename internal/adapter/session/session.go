package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// fullTurn is the number of calls behind which a call begins the next turn: a turn has room for schema.MaxTurnCalls,
	// and a program that adds no message begins no turn by itself.
	fullTurn = schema.MaxTurnCalls / 2
	// turnTries is how often a call is recorded in a newer turn because another call, or a message, began one.
	turnTries = 5
)

// Session is a run whose loop belongs to another program. Its methods may be called concurrently.
type Session struct {
	run *publisher.Run
	// life ends with the session: what a begun call did is then unknown.
	life    context.Context //nolint:containedctx // the session's own life
	end     context.CancelCauseFunc
	running sync.WaitGroup

	mu sync.Mutex
	// calls of this process that have no recorded outcome yet, by id.
	calls map[string]*call
}

// call is a call of this process.
type call struct {
	asked publisher.ToolCall
	// life ends with the session's, and with withdraw: the tool must not begin any more.
	life     context.Context //nolint:containedctx // the call's own life
	withdraw context.CancelCauseFunc
	// begun has the invocation once the tool may run, for one requester.
	begun chan publisher.Invocation
	// outcome is what that requester says; done is closed when it is recorded, in result and err.
	outcome chan outcome
	done    chan struct{}
	result  publisher.ToolResult
	err     error
	// invocation is what the requester gets; nil before, and for a call that was withdrawn. Under Session.mu.
	invocation *publisher.Invocation
}

type outcome struct {
	result publisher.ToolResult
	err    error
}

// New returns the session of a run that this process has started or taken over. Close it.
func New(run *publisher.Run) *Session {
	life, end := context.WithCancelCause(context.Background())
	return &Session{run: run, life: life, end: end, calls: make(map[string]*call)}
}

// Close ends the session, and waits for what is being recorded. A begun call without an outcome stays open. Close does
// not end the run.
func (s *Session) Close() {
	s.mu.Lock()
	s.end(fmt.Errorf("the session is closed: %w", publisher.ErrLost))
	s.mu.Unlock()
	s.running.Wait()
}

// Run returns the session's run.
func (s *Session) Run() *publisher.Run { return s.run }

// Running returns the calls whose tool may run.
func (s *Session) Running() (calls []publisher.ToolCall) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.calls {
		if c.invocation != nil {
			calls = append(calls, c.asked)
		}
	}
	return calls
}

// Idle waits until no tool runs. Its error is why the session ended before.
func (s *Session) Idle() error {
	for {
		var running *call
		s.mu.Lock()
		for _, c := range s.calls {
			if c.invocation != nil {
				running = c
			}
		}
		s.mu.Unlock()
		if running == nil {
			return context.Cause(s.life)
		}
		<-running.done // also when the session ends
	}
}

// Begun is what a program needs to run a tool.
type Begun struct {
	publisher.Invocation
	// Within is how long from now the tool may begin; see [publisher.Invocation.MayBegin].
	Within time.Duration
}

// Call records a call and decides about it. If begun is not nil, the program runs the tool and reports the outcome with
// [Session.Return]. Otherwise the call has an outcome: the result, or an error, such as a *publisher.ToolError for a
// failed or denied call, and a *publisher.HeldError for one that a person must settle. Call waits while a person is
// asked, and while the same call runs for another requester; ctx ends the wait, not the call.
func (s *Session) Call(ctx context.Context, asked publisher.ToolCall) (begun *Begun, result publisher.ToolResult, err error) {
	c, err := s.open(asked)
	if err != nil {
		return nil, result, err
	}
	select {
	case inv := <-c.begun:
		within, err := inv.MayBegin(ctx)
		if err != nil { // the program has not begun: nothing is recorded
			c.outcome <- outcome{err: fmt.Errorf("%w: %w", publisher.ErrLost, err)}
			<-c.done
			return nil, result, err
		}
		return &Begun{inv, within}, result, nil
	case <-c.done:
		return nil, c.result, c.err
	case <-ctx.Done():
		return nil, result, context.Cause(ctx)
	}
}

// open returns the call with the id of asked, and begins it if it is not running.
func (s *Session) open(asked publisher.ToolCall) (*call, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil {
		return nil, context.Cause(s.life)
	}
	if c := s.calls[asked.ID]; c != nil {
		if c.asked.Name != asked.Name || !schema.SameJSON(c.asked.Arguments, asked.Arguments) {
			return nil, fmt.Errorf("%w: call %.80q runs as %s(%.200s) and is now requested as %s(%.200s): a new call needs an id of its own",
				publisher.ErrConflict, asked.ID, c.asked.Name, c.asked.Arguments, asked.Name, asked.Arguments)
		}
		return c, nil
	}
	c := &call{asked: asked, begun: make(chan publisher.Invocation, 1), outcome: make(chan outcome, 1), done: make(chan struct{})}
	c.life, c.withdraw = context.WithCancelCause(s.life)
	s.calls[asked.ID] = c
	s.running.Go(func() {
		defer c.withdraw(nil)
		s.drive(c, asked)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.calls, asked.ID)
		close(c.done)
	})
	return c, nil
}

// drive brings a call to its outcome.
func (s *Session) drive(c *call, asked publisher.ToolCall) {
	asked.BeginsLater = true // when a requester takes it, which may leave while a person is asked
	for range turnTries {
		turn, open := s.place(&asked)
		if open != nil { // a person, or an earlier executor, may have told what became of it
			if c.err = s.run.Sync(c.life); c.err != nil {
				break
			}
		}
		c.result, c.err = s.run.Turn(turn).Tool(c.life, asked, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
			if !s.begin(c, &inv) {
				return publisher.ToolResult{}, publisher.ErrLost
			}
			select {
			case o := <-c.outcome:
				return o.result, o.err
			case <-ctx.Done():
				return publisher.ToolResult{}, context.Cause(ctx)
			}
		})
		rejected, ok := errors.AsType[*publisher.RejectedError](c.err)
		if !ok || rejected.Reason != schema.ReasonTurnOrder {
			break
		}
	}
	why, withdrawn := errors.AsType[Failure](context.Cause(c.life))
	if turn, open := s.place(&asked); withdrawn && open != nil && !open.State.InDoubt() {
		if c.err = s.run.Turn(turn).Fail(s.life, open.CallKey, schema.Error(why)); c.err == nil {
			c.err = &publisher.ToolError{Key: open.CallKey, Failure: schema.Error(why)}
		}
	}
}

// begin lets the requester run the tool, unless the call was withdrawn.
func (s *Session) begin(c *call, inv *publisher.Invocation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.life.Err() != nil {
		return false
	}
	c.invocation = inv
	c.begun <- *inv
	return true
}

// place returns the turn of a call, and sets the occurrence of one that is recorded. open is nil if it has an outcome.
func (s *Session) place(asked *publisher.ToolCall) (turn int32, open *schema.OpenCall) {
	s.run.View(func(state *schema.State) {
		head := &state.Head
		for _, c := range slices.Backward(state.Calls) {
			if key := c.CallKey; key.ToolCallID == asked.ID {
				turn, asked.Occurrence = key.Turn, key.Occurrence
				if i := slices.IndexFunc(head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key }); i >= 0 {
					open = new(head.OpenCalls[i])
				}
				return
			}
		}
		asked.Occurrence = 0
		if turn = head.Turn; !head.TurnOpen || len(head.OpenCalls) == 0 && len(head.TurnCalls) >= fullTurn {
			turn++
		}
	})
	return turn, open
}

// MayBegin returns how long from now the tool of a begun call may begin, for a program that did not begin within
// [Begun].Within. The program must not begin after an error.
func (s *Session) MayBegin(ctx context.Context, id string) (time.Duration, error) {
	s.mu.Lock()
	c := s.calls[id]
	running := c != nil && c.invocation != nil
	s.mu.Unlock()
	if !running {
		return 0, fmt.Errorf("%w: %.80q", ErrNotRunning, id)
	}
	return c.invocation.MayBegin(ctx)
}

// Return records the outcome of a begun call: the result, or the tool's failure. Nothing is recorded for a failure that
// wraps publisher.ErrLost: it is not known what the tool did. A [Failure] also closes a call that has not begun, which
// then does not begin. A result that no event can have is kept as text.
func (s *Session) Return(ctx context.Context, id string, result publisher.ToolResult, failure error) error {
	c, err := s.give(id, outcome{Keepable(result), failure})
	if err != nil {
		return err
	}
	select {
	case <-c.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if failure != nil && errors.Is(c.err, publisher.ErrToolFailed) {
		return nil // the failure is what was to be recorded
	}
	return c.err
}

// ErrNotRunning is returned for a call that this program has not begun, or that has an outcome.
var ErrNotRunning = fmt.Errorf("%w: the call was not begun by this program, or has an outcome", publisher.ErrConflict)

// give gives a call of this process its outcome.
func (s *Session) give(id string, o outcome) (*call, error) {
	why, failed := errors.AsType[Failure](o.err)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch c := s.calls[id]; {
	case c != nil && c.invocation != nil && len(c.outcome) == 0:
		c.outcome <- o
		return c, nil
	case c != nil && c.invocation == nil && failed:
		c.withdraw(why)
		return c, nil
	}
	return nil, fmt.Errorf("%w: %.80q", ErrNotRunning, id)
}

// Say adds messages to the conversation. A message of the user begins the next turn.
func (s *Session) Say(ctx context.Context, messages ...schema.Message) error {
	if len(messages) > 0 && messages[0].Role == schema.RoleUser {
		_, err := s.run.StartTurn(ctx, publisher.TurnSpec{Messages: messages})
		return err
	}
	for i := range messages {
		if err := s.run.AddMessage(ctx, messages[i]); err != nil {
			return err
		}
	}
	return nil
}
