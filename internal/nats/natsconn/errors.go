package natsconn

import (
	"errors"
	"fmt"
)

var (
	// ErrSettings comes when settings contradict each other or name an unreadable file. The message names the setting
	// and its origin.
	ErrSettings = errors.New("connection settings")

	// ErrUnknownContext comes when a NATS context does not exist or is unreadable. The message lists the existing
	// ones.
	ErrUnknownContext = errors.New("nats context")

	// ErrNoServer comes when no level names a server. Start one with "waymark serve" or name one.
	ErrNoServer = errors.New("no server found")

	// ErrUnreachable comes when the server named does not answer. Start it, or name another one.
	ErrUnreachable = errors.New("cannot reach the nats server")

	// ErrRefused comes when the server answers and refuses the credentials.
	ErrRefused = errors.New("the nats server refuses the credentials")

	// ErrCrowded comes when the server, or the account on all servers, has as many connections as it may have.
	ErrCrowded = errors.New("the nats server refuses the connection: it has as many connections as it may have")

	// ErrUnusable comes when the state directory cannot be used: not a directory, not writable, writable by every
	// user, or with a file that does not parse. The message names the path and the remedy.
	ErrUnusable = errors.New("state directory cannot be used")

	// ErrNotRunning comes when no server can be found through a state directory. Use errors.As with *NotRunningError
	// for what was found instead. Start one with "waymark serve".
	ErrNotRunning = errors.New("no waymark server is running")
)

// NotRunningError is why no server was found in a state directory. It matches ErrNotRunning.
type NotRunningError struct {
	Dir    string // The state directory that was searched.
	PID    int    // The process id in endpoint.json; 0 if there is no such file.
	Reason string // What was found.
	Err    error  // The underlying error, if any.
}

// Error names the directory, what was found there and the command that starts a server.
func (e *NotRunningError) Error() string {
	msg := fmt.Sprintf("%v in %s: %s", ErrNotRunning, e.Dir, e.Reason)
	if e.Err != nil {
		msg += fmt.Sprintf(" (%v)", e.Err)
	}
	return msg + `: start it with "waymark serve"`
}

// Unwrap is ErrNotRunning, and the underlying error.
func (e *NotRunningError) Unwrap() []error { return []error{ErrNotRunning, e.Err} }
