package history

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/parser"
	"github.com/expr-lang/expr/vm"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// Predicate is a question about a run after one of its events. It is an expression of github.com/expr-lang/expr over
// two values, with the members of their JSON:
//
//   - event: name, id, type, source, time, epoch, sequence, turn, and data, the event's own members
//   - run: the run's head after the event, as in waymark runs get --json
type Predicate struct {
	program *vm.Program
	// heads: the expression uses the run, which costs encoding its head.
	heads bool
	// windows: it uses the run's latest hashes, which are most of the head.
	windows bool
	// made counts the bytes of text that one evaluation made.
	made int
	// patterns has the pattern that was used last.
	patterns map[string]*regexp.Regexp
	// ctx ends the evaluation under way.
	ctx context.Context //nolint:containedctx // the library hands functions no context
}

// ErrPredicateCost comes for an expression that would take too much memory or time. Write a simpler one.
var ErrPredicateCost = errors.New("predicate costs too much")

// CompilePredicate reads an expression. The error names the place of the problem.
//
// The language has no bound on text: let a = s + s; let b = a + a; and so on doubles it with each step. So an
// expression only has the built-in functions that make no text and no copies, and an addition and a change of case
// that count the text they make. It has no bound on time either, because loops may be nested: each pass of a loop asks
// whether the evaluation may continue. What is one step of the library and may take long has a bound of its own: see
// bounded. Constants are not computed before the first event, because nothing could interrupt that.
func CompilePredicate(text string) (*Predicate, error) {
	if len(text) > maxPredicate {
		return nil, fmt.Errorf("predicate: it has %d bytes, at most %d are possible", len(text), maxPredicate)
	}
	// The library compiles the patterns of an expression before it shows the expression to a visitor.
	if tree, err := parser.Parse(text); err == nil {
		first := new(patterns)
		if ast.Walk(&tree.Node, first); first.err != nil {
			return nil, fmt.Errorf("predicate: %w", first.err)
		}
	}
	p := &Predicate{
		heads: strings.Contains(text, "run") || strings.Contains(text, "$env"), windows: strings.Contains(text, "window"),
		patterns: map[string]*regexp.Regexp{},
	}
	visitor := new(bounded)
	options := []expr.Option{
		expr.Env(map[string]any{"event": map[string]any{}, "run": map[string]any{}}), expr.AsBool(), expr.Optimize(false), expr.DisableAllBuiltins(),
		expr.Patch(visitor), expr.Function(boundedPlus, p.plus), expr.Function(boundedPass, p.pass), expr.Function(boundedMatch, p.match, new(func(any, any) bool)),
		expr.Function(boundedWhole, p.whole), expr.Function(boundedKey, key), expr.Function(boundedSet, set),
		expr.Function("lower", p.changed(strings.ToLower), new(func(string) string)), expr.Function("upper", p.changed(strings.ToUpper), new(func(string) string)),
	}
	for _, name := range builtins {
		options = append(options, expr.EnableBuiltin(name))
	}
	program, err := expr.Compile(text, options...)
	if err == nil && visitor.unknown != "" {
		err = fmt.Errorf("the function %s is not part of the language", visitor.unknown)
	}
	if err != nil {
		return nil, fmt.Errorf("predicate: %w", err)
	}
	p.program = program
	return p, nil
}

// builtins are the functions of an expression. Their results are no larger than their arguments; lists count against
// the budget of the library, 1,000,000 elements in an evaluation.
var builtins = []string{
	"all", "none", "any", "one", "filter", "map", "find", "findIndex", "findLast", "findLastIndex", "count", "sum", "len", "type", "abs", "ceil", "floor",
	"round", "int", "float", "trim", "trimPrefix", "trimSuffix", "indexOf", "lastIndexOf", "hasPrefix", "hasSuffix", "max", "min", "mean", "median",
	"duration", "date", "first", "last", "get",
}

const (
	// maxMade is how many bytes of text an expression may make per event.
	maxMade = 16 << 20
	// maxEvaluation is how long an expression may take per event.
	maxEvaluation = 10 * time.Second
	// maxPredicate bounds an expression, in bytes.
	maxPredicate = 4096
	// maxReason bounds why an expression cannot be evaluated, in bytes: the library quotes values, and the expression.
	maxReason = 3 * maxPredicate
)

func (p *Predicate) changed(change func(string) string) func(...any) (any, error) {
	return func(operands ...any) (any, error) {
		text, ok := operands[0].(string)
		if !ok {
			return nil, fmt.Errorf("%T is no text", operands[0])
		}
		if err := p.makes(len(text)); err != nil {
			return nil, err
		}
		return change(text), nil
	}
}

// exactNumbers reads whole numbers of 64 bits as such, and other numbers as doubles if that is exact or gives the
// same shortest form. A number that a double would change is read as its text, so that neighbouring numbers stay
// different.
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
	f, err := strconv.ParseFloat(string(text), 64)
	whole, short := strconv.FormatFloat(f, 'f', 0, 64), strconv.FormatFloat(f, 'g', -1, 64)
	if err == nil && (schema.SameJSON(text, jsontext.Value(short)) || schema.SameJSON(text, jsontext.Value(whole))) {
		*v = f
		return nil
	}
	*v = string(text)
	return nil
}))

// Holds reports whether the predicate holds after an event, given the run's head there. An error says that it cannot
// be evaluated there: a member is missing, or of another type. An [ErrPredicateCost], and the cause of ctx, say that
// the evaluation was ended.
func (p *Predicate) Holds(ctx context.Context, h *schema.Head, e *schema.Event) (bool, error) {
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
		shown := *h
		if !p.windows {
			shown.Window = nil
		}
		text, err := json.Marshal(&shown)
		if err == nil {
			err = json.Unmarshal(text, &run, exactNumbers)
		}
		if err != nil {
			return false, fmt.Errorf("predicate: %w", err)
		}
	}
	return p.evaluate(ctx, map[string]any{"event": event, "run": run})
}

func (p *Predicate) evaluate(ctx context.Context, env map[string]any) (bool, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, maxEvaluation, fmt.Errorf("%w: it takes longer than %s after one event", ErrPredicateCost, maxEvaluation))
	defer cancel()
	p.ctx, p.made = ctx, 0
	value, err := expr.Run(p.program, env)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if text := err.Error(); len(text) > maxReason && !errors.Is(err, ErrPredicateCost) && ctx.Err() == nil {
			err = errors.New(strings.ToValidUTF8(text[:maxReason], "") + "…")
		}
		return false, fmt.Errorf("predicate: %w", err)
	}
	holds, ok := value.(bool)
	if !ok {
		return false, fmt.Errorf("predicate: it gives %T and not true or false", value)
	}
	return holds, nil
}
