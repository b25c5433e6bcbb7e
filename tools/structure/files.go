package main

import (
	"context"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// graph is a directed graph: the arrows of each node.
type graph map[string]map[string]bool

// filesTitle begins the title of a package's section.
const filesTitle = "Files of "

// filesOf measures the graph of the files of each package that the pattern names.
func (t *tree) filesOf(ctx context.Context, pattern string) ([]section, error) {
	dir, below := strings.CutSuffix(path.Clean(filepath.ToSlash(pattern)), "/...")
	var dirs []string
	for _, f := range t.files {
		if d := f.dir(); f.kind != tests && f.kind != inTestdata && (d == dir || below && strings.HasPrefix(d, dir+"/")) {
			dirs = append(dirs, d)
		}
	}
	slices.Sort(dirs)
	var sections []section
	for _, dir := range slices.Compact(dirs) {
		arrows, err := fileGraph(ctx, t.root, dir)
		if err != nil {
			return nil, err
		}
		count := 0
		for _, targets := range arrows {
			count += len(targets)
		}
		order := fewestUpwards(arrows)
		s := section{title: filesTitle + dir, columns: []string{"count"}}
		s.add("files", len(arrows))
		s.add("arrows", count)
		s.add("floors", floors(downwards(arrows, order)))
		s.add("arrows upwards", upwards(arrows, order))
		sections = append(sections, s)
	}
	return sections, nil
}

// fileGraph finds which file uses what another declares.
func fileGraph(ctx context.Context, root, dir string) (graph, error) {
	packages, err := list(ctx, root, "./"+dir)
	if err != nil {
		return nil, err
	}
	exports := map[string]string{}
	for _, p := range packages {
		exports[p.ImportPath] = p.Export
	}
	own := packages[len(packages)-1] // behind all it imports
	fset := token.NewFileSet()
	var syntax []*ast.File
	arrows := graph{}
	for _, name := range own.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(own.Dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		syntax = append(syntax, f)
		arrows[name] = map[string]bool{}
	}
	info := types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("go list has no export data of %s: go build ./%s says why", path, dir)
		}
		return os.Open(exports[path])
	})}
	pkg, err := config.Check(own.ImportPath, fset, syntax, &info)
	if err != nil {
		return nil, fmt.Errorf("%w: go vet ./%s shows all errors", err, dir)
	}
	for id, object := range info.Uses {
		if object.Pkg() != pkg {
			continue
		}
		from, to := filepath.Base(fset.Position(id.Pos()).Filename), filepath.Base(fset.Position(object.Pos()).Filename)
		if from != to {
			arrows[from][to] = true
		}
	}
	return arrows, nil
}

// fewestUpwards orders the nodes, the ground first, so that few arrows go upwards. The fewest cannot be found in time; what it finds
// depends on the graph alone.
func fewestUpwards(arrows graph) []string {
	rest := slices.Sorted(maps.Keys(arrows))
	var order []string
	for len(rest) > 0 {
		// Next is the node with the fewest arrows to nodes that have no place yet; of those, the one that most of them point to.
		best, bestOut, bestIn := 0, 0, 0
		for i, node := range rest {
			out, in := 0, 0
			for _, other := range rest {
				out += count(arrows[node][other])
				in += count(arrows[other][node])
			}
			if i == 0 || out < bestOut || out == bestOut && in > bestIn {
				best, bestOut, bestIn = i, out, in
			}
		}
		order = append(order, rest[best])
		rest = slices.Delete(rest, best, best+1)
	}
	for improved := true; improved; {
		improved = false
		for _, node := range slices.Clone(order) {
			improved = move(arrows, order, node) || improved
		}
	}
	return order
}

// move puts one node where it has the fewest arrows upwards, and tells whether that saves one.
func move(arrows graph, order []string, node string) bool {
	from := slices.Index(order, node)
	best, bestSaved := from, 0
	for _, step := range []int{-1, 1} {
		saved := 0
		for to := from + step; to >= 0 && to < len(order); to += step {
			// Passing a node turns the arrows between the two.
			saved += step * (count(arrows[node][order[to]]) - count(arrows[order[to]][node]))
			if saved > bestSaved {
				best, bestSaved = to, saved
			}
		}
	}
	if bestSaved == 0 {
		return false
	}
	copy(order, slices.Insert(slices.Delete(slices.Clone(order), from, from+1), best, node))
	return true
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

func places(order []string) map[string]int {
	at := map[string]int{}
	for i, node := range order {
		at[node] = i
	}
	return at
}

func upwards(arrows graph, order []string) int {
	n, at := 0, places(order)
	for from, targets := range arrows {
		for to := range targets {
			n += count(at[to] > at[from])
		}
	}
	return n
}

// downwards is the graph without the arrows upwards.
func downwards(arrows graph, order []string) map[string][]string {
	down, at := map[string][]string{}, places(order)
	for from, targets := range arrows {
		down[from] = nil
		for to := range targets {
			if at[to] < at[from] {
				down[from] = append(down[from], to)
			}
		}
	}
	return down
}
