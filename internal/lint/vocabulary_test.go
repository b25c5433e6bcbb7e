package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// typeSwitches are the functions that have a case for each type of event, by file. A type without one changes nothing in
// the fold, is missing from a state, or is shown as raw JSON, and no compiler reports that.
var typeSwitches = map[string][]string{
	"schema/applydata.go":             {"Head.applyKnown", "State.add"},
	"internal/look/story/describe.go": {"Describe"},
}

// unfolded are the names of events without a type of [schema.Data].
var unfolded = []string{schema.Barrier, schema.RunErased}

// vocabulary is what the repository says of events.
type vocabulary struct {
	// names are the values of the constants in the group that has RunStarted.
	names []string
	// cases are the types of data in the type switches, by file and function.
	cases map[string]map[string]bool
	// written are the types of data that publisher or consumer publish.
	written map[string]bool
	// transcripts and page are the texts of schema/testdata/fold and of the vocabulary in docs/events.md.
	transcripts, page string
}

// gaps names the missing places of the events: the known ones are types of data by name.
func (v *vocabulary) gaps(known map[string]string) []string {
	var findings []string
	missing := func(file, format string, args ...any) {
		findings = append(findings, file+": "+fmt.Sprintf(format, args...))
	}
	for _, name := range v.names {
		typ, ok := known[name]
		switch {
		case ok:
		case slices.Contains(unfolded, name):
			continue
		default:
			missing("schema/types.go", "%s has no data: add its type with a method EventName, and a row of vocabulary", name)
			continue
		}
		for file, functions := range typeSwitches {
			for _, function := range functions {
				if !v.cases[file+" "+function][typ] {
					missing(file, "%s has no case for *%s: add one, empty with a reason if nothing is to do", function, typ)
				}
			}
		}
		if !strings.Contains(v.transcripts, name+" {") && name != schema.RunResumed { // the lines "takeover" are of it
			missing("schema/testdata/fold/*.txt", "no transcript tells of %s: write one with its story and a line %q; go test ./schema -update adds what the fold says",
				name, "write "+name+" {…}")
		}
		if !v.written[typ] {
			missing("publisher", "nothing publishes a %s: add the method, and its name to the overview in publisher/doc.go", typ)
		}
		if !strings.Contains(v.page, "`"+name+"`") {
			missing("docs/events.md", "%s has no row: go test ./docs/examples -run Vocabulary -update writes it", name)
		}
	}
	slices.Sort(findings)
	return findings
}

// read takes what a Go file says of events.
func (v *vocabulary) read(f file) {
	if f.isTest() {
		return
	}
	switch dir := f.dir(); {
	case within(dir, "publisher"), within(dir, "consumer"):
		ast.Inspect(f.syntax, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.CompositeLit:
				v.written[typeName(n.Type)] = true
			case *ast.FuncType: // the caller makes the data
				for _, p := range n.Params.List {
					v.written[typeName(p.Type)] = true
				}
			}
			return true
		})
	case typeSwitches[f.path] != nil || f.path == "schema/types.go":
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				v.names = append(v.names, eventConstants(d)...)
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					name = typeName(d.Recv.List[0].Type) + "." + name
				}
				v.cases[f.path+" "+name] = typesOfCases(d)
			}
		}
	}
}

// eventConstants are the values of the group of constants that has RunStarted.
func eventConstants(d *ast.GenDecl) []string {
	var values []string
	found := false
	for _, spec := range d.Specs {
		value, ok := spec.(*ast.ValueSpec)
		if !ok || d.Tok != token.CONST || len(value.Values) != 1 {
			continue
		}
		found = found || value.Names[0].Name == "RunStarted"
		if literal, ok := value.Values[0].(*ast.BasicLit); ok && literal.Kind == token.STRING {
			text, _ := strconv.Unquote(literal.Value) // the parser has read it
			values = append(values, text)
		}
	}
	if !found {
		return nil
	}
	return values
}

