package codingagent

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// maxEvent bounds what a hook sends.
const maxEvent = 64 << 20

// Config says what a bridge works with.
type Config struct {
	Dialect *Dialect
	Tools   Tools
	// Token proves a hook to the bridge.
	Token string
	// Open starts the run of a session, or takes it over. state is that of a run that was taken over, for the model. If
	// Open is nil, all events belong to the first run.
	Open func(ctx context.Context, session string) (run *publisher.Run, state *schema.State, err error)
	// Left is called when the session ends, or another one begins in the process, with the session's run and the model's last message.
	Left func(ctx context.Context, run *publisher.Run, last string) error
	// Stop ends the agent, because its run has another executor, was cancelled, or cannot be recorded any more.
	Stop func(cause error)
}

// Bridge answers the hooks of one process of an agent.
type Bridge struct {
	config Config
	// called: a hook was called.
	called atomic.Bool

	mu sync.Mutex
	// All below belongs to the session with the id.
	id      string
	session *session.Session
	unwatch context.CancelFunc
	// untold is the state of a run that was taken over, until the model is told what it lacks.
	untold *schema.State
	// over is why nothing more may begin.
	over error
	// parts of messages that are not complete, and the latest complete message.
	parts map[string]string
	last  string
}

// New returns a bridge. The run of a session that is resumed is given with its id; otherwise run is nil. Close it.
func New(ctx context.Context, config Config, id string, run *publisher.Run, state *schema.State) *Bridge {
	b := &Bridge{config: config}
	if run != nil {
		b.attach(ctx, id, run, state)
	}
	return b
}

// attach makes run the run of the session. mu is held, or b is new.
func (b *Bridge) attach(ctx context.Context, id string, run *publisher.Run, state *schema.State) {
	s := session.New(run)
	b.id, b.session, b.untold, b.over, b.parts, b.last = id, s, state, nil, make(map[string]string), ""
	ctx, cancel := run.Context(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { b.end(s, context.Cause(ctx)) })
	b.unwatch = func() { stop(); cancel() }
}

// Close ends the session and returns its run; nil if none has begun. A call that runs stays open.
func (b *Bridge) Close() *publisher.Run {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.close()
}

func (b *Bridge) close() *publisher.Run {
	if b.session == nil {
		return nil
	}
	b.unwatch()
	b.session.Close()
	run := b.session.Run()
	b.session = nil
	return run
}

// Last is the model's latest message.
func (b *Bridge) Last() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.last
}

// end lets nothing more begin in a session. The agent is stopped once no tool runs: the outcome of a call of a fenced
// session is evidence for the next one.
func (b *Bridge) end(s *session.Session, cause error) {
	b.mu.Lock()
	if b.session == s {
		b.over = cause
	}
	b.mu.Unlock()
	if errors.Is(cause, publisher.ErrCancelRequested) || s.Idle() == nil {
		b.config.Stop(cause)
	}
}

// ServeHTTP answers a hook. An event that could not be recorded gets an error, which a hook takes for a refusal.
func (b *Bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+b.config.Token)) != 1 {
		http.Error(w, "wrong token", http.StatusUnauthorized)
		return
	}
	var e event
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
	if err == nil {
		err = json.Unmarshal(session.Clean(body), &e)
	}
	if err != nil {
		http.Error(w, "not the input of a hook: "+err.Error(), http.StatusBadRequest)
		return
	}
	b.called.Store(true)
	reply, err := b.handle(r.Context(), &e)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if reply == nil {
		reply = &answer{}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply) // an agent that has gone needs no answer
}

// handle records an event. A nil answer lets the agent go on.
func (b *Bridge) handle(ctx context.Context, e *event) (*answer, error) {
	if e.Name == sessionEnd && b.config.Open != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		return nil, b.left(ctx)
	}
	s, err := b.at(ctx, e)
	if err != nil {
		return b.refused(e, err)
	}
	switch e.Name {
	case sessionStart:
		return b.tell(e), nil
	case userPromptSubmit:
		if err := s.Say(ctx, text(schema.RoleUser, e.Prompt)); err != nil {
			return b.refused(e, err)
		}
		return b.tell(e), nil
	case messageDisplay:
		return nil, b.display(ctx, s, e)
	case preToolUse:
		return b.begin(ctx, s, e)
	case postToolUse:
		err = b.returned(ctx, s, e.Call, publisher.ToolResult{Result: e.Response, Duration: time.Duration(e.Duration) * time.Millisecond}, nil)
		return nil, errors.Join(err, b.background(ctx, s, e))
	case postToolUseFailure:
		why := session.Failure{Type: toolError, Message: e.Error}
		if e.Interrupt {
			why.Type = interrupted
		}
		return nil, b.returned(ctx, s, e.Call, publisher.ToolResult{}, why)
	case postToolBatch: // a call that was refused has no other event
		for _, c := range e.Calls {
			err = errors.Join(err, b.returned(ctx, s, c.Call, publisher.ToolResult{}, session.Failure{Type: notRun, Message: shown(c.Response)}))
		}
		return nil, err
	case subagentStop:
		return nil, b.leave(ctx, s, e.Agent)
	case stop:
		if b.config.Dialect == Codex && e.LastMessage != "" {
			err = b.say(ctx, s, e.LastMessage)
		}
		return nil, errors.Join(err, b.leave(ctx, s, ""), b.background(ctx, s, e))
	}
	return nil, nil
}

