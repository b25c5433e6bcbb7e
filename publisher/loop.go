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
	defaultRetrying   = 24 * time.Hour
)

const (
	// maxShownProblem bounds the error text about wrong arguments that a model gets, in bytes: the text may quote the
	// arguments.
	maxShownProblem = 1000
	// maxArgumentDepth leaves nesting levels for the event around the arguments.
	maxArgumentDepth = schema.MaxJSONDepth - 10
	// compactAt and fullAt are the shares of the context window at which it is compacted, and at which the run ends.
	compactAt, fullAt = 0.8, 0.95
	// mostReminders is how often in a row a model is reminded to call the completion tool.
	mostReminders = 3
	// modelPause and toolPause are the first pauses between two tries; mostTryPause is the longest.
	modelPause, toolPause, mostTryPause = time.Second, 200 * time.Millisecond, 30 * time.Second
	// mostUnrecorded is the longest wait for a named time that is not recorded: after a crash the next try may come as much too early.
	mostUnrecorded = 2 * time.Second
)

// Model asks a language model for its next answer. It converts the messages and tools of the request to its provider's
// format, and converts the answer back. For each call in the answer it sets the name, the arguments as the model wrote
// them, and the id if the provider has one; the [Tool] supplies the rest. Send streamed tokens to your own sink;
// request.Run and request.Turn identify their answer.
//
// After an error the model is asked again, unless [Permanent] marks the error; after that of [RetryAt] not before its
// time. See Loop.Patience.
type Model func(ctx context.Context, request ModelRequest) (Answer, error)

// ModelRequest is a request to a model.
type ModelRequest struct {
	// Run and Turn that the answer is for.
	Run  string
	Turn int32
	// Messages is the conversation so far, built from the record by [Run.Conversation]. It is a [schema.ValidHistory].
	Messages []schema.Message
	// Tools that the model may call.
	Tools []Tool
	// Limit is the limit that the run has reached; empty before. The last message then tells the model that this is its
	// last turn.
	Limit string
}

// Loop is an agent. It asks a model, runs the tools that the model calls, shows it their results, and ends the run when
// the work is done. Put it into [ExecutorSpec.Loops], or use [Loop.Work] as the work of an executor.
//
// The loop takes every step from the record of the run, so it continues wherever an earlier executor stopped:
//
//   - the first turn begins with System and the task of the run;
//   - an answer is recorded before any of its tools runs, and the model is not asked again for a recorded answer;
//   - tools run in [Turn.Tool], which returns recorded results and treats calls in doubt by the tool's policy;
//   - the model is asked once all results are recorded, and sees them as recorded;
//   - the model sees that a call failed, was denied or was abandoned, that a pure or idempotent call timed out, and
//     that arguments do not match the tool's schema. A held call makes the run wait for a person.
//
// The run ends when the model answers without a call, unless it is a Chat; the text of the answer is its summary. With
// Complete, it ends when the completion tool has returned. A [HandoffTool] ends it, too. A message after the answer, and a signal, is
// answered first. An answer that the provider cut off (finish reason length, max_tokens, max_output_tokens or
// model_context_window_exceeded) does not end the run, and none of its calls is made: the model is told so, and after
// three such answers in a row the run fails. The run fails at once if the provider withheld the answer
// (content_filter, refusal).
//
// Signals of the run ([Fleet.Signal]) reach the model with the next turn, each once and in order, as messages of the
// role user ([Signal.Message]). The last turn of a run at its limit takes none; the rest are reported as not consumed.
//
// After a limit is reached, the run has one more turn, with purpose recovery, in which the model sums up. Cancellation
// and shutdown end the loop before the next event.
type Loop struct {
	// Model to ask. Required.
	Model Model
	// Tools that the model may call.
	Tools []Tool
	// System is the first message of the conversation, with the role system. A run keeps the one that it started with.
	System string
	// Drift is the rule for another version of the agent: [schema.DriftAccept] (the default), [schema.DriftSameBuild] or
	// [schema.DriftAsk]. It needs the loop in ExecutorSpec.Loops, and a build (Config.Build).
	Drift schema.DriftRule
	// Complete names the tool with which the model ends the run. Its result is the output of the run. A model that
	// answers without a call is reminded to call it, at most three times in a row; then the run fails. Empty means that
	// an answer without a call ends the run.
	Complete string
	// Chat: an answer without a call does not end the run, which waits for the next signal, as in [Run.AwaitSignal].
	Chat bool

	// MaxTurns limits the turns; the lower one of it and RunSpec.MaxTurns applies. MaxTokens limits the input and
	// output tokens of all turns together, MaxTime the time since the start of the run, waits included. After a rewind
	// only the turns before its point and those after it count, and the time since the rewind. They are checked before
	// each turn. 0 means no limit.
	MaxTurns  int32
	MaxTokens int64
	MaxTime   time.Duration
	// Window is the size of the model's context in tokens; 0 means that the loop does not watch it. From 80 % on,
	// Compact is called before a turn. If the context is still at 95 % or more afterwards, the run has reached the
	// limit context.
	Window int64
	// Compact returns a summary that replaces the conversation so far; empty keeps the conversation. The caller chooses
	// the model for it. nil means no compaction.
	Compact func(ctx context.Context, run *Run, conversation []schema.Message) (summary string, err error)

	// ModelTimeout bounds one try of Model. ToolTimeout bounds one try of a tool without a timeout of its own. 0 means
	// no bound.
	ModelTimeout, ToolTimeout time.Duration
	// ModelTries is how often Model is asked for one answer before the run waits; 0 means 5. ToolTries is how often a
	// pure or idempotent tool is run for one call while its errors are timeouts or marked by [Retryable]; 0 means 3. The
	// pauses between tries double, from 1 s (model) and 0.2 s (tool) up to 30 s.
	ModelTries, ToolTries int
	// Patience is how long an answer is tried for, since its first failed try on whichever executor; time without an
	// executor does not count. 0 means one day. After ModelTries, or when [RetryAt] names a time more than 2 s away, the
	// executor releases the run, as in [Run.Sleep], and asks once after each wait: until such a time, or else 15 s, doubled
	// up to 15 minutes. Then the run fails. A tool's [RetryAt] waits in the same way. Negative: it fails without a wait.
	Patience time.Duration
	// Parallel is the maximum number of concurrent calls, among consecutive calls of one answer whose tools allow it; 0
	// means 8.
	Parallel int
}

