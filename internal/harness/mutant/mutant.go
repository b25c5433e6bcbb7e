package mutant

import (
	"embed"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
)

// Variable of the environment names the mutant of a process of its own.
const Variable = "WAYMARK_MUTANT"

//go:embed patches/*.patch
var patches embed.FS

// Mutant is one mistake.
type Mutant struct {
	// Name is that of the patch file, without its extension.
	Name string
	// Mistake is the mutant's effect, Promise the promise that it breaks.
	Mistake, Promise string
	// FoundBy is the test that finds it: the package's directory, a dot, the test's name.
	FoundBy string
	// Patch is the file.
	Patch string
}

// All returns the mutants by name. A file without the three lines of its head is an error.
func All() ([]Mutant, error) {
	files, err := patches.ReadDir("patches")
	if err != nil {
		return nil, err
	}
	all := make([]Mutant, 0, len(files))
	for _, f := range files {
		text, err := patches.ReadFile("patches/" + f.Name())
		if err != nil {
			return nil, err
		}
		m := Mutant{Name: strings.TrimSuffix(f.Name(), ".patch"), Patch: string(text)}
		rest := m.Patch
		for _, field := range []struct {
			label string
			value *string
		}{{"Mistake: ", &m.Mistake}, {"Promise: ", &m.Promise}, {"Found by: ", &m.FoundBy}} {
			line, after, _ := strings.Cut(rest, "\n")
			value, ok := strings.CutPrefix(line, field.label)
			if !ok || value == "" {
				return nil, fmt.Errorf("mutant %s: the line %q has to be %q and a text", m.Name, line, field.label)
			}
			*field.value, rest = value, after
		}
		m.FoundBy = strings.Trim(m.FoundBy, "`")
		all = append(all, m)
	}
	return all, nil
}

// current is the name of the mutant that is on, empty for none.
var current atomic.Pointer[string]

func init() {
	name := os.Getenv(Variable)
	if err := known(name); err != nil {
		panic(fmt.Errorf("%s: %w", Variable, err)) // a test that asks for nothing proves nothing
	}
	current.Store(&name)
}

func known(name string) error {
	if name == "" {
		return nil
	}
	all, err := All()
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(m Mutant) bool { return m.Name == name }) {
		return fmt.Errorf("there is no mutant %q: see internal/harness/mutant/patches", name)
	}
	if !overlaid {
		return fmt.Errorf("mutant %q is not in this binary: build it with the overlay, as \"make chaos-check\" does", name)
	}
	return nil
}

// Switch turns a mutant on, replacing the previous one, until undo is called. It is for one test at a time.
func Switch(name string) (undo func(), err error) {
	if err := known(name); err != nil {
		return nil, err
	}
	before := current.Swap(&name)
	return func() { current.Store(before) }, nil
}

// On reports whether a mutant is on. The overlay's copies of product files call it.
func On(name string) bool { return *current.Load() == name }
