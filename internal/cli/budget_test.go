package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The commands under "Budgets", unchanged.
func TestBudget_CommandsOfThePage_AreAnswered(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "people.md"))
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "## Budgets")
	_, block, _ := strings.Cut(section, "```sh\n")
	block, _, _ = strings.Cut(block, "```")
	commands := strings.Split(strings.TrimSpace(block), "\n")
	require.Len(t, commands, 3)
	w := newPageWorld(t)
	hasAll(t, w.run(t, "-euc", commands[0]), "the limit of --each tenant", "2000000", "waymark-cli")
	hasAll(t, w.run(t, "-euc", commands[1]), "--each tenant", "2000000", "USED TODAY")
	hasAll(t, w.run(t, "-euc", commands[2]), "ended")
	hasAll(t, w.run(t, "-euc", commands[1]), "no limits")
}
