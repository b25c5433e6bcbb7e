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
	At string `required:"" placeholder:"POINT" help:"A time (2026-01-31T12:00:00Z), an age (90m), a log position (8124), or one for each shard (0=8124,1=7990)."`
}

// Help is the text below the flags.
func (CutCmd) Help() string {
	return `Shows each run's last boundary up to the cut, for recover --at, fork --at and diff. Within a shard the cut is one position in the ` +
		`log; between shards a time is as exact as the servers' clocks. Needs the daemon's credentials if roles have separate permissions.

Examples:
  waymark cut --at 90m
  waymark cut --at 0=8124,1=7990`
}

// cutShard and cutRun are the lines of cut's JSON output.
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
			return config, failure.New(failure.Usage, "use a time such as 2026-01-31T12:00:00Z or 90m, a position such as 8124, or one for each shard: 0=8124,1=7990", "--at %.80q is not a valid point", c.At)
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
		_, err := fmt.Fprintf(a.Stdout, "shard %d is cut after %d\n", p.Shard, p.Position)
		return err
	}
	config.OnRun = func(p backup.RunPoint) error {
		if a.JSON {
			return output.Line(a.Stdout, cutRun{"run", p})
		}
		since := ""
		if p.WentOn {
			since = "has later events"
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
