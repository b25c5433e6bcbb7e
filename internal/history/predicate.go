package history

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Predicate is a question about a run after one of its events. It is an expression of github.com/expr-lang/expr over two
// values, with the members that their JSON has:
//
//   - event: name, id, type, source, time, epoch, sequence, turn, and data, the event's own members
//   - run: the run's head after the event, as waymark runs get --json shows it
type Predicate struct {
	text    string
	program *vm.Program
	// heads: the expression speaks of the run, which costs writing its head out.
	heads bool
}

// CompilePredicate reads an expression. The error says where it is wrong.
func CompilePredicate(text string) (*Predicate, error) {
	program, err := expr.Compile(text, expr.Env(map[string]any{"event": map[string]any{}, "run": map[string]any{}}), expr.AsBool())
	if err != nil {
		return nil, fmt.Errorf("predicate: %w", err)
	}
	return &Predicate{text: text, program: program, heads: strings.Contains(text, "run")}, nil
}

// String is the expression.
func (p *Predicate) String() string { return p.text }

// exactNumbers reads whole numbers as such as far as they have 64 bits: floating-point ones would make neighbours above 2^53
// equal. The others are read as floating-point numbers.
var exactNumbers = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v *any) error {
	if dec.PeekKind() != '0' {
		return errors.ErrUnsupported
	}
	text, err := dec.ReadValue()
	if err != nil {
		return err
	}
	if n, err := strconv.Atoi(string(text)); err == nil {
		*v = n
		return nil
	}
	return json.Unmarshal(text, v)
}))

// Holds reports whether the predicate holds after an event, of which the head is the run's. An error says that it makes no
// sense there: a member is missing, or of another type.
func (p *Predicate) Holds(h *schema.Head, e *schema.Event) (bool, error) {
	event := map[string]any{
		"name": e.Name(), "id": e.ID, "type": e.Type, "source": e.Source, "time": e.Time,
		"epoch": int(e.Epoch), "sequence": int(e.Sequence), "turn": int(e.Turn), "data": map[string]any{}, //nolint:gosec // sequences are counted from 1
	}
	if len(e.Data) > 0 {
		var data any
		if err := json.Unmarshal(e.Data, &data, exactNumbers); err == nil && data != nil {
			event["data"] = data
		}
	}
	run := map[string]any{}
	if p.heads {
		text, err := json.Marshal(h)
		if err == nil {
			err = json.Unmarshal(text, &run, exactNumbers)
		}
		if err != nil {
			return false, fmt.Errorf("predicate: %w", err)
		}
	}
	out, err := expr.Run(p.program, map[string]any{"event": event, "run": run})
	if err != nil {
		return false, fmt.Errorf("predicate: %w", err)
	}
	holds, ok := out.(bool)
	if !ok {
		return false, fmt.Errorf("predicate: it gives %T and not true or false", out)
	}
	return holds, nil
}
