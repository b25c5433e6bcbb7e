package waymarktest

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/schema"
)

// leaseTTL is how long a killed daemon keeps its shards: the shortest allowed time.
const leaseTTL = time.Second

// Daemon is the daemon of a world. Start, Stop and Kill are called from the test's goroutine.
type Daemon struct {
	w *World
	// daemon is nil while it is stopped.
	daemon *consumer.Daemon
	conns  []*nats.Conn
	cancel context.CancelFunc
	done   chan error
	// killed: the previous daemon left its lease; see [Daemon.Start].
	killed bool
}

// Start starts the daemon again after Stop or Kill, and waits until it answers. After Kill it advances the daemon's
// clock by up to two seconds, so that the lease of the killed daemon expires. If the daemon runs, Start does nothing.
func (d *Daemon) Start() {
	w := d.w
	w.tb.Helper()
	if d.daemon != nil {
		return
	}
	service, folding := w.Server.jetStream(), w.Server.jetStream()
	ctx, cancel := w.context()
	defer cancel()
	daemon, err := consumer.New(ctx, consumer.Config{
		Fleet: schema.DefaultFleet, Name: "waymarktest", Service: service, Fold: folding, Alone: true,
		Worker: fold.Config{SweepEvery: sweepEvery, LeaseTTL: leaseTTL, Linger: 1, UncleanStart: d.killed},
	}, w.clock.Now, w.log)
	w.must(err, "start the daemon")
	life, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- daemon.Run(life) }()
	select {
	case <-daemon.Ready():
	case err := <-done:
		stop()
		w.must(err, "start the daemon")
	case <-ctx.Done():
		w.tb.Error("waymarktest: the daemon is not ready")
	}
	d.daemon, d.conns, d.cancel, d.done = daemon, []*nats.Conn{service.Conn(), folding.Conn()}, stop, done
	if d.killed {
		d.killed = false
		w.until(func() bool {
			w.clock.move(leaseTTL / 100)
			return d.leading()
		}, "the daemon folds no shard")
	}
}

// Stop stops the daemon: it answers its pending requests, and releases its shards. Executors keep publishing meanwhile.
func (d *Daemon) Stop() {
	d.w.tb.Helper()
	d.end(true)
}

// Kill ends the daemon like kill -9: its connections close in the middle of its work, and it keeps its shards until
// their lease expires.
func (d *Daemon) Kill() {
	d.w.tb.Helper()
	if d.daemon == nil {
		return
	}
	for _, nc := range d.conns {
		nc.Close()
	}
	d.cancel()
	err := <-d.done // from the closed connections
	d.w.log.Debug().Err(err).Msg("daemon killed")
	d.daemon, d.killed = nil, true
}

// end stops the daemon if it runs. An error ends the test if fatal, and fails it otherwise.
func (d *Daemon) end(fatal bool) {
	d.w.tb.Helper()
	if d.daemon == nil {
		return
	}
	d.cancel()
	err := <-d.done
	ctx, cancel := d.w.context()
	defer cancel()
	for _, nc := range d.conns {
		closed(ctx, nc)
	}
	d.daemon = nil
	if fatal {
		d.w.must(err, "stop the daemon")
	} else if err != nil {
		d.w.tb.Errorf("waymarktest: the daemon ended: %v", err)
	}
}

func (d *Daemon) runs() bool { return d.daemon != nil }

// leading reports whether the daemon folds all shards.
func (d *Daemon) leading() bool {
	for _, f := range d.daemon.Workers() {
		if !f.Leads() {
			return false
		}
	}
	return true
}

// leads waits until the daemon folds all shards.
func (d *Daemon) leads() {
	d.w.tb.Helper()
	d.w.until(d.leading, "the daemon folds no shard")
}

// caughtUp waits until the daemon knows every run in the log. A run that it found only after the clock was moved would
// count as new.
func (d *Daemon) caughtUp() {
	w := d.w
	w.tb.Helper()
	ctx, cancel := w.context()
	defer cancel()
	js := w.Server.jetStream()
	defer closed(ctx, js.Conn())
	for shard := range d.daemon.Workers() {
		names := schema.NamesOf(schema.DefaultFleet, shard)
		stream, err := js.Stream(ctx, names.EventStream())
		w.must(err, "read stream %s", names.EventStream())
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(names.EventSubjects()))
		w.must(err, "read stream %s", names.EventStream())
		for subject := range info.State.Subjects {
			run := names.RunOfSubject(subject)
			w.until(func() bool {
				h := w.head(run)
				known, live := d.daemon.LiveRuns().Get(run)
				want := schema.LiveOf(&h)
				return live == h.InLiveIndex() && (!live || known.Same(&want))
			}, "the daemon does not know the state of run %s", run)
		}
	}
}

// swept waits until the sweeper has checked the live runs so many more times.
func (d *Daemon) swept(times int64) {
	d.w.tb.Helper()
	for _, f := range d.daemon.Workers() {
		sweeps := &f.Stats().Sweep.Sweeps
		until := sweeps.Load() + times
		d.w.until(func() bool { return sweeps.Load() >= until }, "the daemon does not check its live runs")
	}
}
