package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

type executorsCmd struct {
	Executor string `arg:"" optional:"" help:"Only this one, with its runs."`
}

// Help is the text below the flags.
func (executorsCmd) Help() string {
	return `Each start of a process has a line. Runs that wait are not counted.`
}

// Run shows the executors of a fleet.
func (c executorsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.ExecutorsReply
	if err := cl.Ask(ctx, schema.VerbExecutors, "", schema.ExecutorsRequest{Executor: c.Executor}, &reply); err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, &reply)
	}
	if err := output.Fields(a.Stdout, "fleet", reply.Fleet, "answered by", reply.Replica, "silence", (time.Duration(reply.SilenceMS) * time.Millisecond).String()); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	var rows [][]string
	for i := range reply.Executors {
		e := &reply.Executors[i]
		rows = append(rows, []string{e.Executor, story.HeardText(e), output.Number(e.InHand), story.OrphanedText(e), e.Instance})
		for _, run := range e.Runs {
			rows = append(rows, []string{"  " + run, "", "", "", ""})
		}
	}
	if err := output.Table(a.Stdout, []output.Column{
		{Title: "executor"}, {Title: "heard"}, {Title: "runs", Right: true}, {Title: "orphaned"}, {Title: "instance", Shrinks: true, Drop: 1},
	}, rows); err != nil || reply.More == 0 || a.Quiet {
		return err
	}
	_, err := fmt.Fprintf(a.Stderr, "and %d more that work on nothing or are heard: name one to see it\n", reply.More)
	return err
}
