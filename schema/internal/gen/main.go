// Command gen writes schema/jsonschema from the Go types of package schema, their comments,
// their constants and the rules of their fields. Run it by go generate ./schema/...
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1) //nolint:forbidigo // a main of its own
	}
}

// run writes the generated files below dir, the directory of package schema, and removes those that are no longer
// generated.
func run(dir string) error {
	files, err := generate(dir)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(dir, schemaDir, "*.json"))
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range old {
		if _, ok := files[schemaDir+"/"+filepath.Base(path)]; !ok {
			errs = append(errs, os.Remove(path))
		}
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		errs = append(errs, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, text, 0o644))
	}
	return errors.Join(errs...)
}

const schemaDir = "jsonschema"

// generate returns the generated files by their path below the directory of package schema.
func generate(dir string) (map[string][]byte, error) {
	b, err := newBuilder(dir)
	if err != nil {
		return nil, err
	}
	if err := b.buildAll(); err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	for _, d := range b.documents() {
		if files[schemaDir+"/"+d.file+".json"], err = encode(b.standalone(d)); err != nil {
			return nil, err
		}
	}
	return files, nil
}

func encode(v any) ([]byte, error) {
	text, err := json.Marshal(v, json.Deterministic(true), jsontext.WithIndent("  "))
	if err != nil {
		return nil, err
	}
	return append(text, '\n'), nil
}
