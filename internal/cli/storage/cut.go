package storage

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/backup"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/schema"
)

// CutCmd is waymark cut.
type CutCmd struct {
	At string `required:"" placeholder:"POINT" help:"A time (RFC 3339, such as 2026-01-31T12:00:00Z, or how long ago, such as 90m), a place of the log of a fleet with one shard (8124), or one of each shard (0=8124,1=7990)."`
}

// Help is the text below the flags.
func (CutCmd) Help() string {
	return `Each run is shown with its last boundary up to there, as the point that recover --at, fork --at and diff take. Within a shard the cut ` +
		`is one place of the log: what is behind it does not count, in any run. By a time, what the server had stored before that time counts, and shards ` +
		`agree as far as their servers' clocks do. Runs that were erased since are not in the cut. Nothing is written. The ` +
		`credentials of the daemon are needed where a server gives each role its own permissions.

Examples:
  waymark cut --at 90m
  waymark cut --at 2026-01-31T12:00:00Z --json
  waymark cut --at 0=8124,1=7990`
}

// cutShard and cutRun are the lines that cut prints as JSON.
type cutShard struct {
	Kind string `json:"kind"` // shard
	backup.ShardPoint
}

type cutRun struct {
	Kind string `json:"kind"` // run
	backup.RunPoint
}

// parse reads the flag.
func (c CutCmd) parse(now time.Time) (config backup.CutConfig, err error) {
	if at, err := time.Parse(time.RFC3339Nano, c.At); err == nil {
		config.Time = at
		return config, nil
	}
	if ago, err := time.ParseDuration(c.At); err == nil && ago > 0 {
		config.Time = now.Add(-ago)
		return config, nil
	}
	config.Positions = map[int]schema.StreamSequence{}
	for part := range strings.SplitSeq(c.At, ",") {
		shard, place, both := strings.Cut(part, "=")
		if !both {
			shard, place = "0", part
		}
		i, err1 := strconv.Atoi(shard)
		n, err2 := strconv.ParseUint(place, 10, 63)
		_, again := config.Positions[i]
		if err1 != nil || err2 != nil || i < 0 || again {
			return config, failure.New(failure.Usage, "use a time such as 2026-01-31T12:00:00Z or 90m, a place such as 8124, or one of each shard: 0=8124,1=7990", "--at %.80q is no point", c.At)
		}
		config.Positions[i] = schema.StreamSequence(n)
	}
	return config, nil
}

// Run shows the cut.
func (c CutCmd) Run(ctx context.Context, a *base.App) error {
	config, err := c.parse(a.Now())
	if err != nil {
		return err
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	js, err := jetstream.New(cl.NATS)
	if err != nil {
		return err
	}
	config.Fleet = cl.Fleet
	var rows [][]string
	config.OnShard = func(p backup.ShardPoint) error {
		if a.JSON {
			return output.Line(a.Stdout, cutShard{"shard", p})
		}
		_, err := fmt.Fprintf(a.Stdout, "shard %d is cut behind %d\n", p.Shard, p.Position)
		return err
	}
	config.OnRun = func(p backup.RunPoint) error {
		if a.JSON {
			return output.Line(a.Stdout, cutRun{"run", p})
		}
		since := ""
		if p.WentOn {
			since = "went on since"
		}
		rows = append(rows, []string{p.Run, p.Point, output.Number(uint64(p.Position.Stream)), output.Number(p.Turn), string(p.Status), since})
		return nil
	}
	if err := backup.Cut(ctx, js, config); err != nil || a.JSON {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	return output.Table(a.Stdout, []output.Column{
		{Title: "run"},
		{Title: "point"},
		{Title: "position", Right: true, Drop: 2},
		{Title: "turn", Right: true, Drop: 1},
		{Title: "status"},
		{Title: ""},
	}, rows)
}
