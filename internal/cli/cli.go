package cli

import (
	"github.com/waymarkio/waymark/internal/cli/agent"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/demo"
	"github.com/waymarkio/waymark/internal/cli/events"
	"github.com/waymarkio/waymark/internal/cli/fleet"
	"github.com/waymarkio/waymark/internal/cli/mcp"
	"github.com/waymarkio/waymark/internal/cli/runs"
	"github.com/waymarkio/waymark/internal/cli/serve"
	"github.com/waymarkio/waymark/internal/cli/storage"
	"github.com/waymarkio/waymark/internal/cli/ui"
	"github.com/waymarkio/waymark/internal/cli/worker"
)

// cli is the grammar of all commands. A flag that is not given is read from the variable in its tag environ. Commands
// with the tag serverless use no server: their help omits the flags that name one.
type cli struct {
	Help helpFlag    `short:"h" help:"Show help, also of a command."`
	Show versionFlag `name:"version" help:"Show versions."`

	base.Flags

	Serve    serve.Cmd          `cmd:"" help:"Run the daemon, with an embedded NATS server unless a server is named."`
	Start    runs.StartCmd      `cmd:"" help:"Submit a run for an executor of its agent."`
	Worker   worker.Cmd         `cmd:"" help:"Run an agent that is a program in any language."`
	MCP      mcp.Cmd            `cmd:"" name:"mcp" help:"Record the tool calls of an MCP client: a proxy of an MCP server."`
	Runs     runs.Cmd           `cmd:"" help:"List and show runs."`
	Files    runs.ArtifactsCmd  `cmd:"" name:"artifacts" help:"List a run's artifacts, and fetch stored ones."`
	Settle   runs.SettleCmd     `cmd:"" help:"Settle a tool call in doubt."`
	Plan     runs.PlanCmd       `cmd:"" help:"Show what the next executor of a run would do. It writes nothing."`
	Verify   storage.VerifyCmd  `cmd:"" help:"Compare all stored data of a run with its events, and report damage."`
	Cleanup  storage.CleanupCmd `cmd:"" help:"Remove runs that ended long ago, or list them."`
	Erase    storage.EraseCmd   `cmd:"" help:"Remove a run for good, with a receipt; or check a receipt."`
	Resume   runs.ResumeCmd     `cmd:"" help:"Continue a run from one of its steps, or from another point of its history."`
	Fork     runs.ForkCmd       `cmd:"" help:"Start a new run that continues from a point of another one."`
	Diff     runs.DiffCmd       `cmd:"" help:"Find the first tool call in which two runs, or two points, differ."`
	Inbox    runs.InboxCmd      `cmd:"" help:"List runs that need a person, oldest first, with the commands that answer them."`
	Input    runs.InputCmd      `cmd:"" help:"Answer a waiting run, or show its question."`
	Point    runs.CheckpointCmd `cmd:"" name:"checkpoint" help:"Name the current point of a run, or one after state values that you set by hand."`
	Signal   runs.SignalCmd     `cmd:"" help:"Send a message to a run that has not ended."`
	Cancel   runs.CancelCmd     `cmd:"" help:"Ask a run's executor to end it."`
	Pause    runs.PauseCmd      `cmd:"" help:"Pause runs by agent, tenant, tier or label, or list the pauses."`
	Unpause  runs.UnpauseCmd    `cmd:"" help:"Let paused runs go on."`
	Limit    runs.LimitCmd      `cmd:"" help:"Limit how many runs are at work, or the tokens of a day, by agent, tenant, tier or label."`
	Schedule runs.ScheduleCmd   `cmd:"" help:"Submit runs at set times: set, list, remove and run schedules."`
	Release  runs.ReleaseCmd    `cmd:"" help:"Make a quarantined or stuck run claimable again."`
	Reopen   runs.ReopenCmd     `cmd:"" help:"Make a run that has ended claimable, so that it continues."`
	Handoff  runs.HandoffCmd    `cmd:"" help:"List, accept, decline and close a run's hand-offs."`
	FleetCmd fleet.Cmd          `cmd:"" name:"fleet" help:"Show the fleet's state by shard: waiting runs, stored data, fold workers; or add a fleet."`
	Backup   storage.BackupCmd  `cmd:"" help:"Back up a whole fleet, or check a backup."`
	Restore  storage.RestoreCmd `cmd:"" help:"Restore a backup to a server that does not have the fleet."`
	Doctor   fleet.DoctorCmd    `cmd:"" help:"Check the fleet's servers, streams, limits and daemons, and say what to do."`
	Events   events.Cmd         `cmd:"" help:"Follow the events of a run or of all runs."`
	UI       ui.Cmd             `cmd:"" name:"ui" help:"Show the fleet in a browser: its runs, the inbox, and what a takeover would do."`
	AgentCmd agent.Cmd          `cmd:"" name:"agent" help:"Run Claude Code or Codex, recorded call by call."`
	Demo     demo.Cmd           `cmd:"" serverless:"" help:"Watch agents being killed and recovered, in a temporary directory."`

	DemoChild    childCmd         `cmd:"" hidden:""`
	DemoExecutor demo.ExecutorCmd `cmd:"" hidden:""`
}
