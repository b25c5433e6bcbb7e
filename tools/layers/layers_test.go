package layers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/layers"
)

const page = `# Page

| package | owns | may import |
|---|---|---|
| ` + "`a`" + ` | the ground | |
| ` + "`in/b`, `in/c`" + ` | two packages | a |
| ` + "`up/b`" + ` | the same last name | in/b, c |

Words.

| package | owns | may import |
|---|---|---|
| ` + "`top`" + ` | the top | all |

| other | table | here |
|---|---|---|
| x | y | z |
`

func TestTable_Rows_AllowWhatTheyName(t *testing.T) {
	t.Parallel()
	table, err := layers.Read(page)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "in/b", "in/c", "up/b", "top"}, table.Packages())
	require.Equal(t, 13, table.Line("top"))
	require.True(t, table.Has("in/c"))
	require.False(t, table.Has("x"))
	for _, allowed := range [][2]string{{"in/b", "a"}, {"in/c", "a"}, {"up/b", "in/b"}, {"up/b", "in/c"}, {"top", "a"}, {"top", "up/b"}} {
		require.True(t, table.Allows(allowed[0], allowed[1]), allowed)
	}
	for _, denied := range [][2]string{{"a", "in/b"}, {"in/b", "in/c"}, {"up/b", "a"}, {"a", "top"}, {"top", "top"}} {
		require.False(t, table.Allows(denied[0], denied[1]), denied)
	}
	require.True(t, table.Below("top", "a"))
	require.True(t, table.Below("in/b", "in/c"))
	require.False(t, table.Below("a", "top"))
}

func TestRead_WrongTable_ErrorNamesTheRow(t *testing.T) {
	t.Parallel()
	const head = "| package | owns | may import |\n|---|---|---|\n"
	for name, test := range map[string]struct{ page, want string }{
		"no table":        {"# Page\n", "has no table"},
		"unknown name":    {head + "| `a` | | b |\n", `ARCHITECTURE.md:3: "b" is no package of the table`},
		"ambiguous name":  {head + "| `x/a` | | |\n| `y/a` | | |\n| `b` | | a |\n", `ARCHITECTURE.md:5: "a" is one of x/a, y/a`},
		"two rows":        {head + "| `a` | | |\n| `a` | | |\n", "ARCHITECTURE.md:4: a has two rows"},
		"upwards":         {head + "| `a` | | b |\n| `b` | | |\n", "a may import b, which is not above it"},
		"sideways":        {head + "| `a`, `b` | | b |\n", "a may import b, which is not above it"},
		"two columns":     {head + "| `a` | all |\n", "ARCHITECTURE.md:3: a row has three columns"},
		"no backquotes":   {head + "| a | | |\n", "names its package in backquotes"},
		"each, not first": {head + "| `a` | | y |\n| `b` | | z |\n", `"z" is no package`},
	} {
		_, err := layers.Read(test.page)
		require.ErrorContains(t, err, test.want, name)
	}
}
