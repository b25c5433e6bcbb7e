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
	switch {
	case err == nil:
		return nil
	case errors.Is(err, natsconn.ErrNoServer):
		return fmt.Errorf("%w: %w, or name one with NATS_URL, NATS_CONTEXT or URL in the configuration", ErrUnavailable, err)
	case errors.Is(err, natsconn.ErrUnknownContext):
		return fmt.Errorf("%w: %w; %s", ErrConfig, err, contextStep())
	case errors.Is(err, natsconn.ErrUnusable), target.Origin == natsconn.OriginProgram && errors.Is(err, natsconn.ErrSettings):
		return fmt.Errorf("%w: %w", ErrConfig, err) // the text has the next step
	case errors.Is(err, natsconn.ErrSettings):
		return fmt.Errorf("%w: %w; correct it, or unset it", ErrConfig, err)
	case errors.Is(err, natsconn.ErrRefused):
		return fmt.Errorf("%w: %w; %s", ErrNotPermitted, err, credentialsStep(target))
	case errors.Is(err, natsconn.ErrUnreachable):
		return fmt.Errorf("%w: %w; %s", ErrUnavailable, err, reachStep(target))
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// variable is the environment variable of a setting; empty for none.
func variable(name string) string {
	for _, v := range []string{"WAYMARK_" + name, name} {
		if os.Getenv(v) != "" {
			return v
		}
	}
	return ""
}

func contextStep() string {
	if v := variable("NATS_CONTEXT"); v != "" {
		return "set " + v + " to the name or the path of a context, or unset it"
	}
	return "choose another one with nats context select, or name a server with NATS_URL, NATS_CONTEXT or URL in the configuration"
}

func credentialsStep(target natsconn.Target) string {
	switch {
	case target.Origin == natsconn.OriginProgram:
		return "set credentials with Options in the configuration, such as nats.UserCredentials(FILE)"
	case target.Origin == natsconn.OriginEnvironment && target.Context == "":
		return "set NATS_CREDS, NATS_NKEY, NATS_TOKEN, or NATS_USER and NATS_PASSWORD, to credentials that this server knows"
	default:
		return "put credentials that this server knows into " + target.Context
	}
}

func reachStep(target natsconn.Target) string {
	const start = "start the server (waymark serve starts one on this machine), or "
	switch {
	case target.Origin == natsconn.OriginProgram:
		return start + "set URL in the configuration to the address of a running one"
	case target.Origin == natsconn.OriginEnvironment && variable("NATS_URL") != "":
		return start + "set " + variable("NATS_URL") + " to the address of a running one"
	case target.Origin == natsconn.OriginLocal:
		return "start it again: waymark serve"
	default:
		return start + "correct the address in " + target.Context
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
