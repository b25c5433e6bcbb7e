package player

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// turn plays one turn, or its missing part.
func (w *walk) turn(ctx context.Context, t *transcript.Turn) error {
	turn, recorded := w.run.Turn(t.Number), w.inside[t.Number]
	// A turn's start has all of its messages.
	if recorded == 0 && len(t.New) > 0 {
		if _, err := w.run.StartTurn(ctx, publisher.TurnSpec{Number: t.Number, Messages: plain(t.New)}); err != nil {
			return err
		}
		if err := w.note(boundary{kind: schema.TurnStarted}); err != nil {
			return err
		}
		recorded = len(t.New)
	}
	if recorded == len(t.New) {
		if err := w.answer(ctx, turn, &t.Answer); err != nil {
			return err
		}
		recorded++
	}
	recorded -= len(t.New) + 1
	for _, it := range t.Items {
		switch {
		case it.Result != nil:
			if err := w.result(ctx, turn, it.Result); err != nil {
				return err
			}
		case recorded > 0:
			recorded--
		default:
			if err := turn.AddMessage(ctx, it.Message.Message); err != nil {
				return err
			}
			if err := w.note(boundary{kind: schema.MessageAdded}); err != nil {
				return err
			}
		}
	}
	return nil
}

// answer publishes the model's answer with its calls.
func (w *walk) answer(ctx context.Context, turn *publisher.Turn, a *transcript.Answer) error {
	calls := make([]publisher.ToolCall, len(a.Calls))
	for i, c := range a.Calls {
		calls[i] = w.toolCall(c)
	}
	_, err := turn.Answer(ctx, publisher.Answer{
		Message: a.Message, Calls: calls, FinishReasons: a.FinishReasons, ResponseID: a.ResponseID, Model: a.Model, Usage: a.Usage,
	})
	if err != nil {
		return err
	}
	return w.note(boundary{kind: schema.TurnAnswered})
}

// witness returns a function that writes entries about a call.
func (w *walk) witness(c *transcript.Call) func(op, note string) error {
	return func(op, note string) error {
		return w.player.Journal.Write(journal.Entry{
			Op: op, Run: w.run.ID(), Call: callOf(c.Key), Name: c.Name, Replay: string(w.replay(c)), Note: note,
		})
	}
}

// result requests the result of a call, which runs the tool unless it is recorded. A held call waits for a person.
func (w *walk) result(ctx context.Context, turn *publisher.Turn, c *transcript.Call) error {
	err := w.ask(ctx, turn, c)
	var held *publisher.HeldError
	if !errors.As(err, &held) {
		return err
	}
	if err := w.witness(c)(journal.Held, held.Detail); err != nil || w.player.AwaitPerson == 0 {
		return errors.Join(held, err)
	}
	ticker := time.NewTicker(w.player.AwaitPerson)
	defer ticker.Stop()
	for errors.As(err, &held) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := w.run.Sync(ctx); err != nil {
			return err
		}
		err = w.ask(ctx, turn, c)
	}
	return err
}

// ask requests a result once.
func (w *walk) ask(ctx context.Context, turn *publisher.Turn, c *transcript.Call) error {
	write := w.witness(c)
	before, decided, requested := w.settlements(c), w.decisions(c), w.requested(c)
	ran := false
	// A failed journal write is not a failure of the tool: with its context ended, the call stays open.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	result, err := turn.Tool(ctx, w.toolCall(c), func(ctx context.Context, _ publisher.Invocation) (publisher.ToolResult, error) {
		err := w.settled(c, before, write)
		if err == nil && requested && !w.requested(c) {
			err = w.note(boundary{journal.KindCalled, c.Key})
		}
		if err == nil && w.decisions(c) > decided {
			// The last acknowledgement was too old as proof of the epoch.
			err = w.note(boundary{schema.ToolDecided, c.Key})
		}
		if err == nil {
			err = write(journal.Begin, "")
		}
		if err != nil {
			cancel()
			return publisher.ToolResult{}, err
		}
		ran = true
		result, err := w.player.Tool(ctx, w.script, c)
		if err != nil {
			return result, err
		}
		if err := write(journal.End, ""); err != nil {
			cancel()
			return result, err
		}
		return result, nil
	})
	switch {
	case err != nil:
		return err
	case ran:
		return w.note(boundary{journal.KindReturned, c.Key})
	case result.Recorded:
		return w.settled(c, before, write)
	default:
		return nil
	}
}

func (w *walk) settlements(c *transcript.Call) int {
	n := 0
	w.run.View(func(s *schema.State) {
		if call := s.Call(c.Key); call != nil {
			n = len(call.Settlements)
		}
	})
	return n
}

func (w *walk) decisions(c *transcript.Call) int {
	n := 0
	w.run.View(func(s *schema.State) {
		for i := range s.Decisions {
			d := &s.Decisions[i]
			if d.CallKey() == c.Key {
				n++
			}
		}
	})
	return n
}

// requested reports whether the recorded call is not begun yet.
func (w *walk) requested(c *transcript.Call) bool {
	head := w.run.Head()
	i := head.FindOpen(c.Key.Turn, c.Key.ToolCallID, c.Key.Occurrence)
	return i >= 0 && head.OpenCalls[i].Requested
}

// settled writes down that the SDK settled the call, if it did.
func (w *walk) settled(c *transcript.Call, before int, write func(op, note string) error) error {
	how := schema.Settlement("")
	w.run.View(func(s *schema.State) {
		if call := s.Call(c.Key); call != nil && len(call.Settlements) > before {
			how = call.Settlements[len(call.Settlements)-1]
		}
	})
	if how == "" {
		return nil
	}
	if err := w.note(boundary{schema.ToolSettled, c.Key}); err != nil {
		return err
	}
	return write(journal.Settled, string(how))
}

func (w *walk) replay(c *transcript.Call) schema.Replay {
	if w.player.Replay == nil {
		return schema.ReplayPure
	}
	return w.player.Replay(c)
}

func (w *walk) toolCall(c *transcript.Call) publisher.ToolCall {
	return publisher.ToolCall{
		ID: c.Key.ToolCallID, Name: c.Name, Arguments: []byte(c.Arguments), Replay: w.replay(c), Source: []byte(c.Source),
		Occurrence: c.Key.Occurrence,
	}
}

func plain(messages []transcript.Message) []schema.Message {
	list := make([]schema.Message, len(messages))
	for i := range messages {
		list[i] = messages[i].Message
	}
	return list
}
