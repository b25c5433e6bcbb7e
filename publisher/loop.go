package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Defaults of [Loop].
const (
	defaultParallel   = 8
	defaultModelTries = 5
	defaultToolTries  = 3
)

const (
	// maxShownProblem bounds what a model is told of wrong arguments, in bytes: the text may quote them.
	maxShownProblem = 1000
	// maxArgumentDepth leaves room for the event around the arguments.
	maxArgumentDepth = schema.MaxJSONDepth - 10
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
//   - the model is shown results as they are recorded. Those of pure and idempotent tools may be on their way to the log meanwhile: the
//     answer stands behind them, or is dropped. So an executor that dies loses one request at most; see AwaitResults;
//   - a call that failed, was denied or was abandoned is shown to the model, as are a pure or idempotent call that timed out, and arguments
//     that do not satisfy the schema of the tool. A held call makes the run wait for a person.
//
// The run ends when the model answers without a call, with the text of the answer as its summary; with Complete, when the completion
// tool has returned. A message that came behind the answer, and a signal, is answered first. An answer that the provider cut off (its
// finish reason is length, max_tokens, max_output_tokens or model_context_window_exceeded) ends nothing, and no call of it is made: the
// model is told, and after three such answers in a row the run fails. It fails at once if the provider withheld the answer
// (content_filter, refusal).
//
// Signals of the run ([Fleet.Signal]) are shown to the model with the next turn, each once and in order, as messages of the role user
// ([Signal.Message]). The last turn of a run at its limit takes none: those that are left are told of as not consumed.
//
// A run that reached a limit has one more turn, of the purpose recovery, in which the model sums up. Cancellation and
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
	// before a turn. If the context is at 95 % or more after that, the run has reached the limit context.
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
	// AwaitResults asks the model only once all results are durable. Set it for a model whose provider keeps the conversation or runs tools
	// itself: there a request has an effect although its answer is dropped. Otherwise the model is asked while the results of pure and
	// idempotent tools are on their way to the log, one request ahead. If one cannot be recorded, or the run was taken over, the request is
	// cancelled and its answer dropped.
	AwaitResults bool
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

// Work does what is left to do of a run; it is a [Work]. In addition to the errors of the run's own methods it returns those of [Loop.Validate],
// [ErrNoContent] on a handle that keeps only the head, and the model's last error.
func (l Loop) Work(ctx context.Context, run *Run) (err error) {
	if err := l.prepare(); err != nil {
		return err
	}
	l.ModelTries, l.ToolTries, l.Parallel = cmp.Or(l.ModelTries, defaultModelTries), cmp.Or(l.ToolTries, defaultToolTries), cmp.Or(l.Parallel, defaultParallel)
	if run.ledger.headOnly() {
		return fmt.Errorf("loop on run %s: %w", run.id, ErrNoContent)
	}
	if err := l.completes(run); err != nil {
		return err
	}
	l.Complete = cmp.Or(l.Complete, run.Contract().Complete)
	if err := run.Keep(Contract{Complete: l.Complete, MaxTurns: l.MaxTurns, MaxTokens: l.MaxTokens}); err != nil {
		return err
	}
	if err := run.Synchronous(ctx); err != nil {
		return err
	}
	if err := run.Sync(ctx); err != nil { // what a person settled, and answers, before anything is done
		return err
	}
	loop := &looping{Loop: l, run: run, tools: make(map[string]*Tool, len(l.Tools)), recording: newRecording()}
	defer func() { err = cmp.Or(err, loop.recorded()) }()
	for i := range l.Tools {
		loop.tools[l.Tools[i].Name] = &l.Tools[i]
	}
	for {
		if done, err := loop.step(ctx); done || err != nil && !errors.Is(err, errOvertaken) {
			return err
		}
	}
}

// completes refuses a run whose completion tool the loop has not.
func (l *Loop) completes(run *Run) error {
	tool := run.Contract().Complete
	if l.Complete != "" || tool == "" || slices.ContainsFunc(l.Tools, func(t Tool) bool { return t.Name == tool }) {
		return nil
	}
	return fmt.Errorf("loop on run %s: %w", run.id, configError("Loop.Complete", "empty", "the run is completed by a call of "+tool+": give the loop that tool"))
}

// looping is a loop at work on a run.
type looping struct {
	Loop
	run   *Run
	tools map[string]*Tool
	// recording is what is on its way to the log.
	recording *recording
	// limit that the latest turn of this loop was started for; empty for none.
	limit string
	// given are the arguments of the calls of the turn, as the model gave them: a redaction may have changed those of the record.
	given struct {
		turn      int32
		arguments [][]byte
	}
}

// step does what comes next by the record: the calls of the latest answer, or the next question.
func (l *looping) step(ctx context.Context) (done bool, err error) {
	if err := cmp.Or(l.actEarlier(ctx), l.recorded()); err != nil {
		return false, err
	}
	head := l.run.Head()
	if head.TurnAnswered {
		if done, err := l.act(ctx, l.run.Turn(head.Turn)); done || err != nil {
			return done, err
		}
	}
	limit, err := l.reached(ctx, l.Compact != nil)
	if err != nil {
		return false, err
	}
	recorded := l.recordedLimit()
	if limit.Kind != "" && limit.Kind != recorded {
		if err := l.recorded(); err != nil {
			return false, err
		}
		if err := l.run.Limit(ctx, limit.Kind, limit.Value, limit.Maximum); err != nil {
			return false, err
		}
	}
	l.limit = cmp.Or(limit.Kind, recorded)
	return false, l.ask(ctx, l.limit)
}

// recordedLimit is the limit that is recorded without the turn that sums up: the executor before was killed between the two.
func (l *looping) recordedLimit() (kind string) {
	l.run.View(func(s *schema.State) {
		if len(s.Limits) == 0 || slices.ContainsFunc(s.Turns, func(t schema.StateTurn) bool { return t.Purpose == schema.PurposeRecovery && t.Answer != nil }) {
			return
		}
		kind = s.Limits[len(s.Limits)-1].Limit
	})
	return kind
}

// actEarlier runs the calls that other code left open in turns before the latest answer.
func (l *looping) actEarlier(ctx context.Context) error {
	head := l.run.Head()
	var turns []int32
	for i := range head.OpenCalls {
		if t := head.OpenCalls[i].Turn; (t != head.Turn || !head.TurnAnswered) && !slices.Contains(turns, t) {
			turns = append(turns, t)
		}
	}
	for _, number := range turns {
		turn := l.run.Turn(number)
		calls, err := turn.Calls(ctx)
		if err != nil {
			return err
		}
		if _, err := l.runCalls(ctx, turn, calls); err != nil {
			return err
		}
	}
	return nil
}

// act runs the calls of an answer and ends the run if the answer or a call says so. If a message follows the answer, the run goes on.
func (l *looping) act(ctx context.Context, turn *Turn) (done bool, err error) {
	calls, err := turn.Calls(ctx)
	if err != nil {
		return false, err
	}
	if before := len(calls) - len(l.given.arguments); l.given.turn == turn.number && before >= 0 {
		// What other code called before the turn was started again stands before the calls of the answer.
		for i, arguments := range l.given.arguments {
			calls[before+i].Arguments = arguments
		}
	}
	results, err := l.runCalls(ctx, turn, calls)
	if err != nil || l.spokenBehind() {
		return false, err
	}
	more, err := l.toAnswer(ctx)
	if err != nil || more {
		return false, err
	}
	late := l.signalled() // at a limit
	// end ends the run with what the model said last, which is loaded for nothing else.
	end := func(with RunEnd, publish func(RunEnd) error) (bool, error) {
		if err := l.recorded(); err != nil {
			return false, err
		}
		said, err := l.run.lastAnswer(ctx)
		if err != nil {
			return false, err
		}
		with.Summary, with.NoSignals = cmp.Or(said, with.Summary), !late
		if err = publish(with); errors.Is(err, ErrSignalled) {
			return false, nil // it came in this moment
		}
		return true, err
	}
	ended := func(with RunEnd) error { return l.run.End(ctx, with) }
	for i, call := range calls {
		if r := results[i]; call.Name == l.Complete && r.err == nil && (r.IsError == nil || !*r.IsError) {
			key := schema.CallKey{Turn: turn.number, ToolCallID: call.ID, Occurrence: call.Occurrence}
			return end(RunEnd{}, func(with RunEnd) error { return l.run.Complete(ctx, key, with) })
		}
	}
	if reason := l.cutOff(); reason != "" && l.run.Head().TurnPurpose != schema.PurposeRecovery {
		return false, l.mayGoOnBehind(reason)
	}
	if l.run.Head().TurnPurpose == schema.PurposeRecovery {
		limit, err := l.reached(ctx, false)
		if err != nil {
			return false, err
		}
		if kind := cmp.Or(limit.Kind, l.limit); kind != "" {
			return end(RunEnd{Status: schema.StatusFailed, Summary: "limit reached: " + kind}, ended)
		}
		return false, nil // the limit was raised since, and the run reopened
	}
	switch {
	case len(calls) > 0:
		return false, nil
	case l.Complete == "":
		return end(RunEnd{}, ended)
	case l.reminders() >= mostReminders:
		return false, fmt.Errorf("run %s: the model does not call the completion tool %s, although it was told to %d times", l.run.id, l.Complete, mostReminders)
	default:
		return false, nil
	}
}

// spokenBehind reports whether a message came behind the latest answer.
func (l *looping) spokenBehind() (spoken bool) {
	l.run.View(func(s *schema.State) {
		spoken = len(s.Messages) > 0 && s.Messages[len(s.Messages)-1].Role != schema.RoleAssistant
	})
	return spoken
}

// reminder is what a model is told that answered without a call, where it is to call the completion tool.
func (l *looping) reminder() string {
	return "You answered without calling a tool. Go on with the work, or call " + l.Complete + " if it is done."
}

// reminders counts the turns at the end of the run that began with the reminder and were answered without a call again.
func (l *looping) reminders() (n int) {
	l.run.View(func(s *schema.State) {
		called := int32(0)
		if len(s.Calls) > 0 {
			called = s.Calls[len(s.Calls)-1].Turn
		}
		for i := range slices.Backward(s.Messages) {
			m := &s.Messages[i]
			switch {
			case m.Turn <= called || m.Role != schema.RoleAssistant && (m.Role != schema.RoleUser || textOf(&m.Message) != l.reminder()):
				return
			case m.Role == schema.RoleUser:
				n++
			}
		}
	})
	return n
}

// reached returns the limit that the run has reached; its Kind is empty if there is none. It compacts the conversation where it may and
// must.
func (l *looping) reached(ctx context.Context, mayCompact bool) (Limit, error) {
	head := l.run.Head()
	if limit := l.run.Contract().reached(&head); limit.Kind != "" {
		return limit, nil
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
	if err == nil && level != BudgetOK && mayCompact {
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
	if err := l.recorded(); err != nil {
		return err
	}
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
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		// It is tried again before the next turn, as long as there is room.
		l.run.fleet.cfg.Logger.Warn().Str("run", l.run.id).Err(err).Msg("conversation is not compacted")
		return nil
	case summary == "":
		return nil
	}
	return l.run.Compact(ctx, schema.ContextCompactedData{Summary: strings.ToValidUTF8(summary, "\uFFFD"), ThroughTurn: through, TokensBefore: tokens})
}
