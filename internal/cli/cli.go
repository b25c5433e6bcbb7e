package cli

import (
	"github.com/alecthomas/kong"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/demo"
	"github.com/waymarkio/waymark/internal/cli/events"
	"github.com/waymarkio/waymark/internal/cli/fleet"
	"github.com/waymarkio/waymark/internal/cli/runs"
	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/cli/storage"
	"github.com/waymarkio/waymark/internal/cli/transfer"
	"github.com/waymarkio/waymark/internal/cli/ui"
)

// cli is the whole grammar. A variable in the tag environ is read when the flag is not given. Commands with the tag serverless
// ask no server: their help leaves out the flags that name one.
type cli struct {
	Help helpFlag    `short:"h" help:"Show help, of a command when one is given."`
	Show versionFlag `name:"version" help:"Show versions, as the command version does."`

	base.Flags

	Serve    serve.Cmd          `cmd:"" help:"Run the daemon, with a NATS server of its own unless one is named."`
	Import   transfer.ImportCmd `cmd:"" help:"Replay transcripts as runs."`
	Export   transfer.ExportCmd `cmd:"" help:"Write a run as a transcript, or its events."`
	Start    runs.StartCmd      `cmd:"" help:"Hand in a run, for an executor of its agent to work on."`
	Runs     runs.Cmd           `cmd:"" help:"List, show and watch runs."`
	Files    runs.ArtifactsCmd  `cmd:"" name:"artifacts" help:"List what a run made, and fetch what is stored of it."`
	Recover  runs.RecoverCmd    `cmd:"" help:"Take a run over: raise its epoch and show where to go on."`
	Settle   runs.SettleCmd     `cmd:"" help:"Decide what became of a tool call in doubt."`
	Plan     runs.PlanCmd       `cmd:"" help:"Show what the next executor of a run would do. Nothing is written."`
	Verify   storage.VerifyCmd  `cmd:"" help:"Compare all that is stored of a run with its events, and name what is damaged."`
	Cleanup  storage.CleanupCmd `cmd:"" help:"Remove the runs that ended long ago, or show which those are."`
	Erase    storage.EraseCmd   `cmd:"" help:"Remove a run for good, with a receipt; or check a receipt."`
	Resume   runs.ResumeCmd     `cmd:"" help:"Let a run go on behind one of its steps, or another point of it."`
	Fork     runs.ForkCmd       `cmd:"" help:"Begin a new run that goes on from a point of another one."`
	Diff     runs.DiffCmd       `cmd:"" help:"Find the first tool call in which two runs, or two points, differ."`
	Bisect   runs.BisectCmd     `cmd:"" help:"Find the first event of a run after which something holds."`
	Replay   runs.ReplayCmd     `cmd:"" help:"Read a run again and check that its tool calls come out the same."`
	Inbox    runs.InboxCmd      `cmd:"" help:"Show what needs a person, oldest first, and take the answers."`
	Input    runs.InputCmd      `cmd:"" help:"Answer a run that waits, or show what it asks."`
	Mark     runs.MarkCmd       `cmd:"" help:"Pin the point where a run stands under a name."`
	Point    runs.CheckpointCmd `cmd:"" name:"checkpoint" help:"Set values of a run's own state by hand, and pin the point behind them."`
	Signal   runs.SignalCmd     `cmd:"" help:"Send a message into a run that has not ended."`
	Cancel   runs.CancelCmd     `cmd:"" help:"Ask for a run's end: its executor winds it up."`
	Release  runs.ReleaseCmd    `cmd:"" help:"Let the fleet claim a run again that is quarantined or stuck."`
	Retry    runs.RetryCmd      `cmd:"" help:"Fold a parked run again, without waiting for the daemon's next try."`
	Handoff  runs.HandoffCmd    `cmd:"" help:"List, accept, decline and close a run's hand-offs."`
	Tree     runs.TreeCmd       `cmd:"" help:"Show where a run comes from and what came of it: parents, children, continuations, hand-offs."`
	FleetCmd fleet.Cmd          `cmd:"" name:"fleet" help:"Show how the fleet is: what waits, is stored and who folds, by shard; or add a fleet."`
	Shards   fleet.ShardsCmd    `cmd:"" help:"Show the fleet's shards, or change their number."`
	Backup   storage.BackupCmd  `cmd:"" help:"Back up a whole fleet, or check a backup."`
	Restore  storage.RestoreCmd `cmd:"" help:"Bring a backup into a server that does not have the fleet."`
	Cut      storage.CutCmd     `cmd:"" help:"Show where every run of the fleet stood at one moment."`
	Doctor   fleet.DoctorCmd    `cmd:"" help:"Check server, streams, limits, clocks and daemons of the fleet, and say what to do."`
	Events   events.Cmd         `cmd:"" aliases:"tail" help:"Follow the events of a run or of all runs."`
	Conform  events.ConformCmd  `cmd:"" help:"Judge an executor, in any language, by the events that it writes, or a recording of them."`
	Otel     events.OtelCmd     `cmd:"" name:"otel" help:"Export runs as OpenTelemetry traces."`
	UI       ui.Cmd             `cmd:"" name:"ui" help:"Show the fleet in a browser: its runs, what needs a person, what a takeover would do."`
	Demo     demo.Cmd           `cmd:"" serverless:"" help:"Watch agents being killed and recovered, on a temporary directory."`
	Version  versionCmd         `cmd:"" serverless:"" help:"Show versions."`
	Script   completionCmd      `cmd:"" serverless:"" name:"completion" help:"Print the completion script of a shell."`
	HelpCmd  helpCmd            `cmd:"" serverless:"" name:"help" help:"Show help and the exit codes."`

	Complete     completeCmd      `cmd:"" hidden:"" name:"__complete"`
	DemoChild    childCmd         `cmd:"" hidden:""`
	DemoExecutor demo.ExecutorCmd `cmd:"" hidden:""`
	DemoProgram  demo.ProgramCmd  `cmd:"" hidden:""`
	DemoWorker   demo.WorkerCmd   `cmd:"" hidden:""`
}

// helpFlag prints the help of what was given so far and ends the parse.
type helpFlag bool

// BeforeReset is called by kong before flags are checked, so that help needs no valid command line.
func (helpFlag) BeforeReset(ctx *kong.Context) error {
	if err := ctx.PrintUsage(false); err != nil {
		return err
	}
	return errHelp
}
