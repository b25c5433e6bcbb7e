package runs

import (
	"context"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

// RetryCmd is waymark retry.
type RetryCmd struct {
	Run_ string `arg:"" name:"run" help:"Run id."`
}

// Help is the text below the flags.
func (RetryCmd) Help() string {
	return `A run is parked if its checkpoint cannot be stored or read; a recovery returns all of its events. The daemon retries after 30 ` +
		`seconds, later once an hour. waymark doctor lists parked runs.`
}

// Run makes the daemon fold a parked run again.
func (c RetryCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var answer schema.RetryReply
	if err := cl.Ask(ctx, schema.VerbRetry, c.Run_, nil, &answer); err != nil {
		return err
	}
	if p := answer.Parked; p != nil {
		return failure.New(failure.Damaged, "no event is lost, and a recovery returns all of them; find the damage with: "+a.Prompt.Command("verify "+c.Run_)+
			"; a checkpoint of a newer version needs a daemon of that version", "run %s is still parked after %s: %s", c.Run_, output.Plural(p.Tries, "try", "tries"), p.Why)
	}
	if a.JSON {
		return output.Document(a.Stdout, answer)
	}
	what := "the run is folded again"
	if !answer.Tried {
		what = "nothing to do: the run is not parked"
	}
	return output.Fields(a.Stdout, "result", what)
}
