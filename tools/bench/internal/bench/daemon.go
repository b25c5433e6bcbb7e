package bench

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
)

// daemonSilence is the silence of a measured fleet: a busy machine must not orphan runs.
const daemonSilence = 10 * time.Minute

// daemonConfig configures a daemon of a measurement.
type daemonConfig struct {
	Fleet, Name string
	// Synced: the server writes each message through.
	Synced bool
	// Shared: other daemons fold some of the shards.
	Shared bool
}

// daemon is what "waymark serve --nats" runs, without its HTTP server.
type daemon struct {
	cancel  context.CancelFunc
	ended   chan error
	links   []*link
	waymark *consumer.Daemon
	stopped atomic.Bool
}

// connector opens a connection of the given name.
type connector func(name string) (*link, error)

// startDaemon starts a daemon of a provisioned fleet and returns when it answers requests.
func startDaemon(ctx context.Context, cfg daemonConfig, connect connector, log zerolog.Logger) (_ *daemon, err error) {
	d := &daemon{ended: make(chan error, 1)}
	work, cancel := context.WithCancel(context.WithoutCancel(ctx))
	d.cancel = cancel
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("daemon %s: %w", cfg.Name, err), d.stop())
		}
	}()
	config := consumer.Config{
		Fleet: cfg.Fleet, Name: cfg.Name, Alone: !cfg.Shared,
		Worker: fold.Config{Silence: daemonSilence, Synced: cfg.Synced},
	}
	if config.Service, err = d.connect(connect, cfg.Name+"-service"); err != nil {
		return nil, err
	}
	if config.Fold, err = d.connect(connect, cfg.Name+"-fold-worker"); err != nil {
		return nil, err
	}
	waymark, err := consumer.New(ctx, config, time.Now, log)
	if err != nil {
		return nil, err
	}
	d.waymark = waymark
	go func() { d.ended <- waymark.Run(work) }()
	select {
	case <-waymark.Ready():
		return d, nil
	case err := <-d.ended:
		d.ended <- err
		return nil, errors.New("it ended before it was ready")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (d *daemon) connect(connect connector, name string) (jetstream.JetStream, error) {
	l, err := connect(name)
	if err != nil {
		return nil, err
	}
	d.links = append(d.links, l)
	return jetstream.New(l.Conn)
}

// leading is the number of shards that it folds.
func (d *daemon) leading() (n int) {
	for _, f := range d.waymark.Workers() {
		if f.Leads() {
			n++
		}
	}
	return n
}

// stop ends the daemon cleanly: it releases its leases. A second call does nothing.
func (d *daemon) stop() error {
	if d.stopped.Swap(true) {
		return nil
	}
	d.cancel()
	var err error
	if d.waymark != nil {
		err = <-d.ended
	}
	for _, l := range d.links {
		l.close()
	}
	return err
}
