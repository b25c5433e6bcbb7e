package player

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// Tool runs one call of a run and returns the tool's result.
type Tool func(ctx context.Context, run *transcript.Run, call *transcript.Call) (publisher.ToolResult, error)

// Witness stores entries outside of the run. A [journal.Writer] is one.
type Witness interface {
	Write(e journal.Entry) error
}

// Player runs transcripts, one after the other or several at once.
type Player struct {
	// Fleet to publish to. Required.
	Fleet *publisher.Fleet
	// Journal outside of the run. Required.
	Journal Witness
	// Tool runs the calls. Required; see [Recorded].
	Tool Tool
	// Replay returns the policy of a call; nil means that all are pure.
	Replay func(call *transcript.Call) schema.Replay
	// AwaitPerson is how often to check whether a person has settled a held call; 0 means that such a call ends the
	// walk with [publisher.ErrHeld].
	AwaitPerson time.Duration
	// Now is the clock of the journal. Required.
	Now func() time.Time
}

// Recorded is a Tool that returns the transcript's result.
func Recorded(_ context.Context, _ *transcript.Run, call *transcript.Call) (publisher.ToolResult, error) {
	return publisher.ToolResult{Result: []byte(call.Result), IsError: call.IsError, Source: []byte(call.ResultSource)}, nil
}

// Play starts the run and plays it to its end.
func (p *Player) Play(ctx context.Context, script *transcript.Run) error {
	begun := p.Now()
	run, err := p.Fleet.Start(ctx, publisher.RunSpec{
		ID: script.ID, Agent: script.Agent, ThreadID: script.ThreadID, Model: script.Model, Parent: script.Parent,
		Labels: map[string]string{"format": string(script.Format)}, Source: []byte(script.Source),
	})
	if err != nil {
		return err
	}
	w := &walk{player: p, run: run, script: script, begun: begun}
	return w.play(ctx)
}

// Resume takes the run over and plays it to its end, from its current state.
func (p *Player) Resume(ctx context.Context, script *transcript.Run) error {
	begun := p.Now()
	run, err := p.Fleet.Resume(ctx, script.ID, publisher.ResumeSpec{})
	if errors.Is(err, publisher.ErrRunNotFound) {
		// The executor was killed before run.started was acknowledged: there is nothing to continue.
		return p.Play(ctx, script)
	}
	if errors.Is(err, publisher.ErrRunEnded) {
		// The executor was killed after the end was acknowledged.
		return p.Journal.Write(journal.Entry{Op: journal.Done, Run: script.ID})
	}
	if err != nil {
		return err
	}
	w := &walk{player: p, run: run, script: script, begun: begun}
	if err := w.takenOver(); err != nil {
		return err
	}
	return w.play(ctx)
}

// walk is the progress through one script. Recorded events are counted down before any event is published.
type walk struct {
	player *Player
	run    *publisher.Run
	script *transcript.Run
	// begun is when the current step began.
	begun time.Time
	// noted is the last sequence of the epoch in the journal.
	noted schema.Sequence

	// outside and compactions count recorded ones that were not passed yet.
	outside, compactions int
	// inside counts the recorded messages of each turn.
	inside map[int32]int
}

// takenOver writes the takeover to the journal and finds the position.
func (w *walk) takenOver() error {
	var from schema.From
	w.run.View(func(s *schema.State) {
		if n := len(s.Takeovers); n > 0 {
			from = s.Takeovers[n-1].From
		}
		w.inside = make(map[int32]int, len(s.Turns))
		for i := range s.Messages {
			if turn := s.Messages[i].Turn; turn == 0 {
				w.outside++
			} else {
				w.inside[turn]++
			}
		}
		w.compactions = len(s.Compactions)
	})
	return w.player.Journal.Write(journal.Entry{
		Op: journal.Resumed, Run: w.run.ID(), Start: w.begun.UnixNano(),
		Epoch: uint64(from.Epoch), Sequence: uint64(from.Sequence),
	})
}

// boundary is the journal's entry about an acknowledged event.
type boundary struct {
	kind string
	call schema.CallKey
}

// note writes the events acknowledged since the last call: exactly the given ones.
func (w *walk) note(events ...boundary) error {
	var sequence schema.Sequence
	w.run.View(func(s *schema.State) { sequence = s.Head.Sequence })
	if n := int(sequence - w.noted); n != len(events) { //nolint:gosec // a small difference
		return fmt.Errorf("run %s: %d events were acknowledged, %d were published", w.run.ID(), n, len(events))
	}
	for _, e := range events {
		w.noted++
		err := w.player.Journal.Write(journal.Entry{
			Op: journal.Ack, Run: w.run.ID(), Start: w.begun.UnixNano(), Kind: e.kind, Call: callOf(e.call),
			Epoch: uint64(w.run.Epoch()), Sequence: uint64(w.noted),
		})
		if err != nil {
			return err
		}
	}
	w.begun = w.player.Now()
	return nil
}

func callOf(k schema.CallKey) journal.Call {
	return journal.Call{Turn: int(k.Turn), ID: k.ToolCallID, Occurrence: k.Occurrence}
}

// play walks from the position found to the end.
func (w *walk) play(ctx context.Context) error {
	if w.run.Epoch() == 1 {
		if err := w.note(boundary{kind: schema.RunStarted}); err != nil {
			return err
		}
	}
	for i := range w.script.Steps {
		if err := w.step(ctx, &w.script.Steps[i]); err != nil {
			return err
		}
	}
	end := w.script.End
	err := w.run.End(ctx, publisher.RunEnd{
		Status: end.Status, Output: []byte(end.Output), Summary: end.Summary, Error: end.Error, Usage: end.Usage, Source: []byte(end.Source),
	})
	if err != nil {
		return err
	}
	if err := w.note(boundary{kind: schema.RunEnded}); err != nil {
		return err
	}
	return w.player.Journal.Write(journal.Entry{Op: journal.Done, Run: w.run.ID(), Epoch: uint64(w.run.Epoch())})
}

func (w *walk) step(ctx context.Context, s *transcript.Step) error {
	switch {
	case s.Message != nil:
		if w.outside > 0 {
			w.outside--
			return nil
		}
		if err := w.run.AddMessage(ctx, s.Message.Message); err != nil {
			return err
		}
		return w.note(boundary{kind: schema.MessageAdded})
	case s.Compaction != nil:
		if w.compactions > 0 {
			w.compactions--
			return nil
		}
		data := s.Compaction.ContextCompactedData
		if err := w.run.Publish(ctx, &data, 0); err != nil {
			return err
		}
		return w.note(boundary{kind: schema.ContextCompacted})
	default:
		return w.turn(ctx, s.Turn)
	}
}
