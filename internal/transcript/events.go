package transcript

import (
	"fmt"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// EventOptions name what a transcript does not tell.
type EventOptions struct {
	// Fleet and Executor of the events. Required.
	Fleet, Executor string
	// At is the time of events whose source tells none; zero means 1970-01-01.
	At time.Time
}

// Events returns the events of a run as an executor publishes them when nothing goes wrong: one epoch,
// dense sequence, chain. It is pure; large fields stay in the events.
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
	g := &generator{
		w:    schema.Writer{Fleet: o.Fleet, Run: run.ID, Executor: o.Executor, Epoch: 1},
		last: o.At,
	}
	for _, p := range plan(run) {
		if err := g.op(run, &p); err != nil {
			return nil, fmt.Errorf("events of run %s: %w", run.ID, err)
		}
	}
	return g.events, nil
}

type generator struct {
	w      schema.Writer
	last   time.Time
	events []*schema.Event
}

func (g *generator) add(data schema.Data, turn int32, at time.Time) error {
	if at.IsZero() {
		at = g.last
	}
	g.last = at
	e, _, err := g.w.Event(data, turn, at, g.w.Chain, 0)
	if err != nil {
		return err
	}
	if err := g.w.Commit(e); err != nil {
		return err
	}
	g.events = append(g.events, e)
	return nil
}

func (g *generator) op(run *Run, p *op) error {
	switch p.kind {
	case opStart:
		return g.add(startData(run, g.w.Executor), 0, p.at)
	case opMessage:
		return g.add(&schema.MessageAddedData{Message: p.messages[0].Message}, 0, p.at)
	case opCompact:
		d := p.compact.ContextCompactedData
		return g.add(&d, 0, p.at)
	case opTurn:
		return g.add(&schema.TurnStartedData{Turn: p.turn.Number, Messages: bare(p.messages)}, p.turn.Number, p.at)
	case opTurnMessage:
		return g.add(&schema.MessageAddedData{Message: p.messages[0].Message}, p.turn.Number, p.at)
	case opAnswer:
		for _, m := range p.messages {
			if err := g.add(&schema.MessageAddedData{Message: m.Message}, p.turn.Number, m.At); err != nil {
				return err
			}
		}
		for _, c := range p.calls {
			if err := g.add(calledData(run, c), c.Key.Turn, c.At); err != nil {
				return err
			}
		}
		return nil
	case opResult:
		return g.add(returnedData(p.call), p.call.Key.Turn, p.at)
	case opTurnEnd:
		return g.add(turnEndData(p), p.turn.Number, p.at)
	case opEnd:
		return g.add(endData(run), 0, p.at)
	default:
		return fmt.Errorf("unknown step %d", p.kind)
	}
}
