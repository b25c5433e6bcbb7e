package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/cli/ui"
	"github.com/waymarkio/waymark/internal/inspector"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// liveFor bounds a demonstration in a browser.
	liveFor = 30 * time.Minute
	// liveSilence is the time without a heartbeat after which its runs are orphaned.
	liveSilence = 3 * time.Second
	// backAfter is the time after which a killed process is replaced.
	backAfter = 20 * time.Second
	// atWork is the number of runs that are kept active. It is checked every tendEvery.
	atWork, tendEvery = 5, time.Second
)

// liveActors are the executors of the demonstration.
var liveActors = []string{"ada", "bob", "cleo"}

// liveStage is a demonstration in a browser: executors that work until the viewer kills them.
type liveStage struct {
	fleet *processTree
	now   func() time.Time

	mu     sync.Mutex
	actors []*liveActor
}

type liveActor struct {
	name    string
	process *process
	// back is when a new process starts; zero while there is one.
	back time.Time
}

// Silence implements [inspector.Stage].
func (*liveStage) Silence() time.Duration { return liveSilence }

// Actors implements [inspector.Stage].
func (l *liveStage) Actors() []inspector.Actor {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]inspector.Actor, len(l.actors))
	for i, a := range l.actors {
		list[i] = inspector.Actor{Name: a.name, Process: a.process.pid(), Killed: !a.back.IsZero(), Back: a.back}
	}
	return list
}

// Kill implements [inspector.Stage].
func (l *liveStage) Kill(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.actors, func(a *liveActor) bool { return a.name == name })
	switch {
	case i < 0:
		return failure.New(failure.NotFound, "use one of the buttons", "the demonstration has no executor %.60q", name)
	case !l.actors[i].back.IsZero():
		return failure.New(failure.Conflict, "wait for its new process", "%s was killed already", name)
	}
	l.actors[i].back = l.now().Add(backAfter)
	return l.actors[i].process.kill()
}

// start starts the process of an actor. Under l.mu.
func (l *liveStage) start(a *liveActor) (err error) {
	a.process, err = l.fleet.start(a.name, "demo-worker", "--name", a.name)
	a.back = time.Time{}
	return err
}

// tend starts the processes that are due, and fails if a process ended by itself.
func (l *liveStage) tend() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.actors {
		switch {
		case a.back.IsZero() && a.process.ended():
			return a.process.failed("ended by itself")
		case !a.back.IsZero() && !l.now().Before(a.back):
			if err := l.start(a); err != nil {
				return err
			}
		}
	}
	return nil
}

// live shows executors at work in a browser until ctx ends.
func (c Cmd) live(ctx context.Context, a *base.App, tree *processTree) error {
	address, err := ui.Listen(ctx, "--ui-listen", c.Listen, nil)
	if err != nil {
		return err
	}
	defer func() { _ = address.Close() }() // the pages close it, too
	server, err := tree.start("server", "serve", "--embedded", "--http", "off", "--quota", "256MiB", "--silence", liveSilence.String(), "--log-format", "json")
	if err != nil {
		return err
	}
	if err := server.ready(ctx); err != nil {
		return err
	}
	nc, err := dial(ctx, tree.state)
	if err != nil {
		return err
	}
	defer nc.Close()
	source, err := inspector.Connect(ctx, publisher.ReaderConfig{Conn: nc})
	if err != nil {
		return err
	}
	office, err := publisher.Connect(ctx, publisher.Config{Conn: nc, Executor: "office", Agent: clerk, Heartbeat: -1, Now: a.Now})
	if err != nil {
		return err
	}
	defer func() { _ = office.Close(context.WithoutCancel(ctx)) }() // it has no run
	stage := &liveStage{fleet: tree, now: a.Now}
	for _, name := range liveActors {
		actor := &liveActor{name: name}
		if err := stage.start(actor); err != nil {
			return err
		}
		stage.actors = append(stage.actors, actor)
	}
	pages, err := ui.New(a, address, inspector.Config{Fleet: source, By: "you", Acts: true, Stage: stage}, ui.Say(a))
	if err != nil {
		return err
	}
	if err := c.announce(a, pages); err != nil {
		return errors.Join(err, pages.Close())
	}
	if !c.NoOpen {
		remove, err := pages.Browse(ctx, a)
		defer remove()
		if err != nil {
			return errors.Join(err, pages.Close())
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return pages.Serve(ctx) })
	group.Go(func() error { return stage.run(ctx, source, office, server) })
	return group.Wait()
}

// announce prints the address of the pages.
func (Cmd) announce(a *base.App, pages *ui.Pages) error {
	if a.JSON {
		return output.Line(a.Stdout, struct {
			URL string `json:"url"`
		}{pages.Entrance})
	}
	_, err := fmt.Fprintf(a.Stdout, `waymark demo: %s
Three executors work on the orders of a shop. The pages have a button for each that kills its process.
Some orders ask a person before they send a mail. Ctrl-C ends the demonstration, and so do %s.
`, pages.Entrance, liveFor)
	return err
}

// run keeps runs and executors active until ctx ends.
func (l *liveStage) run(ctx context.Context, source inspector.Fleet, office *publisher.Fleet, server *process) error {
	tick := time.NewTicker(tendEvery)
	defer tick.Stop()
	for next := 1; ; {
		var list schema.ListReply
		err := source.Ask(ctx, schema.VerbList, "", schema.ListRequest{
			Status: []schema.Status{schema.StatusRunning, schema.StatusOrphaned, schema.StatusInterrupted}, Limit: atWork,
		}, &list)
		if err == nil && len(list.Runs) < atWork {
			_, err = office.Submit(ctx, publisher.RunSpec{
				ID: orderID(next), Agent: clerk, Task: fmt.Sprintf("Where are the parcels of order %d?", 4700+next),
			})
			next++
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case server.ended():
			return server.failed("ended by itself")
		case err != nil:
			return fmt.Errorf("keeping the demonstration at work: %w", err)
		}
		if err := l.tend(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// dial connects to the demonstration's server.
func dial(ctx context.Context, dir string) (*nats.Conn, error) {
	url, opts, err := discover(ctx, dir)
	if err != nil {
		return nil, err
	}
	return nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.ReconnectBufSize(-1), nats.ErrorHandler(nil))...)
}
