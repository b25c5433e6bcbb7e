package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// source is what only the source text of package schema has: comments and the values of constants.
type source struct {
	// doc of types (Message) and fields (Message.Role).
	doc map[string]string
	// values of the constants of each named string type, in order.
	values map[string][]string
	// parts are the values of the untyped constants Part….
	parts []string
	// wire are the struct types of wire.go.
	wire []string
}

func readSource(dir string) (*source, error) {
	s := &source{doc: map[string]string{}, values: map[string][]string{}}
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, decl := range file.Decls {
			if group, ok := decl.(*ast.GenDecl); ok {
				s.read(filepath.Base(name), group)
			}
		}
	}
	return s, nil
}

func (s *source) read(file string, group *ast.GenDecl) {
	for _, spec := range group.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			doc := spec.Doc
			if doc == nil {
				doc = group.Doc
			}
			s.doc[spec.Name.Name] = plain(doc)
			fields, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			if file == "wire.go" || file == "serviceerror.go" {
				s.wire = append(s.wire, spec.Name.Name)
			}
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					s.doc[spec.Name.Name+"."+name.Name] = plain(field.Doc)
				}
			}
		case *ast.ValueSpec:
			s.readConstant(spec)
		}
	}
}

func (s *source) readConstant(spec *ast.ValueSpec) {
	if len(spec.Values) != 1 || len(spec.Names) != 1 {
		return
	}
	literal, ok := spec.Values[0].(*ast.BasicLit)
	if !ok || literal.Kind != token.STRING {
		return
	}
	value, err := strconv.Unquote(literal.Value)
	if err != nil {
		return
	}
	if named, ok := spec.Type.(*ast.Ident); ok {
		s.values[named.Name] = append(s.values[named.Name], value)
	} else if strings.HasPrefix(spec.Names[0].Name, "Part") {
		s.parts = append(s.parts, value)
	}
}

// plain returns a comment as one paragraph, without the brackets of links.
func plain(doc *ast.CommentGroup) string {
	text := strings.Join(strings.Fields(doc.Text()), " ")
	return strings.NewReplacer("[", "", "]", "").Replace(text)
}
