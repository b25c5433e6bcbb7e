package player

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// ReadBack reads a run's events for [journal.Check]: the executors' events in log order, without the fold's verdict.
// Control events are not part of a writer's sequence and are omitted.
func ReadBack(ctx context.Context, fleet *publisher.Fleet, run string) ([]journal.Event, error) {
	var events []journal.Event
	type id struct {
		turn int
		id   string
	}
	occurrence := make(map[id]int)
	err := fleet.Events(ctx, run, func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		if err != nil {
			return fmt.Errorf("message %d of run %s: %w", rec.Stream, run, err)
		}
		if e.Sequence == 0 {
			return nil
		}
		event := journal.Event{Epoch: uint64(e.Epoch), Sequence: uint64(e.Sequence), Kind: e.Name()}
		if event.Kind == schema.ToolCalled || event.Kind == schema.ToolReturned {
			var data struct {
				ToolCallID string `json:"tool_call_id"`
				Occurrence int    `json:"occurrence"`
			}
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return fmt.Errorf("event %s: %w", e.ID, err)
			}
			key := id{int(e.Turn), data.ToolCallID}
			event.Kind = journal.KindReturned
			if e.Name() == schema.ToolCalled {
				event.Kind = journal.KindCalled
				if data.Occurrence == 0 {
					occurrence[key]++
				}
			}
			event.Call = journal.Call{Turn: key.turn, ID: key.id, Occurrence: cmp.Or(data.Occurrence, occurrence[key])}
		}
		if event.Kind == schema.TurnAnswered {
			var data schema.TurnAnsweredData
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return fmt.Errorf("event %s: %w", e.ID, err)
			}
			for i := range data.Calls {
				occurrence[id{int(e.Turn), data.Calls[i].ToolCallID}]++
			}
		}
		events = append(events, event)
		return nil
	})
	return events, err
}
