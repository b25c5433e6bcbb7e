package natsconn

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// configDir is where the NATS tools keep their contexts: the same on every system.
func configDir(getenv func(string) string) (string, error) {
	if dir := getenv("XDG_CONFIG_HOME"); dir != "" {
		return filepath.Join(dir, "nats"), nil
	}
	home := getenv("HOME")
	if runtime.GOOS == "windows" {
		home = getenv("USERPROFILE")
	}
	if home == "" {
		return "", fmt.Errorf("%w: there is no home directory to look in", ErrUnknownContext)
	}
	return filepath.Join(home, ".config", "nats"), nil
}

// contextPath returns the file of a context: the path itself, or the file of the name.
func contextPath(nameOrPath string, getenv func(string) string) (string, error) {
	if strings.HasSuffix(nameOrPath, ".json") || strings.ContainsAny(nameOrPath, `/\`) {
		path, err := filepath.Abs(nameOrPath)
		if err != nil {
			return "", fmt.Errorf("%w %q: %w", ErrUnknownContext, nameOrPath, err)
		}
		if err := readable(path); err != nil {
			return "", fmt.Errorf("%w: %w", ErrUnknownContext, err)
		}
		return path, nil
	}
	dir, err := configDir(getenv)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(dir, "context")
	if strings.Contains(nameOrPath, "..") {
		return "", fmt.Errorf("%w %q: not a name", ErrUnknownContext, nameOrPath)
	}
	path := filepath.Join(dir, nameOrPath+".json")
	err = readable(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w %q does not exist in %s; %s", ErrUnknownContext, nameOrPath, dir, known(dir))
	case err != nil:
		return "", fmt.Errorf("%w %q: %w", ErrUnknownContext, nameOrPath, err)
	}
	return path, nil
}

// ContextName is the name of a context that is given by name, or by its path in the folder of the NATS tools; else "".
func ContextName(nameOrPath string, getenv func(string) string) string {
	if !strings.ContainsAny(nameOrPath, `/\`) && !strings.HasSuffix(nameOrPath, ".json") {
		return nameOrPath
	}
	dir, err := configDir(getenv)
	if path, absErr := filepath.Abs(nameOrPath); err != nil || absErr != nil || filepath.Dir(path) != filepath.Join(dir, "context") {
		return ""
	}
	return strings.TrimSuffix(filepath.Base(nameOrPath), ".json")
}

// known lists the existing contexts.
func known(dir string) string {
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil || len(files) == 0 {
		return "there are none"
	}
	for i, file := range files {
		files[i] = strings.TrimSuffix(filepath.Base(file), ".json")
	}
	slices.Sort(files)
	if len(files) > 10 {
		files = append(files[:10], "…")
	}
	return "there are: " + strings.Join(files, ", ")
}

// selectedContext is the name chosen with "nats context select", or "".
func selectedContext(getenv func(string) string) string {
	dir, err := configDir(getenv)
	if err != nil {
		return ""
	}
	b, err := os.ReadFile(filepath.Join(dir, "context.txt"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// contextURL is the address in a context file. A domain or prefix of JetStream's API would be ignored.
func contextURL(path string) (string, error) {
	var content struct {
		URL    string `json:"url"`
		Domain string `json:"jetstream_domain"`
		Prefix string `json:"jetstream_api_prefix"`
	}
	if err := ReadState(path, &content); err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknownContext, err)
	}
	for name, value := range map[string]string{"jetstream_domain": content.Domain, "jetstream_api_prefix": content.Prefix} {
		if value != "" {
			return "", fmt.Errorf("%w: context %s has %s %q, which is not supported: name a server of that domain in a context without it", ErrSettings, path, name, value)
		}
	}
	return content.URL, nil
}
