package overlay

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
)

// parsed is a Go file with its declarations by name.
type parsed struct {
	path   string
	source []byte
	fset   *token.FileSet
	syntax *ast.File
	funcs  map[string]*ast.FuncDecl
	// others are the declarations that are neither functions nor imports, by the names that they declare.
	others map[string]*ast.GenDecl
	// imports are lines of import declarations.
	imports []string
}

func parse(path string, source []byte) (*parsed, error) {
	p := &parsed{path: path, source: source, fset: token.NewFileSet(), funcs: map[string]*ast.FuncDecl{}, others: map[string]*ast.GenDecl{}}
	var err error
	if p.syntax, err = parser.ParseFile(p.fset, path, source, parser.SkipObjectResolution); err != nil {
		return nil, err
	}
	for _, spec := range p.syntax.Imports {
		p.imports = append(p.imports, p.text(spec.Pos(), spec.End()))
	}
	for _, decl := range p.syntax.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = p.text(d.Recv.List[0].Type.Pos(), d.Recv.List[0].Type.End()) + "." + name
			}
			p.funcs[name] = d
		case *ast.GenDecl:
			if d.Tok != token.IMPORT {
				p.others[p.declared(d)] = d
			}
		}
	}
	return p, nil
}

// declared are the names of a declaration.
func (p *parsed) declared(d *ast.GenDecl) string {
	var names []string
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			names = append(names, s.Name.Name)
		case *ast.ValueSpec:
			for _, n := range s.Names {
				names = append(names, n.Name)
			}
		}
	}
	return strings.Join(names, ", ")
}

func (p *parsed) offset(at token.Pos) int { return p.fset.Position(at).Offset }

func (p *parsed) text(from, to token.Pos) string {
	return string(p.source[p.offset(from):p.offset(to)])
}

// mark makes stack traces name the origin of a copied text.
func (p *parsed) mark(at token.Pos) string {
	pos := p.fset.Position(at)
	return fmt.Sprintf("/*line %s:%d:%d*/", p.path, pos.Line, pos.Column)
}

// merge combines all variants of a file into one, each behind its switch.
func merge(path string, source []byte, variants []variant) ([]byte, error) {
	base, err := parse(path, source)
	if err != nil {
		return nil, err
	}
	// bodies are the texts after the opening brace of a function; more is the mutants' additions to the file.
	bodies := map[string]string{}
	imports := []string{`mutants__ "github.com/waymarkio/waymark/internal/harness/mutant"`}
	var more strings.Builder
	for _, v := range variants {
		changed, err := parse(path, v.source)
		if err == nil {
			err = base.admit(changed)
		}
		if err != nil {
			return nil, fmt.Errorf("mutant %s, file %s: %w", v.mutant, path, err)
		}
		switched := false
		for _, name := range slices.Sorted(maps.Keys(changed.funcs)) {
			after := changed.funcs[name]
			before, ok := base.funcs[name]
			if !ok {
				fmt.Fprintf(&more, "\n%s%s\n", changed.mark(after.Pos()), changed.text(after.Pos(), after.End()))
				continue
			}
			if after.Body == nil || changed.text(after.Body.Pos(), after.Body.End()) == base.text(before.Body.Pos(), before.Body.End()) {
				continue
			}
			switched = true
			bodies[name] += changed.behindSwitch(v.mutant, after)
		}
		for _, names := range slices.Sorted(maps.Keys(changed.others)) {
			if _, ok := base.others[names]; !ok {
				d := changed.others[names]
				fmt.Fprintf(&more, "\n%s%s\n", changed.mark(d.Pos()), changed.text(d.Pos(), d.End()))
			}
		}
		if !switched {
			return nil, fmt.Errorf("mutant %s changes no function of %s", v.mutant, path)
		}
		for _, line := range changed.imports {
			if !slices.Contains(base.imports, line) && !slices.Contains(imports, line) {
				imports = append(imports, line)
			}
		}
	}
	return base.with(imports, bodies, more.String()), nil
}

// admit refuses changes that a switch inside a function cannot make.
func (p *parsed) admit(changed *parsed) error {
	for name, before := range p.funcs {
		after, ok := changed.funcs[name]
		if !ok {
			return fmt.Errorf("function %s is gone: a mutant can change bodies of functions, and add declarations and files", name)
		}
		if p.text(before.Pos(), before.Type.End()) != changed.text(after.Pos(), after.Type.End()) || (before.Body == nil) != (after.Body == nil) {
			return fmt.Errorf("the signature of %s differs: a mutant can change bodies of functions, and add declarations and files", name)
		}
	}
	for names, before := range p.others {
		after, ok := changed.others[names]
		if !ok || p.text(before.Pos(), before.End()) != changed.text(after.Pos(), after.End()) {
			return fmt.Errorf("the declaration of %s differs: a mutant can change bodies of functions, and add declarations and files", names)
		}
	}
	return nil
}

// behindSwitch is the body of a function for a process that makes the mistake.
func (p *parsed) behindSwitch(name string, f *ast.FuncDecl) string {
	end := ""
	if f.Type.Results == nil {
		end = "\nreturn"
	}
	return fmt.Sprintf("\nif mutants__.On(%q) {%s%s%s\n}", name, p.mark(f.Body.Lbrace+1), p.text(f.Body.Lbrace+1, f.Body.Rbrace), end)
}

// with is the file with more imports, with more at the beginning of functions, and with more at its end.
func (p *parsed) with(imports []string, bodies map[string]string, more string) []byte {
	inserted := map[int]string{p.offset(p.syntax.Name.End()): "; import " + strings.Join(imports, "; import ")}
	for name, body := range bodies {
		at := p.funcs[name].Body.Lbrace + 1
		inserted[p.offset(at)] = body + p.mark(at)
	}
	var out bytes.Buffer
	from := 0
	for _, at := range slices.Sorted(maps.Keys(inserted)) {
		out.Write(p.source[from:at])
		out.WriteString(inserted[at])
		from = at
	}
	out.Write(p.source[from:])
	out.WriteString(more)
	return out.Bytes()
}
