package waymarktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/internal/send"
	"github.com/waymarkio/waymark/schema"
)

const (
	// patience bounds each wait of a world. It is long, because test machines are busy.
	patience = time.Minute
	// lookEvery is the interval of polls.
	lookEvery = 2 * time.Millisecond
	// heartbeat is the heartbeat interval of a world's executors: short, because [World.Advance] waits for it.
	heartbeat = 50 * time.Millisecond
	// sweepEvery is the interval at which the daemon looks for silent executors.
	sweepEvery = 20 * time.Millisecond
)

// Config configures a world. The zero value of every field means its default.
type Config struct {
	// Silence is the silence timeout of executors, after which their runs are orphaned, 2 seconds to 24 hours; 0 means
	// 10 seconds. Tests need not wait for it: see [World.Advance].
	Silence time.Duration
}

// World is the fleet of a test: a server, a daemon, and the executors that the test creates. Its methods end the test
// when they fail: call them from the test's goroutine.
type World struct {
	// Server is the embedded NATS server, and Daemon the daemon on it.
	Server *Server
	Daemon *Daemon

	tb    testing.TB
	clock *clock
	log   zerolog.Logger

	mu sync.Mutex
	// executors that the test created.
	executors []*Executor
	// fleets of [World.Fleet].
	fleets []*publisher.Fleet
	reader *publisher.Reader
}

// Start starts a world with the fleet schema.DefaultFleet. It ends with the test.
func Start(tb testing.TB) *World {
	tb.Helper()
	return StartWith(tb, Config{})
}

// StartWith is Start with another configuration.
func StartWith(tb testing.TB, cfg Config) *World {
	tb.Helper()
	w := &World{tb: tb, clock: new(clock), log: logger(tb)}
	w.Server = &Server{w: w, dir: tb.TempDir()}
	w.Daemon = &Daemon{w: w}
	tb.Cleanup(w.close)
	w.Server.Start()
	ctx, cancel := w.context()
	defer cancel()
	js := w.Server.jetStream()
	defer js.Conn().Close()
	w.must(kvstore.Provision(ctx, js, kvstore.FleetConfig{Fleet: schema.DefaultFleet, Silence: cfg.Silence}), "provision the fleet")
	w.Daemon.Start()
	return w
}

// close ends everything, executors first.
func (w *World) close() {
	w.mu.Lock()
	executors, fleets, reader := w.executors, w.fleets, w.reader
	w.mu.Unlock()
	for _, e := range slices.Backward(executors) {
		e.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, f := range fleets {
		_ = f.Close(ctx) // its server may be stopped
	}
	if reader != nil {
		_ = reader.Close(ctx)
	}
	w.Daemon.end(false)
	w.Server.end(false)
}

// context bounds one wait. It outlives the test's own context, for cleanups.
func (w *World) context() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(w.tb.Context()), patience)
}

// must ends the test on an error.
func (w *World) must(err error, format string, args ...any) {
	w.tb.Helper()
	if err != nil {
		w.tb.Fatalf("waymarktest: "+format+": %v", append(args, err)...)
	}
}

// until waits until ok returns true, and ends the test after a minute.
func (w *World) until(ok func() bool, format string, args ...any) {
	w.tb.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			w.tb.Fatalf("waymarktest: waited %s: "+format, append([]any{patience}, args...)...)
		}
		<-tick.C
	}
}

// URL is the address of the server, for clients other than the SDK. [World.Options] has the credentials.
func (w *World) URL() string { return w.Server.url }

// StateDir is the state directory of the server, for commands: waymark --state-dir DIR.
func (w *World) StateDir() string { return w.Server.dir }

