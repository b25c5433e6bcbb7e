package waymarktest

import (
	"context"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/internal/send"
)

// Executor is an executor of a world that the test can kill. Start, Stop and Kill are called from the test's goroutine.
type Executor struct {
	w      *World
	name   string
	spec   publisher.ExecutorSpec
	change func(*publisher.Config)

	// live is nil while the executor does not run.
	live *served
	// instance is the running one, instances all that ever ran. Both under w.mu.
	instance  string
	instances map[string]bool
}

// Serve starts an executor: it claims runs and drives them, as [publisher.Executor.Serve] does. change may be nil.
func (w *World) Serve(name string, spec publisher.ExecutorSpec, change func(*publisher.Config)) *Executor {
	w.tb.Helper()
	e := &Executor{w: w, name: name, spec: spec, change: change, instances: make(map[string]bool)}
	w.mu.Lock()
	w.executors = append(w.executors, e)
	w.mu.Unlock()
	e.Start()
	return e
}

// Start starts the executor again after Stop or Kill, as another instance of its name. If it runs, Start does nothing.
func (e *Executor) Start() {
	e.w.tb.Helper()
	if e.live != nil {
		return
	}
	live := e.w.serve(e.name, e.spec, e.change, send.Hooks{NoOutwait: true})
	e.live = live
	e.w.mu.Lock()
	e.instance = live.fleet.Instance()
	e.instances[e.instance] = true
	e.w.mu.Unlock()
}

// Stop ends the executor as SIGTERM should: work ends at its next boundary, and other executors may claim its runs.
func (e *Executor) Stop() {
	e.w.tb.Helper()
	e.w.must(e.end((*served).stop), "stop executor %s", e.name)
}

// Kill ends the executor like kill -9: its connection closes at once, and none of its events reach the log any more.
// Its runs are orphaned after the silence timeout: see [World.Advance]. Kill returns when the work has ended, whose
// context ends, or after the executor's grace.
func (e *Executor) Kill() {
	e.w.tb.Helper()
	_ = e.end((*served).kill) // never an error
}

// end ends the life of the executor if it runs.
func (e *Executor) end(how func(*served, context.Context) error) error {
	if e.live == nil {
		return nil
	}
	ctx, cancel := e.w.context()
	defer cancel()
	err := how(e.live, ctx)
	e.live = nil
	e.w.mu.Lock()
	defer e.w.mu.Unlock()
	e.instance = ""
	return err
}

// Fleet returns the handle of the running executor, to submit, answer and settle. It is nil while the executor does not
// run.
func (e *Executor) Fleet() *publisher.Fleet {
	if e.live == nil {
		return nil
	}
	return e.live.fleet
}

// close ends the executor with the test.
func (e *Executor) close() {
	how := (*served).stop
	if !e.w.Server.runs() {
		how = (*served).kill // so that it cannot release its runs
	}
	if err := e.end(how); err != nil {
		e.w.tb.Errorf("waymarktest: stop executor %s: %v", e.name, err)
	}
}

// served is one life of an executor.
type served struct {
	conn     *nats.Conn
	fleet    *publisher.Fleet
	executor *publisher.Executor
	cancel   context.CancelFunc
	done     chan error
	log      zerolog.Logger
}

// serve starts a life.
func (w *World) serve(name string, spec publisher.ExecutorSpec, change func(*publisher.Config), hooks send.Hooks) *served {
	w.tb.Helper()
	s := &served{conn: w.connect(nats.Name(name)), done: make(chan error, 1), log: w.log}
	s.fleet = w.open(name, publisher.Config{Conn: s.conn}, change, hooks)
	var err error
	s.executor, err = s.fleet.NewExecutor(spec)
	w.must(err, "executor %s", name)
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	go func() { s.done <- s.executor.Serve(ctx) }()
	return s
}

// stop ends the work at its next boundary, and releases its runs.
func (s *served) stop(ctx context.Context) error {
	s.cancel()
	err := <-s.done
	if closing := s.fleet.Close(ctx); err == nil {
		err = closing
	}
	closed(ctx, s.conn)
	return err
}

// kill closes the connection first, so that no message reaches the server any more.
func (s *served) kill(ctx context.Context) error {
	s.conn.Close()
	_ = s.fleet.Close(ctx) // its connection is closed
	s.cancel()
	err := <-s.done // of the closed connection
	s.log.Debug().Err(err).Msg("executor killed")
	return nil
}
