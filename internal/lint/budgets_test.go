package lint_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// room is a part of the repository with a budget: lines of Go, comments and blank lines included, without tests and test data.
type room struct {
	name   string
	within []string // folders
	but    []string // folders in them that are rooms of their own
	budget int
	// today is a measured size above the budget: until the room fits, it must not grow beyond. A change that cuts lowers it.
	today int
}

// rooms are the budgets of docs/decisions/0120.
var rooms = []room{
	{name: "schema", within: []string{"schema"}, budget: 11_000, today: 13_167},
	{name: "kvstore", within: []string{"kvstore"}, budget: 4_200, today: 5_738},
	{name: "publisher", within: []string{"publisher"}, budget: 13_500, today: 15_253},
	{name: "consumer", within: []string{"consumer"}, budget: 15_000, today: 18_360},
	{name: "internal", within: []string{"internal"}, but: []string{"internal/cli", "internal/harness"}, budget: 14_500, today: 22_253},
	{name: "internal/cli", within: []string{"internal/cli"}, budget: 11_800, today: 13_178},
	{
		name: "product", within: []string{"schema", "kvstore", "publisher", "consumer", "internal", "cmd"}, but: []string{"internal/harness"},
		budget: 70_000, today: 87_989,
	},
	{name: "internal/harness", within: []string{"internal/harness"}, budget: 5_500, today: 6_013},
	{name: "tools", within: []string{"tools"}, budget: 5_000},
}

func (r room) has(dir string) bool {
	in := func(folder string) bool { return within(dir, folder) }
	return slices.ContainsFunc(r.within, in) && !slices.ContainsFunc(r.but, in)
}

// overBudget returns a finding if a room of that many lines is too large.
func (r room) overBudget(lines int) []string {
	if lines <= max(r.budget, r.today) {
		return nil
	}
	allowed := fmt.Sprintf("its budget is %d", r.budget)
	if r.today > r.budget {
		allowed += fmt.Sprintf(" and today it may have %d", r.today)
	}
	return []string{fmt.Sprintf("%s has %d lines of Go without tests, %s: delete something, or raise the number in internal/lint/budgets_test.go "+
		"with a page in docs/decisions that says what for", r.name, lines, allowed)}
}

// With -v it prints the sizes: the lines of each room, of all tests, and the words of the pages.
func TestBudgets_Room_IsWithinItsBudget(t *testing.T) {
	t.Parallel()
	lines, tests, words := make([]int, len(rooms)), 0, 0
	walk(t, func(name string) {
		switch {
		case strings.HasSuffix(name, ".md"):
			words += len(strings.Fields(read(t, name)))
		case strings.HasSuffix(name, "_test.go"):
			tests += strings.Count(read(t, name), "\n")
		case strings.HasSuffix(name, ".go"):
			count := strings.Count(read(t, name), "\n")
			for i, r := range rooms {
				if r.has(name[:max(0, strings.LastIndex(name, "/"))]) {
					lines[i] += count
				}
			}
		}
	})
	for i, r := range rooms {
		t.Logf("%-16s %7d lines of Go without tests, budget %6d, today %6d", r.name, lines[i], r.budget, r.today)
		require.NotZero(t, lines[i], "%s: there is no such room", r.name)
		report(t, r.overBudget(lines[i]))
	}
	t.Logf("%-16s %7d lines", "tests", tests)
	t.Logf("%-16s %7d words", "pages", words)
}

func TestOverBudget_EachCase_IsFound(t *testing.T) {
	t.Parallel()
	r := room{name: "a", within: []string{"a", "b"}, but: []string{"a/c"}, budget: 10}
	require.True(t, r.has("a"))
	require.True(t, r.has("b/d"))
	require.False(t, r.has("a/c/d"))
	require.False(t, r.has("ab"))
	require.Empty(t, r.overBudget(10))
	require.Contains(t, r.overBudget(11)[0], "a has 11 lines of Go without tests, its budget is 10: delete")
	r.today = 12
	require.Empty(t, r.overBudget(12))
	require.Contains(t, r.overBudget(13)[0], "its budget is 10 and today it may have 12")
}
