package session

import (
	"fmt"
	"os"
	"strings"
)

// EachLine reads a file of policies, a tool in each line. What follows a # is a comment. An error of read names the line.
// An empty name means no file.
func EachLine(file string, read func(line string) error) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("policies of tools: %w", err)
	}
	for i, line := range strings.Split(string(text), "\n") {
		if line, _, _ = strings.Cut(line, "#"); strings.TrimSpace(line) == "" {
			continue
		}
		if err := read(line); err != nil {
			return fmt.Errorf("%s, line %d: %w", file, i+1, err)
		}
	}
	return nil
}
