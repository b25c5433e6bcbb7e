package publisher

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

// ask asks the model in the next turn, or again in a turn without an answer, and records its answer.
func (l *looping) ask(ctx context.Context, limit string) error {
	head := l.run.Head()
	next := schema.CallKey{Turn: head.Turn}
	if !head.TurnOpen || head.TurnAnswered {
		next.Turn++
	}
	if err := l.run.awaitRetry(ctx, next); err != nil {
		return err
	}
	turn, err := l.startTurn(ctx, limit, limit == "" && l.signalled())
	if err != nil {
		return err
	}
	conversation, err := l.run.Conversation(ctx)
	if err != nil {
		return err
	}
	request := ModelRequest{Run: l.run.id, Turn: turn.number, Messages: conversation, Tools: slices.Clone(l.Tools), Limit: limit}
	if limit != "" {
		request.Tools = slices.DeleteFunc(request.Tools, func(t Tool) bool { return t.Name != l.Complete })
	}
	answer, err := l.askModel(ctx, request)
	if err != nil {
		return fmt.Errorf("model in %s: %w", turn, err)
	}
	answer = l.complete(turn, answer, limit != "")
	_, err = turn.Answer(ctx, answer)
	for total := len(answer.Calls); errors.Is(err, ErrPayloadTooLarge) && len(answer.Calls) > 1; {
		answer = firstCalls(answer, len(answer.Calls)/2, total)
		_, err = turn.Answer(ctx, answer)
	}
	l.given.turn, l.given.arguments = turn.number, nil
	for i := range answer.Calls {
		l.given.arguments = append(l.given.arguments, answer.Calls[i].Arguments)
	}
	return err
}

// firstCalls is an answer with only its first calls, for an answer too large for an event. The last of them is closed
// with an error that tells the model.
func firstCalls(answer Answer, keep, total int) Answer {
	answer.Calls = slices.Clone(answer.Calls[:keep])
	answer.Calls[keep-1].Error = &schema.Error{
		Type:    tooManyCallsType,
		Message: fmt.Sprintf("the answer had %d calls, which is too large to be recorded: this call and all later ones are not made; make fewer calls at a time", total),
	}
	named := make(map[string]int)
	for i := range answer.Calls {
		named[answer.Calls[i].ID]++
	}
	answer.Message.Parts = slices.DeleteFunc(slices.Clone(answer.Message.Parts), func(p schema.Part) bool {
		if p.Type != schema.PartToolCall {
			return false
		}
		named[p.ID]--
		return named[p.ID] < 0
	})
	return answer
}

// startTurn starts the turn for the next request, or continues one that this epoch has started. The new messages for
// the model follow from the record. heard: the turn passes on the run's signals.
func (l *looping) startTurn(ctx context.Context, limit string, heard bool) (*Turn, error) {
	head := l.run.Head()
	spec := TurnSpec{Number: head.Turn + 1}
	if head.TurnOpen && !head.TurnAnswered {
		latest := l.run.Turn(head.Turn)
		fits, own := (limit != "") == (head.TurnPurpose == schema.PurposeRecovery), head.TurnEpoch == head.Epoch
		switch {
		case fits && own:
			return latest, nil
		case fits || limit == "" && !own:
			spec.Number = head.Turn
		default:
			// The limit was reached before this turn had an answer, or no longer applies.
			if err := latest.End(ctx, TurnEnd{}); err != nil {
				return nil, err
			}
		}
	}
	say := func(role, text string) {
		if text != "" {
			spec.Messages = append(spec.Messages, schema.Message{Role: role, Parts: []schema.Part{schema.Text(text)}})
		}
	}
	if spec.Number == 1 {
		started, err := l.run.started(ctx)
		if err != nil {
			return nil, err
		}
		say(schema.RoleSystem, l.System)
		say(schema.RoleUser, started.Task)
		if offer := started.Offer.Clone(); len(offer) > 0 {
			if err := offer.Indent(); err != nil {
				return nil, fmt.Errorf("offer that run %s carries out: %w", l.run.id, err)
			}
			say(schema.RoleUser, "You continue work that another agent has handed over:\n"+string(offer))
		}
	}
	if heard {
		var messages []schema.Message
		var err error
		if spec.Signals, messages, err = l.told(ctx, spec.Number); err != nil {
			return nil, err
		}
		spec.Messages = append(spec.Messages, messages...)
	}
	switch {
	case limit != "":
		spec.Purpose = schema.PurposeRecovery
		text := "The run has reached its limit (" + limit + "). This is its last turn. Sum up what was done, what was found, and what is left to do."
		if l.Complete != "" {
			text += " Then call " + l.Complete + "."
		}
		say(schema.RoleUser, text)
	case l.leftOff():
		if reason, _ := l.cutOff(); reason != "" {
			say(schema.RoleUser, "Your last answer was cut off ("+reason+"). Continue from there, in shorter answers.")
		} else if l.Complete != "" && len(spec.Signals) == 0 {
			say(schema.RoleUser, l.reminder())
		}
	}
	return l.run.StartTurn(ctx, spec)
}

