//go:build !windows

package cli

import (
	"bytes"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
)

// The opening of a pipe waits for a writer, and Ctrl-C does not end it: each command that takes a file refuses one.
func TestFileFlag_NamedPipe_EveryCommandRefusesIt(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	getenv := env("WAYMARK_STATE_DIR", t.TempDir(), "WAYMARK_TIMEOUT", "1s")
	parser, err := newParser(new(cli), getenv, io.Discard, io.Discard)
	require.NoError(t, err)
	seen := 0
	for _, leaf := range parser.Model.Leaves(true) {
		args, _ := commandLine(leaf, "r")
		var lines [][]string
		for _, f := range leaf.Flags {
			if f.PlaceHolder == "FILE" {
				lines = append(lines, append(slices.Clip(args), "--"+f.Name+"="+pipe))
			}
		}
		for _, p := range leaf.Positional {
			if p.Name == "file" {
				lines = append(lines, append(strings.Fields(commandPath(leaf)), pipe))
			}
		}
		for _, line := range append(lines, append([]string{"--creds=" + pipe}, args...)) {
			var out bytes.Buffer
			code := make(chan int, 1)
			go func() { code <- Run(t.Context(), line, getenv, strings.NewReader(""), &out, &out) }()
			select {
			case got := <-code:
				require.Equal(t, int(failure.Usage), got, "%q: %s", line, &out)
				require.Contains(t, out.String(), "pipe is not a regular file\nhint: copy its content to a file", "%q", line)
			case <-time.After(startLimit):
				require.Fail(t, "it waits for the pipe", "%q", line)
			}
			seen++
		}
	}
	require.Greater(t, seen, 20)
}
