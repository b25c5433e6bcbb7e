package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/waymarkio/waymark/internal/base/group"
)

// Lines is the transport of messages that are lines of any length.
func Lines(from io.Reader, to io.WriteCloser) *mcp.IOTransport {
	return &mcp.IOTransport{Reader: io.NopCloser(from), Writer: to, MaxLineLength: -1}
}

// Child is the transport to a server that is a program. The program, and what it starts, ends with this process.
type Child struct{ *exec.Cmd }

// child closes the input of a program and waits for its end.
type child struct {
	io.WriteCloser
	cmd  *exec.Cmd
	kill func()
}

// Connect starts the program.
func (c Child) Connect(ctx context.Context) (mcp.Connection, error) {
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	c.WaitDelay = grace
	kill, err := group.Start(ctx, c.Cmd)
	if err != nil {
		return nil, err //nolint:wrapcheck // the caller does
	}
	return Lines(messages(out, c.Stderr), child{in, c.Cmd, kill}).Connect(ctx) //nolint:wrapcheck // the caller does
}

// messages passes on the messages that a program prints. A client without a proxy ignores the rest, such as a banner, and
// the SDK ends with it: it goes to the log. The messages of a batch go on one by one.
func messages(from io.Reader, log io.Writer) io.Reader {
	r, w := io.Pipe()
	go func() {
		lines := bufio.NewReader(from)
		for {
			line, err := lines.ReadBytes('\n')
			parts := []json.RawMessage{bytes.TrimSpace(line)}
			if len(parts[0]) > 0 && parts[0][0] == '[' {
				_ = json.Unmarshal(line, &parts) // what is no batch is no message
			}
			for _, part := range parts {
				if _, bad := jsonrpc.DecodeMessage(part); bad == nil {
					_, _ = w.Write(append(part, '\n')) // the reader has gone if it fails
				} else if len(part) > 0 && log != nil {
					_, _ = fmt.Fprintf(log, "waymark: the server printed what is not a message: %.1000s\n", part)
				}
			}
			if err != nil {
				_ = w.CloseWithError(err)
				return
			}
		}
	}()
	return r
}

// Close ends the program by its input, then by a signal, then at once with what it has started.
func (c child) Close() error {
	_ = c.WriteCloser.Close() // the program may have ended
	defer time.AfterFunc(grace, func() { _ = c.cmd.Process.Signal(syscall.SIGTERM) }).Stop()
	defer time.AfterFunc(2*grace, c.kill).Stop()
	defer c.kill()
	return c.cmd.Wait() //nolint:wrapcheck // the caller does
}
