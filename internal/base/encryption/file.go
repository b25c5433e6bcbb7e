package encryption

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// ErrKeyFile comes for a file without keys, or with an invalid line. Write an id and a key on a line, such as: k1
// $(openssl rand -base64 32).
var ErrKeyFile = errors.New("key file cannot be used")

const lineHint = "write an id and a key on a line, such as: k1 $(openssl rand -base64 32)"

// File are the keys of a file.
type File struct {
	// Current is the id of the first key.
	Current string
	keys    map[string][]byte
}

// ReadFile reads keys from a file: one per line, its id and its 32 bytes in base64, with white space between them.
// Empty lines, and those that begin with #, are ignored. No error shows a line.
func ReadFile(path string) (*File, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrKeyFile, err)
	}
	f := &File{keys: make(map[string][]byte)}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		wrong := func(problem string) error {
			return fmt.Errorf("%w: %s: line %d %s: %s", ErrKeyFile, path, n, problem, lineHint)
		}
		if len(words) != 2 {
			return nil, wrong(fmt.Sprintf("has %d words", len(words)))
		}
		key, err := base64.StdEncoding.DecodeString(words[1])
		if err != nil || len(key) != KeySize {
			return nil, wrong("has no key of 32 bytes in base64")
		}
		if f.keys[words[0]] != nil {
			return nil, wrong("has an id that stands there already")
		}
		if f.Current == "" {
			f.Current = words[0]
		}
		f.keys[words[0]] = key
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKeyFile, path, err)
	}
	if f.Current == "" {
		return nil, fmt.Errorf("%w: %s has no key: %s", ErrKeyFile, path, lineHint)
	}
	return f, nil
}

// Exposed returns the mode of a file that every user of the machine can read, else false.
func Exposed(path string) (os.FileMode, bool) {
	info, err := os.Stat(path)
	if err != nil || runtime.GOOS == "windows" {
		return 0, false
	}
	return info.Mode().Perm(), info.Mode().Perm()&0o004 != 0
}

// Key returns a key by its id, or ErrNoKey.
func (f *File) Key(_ context.Context, id string) ([]byte, error) {
	if key := f.keys[id]; key != nil {
		return key, nil
	}
	return nil, ErrNoKey
}
