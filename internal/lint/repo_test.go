package lint_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

const module = "github.com/waymarkio/waymark"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is one Go file: its path from the repository's root, with slashes, and its syntax.
type file struct {
	path   string
	source string
	fset   *token.FileSet
	syntax *ast.File
}

func (f file) dir() string     { return path.Dir(f.path) }
func (f file) isTest() bool    { return strings.HasSuffix(f.path, "_test.go") }
func (f file) generated() bool { return ast.IsGenerated(f.syntax) }

func (f file) line(pos token.Pos) int { return f.fset.Position(pos).Line }

// imported returns the import path that a name in the file stands for, "" if none.
func (f file) imported(name string) string {
	for _, spec := range f.syntax.Imports {
		target := strings.Trim(spec.Path.Value, `"`)
		if spec.Name != nil && spec.Name.Name == name || spec.Name == nil && path.Base(target) == name {
			return target
		}
	}
	return ""
}

// parseFile parses source as the file at path.
func parseFile(t *testing.T, path, source string) file {
	t.Helper()
	fset := token.NewFileSet()
	syntax, err := parser.ParseFile(fset, path, source, parser.ParseComments)
	require.NoError(t, err)
	return file{path: path, source: source, fset: fset, syntax: syntax}
}

// walk calls visit with every file of the repository that is not fetched, built, or test data.
func walk(t *testing.T, visit func(path string)) {
	t.Helper()
	root := filepath.Join("..", "..")
	require.FileExists(t, filepath.Join(root, "go.mod"))
	require.NoError(t, filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			switch entry.Name() {
			case ".git", ".bin", "bench-report", "node_modules", "testdata":
				return fs.SkipDir
			}
			return nil
		}
		// In a linked work tree .git is a file, which is not part of the repository.
		if entry.Type().IsRegular() && entry.Name() != ".git" {
			visit(filepath.ToSlash(rel))
		}
		return nil
	}))
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	require.NoError(t, err)
	return string(data)
}

// goFiles returns every Go file of the repository.
func goFiles(t *testing.T) []file {
	t.Helper()
	var files []file
	walk(t, func(name string) {
		if strings.HasSuffix(name, ".go") {
			files = append(files, parseFile(t, name, read(t, name)))
		}
	})
	require.NotEmpty(t, files)
	return files
}

// report fails the test once for each finding.
func report(t *testing.T, findings []string) {
	t.Helper()
	for _, finding := range findings {
		t.Error(finding)
	}
}
