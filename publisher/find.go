package publisher

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// server is the server from the configuration, or else the one that the waymark commands of this user find.
func server(ctx context.Context, url string) (natsconn.Target, error) {
	if url != "" {
		target, err := natsconn.To(url, "the URL of the configuration")
		return target, connectError(err, target)
	}
	dir, noDir := natsconn.StateDir(os.Getenv)
	target, err := natsconn.Config{Getenv: os.Getenv, StateDir: dir}.Resolve(ctx)
	if noDir != nil && errors.Is(err, natsconn.ErrNoServer) {
		err = fmt.Errorf("%w: %w", err, noDir)
	}
	return target, connectError(err, target)
}

// connectError distinguishes wrong settings, a server that refuses the credentials, and an unreachable server. It adds
// the next step.
func connectError(err error, target natsconn.Target) error {
	kind, next := ErrUnavailable, ""
	switch {
	case err == nil:
		return nil
	case errors.Is(err, natsconn.ErrNoServer):
		next = ", or name one with NATS_URL, NATS_CONTEXT or URL in the configuration"
	case errors.Is(err, natsconn.ErrUnknownContext):
		kind, next = ErrConfig, "; name another one in NATS_CONTEXT or with nats context select, or a server with NATS_URL or URL in the configuration"
	case errors.Is(err, natsconn.ErrUnusable):
		kind = ErrConfig // the text has the next step
	case errors.Is(err, natsconn.ErrSettings):
		kind, next = ErrConfig, "; correct it, or unset it"
	case errors.Is(err, natsconn.ErrCrowded):
		next = "; end programs of this role, or allow more: waymark fleet add FLEET --connections N, and reload the servers"
	case errors.Is(err, natsconn.ErrRefused):
		kind, next = ErrNotPermitted, "; put credentials that this server knows into "+source(target)
	case errors.Is(err, natsconn.ErrUnreachable):
		next = "; start the server (waymark serve starts one on this machine), or correct the address in " + source(target)
	}
	return fmt.Errorf("%w: %w%s", kind, err, next)
}

// source is where the address and the credentials of a server are set.
func source(target natsconn.Target) string {
	switch {
	case target.Context != "":
		return target.Context
	case target.Origin == natsconn.OriginProgram:
		return "URL and Options in the configuration"
	default:
		return "WAYMARK_NATS_URL or NATS_URL, and NATS_CREDS, NATS_NKEY, NATS_TOKEN, or NATS_USER and NATS_PASSWORD"
	}
}

// lookupError adds the next step when a server answers but the fleet cannot be looked up.
func lookupError(err error) error {
	switch {
	case errors.Is(err, ErrUnavailable):
		return fmt.Errorf("%w; check that JetStream is enabled on the server and that more than half of its peers run (waymark doctor), then try again", err)
	case errors.Is(err, ErrBadAnswer):
		return fmt.Errorf("%w; use the SDK version of the fleet's daemon (waymark --version)", err)
	}
	return err
}
