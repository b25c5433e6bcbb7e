package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/schema"
)

// Defaults of [Loop].
const (
	defaultParallel   = 8
	defaultModelTries = 5
	defaultToolTries  = 3
)

const (
	// mostReminders is how often a model that does not call the completion tool is told to, one time after the other.
	mostReminders = 3
	// modelPause and toolPause are the first pauses between two tries; mostTryPause bounds all.
	modelPause, toolPause, mostTryPause = time.Second, 200 * time.Millisecond, 30 * time.Second
)

// Model asks a language model for its next answer. It translates the messages and tools of the request to the form of its provider, and
// the answer back. Of a call of the answer it gives the name, the arguments as the model gave them, and the id if the provider has one;
// the rest comes from the [Tool]. Tokens that are streamed go to the caller's own sink, which request.Run and request.Turn tell apart.
//
// After an error the model is asked again, unless the error is marked by [Permanent].
type Model func(ctx context.Context, request ModelRequest) (Answer, error)

// ModelRequest is what a model is asked.
type ModelRequest struct {
	// Run and Turn that the answer is for.
	Run  string
	Turn int32
	// Messages is the conversation so far, as [Run.Conversation] makes it from the record.
	Messages []schema.Message
	// Tools that the model may call.
	Tools []Tool
	// Limit is the limit that the run has reached, and empty before. The last message tells the model that it is asked for the last time.
	Limit string
}

// Loop is an agent: it asks a model, runs the tools that the model calls, shows it their results, and ends the run when there is nothing
// more to do. Put it into [ExecutorSpec.Loops], or use [Loop.Work] as the work of an executor.
//
// Everything that the loop acts on comes from the record of the run, so it goes on from wherever an earlier executor stopped:
//
//   - the first turn begins with System and the task of the run;
//   - an answer is recorded before a tool of it runs, and the model is not asked again for an answer that is recorded;
//   - tools run in [Turn.Tool], which returns recorded results and treats calls in doubt by the tool's policy;
//   - a call that failed, was denied, timed out or was abandoned is shown to the model, as are arguments that do not satisfy the schema
//     of the tool. A call that is held makes the run wait for a person.
//
// The run ends when the model answers without a call, with the text of the answer as its summary; with Complete, when the completion
// tool has returned. A run that reached a limit has one more turn, of the purpose recovery, in which the model sums up. Cancellation and
// shutdown end the loop before the next event.
type Loop struct {
	// Model that is asked. Required.
	Model Model
	// Tools that the model may call.
	Tools []Tool
	// System is the first message of the conversation, of the role system. A run keeps the one that it began with.
	System string
	// Complete names the tool by which the model ends the run. Its result is the output of the run. A model that answers without a call
	// is told to call it, three times in a row; then the run fails. Empty means that an answer without a call ends the run.
	Complete string

	// MaxTurns is the number of turns after which the run has reached its limit, or that of RunSpec if it is less; MaxTokens the number of
	// input and output tokens of all turns together, MaxTime the time since the start of the run, waiting included. They are looked at
	// before each turn. 0 means none.
	MaxTurns  int32
	MaxTokens int64
	MaxTime   time.Duration
	// Window is the size of the model's context in tokens; 0 means that the loop does not look at it. From 80 % on Compact is called
	// before a turn. From 95 % on, and without Compact, the run has reached the limit context.
	Window int64
	// Compact returns a summary, which stands in place of the conversation so far; empty keeps the conversation. Where to ask a model for
	// it is the caller's choice. nil means that nothing is compacted.
	Compact func(ctx context.Context, run *Run, conversation []schema.Message) (summary string, err error)

	// ModelTimeout bounds one try of Model, and ToolTimeout one of a tool that has no timeout of its own; 0 means no bound.
	ModelTimeout, ToolTimeout time.Duration
	// ModelTries is how often Model is asked for one answer; 0 means 5. ToolTries is how often a tool of the policies pure and idempotent is
	// run for one call while its errors are marked by [Retryable] or are timeouts; 0 means 3. The pauses between tries double, from 1 s and
	// 0.2 s to 30 s at most.
	ModelTries, ToolTries int
	// Parallel is how many calls of one answer run at the same time, where they follow each other and their tools allow it; 0 means 8.
	Parallel int
}

// Validate returns [ErrConfig] for a loop that cannot work.
func (l Loop) Validate() error { return l.prepare() }