// Options connect to the server: they hold its credentials, and keep reconnecting until the test ends.
func (w *World) Options() []nats.Option {
	return append(slices.Clone(w.Server.options), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
}

// Conn opens a connection for the test. It is closed when the test ends.
func (w *World) Conn(opts ...nats.Option) *nats.Conn {
	w.tb.Helper()
	nc := w.connect(opts...)
	w.tb.Cleanup(nc.Close)
	return nc
}

func (w *World) connect(opts ...nats.Option) *nats.Conn {
	w.tb.Helper()
	nc, err := nats.Connect(w.URL(), append(w.Options(), opts...)...)
	w.must(err, "connect to %s", w.URL())
	return nc
}

// Fleet connects an executor that the test drives itself. It is closed when the test ends, and cannot be killed: see
// [World.Serve]. change may be nil.
func (w *World) Fleet(executor string, change func(*publisher.Config)) *publisher.Fleet {
	w.tb.Helper()
	cfg := publisher.Config{URL: w.URL(), Options: w.Options()}
	f := w.open(executor, cfg, change, send.Hooks{NoOutwait: true})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fleets = append(w.fleets, f)
	return f
}

// open creates a handle of the fleet.
func (w *World) open(executor string, cfg publisher.Config, change func(*publisher.Config), hooks send.Hooks) *publisher.Fleet {
	w.tb.Helper()
	cfg.Fleet, cfg.Executor, cfg.Heartbeat, cfg.Logger = schema.DefaultFleet, executor, heartbeat, &w.log
	if change != nil {
		change(&cfg)
	}
	ctx, cancel := w.context()
	defer cancel()
	// A dead executor of this process cannot begin a call any more, so a takeover need not wait.
	f, err := publisher.Connect(send.WithHooks(ctx, hooks), cfg)
	w.must(err, "connect executor %s", executor)
	return f
}

// Reader reads the runs of the fleet.
func (w *World) Reader() *publisher.Reader {
	w.tb.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reader == nil {
		ctx, cancel := w.context()
		defer cancel()
		r, err := publisher.NewReader(ctx, publisher.Config{URL: w.URL(), Options: w.Options(), Fleet: schema.DefaultFleet})
		w.must(err, "connect a reader")
		w.reader = r
	}
	return w.reader
}

// Status returns the status of a run; "" while it does not exist.
func (w *World) Status(run string) schema.Status {
	w.tb.Helper()
	return w.head(run).Status
}

// head returns the head of a run; the zero head while it does not exist.
func (w *World) head(run string) schema.Head {
	w.tb.Helper()
	ctx, cancel := w.context()
	defer cancel()
	h, err := w.Reader().Head(ctx, run)
	if errors.Is(err, publisher.ErrRunNotFound) {
		return schema.Head{}
	}
	w.must(err, "read run %s", run)
	return h
}

// State returns the state of a run, folded from all of its events.
func (w *World) State(run string) *schema.State {
	w.tb.Helper()
	ctx, cancel := w.context()
	defer cancel()
	s, err := w.Reader().Get(ctx, run)
	w.must(err, "read run %s", run)
	return s
}

// Await waits until a run has one of the statuses, and returns it. It ends the test after a minute.
func (w *World) Await(run string, wanted ...schema.Status) schema.Status {
	w.tb.Helper()
	var h schema.Head
	w.until(func() bool {
		h = w.head(run)
		return slices.Contains(wanted, h.Status)
	}, "run %s is not %v, but %v", run, wanted, &standing{&h})
	return h.Status
}

// standing says where a run is, for the failure of a test.
type standing struct{ *schema.Head }

func (s *standing) String() string {
	if s.Run == "" {
		return "not there"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s in epoch %d, turn %d", s.Status, s.Epoch, s.Turn)
	if s.Executor != "" {
		fmt.Fprintf(&b, ", with executor %s", s.Executor)
	}
	for i := range s.OpenCalls {
		c := &s.OpenCalls[i]
		fmt.Fprintf(&b, ", call %s of %s open", c.ToolCallID, c.Name)
		if c.State.InDoubt() {
			b.WriteString(" and in doubt")
		}
	}
	if s.LastError != nil {
		fmt.Fprintf(&b, ", last error: %s", s.LastError.Message)
	}
	return b.String()
}

// Ended waits until a run has ended, and returns its result. It ends the test after a minute.
func (w *World) Ended(run string) *publisher.RunResult {
	w.tb.Helper()
	w.Await(run, schema.StatusCompleted, schema.StatusFailed, schema.StatusCancelled)
	s := w.State(run)
	return &publisher.RunResult{
		Status: s.Head.Status, Output: []byte(s.Ended.Output), Summary: s.Ended.Summary, CompletedBy: s.Ended.CompletedBy,
		Limit: s.Head.Limit, Error: s.Ended.Error,
	}
}
