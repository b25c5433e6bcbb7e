package publisher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Conversation returns the messages for the model's next request: [schema.State.Conversation] of the run's state, with
// large fields loaded. It returns [ErrBlob], and [ErrEncrypted] if the record has cipher text.
func (r *Run) Conversation(ctx context.Context) ([]schema.Message, error) {
	var spoken *schema.Spoken
	r.View(func(s *schema.State) { spoken = s.Spoken() })
	if err := r.fleet.load(ctx, &schema.State{Messages: spoken.Messages}); err != nil {
		return nil, fmt.Errorf("conversation of run %s: %w", r.id, err)
	}
	return spoken.Conversation(), nil
}

// Task returns the task that the run was started with, loaded from the blob store if necessary; empty if there is none.
// Its errors are those of [Run.Conversation].
func (r *Run) Task(ctx context.Context) (string, error) {
	started, err := r.started(ctx)
	return started.Task, err
}

// started is the data of the run's start, with large fields loaded; empty if there is none.
func (r *Run) started(ctx context.Context) (schema.RunStartedData, error) {
	one := new(schema.State)
	r.View(func(s *schema.State) { one.Started = s.Started })
	if one.Started == nil {
		return schema.RunStartedData{}, nil
	}
	if err := r.fleet.load(ctx, one); err != nil {
		return schema.RunStartedData{}, fmt.Errorf("task of run %s: %w", r.id, err)
	}
	return *one.Started, nil
}

// Calls returns the recorded calls of the turn in order, with large arguments loaded, ready for [Turn.Tool]. For a call
// that already has an outcome, Tool returns that outcome. Its errors are those of [Run.Conversation].
func (t *Turn) Calls(ctx context.Context) ([]ToolCall, error) {
	r := t.run
	own := new(schema.State)
	r.View(func(s *schema.State) {
		for i := range s.Calls {
			if s.Calls[i].Turn == t.number {
				c := s.Calls[i]
				c.Refs, c.Late = refsOf(c.Refs, "/arguments", "/source"), nil
				own.Calls = append(own.Calls, c)
			}
		}
	})
	if err := r.fleet.load(ctx, own); err != nil {
		return nil, fmt.Errorf("calls of %s: %w", t, err)
	}
	calls := make([]ToolCall, len(own.Calls))
	for i := range own.Calls {
		c := &own.Calls[i]
		calls[i] = ToolCall{
			ID: c.ToolCallID, Occurrence: c.Occurrence, Name: c.Name, Arguments: []byte(c.Arguments), Replay: c.Replay, IdempotencyKey: c.IdempotencyKey,
			VerifySubject: c.VerifySubject, SideEffect: c.SideEffect, Timeout: time.Duration(c.TimeoutMS) * time.Millisecond, Source: []byte(c.Source),
		}
	}
	return calls, nil
}

// refsOf returns the refs of the given fields.
func refsOf(refs []schema.Ref, paths ...string) (of []schema.Ref) {
	for _, ref := range refs {
		if slices.Contains(paths, ref.Path) {
			of = append(of, ref)
		}
	}
	return of
}

// load loads the large fields of a state. It refuses cipher text in content for a model, a tool or a caller.
func (r *Reader) load(ctx context.Context, s *schema.State) error {
	err := r.Hydrate(ctx, s)
	eachPart(s, func(what string, refs *[]schema.Ref, _ any) {
		for _, ref := range *refs {
			if ref.KeyID != "" && err == nil {
				err = keyError(ref.Path+" of "+what, ref.KeyID, nil)
			}
		}
	})
	return err
}