// prepare validates the loop, and makes of its tools a copy with all that is needed to check their arguments.
func (l *Loop) prepare() error {
	if l.Model == nil {
		return configError("Loop.Model", "nil", "give the function that asks the model")
	}
	seen := make(map[string]bool)
	l.Tools = slices.Clone(l.Tools)
	for i := range l.Tools {
		t := &l.Tools[i]
		if err := t.prepare(); err != nil {
			return err
		}
		if seen[t.Name] {
			return configError("Loop.Tools", t.Name+" twice", "give each tool a name of its own")
		}
		seen[t.Name] = true
	}
	if l.Complete != "" && !seen[l.Complete] {
		return configError("Loop.Complete", l.Complete, "name one of Loop.Tools")
	}
	if l.Compact != nil && l.Window == 0 {
		return configError("Loop.Window", 0, "give the size of the model's context, from which Compact is called")
	}
	for field, value := range map[string]int64{
		"MaxTurns": int64(l.MaxTurns), "MaxTokens": l.MaxTokens, "MaxTime": int64(l.MaxTime), "Window": l.Window,
		"ModelTimeout": int64(l.ModelTimeout), "ToolTimeout": int64(l.ToolTimeout),
		"ModelTries": int64(l.ModelTries), "ToolTries": int64(l.ToolTries), "Parallel": int64(l.Parallel),
	} {
		if value < 0 {
			return configError("Loop."+field, value, "use 0 or more")
		}
	}
	return nil
}

// Work does what is left to do of a run; it is a [Work]. Beside the errors of the run's own methods it returns those of [Loop.Validate],
// [ErrNoContent] on a handle that keeps only the head, and the model's last error.
func (l Loop) Work(ctx context.Context, run *Run) error {
	if err := l.prepare(); err != nil {
		return err
	}
	l.ModelTries, l.ToolTries, l.Parallel = cmp.Or(l.ModelTries, defaultModelTries), cmp.Or(l.ToolTries, defaultToolTries), cmp.Or(l.Parallel, defaultParallel)
	loop := &looping{Loop: l, run: run, tools: make(map[string]*Tool, len(l.Tools))}
	for i := range l.Tools {
		loop.tools[l.Tools[i].Name] = &l.Tools[i]
	}
	for {
		if done, err := loop.step(ctx); done || err != nil {
			return err
		}
	}
}

// looping is a loop at work on a run.
type looping struct {
	Loop
	run   *Run
	tools map[string]*Tool
}

// step does what comes next by the record: the calls of the latest answer, or the next question.
func (l *looping) step(ctx context.Context) (done bool, err error) {
	head := l.run.Head()
	if head.TurnAnswered {
		if done, err := l.act(ctx, l.run.Turn(head.Turn), head.TurnPurpose == schema.PurposeRecovery); done || err != nil {
			return done, err
		}
	}
	limit := Limit{Kind: head.Limit}
	if limit.Kind == "" {
		if limit, err = l.reached(ctx); err != nil {
			return false, err
		}
		if limit.Kind != "" {
			if err := l.run.Limit(ctx, limit.Kind, limit.Value, limit.Maximum); err != nil {
				return false, err
			}
		}
	}
	return false, l.ask(ctx, limit.Kind)
}

// act runs the calls of an answer, and ends the run where the answer or one of its calls does.
func (l *looping) act(ctx context.Context, turn *Turn, last bool) (done bool, err error) {
	calls, err := turn.Calls(ctx)
	if err != nil {
		return false, err
	}
	results, err := l.runCalls(ctx, turn, calls)
	if err != nil {
		return false, err
	}
	for i, call := range calls {
		if r := results[i]; call.Name == l.Complete && r.err == nil && (r.IsError == nil || !*r.IsError) {
			key := schema.CallKey{Turn: turn.number, ToolCallID: call.ID, Occurrence: call.Occurrence}
			return true, l.run.Complete(ctx, key, RunEnd{Summary: l.run.lastAnswer()})
		}
	}
	switch {
	case last:
		limit := l.run.Head().Limit
		return true, l.run.End(ctx, RunEnd{Status: schema.StatusFailed, Summary: cmp.Or(l.run.lastAnswer(), "limit reached: "+limit)})
	case len(calls) > 0:
		return false, nil
	case l.Complete == "":
		return true, l.run.End(ctx, RunEnd{Summary: l.run.lastAnswer()})
	case l.idle() > mostReminders:
		return false, fmt.Errorf("run %s: the model does not call the completion tool %s, although it was told to %d times", l.run.id, l.Complete, mostReminders)
	default:
		return false, nil
	}
}

