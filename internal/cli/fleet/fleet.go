package fleet

import (
	"context"
	"fmt"
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
}

type showCmd struct{}

// Help is the text below the flags.
func (showCmd) Help() string {
	return `Waiting events are durable and in each recovery, but not in a checkpoint yet. Recoveries are those of the answering daemon.`
}

// Run shows the fleet's state. A shard that could not be read is an error, returned after the known part was shown.
func (c showCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	var reply schema.FleetReply
	if err := cl.Ask(ctx, schema.VerbFleet, "", schema.FleetRequest{}, &reply); err != nil {
		return err
	}
	if a.JSON {
		if err := output.Document(a.Stdout, &reply); err != nil {
			return err
		}
	} else if err := printFleet(a, &reply); err != nil {
		return err
	}
	for i := range reply.Shards {
		if s := &reply.Shards[i]; s.Error != "" {
			return failure.New(failure.Unavailable, "see the daemon's log and the NATS server", "shard %d of fleet %s cannot be read: %s", s.Shard, reply.Fleet, s.Error)
		}
	}
	return nil
}

func printFleet(a *base.App, reply *schema.FleetReply) error {
	recovery := "none since it started"
	if r := &reply.Recovery; r.Count > 0 {
		recovery = fmt.Sprintf("run %s in %s, %s; %d in all", r.LastRun, milliseconds(r.LastMS), output.Ago(r.LastAt, a.Now()), r.Count)
	}
	senders := "claimed by senders"
	if reply.Proven {
		senders = "proven by the nats server"
	}
	runs := fmt.Sprintf("%d live, %d claimable, %d quarantined", reply.Runs.Live, reply.Runs.Claimable, reply.Runs.Quarantined)
	if n := reply.Runs.Overdue; n > 0 {
		runs += fmt.Sprintf(", %d overdue", n)
	}
	if err := output.Fields(a.Stdout,
		"fleet", reply.Fleet, "answered by", reply.Replica, "senders", senders,
		"silence", (time.Duration(reply.SilenceMS) * time.Millisecond).String(),
		"runs", runs,
		"last recovery by it", recovery,
	); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	rows := make([][]string, len(reply.Shards))
	for i := range reply.Shards {
		rows[i] = shardRow(&reply.Shards[i])
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "shard", Right: true},
		{Title: "worker", Shrinks: true},
		{Title: "waiting", Right: true},
		{Title: "oldest", Right: true},
		{Title: "log", Shrinks: true},
		{Title: "segments", Right: true, Drop: 4},
		{Title: "stored/payload", Right: true, Drop: 3},
		{Title: "bytes/event", Right: true, Drop: 2},
		{Title: "events/put", Right: true, Drop: 1},
		{Title: "position", Right: true, Drop: 5},
	}, rows)
}

func shardRow(s *schema.ShardState) []string {
	if s.Error != "" {
		return []string{strconv.Itoa(s.Shard), "unknown", "", "", "", "", "", "", "", ""}
	}
	worker := s.Worker
	if worker == "" {
		worker = "none"
	}
	oldest := ""
	if s.Waiting > 0 {
		oldest = (time.Duration(s.WaitingMS) * time.Millisecond).Round(100 * time.Millisecond).String()
	}
	log := output.Bytes(s.LogBytes)
	if s.QuotaBytes > 0 {
		log += fmt.Sprintf(" of %s (%d%%)", output.Bytes(s.QuotaBytes), 100*s.LogBytes/s.QuotaBytes)
	}
	amplification, perEvent, perPut := "", "", ""
	if t := &s.Totals; t.Events > 0 {
		stored := t.LogBytes + t.SegmentBytes + t.CheckpointBytes
		amplification = fmt.Sprintf("%.2f", ratio(stored, t.PayloadBytes))
		perEvent = output.Bytes(int64(ratio(stored, t.Events)))
		perPut = fmt.Sprintf("%.1f", ratio(t.Events, t.Checkpoints))
	}
	return []string{
		strconv.Itoa(s.Shard), worker, strconv.FormatInt(s.Waiting, 10), oldest, log, output.Bytes(s.SegmentBytes), amplification, perEvent, perPut, output.Number(s.Position),
	}
}

// ratio is 0 without anything to compare with.
func ratio(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// milliseconds is a duration for people.
func milliseconds(ms float64) string {
	return time.Duration(ms * float64(time.Millisecond)).Round(10 * time.Microsecond).String()
}
