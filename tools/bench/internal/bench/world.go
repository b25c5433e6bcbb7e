package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// FleetName is the fleet of every world.
const FleetName = "bench"

// pollEvery is the interval of polls.
const pollEvery = 2 * time.Millisecond

// readyWait bounds the wait for a cluster to take streams.
const readyWait = time.Minute

// WorldSpec specifies a world.
type WorldSpec struct {
	Server ServerKind
	Sync   Sync
	// Shards of the fleet, at least 1.
	Shards int
	// Daemons in processes of their own; 0 means one within this process, unless NoDaemon.
	Daemons int
	// NoDaemon starts none: the case starts its own, with [World.StartDaemon].
	NoDaemon bool
}

// World is where one variant is measured. It has one owner.
type World struct {
	// Options of the measurement, with defaults.
	Options Options
	Spec    WorldSpec
	// JS is a JetStream client over TCP, for measurements.
	JS jetstream.JetStream
	// Conn is its connection.
	Conn *nats.Conn
	// Settings of the fleet as provisioned.
	Settings schema.FleetSettings

	dir     string
	servers *servers
	daemons []*worldDaemon
	shards  []*kvstore.Shard
	// executors in processes of their own.
	executors []*child
	closers   []func(context.Context) error
	// verified is the number of events that were read back.
	verified int64
	began    int // daemons started so far
}

// worldDaemon is one daemon, in this process or in its own.
type worldDaemon struct {
	own   *daemon
	child *child
	gone  bool
}

// openWorld starts servers, provisions a fleet and starts its daemons.
func openWorld(ctx context.Context, spec WorldSpec, o Options) (w *World, err error) {
	w = &World{Options: o, Spec: spec}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close(ctx))
		}
	}()
	if w.dir, err = os.MkdirTemp(o.Store, "waymark-bench-"); err != nil {
		return w, fmt.Errorf("directory of the store: %w", err)
	}
	w.Defer(func(context.Context) error { return os.RemoveAll(w.dir) })
	if w.servers, err = startServers(ctx, spec, o, w.dir); err != nil {
		return w, err
	}
	w.Defer(func(context.Context) error { return w.servers.stop() })
	if w.Conn, err = w.Connect("measurement"); err != nil {
		return w, err
	}
	if w.JS, err = jetstream.New(w.Conn); err != nil {
		return w, err
	}
	if err := w.provision(ctx); err != nil {
		return w, err
	}
	if w.shards, err = openShards(w.JS, w.Settings, "bench"); err != nil {
		return w, err
	}
	w.Defer(func(context.Context) error { return w.StopDaemons() })
	if !spec.NoDaemon {
		for range max(spec.Daemons, 1) {
			if err := w.StartDaemon(ctx); err != nil {
				return w, err
			}
		}
		return w, w.AwaitLeaders(ctx)
	}
	return w, nil
}

// provision makes the fleet and the raw stream. A cluster that has just begun refuses until its nodes have
// found each other.
func (w *World) provision(ctx context.Context) error {
	cfg := kvstore.FleetConfig{Fleet: FleetName, Shards: w.Spec.Shards, Replicas: w.Replicas(), QuotaBytes: kvstore.UnlimitedQuota}
	var last error
	err := w.Await(ctx, readyWait, "the servers taking streams", func() (bool, error) {
		if last = w.createRaw(ctx); last == nil {
			last = kvstore.Provision(ctx, w.JS, cfg)
		}
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(err, last)
	}
	w.Settings, _, err = kvstore.NewFleets(w.JS).Get(ctx, FleetName)
	return err
}

// Replicas of every stream.
func (w *World) Replicas() int {
	if w.Spec.Server == ThreeNodes {
		return clusterSize
	}
	return 1
}

// Defer adds a step that is done when the world ends, in reverse order.
func (w *World) Defer(step func(context.Context) error) { w.closers = append(w.closers, step) }

// close ends everything, also after errors.
func (w *World) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), childWait)
	defer cancel()
	var errs []error
	for _, step := range slices.Backward(w.closers) {
		errs = append(errs, step(ctx))
	}
	w.closers = nil
	return errors.Join(errs...)
}

// Connect opens a connection over TCP, as an executor does. It is closed when the world ends.
func (w *World) Connect(name string) (*nats.Conn, error) {
	l, err := w.servers.connect(name)
	if err != nil {
		return nil, err
	}
	w.Defer(func(context.Context) error { l.close(); return nil })
	return l.Conn, nil
}

