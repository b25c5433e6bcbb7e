package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/schollz/progressbar/v3"

	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/internal/natsconn"
	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// storeCmd fills a fleet with runs.
type storeCmd struct {
	Runs    int  `default:"100000" placeholder:"N" help:"Runs that the fleet has in the end (default: 100000)."`
	Live    int  `default:"1000" placeholder:"N" help:"How many of them have not ended: half are running under an executor that does not exist, half wait for a person (default: 1000)."`
	Turns   int  `default:"1" placeholder:"T" help:"Turns of a run, each with one call (default: 1)."`
	Payload int  `default:"256" placeholder:"BYTES" help:"Size of a call's result; half of it that of an answer (default: 256)."`
	Check   int  `default:"200" placeholder:"N" help:"Runs to read back and compare at the end (default: 200)."`
	NoFold  bool `help:"Do not wait until the daemon has made checkpoints of them, and compare nothing."`

	Server serverFlags `embed:"" group:"Which server:"`
}

// serverFlags name the server and the fleet, as those of waymark do.
type serverFlags struct {
	StateDir string         `placeholder:"DIR" env:"WAYMARK_STATE_DIR" help:"State directory of the local server (default: one of this user's own)."`
	Conn     natsconn.Flags `embed:""`
	Fleet    string         `default:"default" placeholder:"NAME" env:"WAYMARK_FLEET" help:"Fleet (default: default)."`
	Timeout  time.Duration  `default:"30s" placeholder:"TIME" env:"WAYMARK_TIMEOUT" help:"Longest wait for one answer (default: 30s)."`
}

// connect finds the server as the commands of waymark do. closed is closed once the connection is.
func (f *serverFlags) connect(ctx context.Context) (nc *nats.Conn, closed <-chan struct{}, err error) {
	dir := f.StateDir
	if dir == "" {
		if dir, err = statedir.Default(os.Getenv); err != nil {
			return nil, nil, err
		}
	}
	target, err := natsconn.Config{Flags: f.Conn.Settings(), Getenv: os.Getenv, StateDir: dir}.Resolve(ctx)
	if errors.Is(err, natsconn.ErrNoServer) {
		return nil, nil, &failure{err, exitFailure, "start one with: waymark serve"}
	}
	if err != nil {
		return nil, nil, err
	}
	ended := make(chan struct{})
	nc, err = target.Connect(ctx, nats.Name("waymark bench store"), nats.ClosedHandler(func(*nats.Conn) { close(ended) }))
	return nc, ended, err
}

// Help is the text below the flags.
func (storeCmd) Help() string {
	return `Publishes generated runs, gen-00000000 and on, to the fleet's log as executors would, and waits until the daemon has folded them. ` +
		`It can be stopped at any time, and goes on where it ended when it is asked for the same. Take a fleet of its own: nothing takes these runs out again. ` +
		`A run of one turn takes about 7 KB on disk, with its checkpoint and segment.

Example:
  waymark serve --fleet million --quota 20GiB
  .bin/bench store --fleet million --runs 1000000 --live 10000`
}

// storeReply is what store prints as JSON.
type storeReply struct {
	Fleet string `json:"fleet"`
	Runs  int    `json:"runs"`
	Live  int    `json:"live"`
	// Published were published by this command; the others were there.
	Published int64 `json:"published"`
	// Publishing and Folding are the times that it took, in seconds; folding runs while events are published.
	Publishing float64 `json:"publishing_s"`
	Folding    float64 `json:"folding_s,omitzero"`
	// Compared runs were read back.
	Compared int `json:"compared,omitzero"`
}

// storeBegan is when the first run of every generated store was started.
var storeBegan = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

// Run fills the fleet.
func (c storeCmd) Run(ctx context.Context, a *app) (err error) {
	cfg := loadgen.Config{Fleet: c.Server.Fleet, Runs: c.Runs, Live: c.Live, Turns: c.Turns, Payload: c.Payload, Began: storeBegan}
	if err := cfg.Validate(); err != nil {
		return &failure{err, exitUsage, "see: store --help"}
	}
	nc, closed, err := c.Server.connect(ctx)
	if err != nil {
		return err
	}
	defer func() {
		nc.Close()
		<-closed
	}()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	reply := storeReply{Fleet: cfg.Fleet, Runs: c.Runs, Live: c.Live}
	bar := a.newBar("runs", int64(c.Runs))
	var published atomic.Int64
	began := time.Now()
	err = loadgen.Fill(ctx, js, cfg, loadgen.Progress{
		Found: func(n int) { _ = bar.Add(n) }, // a bar that cannot be drawn is no failure of the work
		Published: func(n int) {
			published.Add(int64(n))
			_ = bar.Add(n)
		},
	})
	_ = bar.Finish()
	if err != nil {
		return err
	}
	reply.Published, reply.Publishing = published.Load(), time.Since(began).Seconds()
	if !c.NoFold {
		if err := c.await(ctx, a, js, cfg, &reply); err != nil {
			return err
		}
	}
	if a.cli.JSON {
		return document(a.stdout, reply)
	}
	_, err = fmt.Fprintf(a.stdout, "%d runs, %d of them live; %d published in %.0f s, folded %.0f s later, %d compared\n",
		reply.Runs, reply.Live, reply.Published, reply.Publishing, reply.Folding, reply.Compared)
	return err
}

// newBar shows a bar on a terminal.
func (a *app) newBar(what string, limit int64) *progressbar.ProgressBar {
	return progressbar.NewOptions64(limit,
		progressbar.OptionSetWriter(a.stderr),
		progressbar.OptionSetVisibility(!a.cli.Quiet && isTerminal(a.stderr)),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowCount(),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

// await waits for the daemon and compares some of the runs.
func (c storeCmd) await(ctx context.Context, a *app, js jetstream.JetStream, cfg loadgen.Config, reply *storeReply) (err error) {
	fleet, err := publisher.Connect(ctx, publisher.Config{
		Conn: js.Conn(), Fleet: cfg.Fleet, Executor: "waymark-bench", Heartbeat: -1, RequestTimeout: c.Server.Timeout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()
	began, all := time.Now(), uint64(0)
	var bar *progressbar.ProgressBar
	err = loadgen.AwaitFolded(ctx, js, cfg.Fleet, loadgen.Progress{Folded: func(behind uint64) {
		if bar == nil {
			all = behind
			bar = a.newBar("events to fold", int64(all)+1) //nolint:gosec // a count
		}
		_ = bar.Set64(int64(all - min(behind, all))) //nolint:gosec // as above
	}})
	if bar != nil {
		_ = bar.Finish()
	}
	if err != nil {
		return err
	}
	reply.Folding, reply.Compared = time.Since(began).Seconds(), min(c.Check, c.Runs)
	err = loadgen.Check(ctx, cfg, c.Check, func(ctx context.Context, run string) (*schema.Head, error) {
		head, err := fleet.Head(ctx, run)
		return &head, err
	})
	if errors.Is(err, loadgen.ErrDiffers) {
		return &failure{err, exitDamaged, "was the fleet filled with other --turns, --payload or --live before? Else look for the fault"}
	}
	return err
}