// leftOff reports whether the latest answer has no call and no message follows it.
func (l *looping) leftOff() (left bool) {
	l.run.View(func(s *schema.State) {
		n, t := len(s.Messages), len(s.Turns)
		if t > 0 && s.Head.TurnOpen && !s.Head.TurnAnswered {
			// That turn is started again, and its messages are superseded.
			for t--; n > 0 && s.Messages[n-1].Turn == s.Turns[t].Turn; n-- {
			}
		}
		if n == 0 || t == 0 || s.Messages[n-1].Role != schema.RoleAssistant {
			return
		}
		left = s.Turns[t-1].Answer != nil && (len(s.Calls) == 0 || s.Calls[len(s.Calls)-1].Turn < s.Turns[t-1].Turn)
	})
	return left
}

// askModel asks until there is an answer, the run waits for another try, or an answer would be useless.
func (l *looping) askModel(ctx context.Context, request ModelRequest) (Answer, error) {
	ctx, cancel := l.run.Context(ctx)
	defer cancel()
	wait := &pause.Backoff{Next: modelPause, Most: mostTryPause}
	key, tries := schema.CallKey{Turn: request.Turn}, l.ModelTries
	if n, _, _ := l.run.retries(key); n > 0 {
		tries = 1
	}
	begun := l.run.fleet.cfg.Now()
	for try := 1; ; try++ {
		if err := with(l.run.ledger, (*ledger).paused); err != nil {
			return Answer{}, err
		}
		answer, err := l.askOnce(ctx, request)
		switch {
		case err == nil:
			l.run.authorized()
			return answer, nil
		case ctx.Err() != nil:
			return Answer{}, context.Cause(ctx)
		case isPermanent(err):
			return Answer{}, err
		}
		l.run.fleet.cfg.Logger.Warn().Str("run", l.run.id).Int32("turn", request.Turn).Int("try", try).Err(err).Msg("no answer from model")
		failure := recordedError(err)
		failure.Message, failure.Retryable = clipped(failure.Message, maxShownProblem), true
		if err := l.run.Error(ctx, *failure, "turn"); err != nil {
			return Answer{}, err
		}
		now, at := l.run.fleet.cfg.Now(), retryTime(err)
		if try >= tries || at.Sub(now) > mostUnrecorded {
			tries = 1
			if err := l.run.retryLater(ctx, key, err, begun, at, l.Patience); err != nil {
				return Answer{}, err
			}
		} else if !wait.Wait(ctx) || pause.For(ctx, at.Sub(l.run.fleet.cfg.Now())) != nil {
			return Answer{}, context.Cause(ctx)
		}
	}
}

// askOnce is one try.
func (l *looping) askOnce(ctx context.Context, request ModelRequest) (Answer, error) {
	defer l.run.fleet.works.begin(schema.Overdue{Run: l.run.id, Epoch: l.run.Epoch(), Turn: request.Turn}, l.ModelTimeout).end()
	begun := l.run.fleet.cfg.Now()
	answer, err := within(ctx, l.ModelTimeout, l.Model, request)
	if answer.Duration == 0 {
		answer.Duration = l.run.fleet.cfg.Now().Sub(begun)
	}
	return answer, err
}

