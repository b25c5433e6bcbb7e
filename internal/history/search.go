package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Examples are expressions of a predicate, as people begin with them.
var Examples = []string{
	`event.name == "tool.called" && event.data.name == "Bash"`,
	`event.data.arguments?.command contains "rm -rf"`,
	`(run.usage?.output_tokens ?? 0) > 100000`,
	`run.epoch > 1`,
}

// Source has the events of runs.
type Source interface {
	Name() string
	Keys(ctx context.Context) (*schema.Keys, error)
	Events(ctx context.Context, run string, yield func(schema.Record) error) error
	// Decrypt decrypts the content of an event as far as there are keys.
	Decrypt(ctx context.Context, e *schema.Event, data schema.Data) error
}

// Search looks for the first record of a run after which a predicate holds.
type Search struct {
	Predicate *Predicate
	// From is the first record after which the predicate is evaluated.
	From int64
	// NoContent: the predicate sees neither messages nor arguments, results and questions.
	NoContent bool

	// Event is the found one; nil for none. Stream is its position in the log.
	Event  *schema.Event
	Stream schema.StreamSequence
	// Records and Events are the numbers of the last record and of the last event that were read, and Before is the id
	// of the event before that; empty for none.
	Records, Events int64
	Before          string
	// Failed is the first reason why the predicate was not evaluated after an event; nil for none.
	Failed error
}

// errFound ends the reading.
var errFound = errors.New("found")

// Run reads the run from its first record until the predicate holds. An [ErrPredicateCost] and the end of ctx end it;
// Records then tells how far it came.
func (s *Search) Run(ctx context.Context, from Source, run string) error {
	head, last, latest := schema.NewHead(from.Name(), run), schema.StreamSequence(0), ""
	err := from.Events(ctx, run, func(rec schema.Record) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if rec.Stream <= last {
			head.Position = schema.Position{} // sequences freed by damage were used again
		}
		last = rec.Stream
		keys, err := from.Keys(ctx)
		if err != nil {
			return err
		}
		v := head.Apply(keys, &rec)
		if v.Kind == schema.Applied || v.Kind == schema.Evidence {
			s.Events++
			s.Before, latest = latest, v.Event.ID
			err = s.see(ctx, from, &head, &rec, &v)
		}
		if err == nil || errors.Is(err, errFound) {
			s.Records = head.Records
		}
		return err
	})
	if errors.Is(err, errFound) {
		return nil
	}
	return err
}

// see evaluates the predicate after an accepted event.
func (s *Search) see(ctx context.Context, from Source, head *schema.Head, rec *schema.Record, v *schema.Verdict) error {
	if head.Records < s.From {
		return nil
	}
	shown, e := head, opened(ctx, from, v.Event)
	if s.NoContent {
		shown, e = withoutContent(head, e)
	}
	holds, err := s.Predicate.Holds(ctx, shown, e)
	if err != nil {
		err = fmt.Errorf("at event %s: %w", v.Event.ID, err)
	}
	switch {
	case errors.Is(err, ErrPredicateCost), err != nil && ctx.Err() != nil:
		return err
	case holds:
		s.Event, s.Stream = v.Event, rec.Stream
		return errFound
	case s.Failed == nil:
		s.Failed = err
	}
	return nil
}

// opened returns an event with its content decrypted as far as there are keys.
func opened(ctx context.Context, from Source, e *schema.Event) *schema.Event {
	if !bytes.Contains(e.Data, []byte(`"key_id"`)) {
		return e
	}
	data, err := schema.ParseData(e)
	if err != nil || data == nil {
		return e
	}
	_ = from.Decrypt(ctx, e, data) // what stays encrypted is seen as that
	return withData(e, data)
}

func withData(e *schema.Event, data schema.Data) *schema.Event {
	body, err := schema.MarshalData(data)
	if err != nil {
		return e
	}
	changed := *e
	changed.Data = body
	return &changed
}

// withoutContent returns a head and an event without what a run says, asks and answers.
func withoutContent(h *schema.Head, e *schema.Event) (*schema.Head, *schema.Event) {
	head := h.Clone()
	head.Task, head.Summary, head.Labels = "", "", nil
	if head.LastError != nil {
		head.LastError.Message, head.LastError.Code = "", ""
	}
	for i := range head.Interrupts {
		head.Interrupts[i].Message = ""
	}
	for i := range head.Handoffs {
		head.Handoffs[i].Reason = ""
	}
	bare := *e
	bare.Data = nil
	data, err := schema.ParseData(e)
	if err != nil || data == nil {
		return &head, &bare
	}
	for _, c := range schema.Contents(data) {
		value, err := c.JSON()
		if err == nil && value == nil || c.Name {
			continue
		}
		if err != nil || c.Set(jsontext.Value("null")) != nil {
			return &head, &bare
		}
	}
	return &head, withData(&bare, data)
}
