package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/publisher"
)

const (
	// playWait bounds one request to an executor process.
	playWait = 10 * time.Minute
	// executorsStarting is the number of executor processes that are started at once.
	executorsStarting = 4
)

// executorRole is an executor in a process of its own: it plays turns on its own runs.
type executorRole struct {
	URL      string `json:"url"`
	User     string `json:"user"`
	Password string `json:"password"`
	Name     string `json:"name"`
	Runs     int    `json:"runs"`
	Shape    Shape  `json:"shape"`
}

// executorRequest is a request to an executor process; the zero value asks for its usage only.
type executorRequest struct {
	// Prepare is the number of turns of each run to make texts for, Play the number of turns to play.
	Prepare int `json:"prepare,omitzero"`
	Play    int `json:"play,omitzero"`
	// Heads asks for the heads of the runs.
	Heads bool `json:"heads,omitzero"`
}

// executor is the state of an executor process.
type executor struct {
	link    *link
	fleet   *publisher.Fleet
	players []*Player
}

func (r *executorRole) start(ctx context.Context, log zerolog.Logger) (_ *executor, err error) {
	e := new(executor)
	if e.link, err = dial(r.URL, r.Name, nats.UserInfo(r.User, r.Password)); err != nil {
		return nil, err
	}
	e.fleet, err = publisher.Connect(ctx, publisher.Config{Conn: e.link.Conn, Fleet: FleetName, Executor: r.Name, Agent: "bench", Logger: &log})
	if err != nil {
		e.link.close()
		return nil, err
	}
	e.players, err = StartRuns(ctx, e.fleet, r.Name, r.Runs, r.Shape)
	return e, err
}

// do serves one request.
func (e *executor) do(ctx context.Context, line []byte) (a childAnswer, err error) {
	var request executorRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return a, fmt.Errorf("%w: request of an executor: %w", ErrChild, err)
	}
	for _, p := range e.players {
		p.Prepare(request.Prepare)
	}
	if request.Play > 0 {
		s, err := WholeTurns(ctx, turners(e.players), request.Play)
		if err != nil {
			return a, err
		}
		for _, l := range s.Latencies {
			a.Latencies = append(a.Latencies, l.Nanoseconds())
		}
	}
	if request.Heads {
		a.Wrote = WroteBy(e.players...)
	}
	a.Usage = ownUsage()
	return a, nil
}

func (e *executor) stop() error {
	err := e.fleet.Close(context.Background())
	e.link.close()
	return err
}

// StartExecutors starts n executor processes that share the runs. They end before the daemons do.
func (w *World) StartExecutors(ctx context.Context, n, runs int, shape Shape) error {
	children := make([]*child, n)
	w.Defer(func(context.Context) error {
		w.executors = nil
		return stopChildren(children)
	})
	group, inner := errgroup.WithContext(ctx)
	group.SetLimit(executorsStarting)
	for i := range children {
		share := runs / n
		if i < runs%n {
			share++
		}
		group.Go(func() (err error) {
			name := fmt.Sprintf("executor-%d", i)
			children[i], err = startChild(inner, w.Options.Child, name, childRole{Executor: &executorRole{
				URL: w.servers.url, User: w.servers.user, Password: w.servers.password, Name: name, Runs: share, Shape: shape,
			}})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	w.executors = children
	return nil
}

// askExecutors sends a request to all executor processes at once and returns their answers. It kills them when ctx ends.
func (w *World) askExecutors(ctx context.Context, request executorRequest) ([]childAnswer, error) {
	line, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	answers := make([]childAnswer, len(w.executors))
	group, ctx := errgroup.WithContext(ctx)
	for i, c := range w.executors {
		group.Go(func() (err error) {
			stopKill := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() }) // it may have ended already
			defer stopKill()
			answers[i], err = c.ask(playWait, line)
			return err
		})
	}
	return answers, group.Wait()
}

// PrepareExecutors makes the texts of the next turns of every run.
func (w *World) PrepareExecutors(ctx context.Context, turns int) error {
	_, err := w.askExecutors(ctx, executorRequest{Prepare: turns})
	return err
}

// PlayExecutors is [WholeTurns] of all executor processes.
func (w *World) PlayExecutors(ctx context.Context, turns int) (Sample, error) {
	began := time.Now()
	answers, err := w.askExecutors(ctx, executorRequest{Play: turns})
	if err != nil {
		return Sample{}, err
	}
	s := Sample{Elapsed: time.Since(began)}
	for _, a := range answers {
		for _, ns := range a.Latencies {
			s.Latencies = append(s.Latencies, time.Duration(ns))
		}
	}
	s.Boundaries = int64(len(s.Latencies))
	return s, nil
}

// WroteByExecutors collects the executor processes' views of their runs.
func (w *World) WroteByExecutors(ctx context.Context) (all []Wrote, err error) {
	answers, err := w.askExecutors(ctx, executorRequest{Heads: true})
	for _, a := range answers {
		all = append(all, a.Wrote...)
	}
	return all, err
}
