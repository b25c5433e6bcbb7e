package walks

import (
	"errors"
	"fmt"
	"go/ast"
	"regexp"
	"slices"
	"strings"
)

// Page is the file with the walks.
const Page = "docs/walks.md"

// File is a Go file that is no test: its path from the root, with slashes, and its syntax.
type File struct {
	Path   string
	Syntax *ast.File
}

// Walk is what a reader passes who follows the calls of one walk and returns from each.
type Walk struct {
	Title string
	// Functions of the walk, and Files that declare them.
	Functions, Files int
	// Stays are the times that the reader comes into another file.
	Stays int
}

// Returns are the stays in files that had one.
func (w Walk) Returns() int { return w.Stays - w.Files }

// step is an item of the list: indented below the function that calls it. A step with words before its name is reached in another way.
var step = regexp.MustCompile("^( *)- ([^`]*)`([a-z0-9_/]+)\\.([A-Za-z0-9_.]+)`")

type function struct {
	file string
	body *ast.BlockStmt
}

type frame struct {
	depth int
	name  string
	fn    function
}

// Measure counts the walks of the page. The error names each step whose function is not there, or is not named by the one above it.
func Measure(page string, files []File) ([]Walk, error) {
	functions := functionsOf(files)
	var walks []Walk
	var wrong []error
	var stack []frame
	var path []string // the files of the walk in their order
	finish := func() {
		for i := len(stack) - 2; i >= 0; i-- {
			path = append(path, stack[i].fn.file)
		}
		if len(walks) > 0 {
			w := &walks[len(walks)-1]
			path = slices.Compact(path)
			w.Stays = len(path)
			slices.Sort(path)
			w.Files = len(slices.Compact(path))
		}
		stack, path = nil, nil
	}
	for i, line := range strings.Split(page, "\n") {
		if title, ok := strings.CutPrefix(line, "## "); ok {
			finish()
			walks = append(walks, Walk{Title: title})
			continue
		}
		m := step.FindStringSubmatch(line)
		if m == nil || len(walks) == 0 {
			continue
		}
		depth, name := len(m[1]), m[3]+"."+m[4]
		for len(stack) > 0 && stack[len(stack)-1].depth >= depth {
			stack = stack[:len(stack)-1]
			if len(stack) > 0 {
				path = append(path, stack[len(stack)-1].fn.file)
			}
		}
		fn, ok := functions[name]
		switch {
		case !ok:
			wrong = append(wrong, fmt.Errorf("%s:%d: there is no function %s%s", Page, i+1, name, elsewhere(functions, m[4])))
			continue
		case len(stack) > 0 && m[2] == "" && !names(stack[len(stack)-1].fn.body, last(m[4])):
			wrong = append(wrong, fmt.Errorf("%s:%d: %s does not name %s: indent it below the function that calls it, or say before its name how it is reached",
				Page, i+1, stack[len(stack)-1].name, name))
		}
		stack = append(stack, frame{depth, name, fn})
		path = append(path, fn.file)
		walks[len(walks)-1].Functions++
	}
	finish()
	return walks, errors.Join(wrong...)
}

// functionsOf finds all functions and methods, by folder, type and name.
func functionsOf(files []File) map[string]function {
	all := map[string]function{}
	for _, f := range files {
		dir := f.Path[:strings.LastIndex("/"+f.Path, "/")]
		dir = strings.TrimSuffix(dir, "/")
		for _, decl := range f.Syntax.Decls {
			fn, ok := decl.(*ast.FuncDecl)
			if !ok || fn.Body == nil {
				continue
			}
			name := fn.Name.Name
			if fn.Recv != nil {
				expr := fn.Recv.List[0].Type
				if star, ok := expr.(*ast.StarExpr); ok {
					expr = star.X
				}
				name = fmt.Sprint(expr) + "." + name
			}
			all[dir+"."+name] = function{f.Path, fn.Body}
		}
	}
	return all
}

func last(name string) string { return name[strings.LastIndex(name, ".")+1:] }

// elsewhere names functions that may be the one that is missing.
func elsewhere(functions map[string]function, name string) string {
	var found []string
	for other := range functions {
		if last(other) == last(name) {
			found = append(found, other)
		}
	}
	slices.Sort(found)
	if len(found) == 0 {
		return ": write which one the walk passes now"
	}
	return ": is it " + strings.Join(found[:min(len(found), 4)], " or ") + "?"
}

func names(body *ast.BlockStmt, name string) bool {
	found := false
	ast.Inspect(body, func(node ast.Node) bool {
		id, ok := node.(*ast.Ident)
		found = found || ok && id.Name == name
		return !found
	})
	return found
}