// idle counts the turns at the end of the run that were answered without a call.
func (l *looping) idle() (n int) {
	l.run.View(func(s *schema.State) {
		called := int32(0)
		if len(s.Calls) > 0 {
			called = s.Calls[len(s.Calls)-1].Turn
		}
		for i := range slices.Backward(s.Turns) {
			if t := &s.Turns[i]; t.Answer == nil || t.Turn <= called {
				return
			}
			n++
		}
	})
	return n
}

// reached returns the limit that the run has reached; its Kind is empty if there is none. It compacts the conversation where it must.
func (l *looping) reached(ctx context.Context) (Limit, error) {
	head := l.run.Head()
	most := l.MaxTurns
	if most == 0 || head.MaxTurns > 0 && head.MaxTurns < most {
		most = head.MaxTurns
	}
	if most > 0 && head.Turn >= most && !head.TurnOpen {
		return Limit{Kind: schema.LimitTurns, Value: head.Turn, Maximum: most}, nil
	}
	var used int64
	l.run.View(func(s *schema.State) {
		for i := range s.Turns {
			if u := s.Turns[i].Usage(); u != nil {
				used += u.InputTokens + u.OutputTokens
			}
		}
	})
	if l.MaxTokens > 0 && used >= l.MaxTokens {
		return Limit{Kind: schema.LimitTokens, Value: used, Maximum: l.MaxTokens}, nil
	}
	if l.MaxTime > 0 {
		began, err := time.Parse(time.RFC3339Nano, head.StartedAt)
		if err != nil {
			return Limit{}, fmt.Errorf("start of run %s: %w", l.run.id, err)
		}
		if since := l.run.fleet.cfg.Now().Sub(began); since >= l.MaxTime {
			return Limit{Kind: schema.LimitTime, Value: since.Seconds(), Maximum: l.MaxTime.Seconds()}, nil
		}
	}
	if l.Window == 0 {
		return Limit{}, nil
	}
	budget := Budget{Window: l.Window}
	level, tokens, err := budget.Check(l.run)
	if err == nil && level != BudgetOK && l.Compact != nil {
		if err = l.compact(ctx, tokens); err == nil {
			level, tokens, err = budget.Check(l.run)
		}
	}
	if err == nil && level == BudgetHandoff {
		return Limit{Kind: schema.LimitContext, Value: tokens, Maximum: l.Window}, nil
	}
	return Limit{}, err
}

// compact puts a summary in place of the conversation through the latest turn that is over.
func (l *looping) compact(ctx context.Context, tokens int64) error {
	head := l.run.Head()
	through := head.Turn
	if head.TurnOpen {
		through--
	}
	if through < 1 {
		return nil
	}
	conversation, err := l.run.Conversation(ctx)
	if err != nil {
		return err
	}
	summary, err := l.Compact(ctx, l.run, conversation)
	if err != nil {
		return fmt.Errorf("compaction of run %s: %w", l.run.id, err)
	}
	if summary == "" {
		return nil
	}
	return l.run.Compact(ctx, schema.ContextCompactedData{Summary: summary, ThroughTurn: through, TokensBefore: tokens})
}

// ask asks the model in the next turn, or again in one that was left without an answer, and records what it answers.
func (l *looping) ask(ctx context.Context, limit string) error {
	turn, err := l.startTurn(ctx, limit)
	if err != nil {
		return err
	}
	conversation, err := l.run.Conversation(ctx)
	if err != nil {
		return err
	}
	request := ModelRequest{Run: l.run.id, Turn: turn.number, Messages: conversation, Tools: l.Tools, Limit: limit}
	if limit != "" {
		request.Tools = slices.DeleteFunc(slices.Clone(l.Tools), func(t Tool) bool { return t.Name != l.Complete })
	}
	answer, err := l.askModel(ctx, request)
	if err != nil {
		return fmt.Errorf("model in %s: %w", turn, err)
	}
	_, err = turn.Answer(ctx, l.complete(turn, answer, request.Tools))
	return err
}

