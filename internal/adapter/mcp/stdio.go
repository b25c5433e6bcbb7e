package mcp

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os/exec"
	"regexp"
	"syscall"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/waymarkio/waymark/internal/base/group"
)

// Lines is the transport of messages that are lines of any length.
func Lines(from io.Reader, to io.WriteCloser) *mcp.IOTransport {
	return &mcp.IOTransport{Reader: io.NopCloser(&reader{from: bufio.NewReader(from)}), Writer: writer{to}, MaxLineLength: -1}
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
	return Lines(out, child{in, c.Cmd, kill}).Connect(ctx) //nolint:wrapcheck // the caller does
}

// Close ends the program by its input, then by a signal, then at once with what it has started.
func (c child) Close() error {
	_ = c.WriteCloser.Close() // the program may have ended
	defer time.AfterFunc(grace, func() { _ = c.cmd.Process.Signal(syscall.SIGTERM) }).Stop()
	defer time.AfterFunc(2*grace, c.kill).Stop()
	defer c.kill()
	return c.cmd.Wait() //nolint:wrapcheck // the caller does
}

// The SDK rounds an id that is a number above 2^53, so it sees a text in its place.
const number = `"waymark/number/`

var (
	large  = regexp.MustCompile(`d"\s*:\s*-?\d{16}`)
	quoted = regexp.MustCompile(`"(id|requestId)":` + number + `([^"]+)"`)
)

type reader struct {
	from *bufio.Reader
	rest []byte
}

func (r *reader) Read(p []byte) (n int, err error) {
	if len(r.rest) == 0 {
		if r.rest, err = r.from.ReadBytes('\n'); len(r.rest) == 0 {
			return 0, err //nolint:wrapcheck // the end
		}
		r.rest = quote(r.rest)
	}
	n = copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

func quote(line []byte) []byte {
	var m struct {
		ID     jsontext.Value `json:"id,omitzero"`
		Params *struct {
			ID   jsontext.Value `json:"requestId,omitzero"`
			Rest jsontext.Value `json:",embed"`
		} `json:"params,omitzero"`
		Rest jsontext.Value `json:",embed"`
	}
	if !large.Match(line) || decode(line, &m) != nil {
		return line
	}
	ids := []*jsontext.Value{&m.ID}
	if m.Params != nil {
		ids = append(ids, &m.Params.ID)
	}
	for _, id := range ids {
		if id.Kind() == '0' && len(*id) > 15 {
			*id = jsontext.Value(number + string(*id) + `"`)
		}
	}
	text, err := json.Marshal(&m)
	if err != nil {
		return line
	}
	return append(text, '\n')
}

type writer struct{ io.WriteCloser }

func (w writer) Write(p []byte) (int, error) {
	text := p
	if bytes.Contains(p, []byte(number)) {
		text = quoted.ReplaceAll(p, []byte(`"$1":$2`))
	}
	_, err := w.WriteCloser.Write(text)
	return len(p), err //nolint:wrapcheck // the caller does
}
