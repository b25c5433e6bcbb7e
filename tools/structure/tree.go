package main

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/tools/layers"
	"github.com/waymarkio/waymark/tools/walks"
)

// tree is a module's Go code.
type tree struct {
	root   string
	module string
	files  []file // of all kinds
	table  layers.Table
}

// file is one Go file.
type file struct {
	path        string // from the root, with slashes
	kind        kind
	lines, code int
	syntax      *ast.File
}

func (f file) dir() string { return path.Dir(f.path) }

// kind tells how a file is counted.
type kind string

const (
	production kind = "production"
	inTestdata kind = "testdata"
	inTools    kind = "tools"
	inHarness  kind = "internal/harness"
	tests      kind = "tests"
	generated  kind = "generated"
	inDocs     kind = "docs"
	unlinked   kind = "internal, in no command"
)

var leftOut = []kind{tests, inHarness, unlinked, generated, inTools, inDocs, inTestdata}

var moduleLine = regexp.MustCompile(`(?m)^module (\S+)$`)

// readTree parses all Go files below root.
func readTree(root string) (*tree, error) {
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errors.New("there is no go.mod here: run it in the root of the repository")
	}
	if err != nil {
		return nil, err
	}
	name := moduleLine.FindSubmatch(mod)
	if name == nil {
		return nil, errors.New("go.mod has no line with the module's path: see go help mod init")
	}
	t := &tree{root: root, module: string(name[1])}
	page, err := os.ReadFile(filepath.Join(root, layers.Page))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t.table, _ = layers.Read(string(page)) // internal/lint says what is wrong with it; an old page has rows all the same
	err = filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		hidden := strings.HasPrefix(entry.Name(), ".") && rel != "." || strings.HasPrefix(entry.Name(), "_") || entry.Name() == "node_modules"
		switch {
		case entry.IsDir() && hidden:
			return fs.SkipDir
		case entry.IsDir() || hidden || !strings.HasSuffix(rel, ".go"):
			return nil
		}
		return t.read(rel)
	})
	if err != nil {
		return nil, err
	}
	t.findUnlinked()
	return t, nil
}

func (t *tree) read(name string) error {
	source, err := os.ReadFile(filepath.Join(t.root, filepath.FromSlash(name)))
	if err != nil {
		return err
	}
	f := file{path: name, lines: strings.Count(string(source), "\n"), code: codeLines(source)}
	f.syntax, err = parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments|parser.SkipObjectResolution)
	inside := "/" + name
	switch {
	case strings.Contains(inside, "/testdata/"):
		f.kind = inTestdata // need not be Go
	case err != nil:
		return fmt.Errorf("%w: mend it, go vet shows the rest", err)
	case strings.HasPrefix(inside, "/tools/"):
		f.kind = inTools
	case strings.HasSuffix(name, "_test.go"):
		f.kind = tests
	case strings.HasPrefix(inside, "/internal/harness/"):
		f.kind = inHarness
	case ast.IsGenerated(f.syntax):
		f.kind = generated
	case strings.HasPrefix(inside, "/docs/"):
		f.kind = inDocs
	default:
		f.kind = production
	}
	t.files = append(t.files, f)
	return nil
}

// codeLines counts the lines that have more than blanks and comments.
func codeLines(source []byte) int {
	fset := token.NewFileSet()
	f := fset.AddFile("", fset.Base(), len(source))
	var s scanner.Scanner
	s.Init(f, source, nil, 0) // comments are left out
	last, count := 0, 0
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return count
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue // the scanner's own
		}
		first := max(last+1, f.Line(pos))
		last = max(last, f.Line(pos)+strings.Count(text, "\n")) // a raw string has several lines
		count += max(0, last-first+1)
	}
}

// findUnlinked marks internal packages that no command and no public package imports, directly or not.
func (t *tree) findUnlinked() {
	arrows := t.arrows()
	reached := map[string]bool{}
	var visit func(string)
	visit = func(dir string) {
		if reached[dir] {
			return
		}
		reached[dir] = true
		for _, to := range arrows[dir] {
			visit(to)
		}
	}
	for dir := range arrows {
		if !strings.Contains("/"+dir+"/", "/internal/") {
			visit(dir)
		}
	}
	for i, f := range t.files {
		if f.kind == production && !reached[f.dir()] {
			t.files[i].kind = unlinked
		}
	}
}

// arrows returns the imports of production packages among each other, by folder.
func (t *tree) arrows() map[string][]string {
	arrows := map[string][]string{}
	for _, f := range t.files {
		if f.kind == production {
			arrows[f.dir()] = nil
		}
	}
	for _, f := range t.files {
		if f.kind != production && (f.kind != generated || !hasKey(arrows, f.dir())) {
			continue
		}
		for _, spec := range f.syntax.Imports {
			to, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), t.module+"/")
			if ours && hasKey(arrows, to) && !slices.Contains(arrows[f.dir()], to) {
				arrows[f.dir()] = append(arrows[f.dir()], to)
			}
		}
	}
	return arrows
}

func hasKey[K comparable, V any](m map[K]V, key K) bool {
	_, ok := m[key]
	return ok
}