// at returns the session of an event, and opens its run if the process begins another session.
func (b *Bridge) at(ctx context.Context, e *event) (*session.Session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.session != nil && (b.config.Open == nil || b.id == e.Session) {
		return b.session, nil
	}
	if b.config.Open == nil || !schema.ValidName(e.Session) {
		return nil, fmt.Errorf("session %.80q has no run", e.Session)
	}
	if err := b.left(ctx); err != nil {
		return nil, err
	}
	run, state, err := b.config.Open(ctx, e.Session)
	if err != nil {
		return nil, err
	}
	b.attach(ctx, e.Session, run, state)
	return b.session, nil
}

// left ends the session, if there is one. mu is held.
func (b *Bridge) left(ctx context.Context) error {
	if old := b.close(); old != nil {
		return b.config.Left(ctx, old, b.last)
	}
	return nil
}

// tell gives the model the news, once.
func (b *Bridge) tell(e *event) *answer {
	b.mu.Lock()
	state := b.untold
	b.untold = nil
	b.mu.Unlock()
	if state == nil {
		return nil
	}
	transcript, _ := os.ReadFile(e.File) // without it the model is told more
	news := b.config.Dialect.news(state, transcript)
	if news == "" {
		return nil
	}
	return &answer{Specific: &specific{Event: e.Name, Context: news}}
}

// begin records a call, and lets its tool run.
func (b *Bridge) begin(ctx context.Context, s *session.Session, e *event) (*answer, error) {
	tool := b.config.Tools.Of(e.Tool)
	call := publisher.ToolCall{ID: e.Call, Name: e.Tool, Arguments: e.Input, Replay: tool.Replay}
	if e.Agent != "" {
		call.Source, _ = json.Marshal(subagent{e.Agent, e.AgentType}) // strings
	}
	begun, result, err := s.Call(ctx, call)
	if ctx.Err() != nil { // the agent was interrupted, and does not wait for the answer; one that does must not run the tool
		why := session.Failure{Type: notRun, Message: "the agent was interrupted before the call began"}
		return deny(why.Message), b.returned(ctx, s, e.Call, publisher.ToolResult{}, why)
	}
	switch {
	case err != nil:
		return b.refused(e, err)
	case begun == nil:
		return deny("this call has run already, and does not run again. Its recorded result: " + shown(result.Result)), nil
	}
	if tool.Ask { // a person has allowed it
		return &answer{Specific: &specific{Event: preToolUse, Decision: "allow", Reason: "waymark: a person allowed it"}}, nil
	}
	return nil, nil
}

// subagent is the source of the calls of a sub-agent.
type subagent struct {
	ID   string `json:"agent_id"`
	Type string `json:"agent_type,omitempty"`
}

// refused is the answer to an event that was not recorded.
func (b *Bridge) refused(e *event, err error) (*answer, error) {
	if e.Name != preToolUse {
		return nil, err
	}
	reply := deny(err.Error())
	b.mu.Lock()
	over := b.over
	b.mu.Unlock()
	if over != nil && b.config.Dialect == Claude {
		reply.Continue, reply.StopReason = new(bool), "waymark: "+over.Error()
	}
	return reply, nil
}

// returned records the outcome of a call. Other calls than those that run have one, or were begun by an earlier process.
// A fenced session's result is with the run's executor.
func (b *Bridge) returned(ctx context.Context, s *session.Session, id string, result publisher.ToolResult, why error) error {
	err := s.Return(context.WithoutCancel(ctx), id, result, why) // although the agent does not wait for it
	if errors.Is(err, session.ErrNotRunning) || errors.Is(err, publisher.ErrFenced) {
		return nil
	}
	return err
}

// leave closes the calls of a sub-agent that has ended, or of the session whose turn has ended: none of them runs.
func (b *Bridge) leave(ctx context.Context, s *session.Session, agent string) (err error) {
	for _, c := range s.Running() {
		var of subagent
		if _ = json.Unmarshal(c.Source, &of); of.ID == agent { // the session's own calls have none
			why := session.Failure{Type: unreported, Message: "the agent ended its turn without an outcome of this call"}
			err = errors.Join(err, b.returned(ctx, s, c.ID, publisher.ToolResult{}, why))
		}
	}
	return err
}

// display collects the parts of a message.
func (b *Bridge) display(ctx context.Context, s *session.Session, e *event) error {
	b.mu.Lock()
	b.parts[e.Message] += e.Delta
	whole := b.parts[e.Message]
	if e.Final {
		delete(b.parts, e.Message)
	}
	b.mu.Unlock()
	if !e.Final || strings.TrimSpace(whole) == "" {
		return nil
	}
	return b.say(ctx, s, whole)
}

// say records a message of the model.
func (b *Bridge) say(ctx context.Context, s *session.Session, whole string) error {
	b.mu.Lock()
	b.last = whole
	b.mu.Unlock()
	return s.Say(ctx, text(schema.RoleAssistant, whole))
}

func text(role, content string) schema.Message {
	return schema.Message{Role: role, Parts: []schema.Part{schema.Text(content)}}
}

// ChildKey is the state of a run that names what may still run after the agent has died.
const ChildKey = "look-for-running-child"

// background keeps in the record which shell may still run when the session has died: the latest that a call left
// behind, until the agent says that none runs.
func (b *Bridge) background(ctx context.Context, s *session.Session, e *event) error {
	var shell struct {
		Task    string `json:"backgroundTaskId"`
		Command string `json:"command"`
	}
	_, _ = json.Unmarshal(e.Response, &shell), json.Unmarshal(e.Input, &shell) // other tools have other members
	if shell.Task != "" {
		return s.Run().SetState(ctx, ChildKey, shell.Command)
	}
	running := e.Name != stop
	for _, task := range e.Background {
		running = running || task.Type == "shell" && task.Status == "running"
	}
	if running {
		return nil
	}
	found, err := s.Run().GetState(ctx, ChildKey, new(any))
	if !found || err != nil {
		return err
	}
	return s.Run().DeleteState(ctx, ChildKey)
}
