package demo

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
)

// toolTime is how long the tools of the demonstration take: long enough for a kill in the middle.
const toolTime = 400 * time.Millisecond

// patience is how long an executor tries to get one event acknowledged: longer than the server is away.
const patience = 30 * time.Second

// askEvery is how often an executor asks whether a person has settled a call that is held.
const askEvery = 100 * time.Millisecond

// ExecutorCmd is an executor of the demonstration. It gets only the ids of its runs.
type ExecutorCmd struct {
	Name   string   `required:"" help:"Name of the executor."`
	Dir    string   `required:"" help:"Directory of the demonstration."`
	Resume bool     `help:"Take the runs over instead of starting them."`
	Lanes  int      `default:"1" help:"Runs played at once."`
	IDs    []string `arg:"" name:"run" help:"Ids of the runs."`
}

// Paths below the demonstration's directory.
func inputsIn(dir string) string  { return filepath.Join(dir, "inputs") }
func journalIn(dir string) string { return filepath.Join(dir, "outside.jsonl") }
func scratchIn(dir string) string { return filepath.Join(dir, "scratch") }

// Run plays the runs.
func (c ExecutorCmd) Run(ctx context.Context, a *base.App) (err error) {
	runs, err := plannedRuns(inputsIn(c.Dir))
	if err != nil {
		return err
	}
	witness, err := journal.Open(journalIn(c.Dir), a.Now)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, witness.Close()) }()
	stateDir, err := a.StateDirectory()
	if err != nil {
		return err
	}
	fleet, err := connect(ctx, a, stateDir, c.Name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeFleet(ctx, fleet)) }()
	p := &player.Player{
		Fleet: fleet, Journal: witness, Now: a.Now, Replay: policyOf, AwaitPerson: askEvery,
		Tool: toolOf(toolbox{scratch: scratchIn(c.Dir), pause: 2 * toolTime}),
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(c.Lanes)
	for _, id := range c.IDs {
		i := slices.IndexFunc(runs, func(r plannedRun) bool { return r.script.ID == id })
		if i < 0 {
			return errors.Join(fmt.Errorf("there is no run %q in the demonstration", id), group.Wait())
		}
		group.Go(func() error { return c.play(ctx, p, runs[i].script) })
	}
	return group.Wait()
}

func (c ExecutorCmd) play(ctx context.Context, p *player.Player, script *transcript.Run) error {
	play := p.Play
	if c.Resume {
		play = p.Resume
	}
	err := play(ctx, script)
	if err != nil {
		return errors.Join(err, p.Journal.Write(journal.Entry{Op: journal.Failed, Run: script.ID, Note: err.Error()}))
	}
	return nil
}

// connect connects to the demonstration's server as any client on this machine does: through its state directory.
func connect(ctx context.Context, a *base.App, dir, executor string) (*publisher.Fleet, error) {
	url, opts, err := discover(ctx, dir)
	if err != nil {
		return nil, err
	}
	return publisher.Connect(ctx, publisher.Config{
		URL: url, Executor: executor, PublishTimeout: patience, RequestTimeout: patience, Now: a.Now, Options: append(opts, patient()...),
	})
}

// discover finds the demonstration's server, and the options to connect to it.
func discover(ctx context.Context, dir string) (url string, opts []nats.Option, err error) {
	end, err := statedir.Discover(ctx, dir)
	if err != nil {
		return "", nil, err
	}
	opts, err = end.Options()
	return end.URL, opts, err
}

// patient are the options of an executor, which waits for the server while it is away.
func patient() []nats.Option {
	return []nats.Option{nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond)}
}

// closeFleet ends an executor, within base.CloseTimeout.
func closeFleet(ctx context.Context, fleet *publisher.Fleet) error {
	limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), base.CloseTimeout)
	defer cancel()
	return fleet.Close(limit)
}

// toolOf runs real tools for the workshop. For transcripts it waits and returns the recorded results.
func toolOf(box toolbox) player.Tool {
	return func(ctx context.Context, run *transcript.Run, call *transcript.Call) (publisher.ToolResult, error) {
		if run.Format != "" {
			if err := pause.For(ctx, toolTime+spread(run.ID, call)); err != nil {
				return publisher.ToolResult{}, err
			}
			return player.Recorded(ctx, run, call)
		}
		var in arguments
		if err := json.Unmarshal(call.Arguments, &in); err != nil {
			return publisher.ToolResult{}, err
		}
		said, err := box.run(ctx, call.Name, in)
		if err != nil {
			return publisher.ToolResult{}, err
		}
		return publisher.Result(said)
	}
}

// spread makes tools take different times, the same for the same call.
func spread(run string, call *transcript.Call) time.Duration {
	h := fnv.New32a()
	_, _ = fmt.Fprint(h, run, call.Key) // a hash never fails
	return time.Duration(h.Sum32()%200) * time.Millisecond
}