// startTurn starts the turn in which the model is asked next. What is new to the model follows from the record.
func (l *looping) startTurn(ctx context.Context, limit string) (*Turn, error) {
	head := l.run.Head()
	open := head.TurnOpen && !head.TurnAnswered
	spec := TurnSpec{Number: head.Turn + 1}
	if open && (limit == "" || head.TurnPurpose == schema.PurposeRecovery) {
		spec.Number = head.Turn
	} else if open {
		// The limit was reached before this turn had an answer.
		if err := l.run.Turn(head.Turn).End(ctx, TurnEnd{}); err != nil {
			return nil, err
		}
	}
	say := func(role, text string) {
		if text != "" {
			spec.Messages = append(spec.Messages, schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}})
		}
	}
	if spec.Number == 1 {
		task, err := l.run.Task(ctx)
		if err != nil {
			return nil, err
		}
		say(schema.RoleSystem, l.System)
		say(schema.RoleUser, task)
	}
	switch {
	case limit != "":
		spec.Purpose = schema.PurposeRecovery
		text := "The run has reached its limit (" + limit + "). This is its last turn. Sum up what was done, what was found, and what is left to do."
		if l.Complete != "" {
			text += " Then call " + l.Complete + "."
		}
		say(schema.RoleUser, text)
	case l.Complete != "" && l.idle() > 0:
		say(schema.RoleUser, "You answered without calling a tool. Go on with the work, or call "+l.Complete+" if it is done.")
	}
	return l.run.StartTurn(ctx, spec)
}

// askModel asks until there is an answer, or no try is left.
func (l *looping) askModel(ctx context.Context, request ModelRequest) (Answer, error) {
	wait := &pause.Backoff{Next: modelPause, Most: mostTryPause}
	for try := 1; ; try++ {
		answer, err := within(ctx, l.ModelTimeout, l.Model, request)
		switch {
		case err == nil:
			return answer, nil
		case ctx.Err() != nil:
			return Answer{}, context.Cause(ctx)
		case try >= l.ModelTries || isPermanent(err):
			return Answer{}, err
		}
		l.run.fleet.cfg.Logger.Warn().Str("run", l.run.id).Int32("turn", request.Turn).Int("try", try).Err(err).Msg("model gave no answer, it is asked again")
		if !wait.Wait(ctx) {
			return Answer{}, context.Cause(ctx)
		}
	}
}

// complete adds to a model's answer what the loop knows: the role, ids, a part for each call, and of each call what its tool says.
func (l *looping) complete(turn *Turn, answer Answer, tools []Tool) Answer {
	answer.Message.Role = cmp.Or(answer.Message.Role, schema.RoleAssistant)
	answer.Message.Parts = slices.Clone(answer.Message.Parts)
	answer.Calls = slices.Clone(answer.Calls)
	named := make(map[string]int)
	for i := range answer.Message.Parts {
		if p := &answer.Message.Parts[i]; p.Type == schema.PartToolCall {
			named[p.ID]++
		}
	}
	for i := range answer.Calls {
		c := &answer.Calls[i]
		c.ID = cmp.Or(c.ID, fmt.Sprintf("call-%d-%d", turn.number, i+1))
		if named[c.ID]--; named[c.ID] < 0 {
			named[c.ID] = 0
			answer.Message.Parts = append(answer.Message.Parts, schema.CallPart(c.ID, recordable(c.Name)))
		}
		t := l.tools[c.Name]
		if t != nil && !slices.ContainsFunc(tools, func(o Tool) bool { return o.Name == c.Name }) {
			c.Error = cmp.Or(c.Error, &schema.Error{Type: "not_offered", Message: "the run is at its limit: only " + cmp.Or(l.Complete, "an answer without a call") + " is left"})
		}
		if t == nil {
			c.Error = cmp.Or(c.Error, &schema.Error{Type: unknownToolType, Message: fmt.Sprintf("there is no tool %.80q", c.Name)})
			continue
		}
		c.Replay, c.VerifySubject = t.Replay, t.VerifySubject
		c.SideEffect, c.Timeout = cmp.Or(c.SideEffect, t.SideEffect), cmp.Or(t.Timeout, l.ToolTimeout)
		if err := t.check(c.Arguments); err != nil && c.Error == nil {
			c.Error = &schema.Error{Type: invalidArgumentsType, Message: err.Error()}
		}
	}
	return answer
}

// within calls a function of the user's that may take so long; 0 means as long as ctx lasts.
func within[In, Out any](ctx context.Context, timeout time.Duration, f func(context.Context, In) (Out, error), in In) (Out, error) {
	if timeout <= 0 {
		return f(ctx, in)
	}
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	out, err := f(bounded, in)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w after %s: %w", context.DeadlineExceeded, timeout, err)
	}
	return out, err
}
