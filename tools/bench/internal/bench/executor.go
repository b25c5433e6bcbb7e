package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
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
	Sizes    []int  `json:"sizes"`
}

// executorRequest is a request to an executor; the zero value asks for its usage only.
type executorRequest struct {
	// Prepare is the number of turns of each run and raw writer to make texts for, Play the number of turns to play.
	Prepare int `json:"prepare,omitzero"`
	Play    int `json:"play,omitzero"`
	// Raw plays the turns of the raw writers in place of the runs.
	Raw bool `json:"raw,omitzero"`
	// Heads asks for the heads of the runs.
	Heads bool `json:"heads,omitzero"`
}

// executor has runs and as many raw writers: both sides of a comparison use the same processes.
type executor struct {
	link      *link
	fleet     *publisher.Fleet
	players   []*Player
	ours, raw []Turner
}

// newExecutor starts the runs. Raw messages have the given sizes.
func newExecutor(ctx context.Context, f *publisher.Fleet, js jetstream.JetStream, name string, runs int, shape Shape, sizes []int) (*executor, error) {
	players, err := StartRuns(ctx, f, name, runs, shape)
	if err != nil {
		return nil, err
	}
	e := &executor{fleet: f, players: players}
	for _, p := range players {
		e.ours, e.raw = append(e.ours, p), append(e.raw, NewRawWriter(js, p.Run.ID(), sizes, shape))
	}
	return e, nil
}

func (r *executorRole) start(ctx context.Context, log zerolog.Logger) (e *executor, err error) {
	l, err := dial(r.URL, r.Name, nats.UserInfo(r.User, r.Password))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	f, err := publisher.Connect(ctx, publisher.Config{Conn: l.Conn, Fleet: FleetName, Executor: r.Name, Agent: "bench", Logger: &log})
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(l.Conn)
	if err != nil {
		return nil, err
	}
	if e, err = newExecutor(ctx, f, js, r.Name, r.Runs, r.Shape, r.Sizes); err != nil {
		return nil, err
	}
	e.link = l
	return e, nil
}

// do serves one request.
func (e *executor) do(ctx context.Context, request executorRequest) (s Sample, wrote []Wrote, err error) {
	for _, t := range append(slices.Clip(e.raw), e.ours...) {
		t.Prepare(request.Prepare)
	}
	if request.Play > 0 {
		turners := e.ours
		if request.Raw {
			turners = e.raw
		}
		s, err = WholeTurns(ctx, turners, request.Play)
	}
	if request.Heads {
		wrote = WroteBy(e.players...)
	}
	return s, wrote, err
}

// answer serves one line of the measuring process.
func (e *executor) answer(ctx context.Context, line []byte) (a childAnswer, err error) {
	var request executorRequest
	if err := json.Unmarshal(line, &request); err != nil {
		return a, fmt.Errorf("%w: request of an executor: %w", ErrChild, err)
	}
	s, wrote, err := e.do(ctx, request)
	for _, l := range s.Latencies {
		a.Latencies = append(a.Latencies, l.Nanoseconds())
	}
	a.Wrote, a.CPU = wrote, cpuTime()
	return a, err
}

func (e *executor) stop() error {
	err := e.fleet.Close(context.Background())
	e.link.close()
	return err
}

// StartExecutors starts n executor processes that share the runs. They end before the daemons do.
func (w *World) StartExecutors(ctx context.Context, n, runs int, shape Shape, sizes []int) error {
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
				URL: w.servers.url, User: w.servers.user, Password: w.servers.password, Name: name, Runs: share, Shape: shape, Sizes: sizes,
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

// askExecutors sends a request to all executor processes at once and joins their answers. It kills them when ctx ends.
func (w *World) askExecutors(ctx context.Context, request executorRequest) (s Sample, wrote []Wrote, err error) {
	line, err := json.Marshal(request)
	if err != nil {
		return s, nil, err
	}
	answers := make([]childAnswer, len(w.executors))
	group, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for i, c := range w.executors {
		group.Go(func() (err error) {
			stopKill := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() }) // it may have ended already
			defer stopKill()
			answers[i], err = c.ask(playWait, line)
			return err
		})
	}
	err = group.Wait()
	s.Elapsed = time.Since(began)
	for _, a := range answers {
		for _, ns := range a.Latencies {
			s.Latencies = append(s.Latencies, time.Duration(ns))
		}
		wrote = append(wrote, a.Wrote...)
	}
	s.Boundaries = int64(len(s.Latencies))
	return s, wrote, err
}