// lines counts the code by package, and what is left out.
func (t *tree) lines() []section {
	sums := map[string][]int{}
	out := map[kind][]int{}
	for _, f := range t.files {
		if f.kind == production {
			sums[f.dir()] = plus(sums[f.dir()], f.lines, f.code)
		} else {
			out[f.kind] = plus(out[f.kind], f.lines, f.code)
		}
	}
	packages := section{title: "Production code by package", columns: []string{"lines", "code"}}
	for _, dir := range slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(sums[b][1]-sums[a][1], cmp.Compare(a, b))
	}) {
		packages.add(dir, sums[dir]...)
	}
	packages.sum("production")
	rest := section{title: "Left out", columns: packages.columns}
	for _, k := range leftOut {
		rest.add(string(k), plus(out[k], 0, 0)...)
	}
	rest.sum("left out")
	return []section{packages, rest}
}

func plus(sums []int, more ...int) []int {
	if sums == nil {
		sums = make([]int, len(more))
	}
	for i, n := range more {
		sums[i] += n
	}
	return sums
}

// imports measures the graph of production packages.
func (t *tree) imports() section {
	arrows := t.arrows()
	count, upwards, rowless := 0, 0, 0
	for from, targets := range arrows {
		count += len(targets)
		if !t.table.Has(from) {
			rowless++
		}
		for _, to := range targets {
			if t.table.Has(from) && t.table.Has(to) && t.table.Below(to, from) {
				upwards++
			}
		}
	}
	s := section{title: "Imports between production packages", columns: []string{"count"}}
	s.add("packages", len(arrows))
	s.add("arrows", count)
	s.add("floors", floors(arrows))
	s.add("arrows upwards", upwards)
	s.add("packages without a row", rowless)
	return s
}

// floors is the number of packages on the longest path. The graph has no circle.
func floors(arrows map[string][]string) int {
	known := map[string]int{}
	var floor func(string) int
	floor = func(from string) int {
		if n, ok := known[from]; ok {
			return n
		}
		n := 1
		for _, to := range arrows[from] {
			n = max(n, floor(to)+1)
		}
		known[from] = n
		return n
	}
	highest := 0
	for from := range arrows {
		highest = max(highest, floor(from))
	}
	return highest
}

// exported counts the exported names that each package declares, with those of generated files; methods and fields are not counted.
func (t *tree) exported() section {
	counts := map[string]int{}
	for _, f := range t.files {
		if f.kind == production || f.kind == generated {
			counts[f.dir()] += exportedNames(f.syntax)
		}
	}
	s := section{title: "Exported names by package", columns: []string{"names"}}
	for _, dir := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b))
	}) {
		if counts[dir] > 0 {
			s.add(dir, counts[dir])
		}
	}
	s.sum("all")
	return s
}

func exportedNames(f *ast.File) int {
	count := 0
	name := func(id *ast.Ident) {
		if id.IsExported() {
			count++
		}
	}
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				name(d.Name)
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch s := spec.(type) {
				case *ast.TypeSpec:
					name(s.Name)
				case *ast.ValueSpec:
					for _, id := range s.Names {
						name(id)
					}
				}
			}
		}
	}
	return count
}

// methods counts the methods of each type, and the files that declare them.
func (t *tree) methods(limit int) section {
	counts := map[string]int{}
	in := map[string]map[string]bool{}
	for _, f := range t.files {
		if f.kind != production {
			continue
		}
		for _, decl := range f.syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			name := f.dir() + "." + receiver(fn)
			counts[name]++
			if in[name] == nil {
				in[name] = map[string]bool{}
			}
			in[name][f.path] = true
		}
	}
	s := section{title: "Methods by type, most first", columns: []string{"methods", "files"}, limit: limit}
	for _, name := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(counts[b]-counts[a], cmp.Compare(a, b)) }) {
		s.add(name, counts[name], len(in[name]))
	}
	return s
}

// walks counts the walks of the page.
func (t *tree) walks() ([]section, error) {
	page, err := os.ReadFile(filepath.Join(t.root, filepath.FromSlash(walks.Page)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var files []walks.File
	for _, f := range t.files {
		if f.kind == production || f.kind == generated {
			files = append(files, walks.File{Path: f.path, Syntax: f.syntax})
		}
	}
	walked, err := walks.Measure(string(page), files)
	if err != nil {
		return nil, err
	}
	var sections []section
	for _, w := range walked {
		s := section{title: "Walk: " + w.Title, columns: []string{"count"}}
		s.add("functions", w.Functions)
		s.add("files", w.Files)
		s.add("stays", w.Stays)
		s.add("returns", w.Returns())
		sections = append(sections, s)
	}
	return sections, nil
}

// receiver is the name of the type that a method is of.
func receiver(fn *ast.FuncDecl) string {
	expr := fn.Recv.List[0].Type
	for {
		switch e := expr.(type) {
		case *ast.StarExpr:
			expr = e.X
		case *ast.IndexExpr: // a generic type
			expr = e.X
		case *ast.IndexListExpr:
			expr = e.X
		case *ast.Ident:
			return e.Name
		default:
			return "?"
		}
	}
}
