package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"regexp/syntax"
	"slices"
	"unicode/utf8"

	"github.com/expr-lang/expr/ast"
	"github.com/expr-lang/expr/vm/runtime"
)

const (
	boundedPlus  = "__plus"
	boundedPass  = "__pass"
	boundedMatch = "__match"
	boundedWhole = "__whole"
	boundedKey   = "__key"
	boundedSet   = "__set"

	// maxPattern bounds a pattern, in steps for each character of a text: x{100} has a hundred.
	maxPattern = 10_000
	// maxWhole bounds a value that is compared or searched as a whole, in elements with those of the lists within it.
	maxWhole = 1_000_000
	// maxSet bounds the characters that trim removes, in bytes.
	maxSet = 256
)

// bounded replaces what could take too much memory or time by functions with a bound:
//
//   - an addition also joins text
//   - a pass of a loop asks whether it may continue
//   - matches takes as long as its pattern is large
//   - ==, in, max and others look at all elements of a list, and a list may have itself many times: let b = [a, a];
//     let c = [b, b]; and so on
//   - trim looks for each character in a text
//   - the name of a missing member is printed
//
// It names a function that is not in the list: the library disables functions with a closure only in part, and a time
// has methods that make text.
type bounded struct{ unknown string }

// Visit looks at one node.
func (b *bounded) Visit(node *ast.Node) {
	switch n := (*node).(type) {
	case *ast.BuiltinNode:
		switch {
		case !slices.Contains(builtins, n.Name):
			b.unknown = n.Name
		case n.Name == "max", n.Name == "min", n.Name == "mean", n.Name == "median":
			for i := range n.Arguments {
				wrap(&n.Arguments[i], boundedWhole)
			}
		case n.Name == "trim" && len(n.Arguments) == 2:
			wrap(&n.Arguments[1], boundedSet)
		case n.Name == "get" && len(n.Arguments) == 2:
			wrap(&n.Arguments[1], boundedKey)
		}
	case *ast.CallNode:
		b.call(n)
	case *ast.MemberNode:
		if !scalar(n.Property) {
			wrap(&n.Property, boundedKey)
		}
	case *ast.PredicateNode:
		wrap(&n.Node, boundedPass)
	case *ast.BinaryNode:
		switch n.Operator {
		case "+":
			ast.Patch(node, called(boundedPlus, n.Left, n.Right))
		case "matches":
			ast.Patch(node, called(boundedMatch, n.Left, n.Right))
		case "==", "!=", "in":
			if !scalar(n.Left) && !scalar(n.Right) || n.Operator == "in" {
				wrap(&n.Left, boundedWhole)
				wrap(&n.Right, boundedWhole)
			}
		}
	}
}

// call names a function that is called and is neither one of the language nor a method that makes no text.
func (b *bounded) call(n *ast.CallNode) {
	switch callee := n.Callee.(type) {
	case *ast.IdentifierNode:
		if !slices.Contains([]string{"lower", "upper", boundedPlus, boundedPass, boundedMatch, boundedWhole, boundedKey, boundedSet}, callee.Value) {
			b.unknown = callee.Value
		}
	case *ast.MemberNode:
		name, ok := callee.Property.(*ast.StringNode)
		if !ok || name.Value == "Format" || name.Value == "AppendFormat" {
			b.unknown = callee.String()
		}
	default:
		b.unknown = n.Callee.String()
	}
}

func called(function string, arguments ...ast.Node) ast.Node {
	return &ast.CallNode{Callee: &ast.IdentifierNode{Value: function}, Arguments: arguments}
}

func wrap(node *ast.Node, function string) { ast.Patch(node, called(function, *node)) }

// scalar reports whether a node is a text, a number or the like as such.
func scalar(node ast.Node) bool {
	switch node.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NilNode:
		return true
	}
	return false
}

// pass returns the value of one pass of a loop, unless the evaluation must end.
func (p *Predicate) pass(value ...any) (any, error) {
	if p.ctx.Err() != nil {
		return nil, context.Cause(p.ctx)
	}
	return value[0], nil
}

// makes counts text.
func (p *Predicate) makes(bytes int) error {
	if p.made += bytes; p.made > maxMade {
		return fmt.Errorf("%w: it makes more than %d bytes of text", ErrPredicateCost, maxMade)
	}
	return nil
}

func (p *Predicate) plus(operands ...any) (any, error) {
	if len(operands) != 2 {
		return nil, fmt.Errorf("an addition has %d operands", len(operands))
	}
	a, isText := operands[0].(string)
	b, both := operands[1].(string)
	if isText && both {
		if err := p.makes(len(a) + len(b)); err != nil {
			return nil, err
		}
		return a + b, nil
	}
	return runtime.Add(operands[0], operands[1]), nil
}

