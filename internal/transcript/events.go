package transcript

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// EventOptions supply data that a transcript lacks.
type EventOptions struct {
	// Fleet and Executor of the events. Required.
	Fleet, Executor string
	// At is the time of events without a time in the source; zero means 1970-01-01.
	At time.Time
	// After is the state of a run that was taken over, or that has the whole transcript: only the rest is made, in its
	// epoch, and calls in doubt are settled by the transcript's results. nil means a new run.
	After *schema.State
}

// Events returns the events of a run as an executor publishes them, with a dense sequence. It is pure; large fields
// stay in the events.
func Events(run *Run, o EventOptions) ([]*schema.Event, error) {
	if err := schema.CheckName("fleet", o.Fleet); err != nil {
		return nil, err
	}
	if err := schema.CheckName("executor", o.Executor); err != nil {
		return nil, err
	}
	if o.At.IsZero() {
		o.At = time.Unix(0, 0).UTC()
	}
	w := schema.Writer{Fleet: o.Fleet, Run: run.ID, Executor: o.Executor, Epoch: 1}
	var steps []step
	inDoubt := make(map[schema.CallKey]bool)
	if o.After == nil {
		steps = plan(run, o.Executor)
	} else {
		there, err := compare(o.After, run, o.Executor)
		if err != nil {
			return nil, fmt.Errorf("events of run %s: %w", run.ID, err)
		}
		steps = there.steps[there.done:]
		w.Epoch, w.Last = o.After.Head.Epoch, o.After.Head.Sequence
		for _, c := range o.After.Head.InDoubt() {
			inDoubt[c.CallKey] = true
		}
	}
	at := o.At
	var events []*schema.Event
	add := func(data schema.Data, turn int32) error {
		e, err := w.Event(data, turn, at, 0)
		if err == nil {
			err = w.Commit(e)
		}
		if err != nil {
			return fmt.Errorf("events of run %s: %w", run.ID, err)
		}
		events = append(events, e)
		return nil
	}
	for i := range steps {
		s := &steps[i]
		if !s.at.IsZero() {
			at = s.at
		}
		data := s.data
		if d, returned := data.(*schema.ToolReturnedData); returned && inDoubt[s.call.Key] {
			data = settlement(d)
		}
		if err := add(data, s.turn); err != nil {
			return nil, err
		}
	}
	return events, nil
}
