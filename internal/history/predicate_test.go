package history_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// nested is an expression whose value, deep, is a list of lists of lists: few lists, which have each other many times.
const nested = `let b=[1,1,1,1,1,1,1,1,1,1]; let c=[b,b,b,b,b,b,b,b,b,b]; let d=[c,c,c,c,c,c,c,c,c,c]; let e=[d,d,d,d,d,d,d,d,d,d]; let f=[e,e,e,e,e,e,e,e,e,e]; ` +
	`let g=[f,f,f,f,f,f,f,f,f,f]; let h=[g,g,g,g,g,g,g,g,g,g]; let i=[h,h,h,h,h,h,h,h,h,h]; let deep=[i,i,i,i,i,i,i,i,i,i]; `

// Nothing can interrupt the library within one of its steps.
func TestPredicate_OneStepThatTakesLong_IsRefused(t *testing.T) {
	h := schema.NewHead("f", "r")
	e := &schema.Event{Type: schema.TypeOf(schema.ToolCalled), Data: []byte(`{"content":"` + strings.Repeat("a", 1<<20) + `"}`)}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	twice := func(name, value string, times int) string {
		text := "let " + name + "0 = " + value + "; "
		for n := range times {
			text += fmt.Sprintf("let %s%d = %s%d + %s%d; ", name, n+1, name, n, name, n)
		}
		return text
	}
	for _, text := range []string{
		`event.data.content matches "` + strings.Repeat("(a?){1000}", 300) + `"`,
		`let p = "(a?){1000}"; event.data.content matches (p+p+p+p+p+p+p+p+p+p+p)`,
		`event.data.content matches event.data.content`,
		nested + `max(deep) > 0`, nested + `min(deep) > 0`, nested + `mean(deep) > 0`, nested + `median(deep) > 0`,
		nested + `deep == [i,i,i,i,i,i,i,i,i,1]`, nested + `[deep, 1] != [[i,i,i,i,i,i,i,i,i,i], 1]`, nested + `deep in [[i,i,i,i,i,i,i,i,i,i]]`,
		twice("s", `"12345678"`, 18) + `let t = s0 + s18[8:]; map(1..200000, s18) == map(1..200000, t)`,
		twice("s", `"é"`, 19) + twice("t", `"\u0129"`, 20) + `trim(s19, t20 + "é") == ""`,
	} {
		p, err := history.CompilePredicate(text)
		if err == nil {
			_, err = p.Holds(t.Context(), &h, e)
		}
		require.ErrorIs(t, err, history.ErrPredicateCost, text)
	}
	for text, want := range map[string]string{
		nested + `event.data.missing[deep] == 1`:                          "names no member",
		nested + `get(event.data, deep) == 1`:                             "names no member",
		`let d = date("2023-09-01"); len(map(1..200, d.Format("x"))) > 0`: "d.Format is not part of the language",
		`let d = date("2023-09-01"); d?.Format("x") == ""`:                "d?.Format is not part of the language",
		`let d = date("2023-09-01"); let f = d.Format; f("x") == "x"`:     "the function f is not part of the language",
	} {
		p, err := history.CompilePredicate(text)
		if err == nil {
			_, err = p.Holds(t.Context(), &h, e)
		}
		require.ErrorContains(t, err, want, text)
	}
	runtime.ReadMemStats(&after)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20))

	for _, text := range []string{
		`event.data.content matches "^a+$" and not (event.data.content matches "b") and "é" matches "é$" and not (nil matches "a") and not (event.data.none matches "a")`,
		`[1, 2] == [1, 2] and [1] != [2] and 1 in [1] and "content" in event.data and max([1, [2]]) == 2 and median(1..3) == 2`,
		`event["name"] == "tool.called" and len(event.data["cont" + "ent"]) > 0 and [1, 2][0 + 1] == 2 and get(event.data, "none") == nil`,
		`date("2023-09-01").Year() == 2023 and trim("xax", "x") == "a"`,
	} {
		p, err := history.CompilePredicate(text)
		require.NoError(t, err)
		holds, err := p.Holds(t.Context(), &h, e)
		require.NoError(t, err, text)
		require.True(t, holds, text)
	}
}

// A pattern of 10,000 steps takes minutes for a text of 1 MiB.
func TestPredicate_LongMatch_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	h := schema.NewHead("f", "r")
	e := &schema.Event{Type: schema.TypeOf(schema.ToolCalled), Data: []byte(`{"content":"` + strings.Repeat("a", 1<<20) + `"}`)}
	p, err := history.CompilePredicate(`event.data.content matches "(a?){900}(a?){900}b"`)
	require.NoError(t, err)
	stopped := errors.New("told to stop")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(time.Millisecond, func() { cancel(stopped) })
	_, err = p.Holds(ctx, &h, e)
	require.ErrorIs(t, err, stopped)
}

func TestPredicate_ReasonThatQuotesALongValue_IsCut(t *testing.T) {
	t.Parallel()
	h := schema.NewHead("f", "r")
	e := &schema.Event{Type: schema.TypeOf(schema.ToolCalled), Data: []byte(`{"content":"` + strings.Repeat("é", 1<<19) + `"}`)}
	p, err := history.CompilePredicate(`int(event.data.content) == 1`)
	require.NoError(t, err)
	_, err = p.Holds(t.Context(), &h, e)
	require.ErrorContains(t, err, "invalid operation: int(é")
	require.Less(t, len(err.Error()), 13_000)
	require.True(t, utf8.ValidString(err.Error()))
}