// whole returns a value whose elements, with those of the lists within it, are not too many.
func (p *Predicate) whole(value ...any) (any, error) {
	left, text := maxWhole, maxMade
	if !counts(value[0], &left, &text) {
		return nil, fmt.Errorf("%w: a list has more than %d elements, with those of the lists in it, or more than %d bytes of text", ErrPredicateCost, maxWhole, maxMade)
	}
	return p.pass(value[0])
}

// counts takes the elements of a value from those that are left, and reports whether there were enough.
func counts(value any, left, text *int) bool {
	switch v := value.(type) {
	case string:
		*text -= len(v)
	case []any:
		for _, x := range v {
			if !counts(x, left, text) {
				return false
			}
		}
	case map[string]any:
		for _, x := range v {
			if !counts(x, left, text) {
				return false
			}
		}
	case []int: // a range
		*left -= len(v)
	}
	*left--
	return *left >= 0 && *text >= 0
}

// key returns the name or number of a member.
func key(value ...any) (any, error) {
	switch v := value[0].(type) {
	case string:
		if len(v) <= maxPredicate {
			return v, nil
		}
		return nil, fmt.Errorf("the name of a member has %d bytes, at most %d are possible", len(v), maxPredicate)
	}
	if k := reflect.ValueOf(value[0]).Kind(); k == reflect.Slice || k == reflect.Map || k == reflect.Struct || k == reflect.Pointer {
		return nil, fmt.Errorf("%T names no member", value[0])
	}
	return value[0], nil
}

// set returns the characters that trim removes.
func set(value ...any) (any, error) {
	if text, ok := value[0].(string); ok && len(text) > maxSet {
		return nil, fmt.Errorf("%w: trim removes more than %d bytes of characters", ErrPredicateCost, maxSet)
	}
	return value[0], nil
}

// match is the operator matches.
func (p *Predicate) match(operands ...any) (any, error) {
	if operands[0] == nil || operands[1] == nil {
		return false, nil
	}
	text, isText := operands[0].(string)
	pattern, both := operands[1].(string)
	if !isText || !both {
		return nil, fmt.Errorf("%T matches %T: both must be text", operands[0], operands[1])
	}
	re := p.patterns[pattern]
	if re == nil {
		if err := checkPattern(pattern); err != nil {
			return nil, err
		}
		var err error
		if re, err = regexp.Compile(pattern); err != nil {
			return nil, err
		}
		clear(p.patterns) // one is kept: most expressions have no more
		p.patterns[pattern] = re
	}
	return re.MatchReader(&characters{ctx: p.ctx, rest: text}), nil
}

// checkPattern refuses a pattern that is too large, before it is compiled. It lets pass what is no pattern.
func checkPattern(pattern string) error {
	if len(pattern) > maxPredicate {
		return fmt.Errorf("%w: a pattern has %d bytes, at most %d are possible", ErrPredicateCost, len(pattern), maxPredicate)
	}
	parsed, err := syntax.Parse(pattern, syntax.Perl)
	if err == nil && patternSize(parsed) > maxPattern {
		return fmt.Errorf("%w: a pattern has more than %d steps for each character", ErrPredicateCost, maxPattern)
	}
	return nil
}

// patternSize is about how many instructions a pattern becomes.
func patternSize(re *syntax.Regexp) int {
	size := 1 + len(re.Rune)
	if re.Op == syntax.OpCharClass {
		size = 1
	}
	for _, sub := range re.Sub {
		size += patternSize(sub)
	}
	if re.Op == syntax.OpRepeat {
		size *= max(re.Max, re.Min+1)
	}
	return size
}

// patterns looks for a pattern that is too large.
type patterns struct{ err error }

// Visit looks at one node.
func (v *patterns) Visit(node *ast.Node) {
	if n, ok := (*node).(*ast.BinaryNode); ok && n.Operator == "matches" {
		if pattern, ok := n.Right.(*ast.StringNode); ok {
			v.err = errors.Join(v.err, checkPattern(pattern.Value))
		}
	}
}

// characters are those of a text, until the evaluation must end.
type characters struct {
	ctx  context.Context //nolint:containedctx // it is one reading
	rest string
	read int
}

// ReadRune implements [io.RuneReader].
func (c *characters) ReadRune() (rune, int, error) {
	if c.read++; c.rest == "" || c.read%64 == 0 && c.ctx.Err() != nil {
		return 0, 0, io.EOF
	}
	r, n := utf8.DecodeRuneInString(c.rest)
	c.rest = c.rest[n:]
	return r, n, nil
}
