package natsconn

import "errors"

var (
	// ErrSettings comes when the settings contradict each other or name a file that cannot be read. The
	// message names the setting and where it came from.
	ErrSettings = errors.New("connection settings")

	// ErrUnknownContext comes when a NATS context does not exist or cannot be read. The message lists those
	// that do exist.
	ErrUnknownContext = errors.New("nats context")

	// ErrNoServer comes when no level names a server. Start one with "waymark serve" or name one.
	ErrNoServer = errors.New("no server found")

	// ErrUnreachable comes when the server named does not answer. Start it, or name another one.
	ErrUnreachable = errors.New("cannot reach the nats server")

	// ErrRefused comes when the server answers and refuses the credentials.
	ErrRefused = errors.New("the nats server refuses the credentials")
)
