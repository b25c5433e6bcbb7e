package publisher

import (
	"context"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// SetState sets a value of the run's own state, such as a plan, a list of things to do or a scratchpad. The value is written as JSON,
// null included, and is part of the run from then on: whoever goes on with it has the value, a fork and a run that carries out a
// hand-off begin with it, and at a point of the past it is what it was there. A key has at most 256 bytes. Large values go to the blob
// store.
//
// Each call is one event of the run, in the order of the calls. Set what belongs together as one value. In a tool, [Invocation.Run] gives the run.
func (r *Run) SetState(ctx context.Context, key string, value any) error {
	body, err := stateJSON(key, value)
	if err != nil {
		return fmt.Errorf("run %s: %w", r.id, err)
	}
	_, err = r.publish(ctx, draft{data: &schema.StateSetData{Key: key, Value: body}, turn: r.ledger.openTurn()})
	return err
}

// DeleteState deletes a value of the run's own state. A key that has no value is no error.
func (r *Run) DeleteState(ctx context.Context, key string) error {
	_, err := r.publish(ctx, draft{data: &schema.StateDeletedData{Key: key}, turn: r.ledger.openTurn()})
	return err
}

// GetState reads a value of the run's own state into what into points to, as json.Unmarshal does, numbers exactly as they are recorded
// for a jsontext.Value or a json.RawMessage. found is false if the key has no value. It waits until what was published before is stored, as
// [Run.Flush] does, and loads a large value from the blob store; it reads no log. All keys are in [Run.State].
//
// It returns [ErrNoContent] on a handle that keeps only the head, [ErrBlob], [ErrEncrypted], and the errors of
// [Run.Flush].
func (r *Run) GetState(ctx context.Context, key string, into any) (found bool, err error) {
	if r.ledger.headOnly() {
		return false, fmt.Errorf("state %q of run %s: %w", key, r.id, ErrNoContent)
	}
	if err := r.Flush(ctx); err != nil {
		return false, err
	}
	var value jsontext.Value
	var refs []schema.Ref
	r.View(func(s *schema.State) {
		if v := s.Value(key); v != nil {
			found, value, refs = true, v.Value, v.Refs
		}
	})
	if !found {
		return false, nil
	}
	body, err := r.fleet.field(ctx, refs, "/value", value)
	if err == nil {
		err = jsonv2.Unmarshal(body, into)
	}
	if err != nil {
		return true, fmt.Errorf("state %q of run %s: %w", key, r.id, err)
	}
	return true, nil
}

// stateJSON is a value of a run's own state as it is recorded.
func stateJSON(key string, value any) (jsontext.Value, error) {
	if key == "" {
		return nil, configError("the key of a state", `""`, "name the value")
	}
	body, err := jsonv2.Marshal(value, jsonv2.Deterministic(true))
	if err != nil {
		return nil, fmt.Errorf("state %q: value of type %T: %w", key, value, err)
	}
	return body, nil
}
