package overlay

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/waymarkio/waymark/internal/harness/mutant"
)

// overlaid is the file of package mutant that says that the mutants are present.
const overlaid = "internal/harness/mutant/overlaid.go"

// variant is a file as one mutant has it.
type variant struct {
	mutant string
	source []byte
}

// Write puts the mutants into copies of the files of a module that they touch, below dir. It returns the path of the file
// that "go build -overlay" reads.
func Write(root, dir string, mutants []mutant.Mutant) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil { // git compares it with its working directory
		return "", err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	variants := map[string][]variant{}
	for i := range mutants {
		changed, err := apply(root, dir, &mutants[i])
		if err != nil {
			return "", fmt.Errorf("mutant %s: %w", mutants[i].Name, err)
		}
		for name, source := range changed {
			variants[name] = append(variants[name], variant{mutant: mutants[i].Name, source: source})
		}
	}
	copies := map[string][]byte{overlaid: []byte("package mutant\n\nconst overlaid = true\n")}
	for name, list := range variants {
		slices.SortFunc(list, func(a, b variant) int { return strings.Compare(a.mutant, b.mutant) })
		base, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if len(list) > 1 {
				return "", fmt.Errorf("mutants %s and %s add the same file %s: rename one", list[0].mutant, list[1].mutant, name)
			}
			copies[name] = list[0].source
		case err != nil:
			return "", err
		default:
			if copies[name], err = merge(filepath.Join(root, filepath.FromSlash(name)), base, list); err != nil {
				return "", err
			}
		}
	}
	replace := map[string]string{}
	for name, source := range copies {
		path := filepath.Join(dir, "merged", filepath.FromSlash(name))
		if err := write(path, source); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = path
	}
	text, err := json.MarshalIndent(map[string]any{"Replace": replace}, "", "  ")
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, write(file, text)
}

func write(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644) //nolint:gosec // source code
}

// apply returns the files that a mutant changes or adds, by their path in the module, as its patch leaves them.
func apply(root, dir string, m *mutant.Mutant) (map[string][]byte, error) {
	work := filepath.Join(dir, m.Name)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return nil, err
	}
	listed, err := git(work, m.Patch, "--numstat", "-z")
	if err != nil {
		return nil, err
	}
	changed := map[string][]byte{}
	for entry := range strings.SplitSeq(strings.TrimSuffix(listed, "\x00"), "\x00") {
		fields := strings.SplitN(entry, "\t", 3)
		if len(fields) != 3 || filepath.Ext(fields[2]) != ".go" || strings.HasSuffix(fields[2], "_test.go") {
			return nil, fmt.Errorf("the patch touches %q: it may change and add Go files of the product, and nothing else", entry)
		}
		name := fields[2]
		source, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(name)))
		if err == nil {
			err = write(filepath.Join(work, filepath.FromSlash(name)), source)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		changed[name] = source
	}
	if _, err := git(work, m.Patch, "--whitespace=nowarn"); err != nil {
		return nil, fmt.Errorf(`the patch does not apply to the source any more: make the mistake again in the source, renew the patch below the head of internal/harness/mutant/patches/%s.patch by "git diff", and take the mistake back: %w`, m.Name, err)
	}
	for name, before := range changed {
		after, err := os.ReadFile(filepath.Join(work, filepath.FromSlash(name)))
		if err != nil {
			return nil, fmt.Errorf("the patch removes %s, which a switch cannot: %w", name, err)
		}
		if string(after) == string(before) {
			return nil, fmt.Errorf("the patch leaves %s as it is", name)
		}
		changed[name] = after
	}
	return changed, nil
}

// git runs "git apply" in a directory without a repository.
func git(work, patch string, args ...string) (string, error) {
	cmd := exec.Command("git", append([]string{"-c", "core.autocrlf=false", "apply"}, args...)...) //nolint:noctx // reads a small patch
	cmd.Dir = work
	cmd.Stdin = strings.NewReader(patch)
	// Otherwise git would use a git hook's own repository, or one around the directory.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "GIT_") })
	cmd.Env = append(cmd.Env, "GIT_CEILING_DIRECTORIES="+filepath.Dir(work))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git apply: %w\n%s", err, stderr.String())
	}
	return string(out), nil
}