// complete adds to a model's answer what the loop knows: the role, ids, a part for each call, and each call's data from
// its tool. It repairs values that do not fit into an event, so that an answer that was paid for is kept.
func (l *looping) complete(turn *Turn, answer Answer, last bool) Answer {
	answer.Message.Role = schema.RoleAssistant
	answer.Message.Parts = slices.Clone(answer.Message.Parts)
	answer.Calls = slices.Clone(answer.Calls)
	if u := answer.Usage; u != nil && min(u.InputTokens, u.OutputTokens, u.CacheReadInputTokens, u.CacheCreationInputTokens, u.ReasoningOutputTokens) < 0 {
		answer.Usage = nil
	}
	if !jsontext.Value(answer.Source).IsValid() {
		answer.Source = nil
	}
	renamed := make(map[string][]string) // generated ids for calls with the same id, in order
	for i := range answer.Calls {
		c := &answer.Calls[i]
		if c.ID == "" || recordable(c.ID) != c.ID {
			made := fmt.Sprintf("call-%d-%d", turn.number, i+1)
			renamed[c.ID], c.ID = append(renamed[c.ID], made), made
		}
	}
	named := make(map[string]int)
	for i := range answer.Message.Parts {
		p := &answer.Message.Parts[i]
		if p.Content != nil && !utf8.ValidString(*p.Content) {
			text := strings.ToValidUTF8(*p.Content, "\uFFFD")
			p.Content = &text
		}
		if p.Type == schema.PartToolCall {
			if made := renamed[p.ID]; len(made) > 0 {
				renamed[p.ID], p.ID = made[1:], made[0]
			}
			named[p.ID]++
		}
	}
	for i := range answer.Calls {
		c := &answer.Calls[i]
		if named[c.ID]--; named[c.ID] < 0 {
			named[c.ID] = 0
			answer.Message.Parts = append(answer.Message.Parts, schema.CallPart(c.ID, recordable(c.Name)))
		}
		if !jsontext.Value(c.Source).IsValid() {
			c.Source = nil
		}
		if tooDeep(c.Arguments) {
			c.Arguments, _ = json.Marshal(string(c.Arguments)) // valid JSON is valid text
			c.Error = cmp.Or(c.Error, &schema.Error{Type: invalidArgumentsType, Message: fmt.Sprintf("the arguments are nested deeper than %d", maxArgumentDepth)})
		}
		if reason := cutReason(answer.FinishReasons); reason != "" {
			c.Error = cmp.Or(c.Error, &schema.Error{Type: cutOffType, Message: "the answer was cut off (" + reason + "), so this call is not made: its arguments may be incomplete; make it again"})
		}
		t := l.tools[c.Name]
		switch {
		case t == nil:
			c.Replay, c.VerifySubject = "", ""
			c.Error = unknownTool(c.Error, fmt.Sprintf("there is no tool %.80q", c.Name))
			continue
		case last && c.Name != l.Complete:
			c.Error = cmp.Or(c.Error, &schema.Error{Type: "not_offered", Message: "the run is at its limit: only " + cmp.Or(l.Complete, "an answer without a call") + " is allowed"})
		}
		c.Replay, c.VerifySubject = t.Replay, t.VerifySubject
		c.SideEffect, c.Timeout = cmp.Or(c.SideEffect, t.SideEffect), cmp.Or(t.Timeout, l.ToolTimeout)
		c.Error = cmp.Or(c.Error, t.refusal(c.Arguments))
	}
	return answer
}

// tooDeep reports whether arguments are nested too deeply for an event.
func tooDeep(arguments []byte) bool {
	dec := jsontext.NewDecoder(bytes.NewReader(arguments))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return false // the end, or invalid JSON, which is reported elsewhere
		}
		if dec.StackDepth() > maxArgumentDepth {
			return true
		}
	}
}

// clipped is a text, cut off after so many bytes.
func clipped(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// within calls a user's function that may take so long; 0 means as long as ctx lasts.
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
