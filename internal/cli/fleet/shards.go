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
	Ls  shardsLsCmd  `cmd:"" default:"1" aliases:"list" help:"Show the shards of the fleet: who folds them, how far, and how full they are. What shards does when nothing else is asked."`
	Set shardsSetCmd `cmd:"" help:"Spread new runs over another number of shards. Runs stay where they began."`
}

type shardsLsCmd struct{}

// Help is the text below the flags.
func (shardsLsCmd) Help() string {
	return `FOLDED is the place in the log up to which checkpoints are made, LAST the end of the log; the daemon's own marks lie between ` +
		`the two. LIVE are the runs that have not ended, or have a hand-off or a call to be settled. A shard that says "no" under NEW RUNS keeps the runs that began there.`
}

// shardsView is the fleet's shards as JSON.
type shardsView struct {
	Fleet       string      `json:"fleet"`
	Generations []int       `json:"generations"`
	Shards      []shardView `json:"shards"`
}

// shardView is one shard as JSON.
type shardView struct {
	Shard   int  `json:"shard"`
	NewRuns bool `json:"new_runs"`
	Live    int  `json:"live_runs"`
	// Folded and Last are places in the log.
	Folded schema.StreamSequence `json:"folded"`
	Last   schema.StreamSequence `json:"last"`
	Bytes  int64                 `json:"bytes"`
	Quota  int64                 `json:"quota_bytes"`
	// Worker is the daemon that folds the shard; empty for none.
	Worker string `json:"worker"`
}

// Run shows the shards. It asks the streams, and works without a daemon.
func (shardsLsCmd) Run(ctx context.Context, a *base.App) error {
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
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
			worker = "nobody"
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
			if e.Live != nil || e.Err != nil { // and not only the mark of an erased one
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
	Shards int            `arg:"" help:"Shards that new runs are spread over, 1 to 256."`
	Quota  base.QuotaSize `default:"0" placeholder:"SIZE" help:"Size of the log of each shard from now on (default: what it is). The server reserves it for every shard."`
}

// Help is the text below the flags.
func (shardsSetCmd) Help() string {
	return `Daemons, executors and waymark events take the change up while they run. From then on each run that begins elsewhere than the ` +
		`fleet's first number of shards would put it costs one more message. Fewer shards are a change like any other: the shards that are ` +
		`left out keep their runs and are folded on.

A fleet can have had ` + strconv.Itoa(kvstore.MaxGenerations) + ` numbers of shards; going back to one of them makes none more. Each costs the lookup of a run ` +
		`one question, and a program without the SDK must know where its runs began: see docs/scaling.md.

Examples:
  waymark shards set 4
  waymark shards set 4 --quota 2GiB               when the server has no room for four logs of the size of the one`
}

// Run changes the number of shards: first the streams are there, then everybody is told.
func (c shardsSetCmd) Run(ctx context.Context, a *base.App) error {
	if c.Shards < 1 || c.Shards > kvstore.MaxShards {
		return failure.New(failure.Usage, fmt.Sprintf("use 1 to %d", kvstore.MaxShards), "a fleet cannot have %d shards", c.Shards)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
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
			What: fmt.Sprintf("the server has no room for %s of %s each", output.Plural(max(c.Shards, was.Shards()), "log"), output.Bytes(was.QuotaBytes)),
			Hint: "give each less: " + cl.Prompt.Command(fmt.Sprintf("shards set %d --quota SIZE", c.Shards)) + "; or give JetStream more room",
		}
	}
	if refused, ok := errors.AsType[*permissions.Error](context.Cause(ctx)); ok && c.Shards > was.Shards() {
		return &failure.Error{
			Code: failure.Refused, Err: refused, What: refused.What(),
			Hint: fmt.Sprintf("first write the permissions for %s: waymark fleet add %s --dir DIR --offline --shards %d, and hand them to the servers as it says; "+
				"then, with the daemon's context: %s", output.Plural(c.Shards, "shard"), cl.Fleet, c.Shards, cl.Prompt.Command(fmt.Sprintf("shards set %d", c.Shards))),
		}
	}
	if err != nil {
		return err
	}
	if err := cl.NATS.Publish(schema.SettingsSubject(cl.Fleet), nil); err != nil {
		return fmt.Errorf("telling the fleet of its shards: %w", err)
	}
	if err := cl.NATS.FlushTimeout(cl.Wait); err != nil {
		return fmt.Errorf("telling the fleet of its shards: %w", err)
	}
	if a.JSON {
		return output.Line(a.Stdout, &shardsView{Fleet: cl.Fleet, Generations: now.Generations, Shards: []shardView{}})
	}
	if slices.Equal(now.Generations, was.Generations) {
		return a.Say(a.Stdout, "fleet %s spreads new runs over %s already", cl.Fleet, output.Plural(c.Shards, "shard"))
	}
	earlier := make([]string, 0, len(was.Generations))
	for _, n := range was.Generations {
		earlier = append(earlier, strconv.Itoa(n))
	}
	return a.Say(a.Stdout, "fleet %s spreads new runs over %s from now on, before it was %s; runs stay where they began",
		cl.Fleet, output.Plural(c.Shards, "shard"), strings.Join(earlier, ", "))
}
