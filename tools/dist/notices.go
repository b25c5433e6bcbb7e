package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// licenceFile matches files whose text must accompany the binary.
var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)([-._].*)?$`)

var errNoLicence = errors.New("no licence is there")

// listed is a package in the output of "go list".
type listed struct {
	Dir      string
	Standard bool
	Module   *struct {
		Path, Version, Dir string
		Main               bool
	}
}

// notices are the licences of all that is linked into the binaries, word for word. Their owners ask for that. A module's are those of its root
// and of the folders of its packages that are linked: copies of other people's code have theirs in the same folder. internal/lint refuses modules
// whose licences ask for more.
func notices(ctx context.Context, root string) ([]byte, error) {
	r := release{root: root}
	platforms, err := parsePlatforms(all) // one file for all, whichever are built
	if err != nil {
		return nil, err
	}
	texts := map[string][]string{} // files of a module's licences
	for _, p := range platforms {
		out, err := r.command(ctx, []string{"GOOS=" + p.os, "GOARCH=" + p.arch, "CGO_ENABLED=0"},
			"go", "list", "-deps", "-json=Dir,Standard,Module", "./cmd/waymark")
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var pkg listed
			if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("go list: %w", err)
			}
			if pkg.Module == nil || pkg.Module.Main {
				continue
			}
			name := pkg.Module.Path + " " + pkg.Module.Version
			for dir := pkg.Dir; ; dir = filepath.Dir(dir) {
				files, err := licencesIn(dir)
				if err != nil {
					return nil, err
				}
				for _, file := range files {
					if !slices.Contains(texts[name], file) {
						texts[name] = append(texts[name], file)
					}
				}
				if dir == pkg.Module.Dir {
					break
				}
			}
			if len(texts[name]) == 0 {
				return nil, fmt.Errorf("%s in %s: %w", name, pkg.Module.Dir, errNoLicence)
			}
		}
	}
	goroot, err := r.command(ctx, nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	standard, err := licencesIn(strings.TrimSpace(string(goroot)))
	if err != nil {
		return nil, err
	}
	if len(standard) == 0 {
		return nil, fmt.Errorf("the Go standard library in %s: %w", bytes.TrimSpace(goroot), errNoLicence)
	}
	var b bytes.Buffer
	b.WriteString("The binary of Waymark contains the following software. Waymark itself is under the licence in LICENSE.\n")
	write := func(name string, files []string) error {
		for _, file := range slices.Sorted(slices.Values(files)) {
			text, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "\n%s\n%s: %s\n\n%s\n", strings.Repeat("=", 80), name, filepath.Base(file), bytes.TrimSpace(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n"))))
		}
		return nil
	}
	if err := write("Go standard library", standard); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if err := write(name, texts[name]); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

// licencesIn are the files of licences in one folder.
func licencesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if e.Type().IsRegular() && licenceFile.MatchString(e.Name()) && !strings.HasSuffix(e.Name(), ".go") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	return files, nil
}
