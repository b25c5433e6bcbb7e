package fleet

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
)

type rmCmd struct {
	Name string `arg:"" help:"Name of the fleet; without --dir the same as in --fleet, to confirm the removal."`
	Dir  string `placeholder:"DIR" help:"Only permit the daemon's key to delete, in the servers' configuration that fleet add wrote there."`
}

// Help is the text below the flags.
func (rmCmd) Help() string {
	return `Stop the fleet's executors and daemons first, and take a last backup. In a fleet with accounts no key may delete streams: run it ` +
		`with --dir, reload the servers, then run it with the daemon's key. Until then, waymark fleet add takes the permission back.

Examples:
  waymark fleet rm payments --dir fleets
  waymark --context fleets/payments-daemon.json --fleet payments fleet rm payments`
}

// Run deletes the fleet.
func (c rmCmd) Run(ctx context.Context, a *base.App) error {
	if c.Dir != "" {
		return addCmd{Name: c.Name, Dir: c.Dir, Offline: true, ending: true}.Run(ctx, a)
	}
	if c.Name != a.Fleet {
		return failure.New(failure.Usage, "name the same fleet twice: waymark --fleet NAME fleet rm NAME", "this would remove fleet %s, not %.80q", a.Fleet, c.Name)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	js, settings, err := cl.Settings(ctx)
	if err == nil {
		err = kvstore.Remove(ctx, js, settings)
	}
	if refused, ok := errors.AsType[*access.Refusal](context.Cause(ctx)); ok && cl.NATS.Opts.InboxPrefix == access.InboxPrefix(access.Daemon) {
		return &failure.Error{
			Code: failure.Refused, What: refused.What(), Err: refused,
			Hint: "permit it first, then reload the servers: waymark fleet rm " + c.Name + " --dir DIR, the directory of its keys",
		}
	}
	if gone, ok := errors.AsType[*failure.Error](err); ok && gone.Code == failure.NotFound { // the answer of an earlier try may be lost
		return a.Say(a.Stdout, "fleet %s is not on %s: it was removed before, or never added", cl.Fleet, cl.Target.Address())
	}
	if err != nil {
		return err
	}
	return a.Say(a.Stdout, "fleet %s and all of its runs are removed from %s", cl.Fleet, cl.Target.Address())
}
