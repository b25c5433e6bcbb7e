package lint_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// typeSwitches are the functions that have a case for each type of event, by directory. A type without one changes
// nothing in the fold, is missing from a state, or is shown as raw JSON, and no compiler reports that.
var typeSwitches = map[string][]string{
	"schema":         {"Head.applyKnown", "State.add"},
	"internal/story": {"Describe"},
}

// unfolded are the constants of events that are never folded.
var unfolded = []string{"Barrier", "RunErased"}

// vocabularyGaps finds types of events that are missing in one of the places: the names of the events, the map
// vocabulary, a method EventName, or one of the type switches.
func vocabularyGaps(files []file) []string {
	names, made, events := map[string]bool{}, map[string]bool{}, map[string]string{} // constants; of those in vocabulary; constants by type
	cases := map[string]map[string]bool{}                                            // types by directory and function
	for _, f := range files {
		if f.isTest() || typeSwitches[f.dir()] == nil {
			continue
		}
		for _, decl := range f.syntax.Decls {
			switch d := decl.(type) {
			case *ast.GenDecl:
				if f.dir() == "schema" {
					maps.Copy(names, eventConstants(d))
					maps.Copy(made, rowsOf(d))
				}
			case *ast.FuncDecl:
				name := d.Name.Name
				if d.Recv != nil {
					if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok {
						name = fmt.Sprint(star.X) + "." + name
					}
				}
				if typ, ok := strings.CutSuffix(name, ".EventName"); ok {
					ast.Inspect(d.Body, func(node ast.Node) bool {
						if result, ok := node.(*ast.ReturnStmt); ok && len(result.Results) == 1 {
							events[typ] = fmt.Sprint(result.Results[0])
						}
						return true
					})
					continue
				}
				if slices.Contains(typeSwitches[f.dir()], name) {
					cases[f.dir()+"."+name] = typesOfCases(d)
				}
			}
		}
	}
	var findings []string
	named := slices.Collect(maps.Values(events))
	for name := range names {
		if !slices.Contains(unfolded, name) && (!made[name] || !slices.Contains(named, name)) {
			findings = append(findings, fmt.Sprintf("schema.%s is an event without data: add it to vocabulary, and a type with a method EventName", name))
		}
	}
	for dir, places := range typeSwitches {
		for _, place := range places {
			for typ := range events {
				if !cases[dir+"."+place][typ] {
					findings = append(findings, fmt.Sprintf("%s has no case for *%s in a type switch (%s): add one, empty with a reason if nothing is to do",
						dir, typ, place))
				}
			}
		}
	}
	slices.Sort(findings)
	return findings
}

// eventConstants are the constants of the group that has RunStarted.
func eventConstants(d *ast.GenDecl) map[string]bool {
	all := map[string]bool{}
	for _, spec := range d.Specs {
		if value, ok := spec.(*ast.ValueSpec); ok && d.Tok == token.CONST {
			all[value.Names[0].Name] = true
		}
	}
	if !all["RunStarted"] {
		return nil
	}
	return all
}

func rowsOf(d *ast.GenDecl) map[string]bool {
	all := map[string]bool{}
	for _, spec := range d.Specs {
		value, ok := spec.(*ast.ValueSpec)
		if !ok || value.Names[0].Name != "vocabulary" || len(value.Values) != 1 {
			continue
		}
		ast.Inspect(value.Values[0], func(node ast.Node) bool {
			if pair, ok := node.(*ast.KeyValueExpr); ok {
				all[fmt.Sprint(pair.Key)] = true
			}
			return true
		})
	}
	return all
}

// typesOfCases are the pointed-to types in the cases of a function, without their package.
func typesOfCases(fn *ast.FuncDecl) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(fn, func(node ast.Node) bool {
		clause, ok := node.(*ast.CaseClause)
		if !ok {
			return true
		}
		for _, expr := range clause.List {
			star, ok := expr.(*ast.StarExpr)
			if !ok {
				continue
			}
			if selector, ok := star.X.(*ast.SelectorExpr); ok {
				all[selector.Sel.Name] = true
			} else {
				all[fmt.Sprint(star.X)] = true
			}
		}
		return true
	})
	return all
}

func TestVocabulary_EachEvent_HasAllItsPlaces(t *testing.T) {
	t.Parallel()
	report(t, vocabularyGaps(goFiles(t)))
}

func TestVocabularyGaps_MissingPlace_IsFound(t *testing.T) {
	t.Parallel()
	const (
		constants = "const (\n\tRunStarted = \"run.started\"\n\tNoteAdded = \"note.added\"\n\tBarrier = \"barrier\"\n)\n"
		made      = "var vocabulary = map[string]event{RunStarted: {}, NoteAdded: {}}\n"
		methods   = "func (*StartedData) EventName() string { return RunStarted }\nfunc (*NoteData) EventName() string { return NoteAdded }\n"
		head      = "func (h *Head) applyKnown() { switch d.(type) { case *StartedData: case *NoteData: } }\n"
		state     = "func (s *State) add() { switch d.(type) { case *StartedData: case *NoteData: } }\n"
		describe  = "func Describe() { switch d.(type) { case *schema.StartedData: case *schema.NoteData: } }\n"
	)
	for name, test := range map[string]struct{ old, want string }{
		"nothing":    {"", ""},
		"vocabulary": {", NoteAdded: {}", "schema.NoteAdded is an event without data"},
		"method":     {"func (*NoteData) EventName() string { return NoteAdded }\n", "schema.NoteAdded is an event without data"},
		"head":       {head, "(Head.applyKnown)"},
		"state":      {state, "(State.add)"},
		"describe":   {describe, "internal/story has no case for *NoteData in a type switch (Describe)"},
	} {
		without := func(path, source string) file {
			return parseFile(t, path, "package p\n"+strings.Replace(source, test.old, "", 1))
		}
		files := []file{without("schema/types.go", constants+made+methods), without("schema/apply.go", head+state), without("internal/story/a.go", describe)}
		findings := strings.Join(vocabularyGaps(files), "\n")
		if test.want == "" {
			require.Empty(t, findings, name)
			continue
		}
		require.Contains(t, findings, test.want, name)
	}
}
