package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is the command whose packages and size are measured.
const program = "cmd/waymark"

// command runs a program in the tree and returns what it prints.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// linked counts the packages of the binary, and its bytes if asked.
func (t *tree) linked(ctx context.Context, size bool) (section, error) {
	s := section{title: "Linked into " + program, columns: []string{"count"}}
	if _, err := os.Stat(filepath.Join(t.root, program)); errors.Is(err, fs.ErrNotExist) {
		return s, nil // a module without the command has nothing to count
	}
	out, err := command(ctx, t.root, "go", "list", "-deps", "./"+program)
	if err != nil {
		return s, err
	}
	ours, packages := 0, strings.Fields(string(out))
	for _, p := range packages {
		if strings.HasPrefix(p, t.module+"/") {
			ours++
		}
	}
	s.add("packages", len(packages))
	s.add("packages of this module", ours)
	if !size {
		return s, nil
	}
	dir, err := os.MkdirTemp("", "structure-")
	if err != nil {
		return s, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary := filepath.Join(dir, "binary")
	if _, err := command(ctx, t.root, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", binary, "./"+program); err != nil {
		return s, err
	}
	info, err := os.Stat(binary)
	if err != nil {
		return s, err
	}
	s.add("KiB of the stripped binary", int(info.Size()>>10))
	return s, nil
}

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
}

// list returns a package and all that it imports, with their export data.
func list(ctx context.Context, root, pkg string) ([]listed, error) {
	out, err := command(ctx, root, "go", "list", "-deps", "-export", "-json=ImportPath,Dir,Export,GoFiles", pkg)
	if err != nil {
		return nil, err
	}
	var all []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
}

// measureRevision measures the tree of a git revision, in a folder of its own.
func measureRevision(ctx context.Context, root, revision string, o options) ([]section, error) {
	if _, err := command(ctx, root, "git", "rev-parse", "--verify", "--quiet", "--end-of-options", revision+"^{commit}"); err != nil {
		return nil, fmt.Errorf("git knows no revision %q here: git log --oneline lists them", revision)
	}
	dir, err := os.MkdirTemp("", "structure-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	out, err := command(ctx, root, "git", "archive", "--format=tar", revision)
	if err != nil {
		return nil, err
	}
	if err := unpack(bytes.NewReader(out), dir); err != nil {
		return nil, err
	}
	sections, err := measure(ctx, dir, o)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", revision, err)
	}
	return sections, nil
}

func unpack(archive io.Reader, dir string) error {
	into, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = into.Close() }()
	for reader := tar.NewReader(archive); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		switch header.Typeflag {
		case tar.TypeDir:
			err = into.MkdirAll(filepath.Clean(header.Name), 0o700)
		case tar.TypeReg:
			var content []byte
			if content, err = io.ReadAll(reader); err == nil {
				err = into.WriteFile(header.Name, content, 0o600)
			}
		}
		if err != nil {
			return err
		}
	}
}
