package natsconn

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
)

// discoverTimeout bounds the check of one server on the same machine, which may be busy. If nothing listens, the
// answer comes at once.
const discoverTimeout = 5 * time.Second

// maxInfo bounds the greeting of the process that listens at the port.
const maxInfo = 64 << 10

// Endpoint is the address of a state directory's server.
type Endpoint struct {
	URL      string    `json:"url"`       // Address, without credentials.
	Context  string    `json:"context"`   // Path of the NATS context file, with credentials.
	PID      int       `json:"pid"`       // The process that runs the server.
	ServerID string    `json:"server_id"` // The server's id, new at each start.
	Started  time.Time `json:"started"`   // When it began to serve.
}

// ContextFile is the part of a NATS context that the embedded server needs.
type ContextFile struct {
	Description string `json:"description"`
	URL         string `json:"url"`
	User        string `json:"user"`
	Password    string `json:"password"`
}

// Discover finds the running server of a state directory. The file alone proves nothing: a killed process leaves it,
// and its port and process id may belong to another process now. So it asks the listening process for its server id.
// It returns ErrNotRunning, with the reason, if there is no such server.
func Discover(ctx context.Context, stateDir string) (Endpoint, error) {
	l, err := LayoutOf(stateDir)
	if err != nil {
		return Endpoint{}, err
	}
	if err := l.Check(); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, err
	}
	var end Endpoint
	switch err := ReadState(l.Endpoint(), &end); {
	case errors.Is(err, fs.ErrNotExist):
		return Endpoint{}, &NotRunningError{Dir: l.Root, Reason: "there is no endpoint.json"}
	case errors.Is(err, ErrUnusable):
		return Endpoint{}, err
	case err != nil:
		return Endpoint{}, fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	end.Context = l.Context() // the directory may be mounted elsewhere than in the server

	id, err := serverID(ctx, end.URL)
	if err != nil {
		if ctx.Err() != nil {
			return Endpoint{}, ctx.Err()
		}
		return Endpoint{}, &NotRunningError{
			Dir: l.Root, PID: end.PID, Err: err,
			Reason: fmt.Sprintf("endpoint.json names %s, which does not answer; its process was %d", end.URL, end.PID),
		}
	}
	if id != end.ServerID {
		return Endpoint{}, &NotRunningError{
			Dir: l.Root, PID: end.PID,
			Reason: fmt.Sprintf("endpoint.json names %s, where another server answers", end.URL),
		}
	}
	return end, nil
}

// Options are the credentials of the endpoint's context file, for clients that connect themselves.
func (e Endpoint) Options() ([]nats.Option, error) {
	var c ContextFile
	if err := ReadState(e.Context, &c); err != nil {
		return nil, fmt.Errorf("reading the nats context of %s: %w", e.URL, err)
	}
	return []nats.Option{nats.UserInfo(c.User, c.Password)}, nil
}

// Connect opens a connection with the credentials of the endpoint's context file. Further options are
// added to them.
func (e Endpoint) Connect(opts ...nats.Option) (*nats.Conn, error) {
	conn, _, err := natscontext.Connect(e.Context, opts...)
	if err != nil {
		return nil, fmt.Errorf("connecting to %s with %s: %w", e.URL, e.Context, err)
	}
	return conn, nil
}

// serverID reads the id from the greeting that a NATS server sends to every client, before any credentials.
func serverID(ctx context.Context, rawURL string) (string, error) {
	address, err := url.Parse(rawURL)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, discoverTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address.Host)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }() // only read from
	// If the other side accepts a connection and then says nothing, wait no longer than ctx.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetReadDeadline(deadline); err != nil {
			return "", err
		}
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxInfo)).ReadBytes('\n')
	if err != nil {
		return "", err
	}
	body, ok := bytes.CutPrefix(line, []byte("INFO "))
	if !ok {
		return "", errors.New("the process that listens there is not a nats server")
	}
	var info struct {
		ServerID string `json:"server_id"`
	}
	if err := json.Unmarshal(body, &info); err != nil {
		return "", fmt.Errorf("greeting of the nats server: %w", err)
	}
	return info.ServerID, nil
}
