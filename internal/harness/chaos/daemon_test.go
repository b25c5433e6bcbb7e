//go:build waymark_failpoints

package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/kvstore"
)

// logger is silent, unless WAYMARK_CHAOS_LOG asks for the daemons' logs.
func logger() zerolog.Logger {
	if os.Getenv("WAYMARK_CHAOS_LOG") == "" {
		return zerolog.Nop()
	}
	return zerolog.New(os.Stderr).With().Timestamp().Logger()
}

// silent is how long an executor may be silent where runs are claimed.
const silent = 30 * time.Millisecond

// errCrashed ends the work of a daemon that died.
var errCrashed = errors.New("the daemon died here")

// daemon is one replica: a fold worker for each shard and a service on its own connections.
type daemon struct {
	w       *world
	name    string
	conns   []*nats.Conn
	waymark *consumer.Daemon
	cancel  context.CancelFunc
	group   sync.WaitGroup
	// dead: it died at a failpoint, and does nothing more.
	dead atomic.Bool
	// held: it is stopped at a failpoint.
	held atomic.Bool
	// points counts the failpoints that it reached.
	points atomic.Int64

	mu      sync.Mutex
	trap    *trap
	release []chan struct{}
	stopped bool
}

// trap is what happens to a daemon when it reaches a failpoint for the nth time.
type trap struct {
	point failpoint.Point
	nth   int
	pause bool
}

func (w *world) startDaemon() error {
	w.mu.Lock()
	w.started++
	d := &daemon{w: w, name: fmt.Sprintf("daemon-%d", w.started)}
	w.mu.Unlock()
	foldConn, err := w.connect()
	if err != nil {
		return err
	}
	serviceConn, err := w.connect()
	if err != nil {
		return err
	}
	d.conns = []*nats.Conn{foldConn, serviceConn}
	foldJS, err := jetstream.New(foldConn)
	if err != nil {
		return err
	}
	serviceJS, err := jetstream.New(serviceConn)
	if w.replicas != nil {
		serviceJS, err = jetstream.NewWithAPIPrefix(serviceConn, replicasPrefix)
	}
	if err != nil {
		return err
	}
	cfg := consumer.Config{
		Fleet: fleetName, Name: d.name, Service: serviceJS, Fold: foldJS, Alone: true,
		Requests: service.Config{Workers: 4, Timeout: serviceTimeout, Grace: 50 * time.Millisecond},
		Worker: fold.Config{
			BatchEvents: w.plan.batch, Linger: time.Millisecond, SealBytes: 8 << 10, SealEvents: w.plan.seal,
			SealMaxBytes: 64 << 10, SealMaxEvents: 2 * w.plan.seal, LeaseTTL: time.Second, ReconcileEvery: 10 * time.Millisecond,
			SweepEvery: 5 * time.Millisecond, PurgeAfter: time.Millisecond, Synced: true, CachedRuns: 2, SafeAfter: 10 * time.Millisecond,
			// Without claims the executors send no heartbeats: no run is to be orphaned.
			Silence: time.Hour,
			Reprovision: func(ctx context.Context) error {
				w.serving.RLock()
				defer w.serving.RUnlock()
				return kvstore.Provision(ctx, w.js, w.fleet())
			},
		},
	}
	if !w.plan.purges {
		cfg.Worker.PurgeAfter = -1
	}
	if w.plan.claims {
		cfg.Worker.Silence = silent
	}
	if d.waymark, err = consumer.New(w.ctx, cfg, time.Now, logger()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(failpoint.With(w.ctx, d.hit))
	d.cancel = cancel
	ended := make(chan struct{})
	d.group.Go(func() {
		defer close(ended)
		if err := d.waymark.Run(ctx); err != nil && !d.dead.Load() && ctx.Err() == nil {
			w.fail(fmt.Errorf("%s: %w", d.name, err))
		}
	})
	w.mu.Lock()
	w.daemons = append(w.daemons, d)
	w.mu.Unlock()
	select {
	case <-d.waymark.Ready():
		return nil
	case <-ended:
		return nil // a fault hit it while it started, and the process behind that fault continues
	case <-time.After(patience):
		return fmt.Errorf("%s does not answer within %s", d.name, patience)
	}
}

// hit is the daemon's hook.
func (d *daemon) hit(_ context.Context, p failpoint.Point) error {
	if d.dead.Load() {
		return errCrashed
	}
	d.points.Add(1)
	d.mu.Lock()
	t := d.trap
	if t == nil || t.point != p {
		d.mu.Unlock()
		return nil
	}
	if t.nth--; t.nth > 0 {
		d.mu.Unlock()
		return nil
	}
	d.trap = nil
	d.w.mu.Lock()
	d.w.met[string(p)]++
	d.w.mu.Unlock()
	if t.pause {
		release := make(chan struct{})
		d.release = append(d.release, release)
		d.held.Store(true)
		d.mu.Unlock()
		op := d.w.fault("%s stands still %s", d.name, p)
		<-release
		d.held.Store(false)
		d.w.over(op, nil)
		return nil
	}
	d.dead.Store(true)
	d.mu.Unlock()
	op := d.w.fault("%s dies %s", d.name, p)
	for _, nc := range d.conns {
		nc.Close()
	}
	d.w.over(op, nil)
	d.w.crashed <- d
	return errCrashed
}

func (d *daemon) setTrap(t *trap) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trap = t
}

// resume ends a standstill, and removes a trap that was not reached.
func (d *daemon) resume() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.trap = nil
	for _, release := range d.release {
		close(release)
	}
	d.release = nil
}

// stop ends the daemon, if it still runs, and waits for it.
func (d *daemon) stop() {
	d.resume()
	d.mu.Lock()
	stopped := d.stopped
	d.stopped = true
	d.mu.Unlock()
	d.cancel()
	d.group.Wait()
	if !stopped {
		for _, nc := range d.conns {
			nc.Close()
		}
	}
}

// tend replaces daemons that died.
func (w *world) tend() {
	for d := range w.crashed {
		d.stop()
		w.forget(d)
		err := w.anotherDaemon()
		if err != nil && w.ctx.Err() == nil {
			w.fail(err)
		}
	}
}

// anotherDaemon starts a daemon as a service manager does: one that ends at its start, because the server is not ready yet, is
// started again.
func (w *world) anotherDaemon() error {
	return w.eventually("another daemon starts", func() error { return errors.Join(w.expireLease(), w.startDaemon()) })
}

func (w *world) forget(d *daemon) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, o := range w.daemons {
		if o == d {
			w.daemons = append(w.daemons[:i], w.daemons[i+1:]...)
			return
		}
	}
}

// alive are the daemons that did not die.
func (w *world) alive() []*daemon {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []*daemon
	for _, d := range w.daemons {
		if !d.dead.Load() {
			list = append(list, d)
		}
	}
	return list
}

// leader is a daemon that folds, or nil.
func (w *world) leader() *daemon {
	for _, d := range w.alive() {
		for _, worker := range d.waymark.Workers() {
			if worker.Leads() && !d.held.Load() {
				return d
			}
		}
	}
	return nil
}
