package fleet

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// ShardsCmd is waymark shards.
type ShardsCmd struct{}

// Help is the text below the flags.
func (ShardsCmd) Help() string {
	return `FOLDED is the position up to which checkpoints are written, LAST the end of the log. LIVE counts runs that have not ended, or have ` +
		`an open hand-off or a call to settle. The number of shards is chosen when the fleet is created (waymark serve --shards).`
}

// shardsView is the JSON output of shards.
type shardsView struct {
	Fleet  string      `json:"fleet"`
	Shards []shardView `json:"shards"`
}

// shardView is one shard in the JSON output.
type shardView struct {
	Shard int `json:"shard"`
	Live  int `json:"live_runs"`
	// Folded and Last are positions in the log.
	Folded schema.StreamSequence `json:"folded"`
	Last   schema.StreamSequence `json:"last"`
	Bytes  int64                 `json:"bytes"`
	Quota  int64                 `json:"quota_bytes"`
	// Worker is the daemon that folds the shard; empty for none.
	Worker string `json:"worker"`
}

// Run shows the shards. It reads the streams, and works without a daemon.
func (ShardsCmd) Run(ctx context.Context, a *base.App, cl *base.Client) error {
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
		worker := s.Worker
		if worker == "" {
			worker = "none"
		}
		rows[i] = []string{
			strconv.Itoa(s.Shard), strconv.Itoa(s.Live), strconv.FormatUint(uint64(s.Folded), 10),
			strconv.FormatUint(uint64(s.Last), 10), used, worker,
		}
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "shard", Right: true},
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
	view := &shardsView{Fleet: cl.Fleet}
	for i := range settings.Shards {
		shard, err := kvstore.OpenShard(js, settings, i, base.Operator)
		if err != nil {
			return nil, err
		}
		usage, err := shard.Usage(ctx)
		if err != nil {
			return nil, err
		}
		s := shardView{Shard: i, Last: usage.Last, Bytes: usage.Bytes, Quota: settings.QuotaBytes}
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