// Validate returns [ErrConfig] for an invalid loop.
func (l Loop) Validate() error { return l.prepare() }

// prepare validates the loop, and copies its tools together with what is needed to check their arguments.
func (l *Loop) prepare() error {
	if l.Model == nil {
		return configError("Loop.Model", "nil", "set the function that asks the model")
	}
	seen := make(map[string]bool)
	l.Tools = slices.Clone(l.Tools)
	for i := range l.Tools {
		t := &l.Tools[i]
		if err := t.prepare(); err != nil {
			return err
		}
		if seen[t.Name] {
			return configError("Loop.Tools", t.Name+" twice", "give each tool its own name")
		}
		seen[t.Name] = true
	}
	if l.Complete != "" && !seen[l.Complete] {
		return configError("Loop.Complete", l.Complete, "name one of Loop.Tools")
	}
	if l.Compact != nil && l.Window == 0 {
		return configError("Loop.Window", 0, "set the size of the model's context: it decides when Compact is called")
	}
	if !slices.Contains([]schema.DriftRule{"", schema.DriftAccept, schema.DriftSameBuild, schema.DriftAsk}, l.Drift) {
		return configError("Loop.Drift", l.Drift, "use accept, same-build or ask")
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

// Work does the rest of a run's work; it is a [Work]. In addition to the errors of the run's own methods it returns
// those of [Loop.Validate], and the model's last error.
func (l Loop) Work(ctx context.Context, run *Run) error {
	if err := l.prepare(); err != nil {
		return err
	}
	l.ModelTries, l.ToolTries, l.Parallel = cmp.Or(l.ModelTries, defaultModelTries), cmp.Or(l.ToolTries, defaultToolTries), cmp.Or(l.Parallel, defaultParallel)
	l.Patience = cmp.Or(l.Patience, defaultRetrying)
	if err := l.completes(run); err != nil {
		return err
	}
	l.Complete = cmp.Or(l.Complete, run.contract().Complete)
	if err := run.keep(Contract{Complete: l.Complete, MaxTurns: l.MaxTurns, MaxTokens: l.MaxTokens}); err != nil {
		return err
	}
	if err := run.Sync(ctx); err != nil { // read settlements and answers before any work
		return err
	}
	if err := run.mayDrift(ctx); err != nil {
		return err
	}
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

// completes refuses a run whose completion tool the loop does not have.
func (l *Loop) completes(run *Run) error {
	tool := run.contract().Complete
	if l.Complete != "" || tool == "" || slices.ContainsFunc(l.Tools, func(t Tool) bool { return t.Name == tool }) {
		return nil
	}
	return fmt.Errorf("loop on run %s: %w", run.id, configError("Loop.Complete", "empty", "only a call of "+tool+" completes the run: add this tool to the loop and name it in Complete"))
}

// looping is a loop that works on a run.
type looping struct {
	Loop
	run   *Run
	tools map[string]*Tool
	// limit for which this loop started the latest turn; empty for none.
	limit string
	// given are the arguments of the turn's calls as the model wrote them: in the record, a redaction may have changed
	// them.
	given struct {
		turn      int32
		arguments [][]byte
	}
}

// step does the next step according to the record: the calls of the latest answer, or the next request.
func (l *looping) step(ctx context.Context) (done bool, err error) {
	if err := l.actEarlier(ctx); err != nil {
		return false, err
	}
	head := l.run.Head()
	if head.TurnAnswered {
		if done, err := l.act(ctx, l.run.Turn(head.Turn)); done || err != nil {
			return done, err
		}
	}
	if err := with(l.run.ledger, (*ledger).paused); err != nil {
		return false, err
	}
	limit, err := l.reached(ctx, l.Compact != nil)
	if err != nil {
		return false, err
	}
	recorded := l.recordedLimit()
	if limit.Kind != "" && limit.Kind != recorded {
		if err := l.run.Limit(ctx, limit.Kind, limit.Value, limit.Maximum); err != nil {
			return false, err
		}
	}
	l.limit = cmp.Or(limit.Kind, recorded)
	return false, l.ask(ctx, l.limit)
}

// recordedLimit is a recorded limit without its recovery turn: the previous executor died between the two.
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

// act runs the calls of an answer, and ends the run if the answer or a call ends it. If a message follows the answer,
// the run continues.
func (l *looping) act(ctx context.Context, turn *Turn) (done bool, err error) {
	calls, err := turn.Calls(ctx)
	if err != nil {
		return false, err
	}
	if before := len(calls) - len(l.given.arguments); l.given.turn == turn.number && before >= 0 {
		// Calls that other code made before the turn was started again precede the calls of the answer.
		for i, arguments := range l.given.arguments {
			calls[before+i].Arguments = arguments
		}
	}
	results, err := l.runCalls(ctx, turn, calls)
	if err != nil || l.hasLaterMessage() {
		return false, err
	}
	more, err := l.toAnswer(ctx)
	if err != nil || more {
		return false, err
	}
	late := l.signalled() // at a limit
	// end ends the run with the model's last text, which only this function loads.
	end := func(with RunEnd, publish func(RunEnd) error) (bool, error) {
		said, err := l.run.lastAnswer(ctx)
		if err != nil {
			return false, err
		}
		with.Summary, with.NoSignals = cmp.Or(said, with.Summary), !late
		if err = publish(with); errors.Is(err, ErrSignalled) {
			return false, nil // a signal arrived at this moment
		}
		return true, err
	}
	ended := func(with RunEnd) error { return l.run.End(ctx, with) }
	if over, err := l.handOver(ctx, calls, results, !late); over || err != nil {
		return l.run.Head().Status.Terminal(), err
	}
	for i, call := range calls {
		if r := results[i]; call.Name == l.Complete && r.err == nil && (r.IsError == nil || !*r.IsError) {
			key := schema.CallKey{Turn: turn.number, ToolCallID: call.ID, Occurrence: call.Occurrence}
			return end(RunEnd{}, func(with RunEnd) error { return l.run.Complete(ctx, key, with) })
		}
	}
	if reason, cuts := l.cutOff(); reason != "" && l.run.Head().TurnPurpose != schema.PurposeRecovery {
		return false, l.checkCutOff(reason, cuts)
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
	case l.Chat:
		_, err := l.run.AwaitSignal(ctx)
		return false, err
	case l.Complete == "":
		return end(RunEnd{}, ended)
	case l.reminders() >= mostReminders:
		return false, fmt.Errorf("run %s: the model does not call the completion tool %s, although it was told to %d times", l.run.id, l.Complete, mostReminders)
	default:
		return false, nil
	}
}

// hasLaterMessage reports whether a message follows the latest answer.
func (l *looping) hasLaterMessage() (spoken bool) {
	l.run.View(func(s *schema.State) {
		spoken = len(s.Messages) > 0 && s.Messages[len(s.Messages)-1].Role != schema.RoleAssistant
	})
	return spoken
}

// reminder is the message to a model that answered without a call although it must call the completion tool.
func (l *looping) reminder() string {
	return "You answered without calling a tool. Continue the work, or call " + l.Complete + " if it is done."
}

// reminders counts the latest turns that began with the reminder and were again answered without a call.
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

// reached returns the limit that the run has reached; its Kind is empty if there is none. If allowed and necessary, it
// compacts the conversation first.
func (l *looping) reached(ctx context.Context, mayCompact bool) (Limit, error) {
	head := l.run.Head()
	if limit := l.run.contract().reached(&head); limit.Kind != "" {
		return limit, nil
	}
	if l.MaxTime > 0 {
		began, err := time.Parse(time.RFC3339Nano, head.TimelineStart())
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
	tokens := l.run.ContextTokens()
	if mayCompact && float64(tokens) >= compactAt*float64(l.Window) {
		if err := l.compact(ctx, tokens); err != nil {
			return Limit{}, err
		}
		tokens = l.run.ContextTokens()
	}
	if float64(tokens) >= fullAt*float64(l.Window) {
		return Limit{Kind: schema.LimitContext, Value: tokens, Maximum: l.Window}, nil
	}
	return Limit{}, nil
}

// compact replaces the conversation through the latest finished turn by a summary.
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
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		// The next turn tries again, while there is enough context left.
		l.run.fleet.cfg.Logger.Warn().Str("run", l.run.id).Err(err).Msg("could not compact conversation")
		return nil
	case summary == "":
		return nil
	}
	return l.run.Compact(ctx, schema.ContextCompactedData{Summary: strings.ToValidUTF8(summary, "\uFFFD"), ThroughTurn: through, TokensBefore: tokens})
}
