package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/permissions"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ShardsCmd is waymark shards.
type ShardsCmd struct {
	Ls  shardsLsCmd  `cmd:"" default:"1" aliases:"list" help:"Show the fleet's shards: their fold workers, positions and sizes. This is the default."`
	Set shardsSetCmd `cmd:"" help:"Spread new runs over another number of shards. Existing runs stay in their shard."`
}

type shardsLsCmd struct{}

// Help is the text below the flags.
func (shardsLsCmd) Help() string {
	return `FOLDED is the position up to which checkpoints are written, LAST the end of the log. LIVE counts runs that have not ended, or have ` +
		`an open hand-off or a call to settle. NEW RUNS "no": the shard keeps its existing runs.`
}

// shardsView is the JSON output of shards.
type shardsView struct {
	Fleet       string      `json:"fleet"`
	Generations []int       `json:"generations"`
	Shards      []shardView `json:"shards"`
}

// shardView is one shard in the JSON output.
type shardView struct {
	Shard   int  `json:"shard"`
	NewRuns bool `json:"new_runs"`
	Live    int  `json:"live_runs"`
	// Folded and Last are positions in the log.
	Folded schema.StreamSequence `json:"folded"`
	Last   schema.StreamSequence `json:"last"`
	Bytes  int64                 `json:"bytes"`
	Quota  int64                 `json:"quota_bytes"`
	// Worker is the daemon that folds the shard; empty for none.
	Worker string `json:"worker"`
}

// Run shows the shards. It reads the streams, and works without a daemon.
func (shardsLsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
	js, settings, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	view, err := viewShards(ctx, cl, js, settings)
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Line(a.Stdout, view)
	}
	rows := make([][]string, len(view.Shards))
	for i, s := range view.Shards {
		used := output.Bytes(s.Bytes)
		if s.Quota > 0 {
			used += fmt.Sprintf(" of %s", output.Bytes(s.Quota))
		}
		begins, worker := "yes", s.Worker
		if !s.NewRuns {
			begins = "no"
		}
		if worker == "" {
			worker = "none"
		}
		rows[i] = []string{
			strconv.Itoa(s.Shard), begins, strconv.Itoa(s.Live), strconv.FormatUint(uint64(s.Folded), 10),
			strconv.FormatUint(uint64(s.Last), 10), used, worker,
		}
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "shard", Right: true},
		{Title: "new runs"},
		{Title: "live", Right: true},
		{Title: "folded", Right: true, Drop: 1},
		{Title: "last", Right: true, Drop: 2},
		{Title: "log"},
		{Title: "worker", Shrinks: true},
	}, rows)
}

func viewShards(ctx context.Context, cl *base.Client, js jetstream.JetStream, settings schema.FleetSettings) (*shardsView, error) {
	ctx, cancel := context.WithTimeout(ctx, cl.Wait)
	defer cancel()
	view := &shardsView{Fleet: cl.Fleet, Generations: settings.Generations}
	current := kvstore.ConfigOf(&settings).Shards
	for i := range settings.Shards() {
		shard, err := kvstore.OpenShard(js, settings, i, base.Operator)
		if err != nil {
			return nil, err
		}
		usage, err := shard.Usage(ctx)
		if err != nil {
			return nil, err
		}
		s := shardView{Shard: i, NewRuns: i < current, Last: usage.Last, Bytes: usage.Bytes, Quota: settings.QuotaBytes}
		mark, _, err := shard.Checkpoints.Watermark(ctx)
		if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
			return nil, err
		}
		s.Folded = mark.Position.Stream
		err = shard.Checkpoints.Live(ctx, func(e kvstore.LiveEntry) bool {
			if e.Live != nil || e.Err != nil { // not only the tombstone of an erased run
				s.Live++
			}
			return true
		})
		if err != nil {
			return nil, err
		}
		if s.Worker, err = kvstore.Holder(ctx, js, kvstore.FoldLease(shard.Names)); err != nil {
			return nil, err
		}
		view.Shards = append(view.Shards, s)
	}
	return view, nil
}

