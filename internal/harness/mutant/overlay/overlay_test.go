package overlay_test

import (
	"encoding/json"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/internal/harness/mutant/overlay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// It keeps patches and source in step: a change of lines that a mutant changes must renew it.
func TestWrite_EveryMutant_AppliesAndCompiles(t *testing.T) {
	if testing.Short() {
		t.Skip("short: every mutant is compiled")
	}
	t.Parallel()
	all, err := mutant.All()
	require.NoError(t, err)
	root, err := filepath.Abs(filepath.Join("..", "..", "..", ".."))
	require.NoError(t, err)
	file, err := overlay.Write(root, t.TempDir(), all)
	require.NoError(t, err)
	var packages []string
	for name, text := range merged(t, root, file) {
		require.NotContains(t, name, "_test.go")
		packages = append(packages, "./"+path.Dir(name))
		require.Contains(t, text, "package ")
	}
	slices.Sort(packages)
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-overlay", file}, slices.Compact(packages)...)...)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// merged are the copies by their path in the module.
func merged(t *testing.T, root, file string) map[string]string {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	var list struct{ Replace map[string]string }
	require.NoError(t, json.Unmarshal(data, &list))
	copies := map[string]string{}
	for of, by := range list.Replace {
		name, err := filepath.Rel(root, of)
		require.NoError(t, err)
		text, err := os.ReadFile(by)
		require.NoError(t, err)
		copies[filepath.ToSlash(name)] = string(text)
	}
	return copies
}

// original is a file of a small module.
const original = `package a

import "strings"

// limit is a limit.
const limit = 3

func allowed(n int, name string) bool {
	if n > limit {
		return false
	}
	return strings.HasPrefix(name, "a")
}

func (s *store) put(n int) {
	s.last = n
}

type store struct{ last int }
`

// patched returns the patch that "git diff" writes of an edit.
func patched(t *testing.T, name string, edits ...string) mutant.Mutant {
	t.Helper()
	dir := t.TempDir()
	after := strings.NewReplacer(edits...).Replace(original)
	require.NotEqual(t, original, after)
	for side, text := range map[string]string{"a": original, "b": after} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, side), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, side, "a.go"), []byte(text), 0o600))
	}
	cmd := exec.CommandContext(t.Context(), "git", "diff", "--no-index", "--no-prefix", "a/a.go", "b/a.go")
	cmd.Dir = dir
	out, _ := cmd.Output() // exits 1 where there is a difference
	require.NotEmpty(t, out)
	return mutant.Mutant{Name: name, Patch: "Mistake: one\n\n" + string(out)}
}

// write makes the overlay of a module of one file.
func write(t *testing.T, source string, mutants ...mutant.Mutant) (map[string]string, error) {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(root, "a.go"), []byte(source), 0o600))
	file, err := overlay.Write(root, t.TempDir(), mutants)
	if err != nil {
		return nil, err
	}
	return merged(t, root, file), nil
}

func TestWrite_TwoMutantsOfOneLine_BothAreBehindTheirSwitch(t *testing.T) {
	t.Parallel()
	copies, err := write(t, original,
		patched(t, "off-by-one", "n > limit", "n > limit+1", "s.last = n\n", "s.last = n + 1\n"),
		patched(t, "no-limit", "n > limit", "n > math.MaxInt", `import "strings"`, "import (\n\t\"math\"\n\t\"strings\"\n)"),
		patched(t, "counted", "s.last = n\n", "s.last = counter(n)\n", "type store", "func counter(n int) int { return n + extra }\n\nconst extra = 7\n\ntype store"))
	require.NoError(t, err)
	text := copies["a.go"]
	_, err = parser.ParseFile(token.NewFileSet(), "a.go", text, parser.SkipObjectResolution)
	require.NoError(t, err, text)
	for _, want := range []string{
		`mutants__.On("off-by-one")`, "n > limit+1", `mutants__.On("no-limit")`, "n > math.MaxInt", "n > limit {", `import "math"`,
		`mutants__.On("counted")`, "s.last = n + 1", "s.last = counter(n)", "s.last = n\n", "func counter(n int)", "const extra = 7",
	} {
		require.Contains(t, text, want)
	}
	require.Equal(t, 1, strings.Count(text, "type store"))
	require.Contains(t, copies["internal/harness/mutant/overlaid.go"], "overlaid = true")
}

func TestWrite_SourceMovedOn_PatchIsRefused(t *testing.T) {
	t.Parallel()
	m := patched(t, "off-by-one", "n > limit", "n > limit+1")
	_, err := write(t, strings.Replace(original, "// limit", "// More came before.\nvar more = 1\n\n// limit", 1), m)
	require.NoError(t, err, "the lines around the change are the same")
	_, err = write(t, strings.Replace(original, "n > limit", "n >= limit", 1), m)
	require.ErrorContains(t, err, "mutant off-by-one: the patch does not apply")
	require.ErrorContains(t, err, "git diff")
}

func TestWrite_ChangeThatCannotBeSwitched_IsRefused(t *testing.T) {
	t.Parallel()
	for want, edits := range map[string][]string{
		"signature of allowed":     {"n int, name", "n int64, name"},
		"signature of *store.put":  {"put(n int)", "put(n int) error"},
		"function allowed is gone": {"func allowed", "func permitted"},
		"declaration of limit":     {"limit = 3", "limit = 4"},
		"declaration of store":     {"last int", "last int64"},
		"changes no function":      {"is a limit", "is another limit"},
		"expected declaration":     {"type store", "typ store"},
	} {
		_, err := write(t, original, patched(t, "other", edits...))
		require.ErrorContains(t, err, want)
	}
	_, err := write(t, original, mutant.Mutant{Name: "page", Patch: "--- /dev/null\n+++ b/a.md\n@@ -0,0 +1 @@\n+text\n"})
	require.ErrorContains(t, err, "Go files of the product, and nothing else")
}

func TestWrite_TwoMutantsAddOneFile_IsRefused(t *testing.T) {
	t.Parallel()
	added := "Mistake: one\n\n--- /dev/null\n+++ b/b.go\n@@ -0,0 +1 @@\n+package a\n"
	_, err := write(t, original, mutant.Mutant{Name: "one", Patch: added}, mutant.Mutant{Name: "two", Patch: added})
	require.ErrorContains(t, err, "mutants one and two add the same file b.go")
	copies, err := write(t, original, mutant.Mutant{Name: "one", Patch: added})
	require.NoError(t, err)
	require.Equal(t, "package a\n", copies["b.go"])
}