// typesOfCases are the pointed-to types in the cases of a function, without their package.
func typesOfCases(fn *ast.FuncDecl) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(fn, func(node ast.Node) bool {
		if clause, ok := node.(*ast.CaseClause); ok {
			for _, expr := range clause.List {
				all[typeName(expr)] = true
			}
		}
		return true
	})
	return all
}

// typeName is the name of a type or of what it points to, without its package; "" for another expression.
func typeName(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func TestVocabulary_EachEvent_HasAllItsPlaces(t *testing.T) {
	t.Parallel()
	v := &vocabulary{cases: map[string]map[string]bool{}, written: map[string]bool{}}
	v.page, _, _ = strings.Cut(read(t, "docs/events.md"), "\n## The wire")
	for _, f := range goFiles(t) {
		v.read(f)
	}
	transcripts, err := filepath.Glob("../../schema/testdata/fold/*.txt")
	require.NoError(t, err)
	for _, name := range transcripts {
		v.transcripts += read(t, strings.TrimPrefix(filepath.ToSlash(name), "../../"))
	}
	known := map[string]string{}
	for _, name := range schema.EventNames() {
		known[name] = reflect.TypeOf(schema.NewData(name)).Elem().Name()
	}
	require.Subset(t, v.names, slices.Collect(maps.Keys(known)))
	report(t, v.gaps(known))
}

func TestVocabularyGaps_MissingPlace_IsFound(t *testing.T) {
	t.Parallel()
	sources := map[string]string{
		"schema/types.go":                 "const (\n\tRunStarted = \"run.started\"\n\tNoteAdded = \"note.added\"\n\tBarrier = \"barrier.published\"\n)\n",
		"schema/applydata.go":             "func (h *Head) applyKnown() { switch d.(type) { case *StartedData, *NoteData: } }\nfunc (s *State) add() { switch d.(type) { case *NoteData, *StartedData: } }\n",
		"internal/look/story/describe.go": "func Describe() { switch d.(type) { case *schema.StartedData: case *schema.NoteData: } }\n",
		"publisher/a.go":                  "func (r *Run) Note() { r.write(&schema.NoteData{}) }\nfunc (r *Run) Start(d schema.StartedData) {}\n",
	}
	for name, test := range map[string]struct{ file, old, want string }{
		"nothing":    {},
		"head":       {"schema/applydata.go", "*StartedData, *NoteData", "schema/applydata.go: Head.applyKnown has no case for *NoteData"},
		"state":      {"schema/applydata.go", "*NoteData, *StartedData", "schema/applydata.go: State.add has no case for *NoteData"},
		"describe":   {"internal/look/story/describe.go", "case *schema.NoteData:", "internal/look/story/describe.go: Describe has no case for *NoteData"},
		"written":    {"publisher/a.go", "&schema.NoteData{}", "publisher: nothing publishes a NoteData"},
		"parameter":  {"publisher/a.go", "d schema.StartedData", "publisher: nothing publishes a StartedData"},
		"transcript": {"fold", "note.added {}", "schema/testdata/fold/*.txt: no transcript tells of note.added"},
		"page":       {"page", "`note.added`", "docs/events.md: note.added has no row"},
		"data":       {"known", "", "schema/types.go: note.added has no data"},
	} {
		v := &vocabulary{cases: map[string]map[string]bool{}, written: map[string]bool{}, transcripts: "write run.started {}\nwrite note.added {}", page: "`run.started`, `note.added`"}
		known := map[string]string{"run.started": "StartedData", "note.added": "NoteData"}
		for path, source := range sources {
			if path == test.file {
				source = strings.Replace(source, test.old, "", 1)
				source = strings.ReplaceAll(source, "case :", "")
			}
			v.read(parseFile(t, path, "package p\n"+source))
		}
		switch test.file {
		case "fold":
			v.transcripts = strings.Replace(v.transcripts, test.old, "", 1)
		case "page":
			v.page = strings.Replace(v.page, test.old, "", 1)
		case "known":
			delete(known, "note.added")
		}
		findings := strings.Join(v.gaps(known), "\n")
		if test.want == "" {
			require.Empty(t, findings, name)
			continue
		}
		require.Contains(t, findings, test.want, name)
	}
}
