package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

// Cmd is waymark fleet.
type Cmd struct {
	Show      showCmd      `cmd:"" default:"1" help:"Show the fleet's state. This is the default."`
	Executors executorsCmd `cmd:"" help:"List the executors, how long ago each was heard, and when its runs are orphaned."`
	Retention retentionCmd `cmd:"" help:"Show or set how long the daemon keeps runs after their end."`
	Keys      keysCmd      `cmd:"" help:"List, add or retire the keys with which daemons sign control events."`
	Add       addCmd       `cmd:"" help:"Create or change a fleet: keys, accounts and permissions for a server that several fleets share, streams and buckets."`
	Rm        rmCmd        `cmd:"" help:"Delete a fleet's streams and buckets, with all runs."`
}

type showCmd struct{}

// fleetState is the JSON output of fleet.
type fleetState struct {
	*schema.FleetReply
	// Daemons are empty if the credentials may not ask all of them.
	Daemons []base.Daemon `json:"daemons"`
}

// Help is the text below the flags.
func (showCmd) Help() string {
	return `Waiting events are durable and in each recovery, but not in a checkpoint yet. Executors' keys may not list the daemons.`
}

// Run shows the fleet's state. A shard that could not be read is an error, returned after the known part was shown.
func (c showCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	state := fleetState{&reply, slices.DeleteFunc(cl.Daemons(ctx, cl.Wait), func(d base.Daemon) bool { return d.Fleet != cl.Fleet })}
	if a.JSON {
		if err := output.Document(a.Stdout, &state); err != nil {
			return err
		}
	} else if err := state.print(a); err != nil {
		return err
	}
	for i := range reply.Shards {
		if s := &reply.Shards[i]; s.Error != "" {
			return failure.New(failure.Unavailable, "see the daemon's log and the NATS server", "shard %d of fleet %s cannot be read: %s", s.Shard, reply.Fleet, s.Error)
		}
	}
	return nil
}

func (s *fleetState) print(a *base.App) error {
	senders := "claimed by senders"
	if s.Proven {
		senders = "proven by the nats server"
	}
	runs := fmt.Sprintf("%d live, %d claimable, %d quarantined", s.Runs.Live, s.Runs.Claimable, s.Runs.Quarantined)
	if n := s.Runs.Paused; n > 0 {
		runs += fmt.Sprintf(", %d paused", n)
	}
	if n := s.Runs.Waiting; n > 0 {
		runs += fmt.Sprintf(", %d waiting for a place", n)
	}
	if n := s.Runs.Overdue; n > 0 {
		runs += fmt.Sprintf(", %d overdue", n)
	}
	if err := output.Fields(a.Stdout,
		"fleet", s.Fleet, "answered by", s.Replica, "senders", senders,
		"silence", (time.Duration(s.SilenceMS) * time.Millisecond).String(),
		"runs", runs,
	); err != nil {
		return err
	}
	folds, rows := make(map[string][]int), make([][]string, len(s.Shards))
	for i := range s.Shards {
		folds[s.Shards[i].Worker] = append(folds[s.Shards[i].Worker], s.Shards[i].Shard)
		rows[i] = shardRow(&s.Shards[i])
	}
	daemons := make([][]string, len(s.Daemons))
	for i, d := range s.Daemons {
		daemons[i] = []string{d.Name, d.Version, "nothing", output.Ago(schema.FormatTime(d.Since), a.Now())}
		if shards := folds[d.Name]; len(shards) > 0 {
			daemons[i][2] = base.Names("shard", shards)
		}
	}
	for _, t := range []struct {
		columns []output.Column
		rows    [][]string
	}{
		{[]output.Column{{Title: "daemon"}, {Title: "version", Shrinks: true}, {Title: "folds"}, {Title: "started"}}, daemons},
		{[]output.Column{
			{Title: "shard", Right: true},
			{Title: "worker", Shrinks: true},
			{Title: "waiting", Right: true},
			{Title: "oldest", Right: true},
			{Title: "log", Shrinks: true},
			{Title: "segments", Right: true, Drop: 3},
			{Title: "checkpoints", Right: true, Drop: 2},
			{Title: "position", Right: true, Drop: 1},
		}, rows},
	} {
		if len(t.rows) == 0 {
			continue
		}
		if _, err := fmt.Fprintln(a.Stdout); err != nil {
			return err
		}
		if err := output.Table(a.Stdout, t.columns, t.rows); err != nil {
			return err
		}
	}
	return nil
}

func shardRow(s *schema.ShardState) []string {
	shard := strconv.Itoa(s.Shard)
	if s.Error != "" {
		return []string{shard, "unknown", "", "", "", "", "", ""}
	}
	oldest := ""
	if s.Waiting > 0 {
		oldest = (time.Duration(s.WaitingMS) * time.Millisecond).Round(100 * time.Millisecond).String()
	}
	log := output.Bytes(s.LogBytes)
	if s.QuotaBytes > 0 {
		log += fmt.Sprintf(" of %s (%d%%)", output.Bytes(s.QuotaBytes), 100*s.LogBytes/s.QuotaBytes)
	}
	return []string{
		shard, cmp.Or(s.Worker, "none"), strconv.FormatInt(s.Waiting, 10), oldest, log, output.Bytes(s.SegmentBytes), output.Bytes(s.CheckpointBytes), output.Number(s.Position),
	}
}