// Fleet connects an executor, over a connection of its own. It is closed when the world ends.
func (w *World) Fleet(ctx context.Context, executor string, changes ...func(*publisher.Config)) (*publisher.Fleet, error) {
	nc, err := w.Connect(executor)
	if err != nil {
		return nil, err
	}
	cfg := publisher.Config{Conn: nc, Fleet: FleetName, Executor: executor, Agent: "bench", Logger: &w.Options.Logger}
	for _, change := range changes {
		change(&cfg)
	}
	f, err := publisher.Connect(ctx, cfg)
	if err != nil {
		return nil, err
	}
	w.Defer(f.Close)
	return f, nil
}

// StartDaemon starts one more daemon: in a process of its own, unless the specification asks for none of those. It
// returns when the daemon answers requests.
func (w *World) StartDaemon(ctx context.Context) error {
	cfg := daemonConfig{
		Fleet: FleetName, Name: fmt.Sprintf("daemon-%d", w.began), Synced: w.Spec.Sync == SyncAlways,
		Shared: w.Spec.Daemons > 0,
	}
	w.began++
	d := new(worldDaemon)
	var err error
	if w.Spec.Daemons > 0 {
		d.child, err = startChild(ctx, w.Options.Child, cfg.Name, childRole{Daemon: &daemonRole{
			URL: w.servers.url, User: w.servers.user, Password: w.servers.password, Config: cfg,
		}})
	} else {
		d.own, err = startDaemon(ctx, cfg, w.servers.connectInside, w.Options.Logger)
	}
	if err != nil {
		return err
	}
	w.daemons = append(w.daemons, d)
	return nil
}

func openShards(js jetstream.JetStream, settings schema.FleetSettings, name string) ([]*kvstore.Shard, error) {
	shards := make([]*kvstore.Shard, settings.Shards)
	for i := range shards {
		var err error
		if shards[i], err = kvstore.OpenShard(js, settings, i, name); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// StopDaemons ends all daemons cleanly.
func (w *World) StopDaemons() error {
	var errs []error
	for _, d := range w.daemons {
		if !d.gone {
			errs = append(errs, d.stop())
		}
	}
	return errors.Join(errs...)
}

func (d *worldDaemon) stop() error {
	d.gone = true
	if d.own != nil {
		return d.own.stop()
	}
	return d.child.stop()
}

// AwaitLeaders waits until every shard is folded by a daemon.
func (w *World) AwaitLeaders(ctx context.Context) error {
	return w.Await(ctx, readyWait, "the daemons folding every shard", func() (bool, error) {
		n := 0
		for _, d := range w.daemons {
			if d.own != nil {
				n += d.own.leading()
				continue
			}
			a, err := d.child.tell()
			if err != nil {
				return false, err
			}
			n += a.Leading
		}
		return n >= len(w.shards), nil
	})
}

// AwaitFolded waits until all events now in the log are checkpointed.
func (w *World) AwaitFolded(ctx context.Context) error {
	for _, shard := range w.shards {
		stream, err := w.JS.Stream(ctx, shard.Names.EventStream())
		if err != nil {
			return err
		}
		last := schema.StreamSequence(stream.CachedInfo().State.LastSeq)
		barrier := shard.Names.EventSubject(schema.BarrierRun)
		err = w.Await(ctx, 5*time.Minute, "the fold of "+shard.Names.EventStream(), func() (bool, error) {
			mark, _, err := shard.Checkpoints.Watermark(ctx)
			if err != nil && !errors.Is(err, kvstore.ErrNotFound) {
				return false, err
			}
			// Barriers are no events: the fold worker does not move its mark for them.
			for last > mark.Position.Stream {
				m, err := stream.GetMsg(ctx, uint64(last))
				switch {
				case errors.Is(err, jetstream.ErrMsgNotFound):
				case err != nil:
					return false, err
				case m.Subject != barrier:
					return false, nil
				}
				last--
			}
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Await polls a condition until it holds, ctx ends, or the limit is over. The error names the condition.
func (w *World) Await(ctx context.Context, limit time.Duration, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("waited %s for %s", limit, what))
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		ok, err := holds()
		if ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
