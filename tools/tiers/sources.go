package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
)

// modulePath is the path of the main module; those of the others are below it.
const modulePath = "github.com/waymarkio/waymark"

// unixes are the systems that the build tag unix stands for, as far as this project is built for them.
var unixes = []string{"linux", "darwin", "freebsd", "netbsd", "openbsd"}

// sourceTest is a test in the sources.
type sourceTest struct {
	dir, name string
	long      bool // -short leaves all of it out, or a part
	here      bool // it is built on this system, with some build tag
}

// walkTests calls visit with all tests, fuzz targets, benchmarks and examples with an output, in all modules.
func walkTests(root fs.FS, visit func(sourceTest)) error {
	return fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".bin", "node_modules", "testdata"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		here, err := builtHere(name, file)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !isTest(fn.Name.Name) {
				continue
			}
			visit(sourceTest{dir: path.Dir(name), name: fn.Name.Name, long: asksShort(fn), here: here})
		}
		for _, example := range doc.Examples(file) {
			if example.Output != "" || example.EmptyOutput {
				visit(sourceTest{dir: path.Dir(name), name: "Example" + example.Name, here: here})
			}
		}
		return nil
	})
}

func isTest(name string) bool {
	for _, kind := range []string{"Test", "Fuzz", "Benchmark"} {
		if rest, ok := strings.CutPrefix(name, kind); ok && name != "TestMain" {
			return rest == "" || rest[0] < 'a' || rest[0] > 'z'
		}
	}
	return false
}

// asksShort tells whether a function calls testing.Short. internal/lint keeps such calls in tests themselves.
func asksShort(fn *ast.FuncDecl) bool {
	found := false
	ast.Inspect(fn, func(node ast.Node) bool {
		if s, ok := node.(*ast.SelectorExpr); ok && s.Sel.Name == "Short" {
			base, ok := s.X.(*ast.Ident)
			found = found || ok && base.Name == "testing"
		}
		return true
	})
	return found
}

// builtHere tells whether a file is built on this system, with the project's build tags or without them.
func builtHere(name string, file *ast.File) (bool, error) {
	for _, part := range strings.Split(strings.TrimSuffix(path.Base(name), "_test.go"), "_")[1:] {
		if (slices.Contains(unixes, part) || part == "windows") && part != runtime.GOOS {
			return false, nil
		}
	}
	for _, group := range file.Comments {
		if group.Pos() > file.Package {
			break
		}
		for _, comment := range group.List {
			if !constraint.IsGoBuild(comment.Text) {
				continue
			}
			expr, err := constraint.Parse(comment.Text)
			if err != nil {
				return false, fmt.Errorf("%s: %w", name, err)
			}
			for bits := range 4 {
				if expr.Eval(func(tag string) bool {
					switch tag {
					case "waymark_failpoints":
						return bits&1 != 0
					case "race":
						return bits&2 != 0
					case "unix":
						return slices.Contains(unixes, runtime.GOOS)
					}
					return tag == runtime.GOOS || tag == runtime.GOARCH || strings.HasPrefix(tag, "go1.")
				}) {
					return true, nil
				}
			}
			return false, nil
		}
	}
	return true, nil
}

// longTests returns the tests of the main module that ask testing.Short, by folder. One go test runs those of one module.
func longTests(root fs.FS) (map[string][]string, error) {
	found := map[string][]string{}
	err := walkTests(root, func(t sourceTest) {
		if t.long && t.here && !ofAnotherModule(root, t.dir) {
			found[t.dir] = append(found[t.dir], t.name)
		}
	})
	return found, err
}

// longSkip are the flags of go test that leave out the tests of the main module that ask testing.Short. go test knows tests by their names
// alone: a name that another test has, too, is not left out.
func longSkip(root fs.FS) ([]string, error) {
	long, others := map[string]bool{}, map[string]bool{}
	err := walkTests(root, func(t sourceTest) {
		switch {
		case ofAnotherModule(root, t.dir):
		case t.long && t.here:
			long[t.name] = true
		default:
			others[t.name] = true
		}
	})
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(long, func(name string, _ bool) bool { return others[name] })
	if len(long) == 0 {
		return nil, errors.New("no test asks testing.Short")
	}
	return []string{"-skip", "^(" + strings.Join(slices.Sorted(maps.Keys(long)), "|") + ")$"}, nil
}

// ofAnotherModule tells whether a folder, or one above it, has a go.mod below the root.
func ofAnotherModule(root fs.FS, dir string) bool {
	for ; dir != "."; dir = path.Dir(dir) {
		if _, err := fs.Stat(root, path.Join(dir, "go.mod")); err == nil {
			return true
		}
	}
	return false
}

// all compares the outcomes with the tests in the sources, prints the sum and what no run had, and fails when there is such a test.
func all(out io.Writer, root fs.FS, outcomes []outcome) error {
	missing, elsewhere, have := []string{}, []string{}, map[string]bool{}
	count := map[string]int{}
	for _, o := range best(outcomes) {
		have[o.Package+"."+o.Test] = true
		if !strings.Contains(o.Test, "/") {
			count[o.Action]++
		}
	}
	err := walkTests(root, func(t sourceTest) {
		name := path.Join(modulePath, t.dir) + "." + t.name
		switch {
		case have[name]:
		case t.here:
			missing = append(missing, "  "+short(name))
		default:
			elsewhere = append(elsewhere, "  "+short(name))
		}
	})
	if err != nil {
		return err
	}
	printLeft(out, outcomes)
	for _, part := range []struct {
		title string
		names []string
	}{{"NOT PROVEN here: tests for another system", elsewhere}, {"in NO TIER: each test has to be in one, see the Makefile", missing}} {
		if len(part.names) > 0 {
			slices.Sort(part.names)
			_, _ = fmt.Fprintf(out, "== %s (%d)\n%s\n", part.title, len(part.names), strings.Join(part.names, "\n"))
		}
	}
	printFailed(out, outcomes)
	lines, bad := map[string]string{}, false
	for _, o := range outcomes {
		if o.Test == "" && o.Line != "" && !strings.HasPrefix(lines[o.Package], "FAIL") {
			lines[o.Package] = o.Line
		}
		bad = bad || o.Action == failed
	}
	for _, pkg := range slices.Sorted(maps.Keys(lines)) {
		_, _ = fmt.Fprintln(out, lines[pkg])
	}
	_, _ = fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", count[passed], count[failed], count[skipped])
	if bad || len(missing) > 0 {
		return errFailed
	}
	return nil
}
