package natsconn

import "errors"

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
)
