package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/genstore"
	"github.com/waymarkio/waymark/schema"
)

// benchStoreCmd fills a fleet with runs.
type benchStoreCmd struct {
	Runs    int  `default:"100000" placeholder:"N" help:"Runs that the fleet has in the end (default: 100000)."`
	Live    int  `default:"1000" placeholder:"N" help:"How many of them have not ended: half are running under an executor that does not exist, half wait for a person (default: 1000)."`
	Turns   int  `default:"1" placeholder:"T" help:"Turns of a run, each with one call (default: 1)."`
	Payload int  `default:"256" placeholder:"BYTES" help:"Size of a call's result; half of it that of an answer (default: 256)."`
	Check   int  `default:"200" placeholder:"N" help:"Runs to read back and compare at the end (default: 200)."`
	NoFold  bool `help:"Do not wait until the daemon has made checkpoints of them, and compare nothing."`
}

// Help is the text below the flags.
func (benchStoreCmd) Help() string {
	return `Publishes made-up runs, gen-00000000 and on, to the fleet's log as executors would, and waits until the daemon has folded them. ` +
		`It can be stopped at any time, and goes on where it ended when it is asked for the same. Take a fleet of its own: nothing takes these runs out again. ` +
		`A run of one turn takes about 7 KB on disk, with its checkpoint and segment.

Example:
  waymark serve --fleet million --quota 20GiB
  waymark bench store --fleet million --runs 1000000 --live 10000`
}

// storeReply is what bench store prints as JSON.
type storeReply struct {
	Fleet string `json:"fleet"`
	Runs  int    `json:"runs"`
	Live  int    `json:"live"`
	// Published were published by this command; the others were there.
	Published int64 `json:"published"`
	// Publishing and Folding are the times that it took, in seconds; folding goes on beside publishing.
	Publishing float64 `json:"publishing_s"`
	Folding    float64 `json:"folding_s,omitzero"`
	// Compared runs were read back.
	Compared int `json:"compared,omitzero"`
}

// storeBegan is when the first run of every generated store was started.
var storeBegan = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) //nolint:gochecknoglobals // a constant

// Run fills the fleet.
func (c benchStoreCmd) Run(ctx context.Context, a *app) error {
	cfg := genstore.Config{Fleet: a.cli.Fleet, Runs: c.Runs, Live: c.Live, Turns: c.Turns, Payload: c.Payload, Began: storeBegan}
	if err := cfg.Validate(); err != nil {
		return fail(exitUsage, "see: waymark bench store --help", "%s", err)
	}
	cl, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.close()
	js, err := jetstream.New(cl.nc)
	if err != nil {
		return err
	}
	reply := storeReply{Fleet: a.cli.Fleet, Runs: c.Runs, Live: c.Live}
	bar := a.newProgress("runs", int64(c.Runs), false)
	defer bar.close()
	var published atomic.Int64
	began := a.now()
	err = genstore.Fill(ctx, js, cfg, genstore.Progress{
		Found: func(n int) { bar.add(float64(n)) },
		Published: func(n int) {
			published.Add(int64(n))
			bar.add(float64(n))
		},
	})
	if err != nil {
		return err
	}
	bar.close()
	reply.Published, reply.Publishing = published.Load(), a.now().Sub(began).Seconds()
	if !c.NoFold {
		if err := c.await(ctx, a, cl, js, cfg, &reply); err != nil {
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

// await waits for the daemon and compares some of the runs.
func (c benchStoreCmd) await(ctx context.Context, a *app, cl *client, js jetstream.JetStream, cfg genstore.Config, reply *storeReply) error {
	began := a.now()
	bar := new(progress)
	defer func() { bar.close() }()
	last := uint64(0)
	err := genstore.AwaitFolded(ctx, js, cfg.Fleet, genstore.Progress{Folded: func(behind uint64) {
		if last == 0 {
			bar = a.newProgress("events to fold", int64(behind)+1, false) //nolint:gosec // a count
		} else if behind < last {
			bar.add(float64(last - behind))
		}
		last = max(behind, 1)
	}})
	if err != nil {
		return err
	}
	reply.Folding, reply.Compared = a.now().Sub(began).Seconds(), min(c.Check, c.Runs)
	err = genstore.Check(ctx, cfg, c.Check, func(ctx context.Context, run string) (*schema.Head, error) {
		got, err := cl.get(ctx, run)
		if err != nil {
			return nil, err
		}
		return &got.Head, nil
	})
	if errors.Is(err, genstore.ErrDiffers) {
		return fail(exitDamaged, "was the fleet filled with other --turns, --payload or --live before? Else look for the fault", "%s", err)
	}
	return err
}
