package publisher

import (
	"context"
	"fmt"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// SetState sets a value of the run's application state, such as a plan, a to-do list or a scratchpad. The value is
// encoded as JSON (null is a value, too) and becomes part of the run: a later executor gets it, a fork and a hand-off
// child start with it, and a point in the history has the value of that time. A key has at most 256 bytes. Large values
// go to the blob store.
//
// Each call is one event of the run, in the order of the calls. Set values that belong together as one value. In a
// tool, [Invocation.Run] returns the run.
func (r *Run) SetState(ctx context.Context, key string, value any) error {
	body, err := stateJSON(key, value)
	if err != nil {
		return fmt.Errorf("run %s: %w", r.id, err)
	}
	return r.Publish(ctx, &schema.StateSetData{Key: key, Value: body}, r.ledger.openTurn())
}

// DeleteState deletes a value of the run's application state. Deleting a key without a value is not an error.
func (r *Run) DeleteState(ctx context.Context, key string) error {
	return r.Publish(ctx, &schema.StateDeletedData{Key: key}, r.ledger.openTurn())
}

// GetState reads a value of the run's application state into the variable that into points to, as json.Unmarshal does.
// A jsontext.Value or json.RawMessage keeps numbers exactly as recorded. found is false if the key has no value.
// GetState loads a large value from the blob store; it does not read the log. [Run.State] has all keys.
//
// It returns [ErrBlob], [ErrEncrypted], and the errors of [Run.Err].
func (r *Run) GetState(ctx context.Context, key string, into any) (found bool, err error) {
	body, err := r.field(ctx, "/value", func(s *schema.State) (value []byte, refs []schema.Ref) {
		if v := s.Value(key); v != nil {
			found, value, refs = true, v.Value, v.Refs
		}
		return value, refs
	})
	if err == nil && found {
		err = jsonv2.Unmarshal(body, into)
	}
	if err != nil && found {
		err = fmt.Errorf("state %q of run %s: %w", key, r.id, err)
	}
	return found, err
}

// field loads the value that find returns from the run's state, with its refs; path is its place there.
func (r *Run) field(ctx context.Context, path string, find func(*schema.State) (value []byte, refs []schema.Ref)) ([]byte, error) {
	if err := r.ledger.err(); err != nil {
		return nil, err
	}
	var value []byte
	var refs []schema.Ref
	r.View(func(s *schema.State) { value, refs = find(s) })
	return r.fleet.Field(ctx, refs, path, value)
}

// stateJSON is a value of a run's application state in its recorded form.
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