type shardsSetCmd struct {
	Shards int            `arg:"" help:"Shards for new runs, 1 to 256."`
	Quota  base.QuotaSize `default:"0" placeholder:"SIZE" help:"New size of each shard's log, which the server reserves (default: unchanged)."`
}

// Help is the text below the flags.
func (shardsSetCmd) Help() string {
	return `Running daemons, executors and waymark events apply the change at once. Existing runs stay and are folded. A run that starts in ` +
		`another shard than by the fleet's first number costs one more message.

A fleet can have at most ` + strconv.Itoa(kvstore.MaxGenerations) + ` different numbers over time; an earlier one does not count again. Each adds one request to the lookup of a run, and a ` +
		`program without the SDK must know the shards of its runs (docs/scaling.md).

Example:
  waymark shards set 4 --quota 2GiB     if there is no space for four logs of the current size`
}

// Run changes the number of shards: it creates the streams first, then notifies all processes.
func (c shardsSetCmd) Run(ctx context.Context, a *base.App) error {
	if c.Shards < 1 || c.Shards > kvstore.MaxShards {
		return failure.New(failure.Usage, fmt.Sprintf("use 1 to %d", kvstore.MaxShards), "a fleet cannot have %d shards", c.Shards)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	js, was, err := cl.Settings(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, max(cl.Wait, base.StartTimeout))
	defer cancel()
	now, err := kvstore.Change(ctx, js, cl.Fleet, func(config *kvstore.FleetConfig) {
		config.Shards = c.Shards
		if c.Quota != 0 {
			config.QuotaBytes = int64(c.Quota)
		}
	})
	if errors.Is(err, kvstore.ErrFull) && c.Quota == 0 {
		return &failure.Error{
			Code: failure.Full, Err: err,
			What: fmt.Sprintf("the server has no space for %s of %s each", output.Plural(max(c.Shards, was.Shards()), "log"), output.Bytes(was.QuotaBytes)),
			Hint: "use a smaller quota: " + cl.Prompt.Command(fmt.Sprintf("shards set %d --quota SIZE", c.Shards)) + "; or give JetStream more space",
		}
	}
	if refused, ok := errors.AsType[*permissions.Error](context.Cause(ctx)); ok && c.Shards > was.Shards() {
		return &failure.Error{
			Code: failure.Refused, Err: refused, What: refused.What(),
			Hint: fmt.Sprintf("first write the permissions for %s: waymark fleet add %s --dir DIR --offline --shards %d, and install them on the servers as it says; "+
				"then, with the daemon's context: %s", output.Plural(c.Shards, "shard"), cl.Fleet, c.Shards, cl.Prompt.Command(fmt.Sprintf("shards set %d", c.Shards))),
		}
	}
	if err != nil {
		return err
	}
	if err := cl.NATS.Publish(schema.SettingsSubject(cl.Fleet), nil); err != nil {
		return fmt.Errorf("notifying the fleet of its shards: %w", err)
	}
	if err := cl.NATS.FlushTimeout(cl.Wait); err != nil {
		return fmt.Errorf("notifying the fleet of its shards: %w", err)
	}
	if a.JSON {
		return output.Line(a.Stdout, &shardsView{Fleet: cl.Fleet, Generations: now.Generations, Shards: []shardView{}})
	}
	if slices.Equal(now.Generations, was.Generations) {
		return a.Say(a.Stdout, "fleet %s already spreads new runs over %s", cl.Fleet, output.Plural(c.Shards, "shard"))
	}
	earlier := make([]string, 0, len(was.Generations))
	for _, n := range was.Generations {
		earlier = append(earlier, strconv.Itoa(n))
	}
	return a.Say(a.Stdout, "fleet %s now spreads new runs over %s (before: %s); existing runs stay in their shard",
		cl.Fleet, output.Plural(c.Shards, "shard"), strings.Join(earlier, ", "))
}
