package history_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/schema"
)

// doubling is an expression whose value is one text doubled a number of times.
func doubling(steps int, step string) string {
	var b strings.Builder
	b.WriteString(`let v0 = event.id; `)
	for i := range steps {
		fmt.Fprintf(&b, step, i+1, i, i)
	}
	fmt.Fprintf(&b, `len(v%d) == 0`, steps)
	return b.String()
}

func TestPredicate_TextThatDoubles_IsRefusedWithinItsBudget(t *testing.T) {
	h := schema.NewHead("f", "r")
	e := &schema.Event{Type: schema.TypeOf(schema.ToolCalled), ID: strings.Repeat("x", 16)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for _, step := range []string{`let v%d = v%d + v%d; `, `let v%d = upper(v%d) + lower(v%d); `} {
		p, err := history.CompilePredicate(doubling(24, step))
		require.NoError(t, err)
		_, err = p.Holds(t.Context(), &h, e)
		require.ErrorIs(t, err, history.ErrPredicateCost)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(128<<20))
	p, err := history.CompilePredicate(`event.id + "y" == upper("xxxxxxxxxxxxxxxx") + "y" or 1 + 2 == 3 and lower("A") + "b" == "ab"`)
	require.NoError(t, err)
	holds, err := p.Holds(t.Context(), &h, e)
	require.NoError(t, err)
	require.True(t, holds, "text and numbers are added as before")
	p, err = history.CompilePredicate(`1 + 1`)
	require.NoError(t, err)
	_, err = p.Holds(t.Context(), &h, e)
	require.ErrorContains(t, err, "bool(int)")
}

func TestPredicate_FunctionThatMakesTextOrCopies_IsUnknown(t *testing.T) {
	t.Parallel()
	for _, call := range []string{
		`repeat("x", 10) == ""`, `join(["a"], "b") == ""`, `replace("a", "a", "b") == ""`, `toJSON(event) == ""`, `string(event) == ""`, `toBase64("a") == ""`,
		`reduce([1], #acc + #) == 1`, `len(concat([1], [2])) == 2`, `len(flatten([[1]])) == 1`, `len(split("a", "")) == 1`, `len(sort([1])) == 1`,
		`len(sortBy([1], #)) == 1`, `len(groupBy([1], #)) == 1`,
	} {
		_, err := history.CompilePredicate(call)
		require.Error(t, err, call)
	}
}

func TestPredicate_LongEvaluation_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	h := schema.NewHead("f", "r")
	e := &schema.Event{Type: schema.TypeOf(schema.ToolCalled)}
	p, err := history.CompilePredicate(`let a = 1..2000; event.id == "x" or all(a, let x = #; all(a, all(a, # + x > 0)))`) // an hour or so
	require.NoError(t, err)
	stopped := errors.New("told to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Millisecond, func() { cancel(stopped) })
	_, err = p.Holds(ctx, &h, e)
	require.ErrorIs(t, err, stopped)
	e.ID = "x"
	holds, err := p.Holds(t.Context(), &h, e)
	require.NoError(t, err)
	require.True(t, holds, "the evaluation has ended, and the next one begins")
}

func TestPredicate_LongText_IsRefused(t *testing.T) {
	t.Parallel()
	_, err := history.CompilePredicate("true" + strings.Repeat(" ", 4100))
	require.ErrorContains(t, err, "it has 4104 bytes")
	for _, deep := range []string{strings.Repeat("(", 4000), strings.Repeat("[", 4000), strings.Repeat("!", 4000) + "1", strings.Repeat("all([1],", 500)} {
		_, err := history.CompilePredicate(deep)
		require.Error(t, err)
	}
}
