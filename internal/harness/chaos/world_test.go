//go:build waymark_failpoints

package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/nats/natsd"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	fleetName = "f"
)

// patience bounds every wait for something that must happen: a longer wait is a fault.
var patience = 90 * time.Second

// world is a fleet with its server.
type world struct {
	ctx      context.Context //nolint:containedctx // a schedule's own, which all of its parts end with
	plan     *plan
	dir      string
	server   *natsd.Server
	nc       *nats.Conn
	js       jetstream.JetStream
	settings schema.FleetSettings
	// names and shards by the shard's number.
	names    []schema.Names
	shards   []*kvstore.Shard
	rec      *checker.Recorder
	replicas *replicas

	// serving is held while streams are created, and while the server is stopped: nats-server 2.15.2 panics if it
	// cannot write a new stream's metadata, as when it is stopped at that moment.
	serving sync.RWMutex

	mu      sync.Mutex
	daemons []*daemon
	started int
	// crashed daemons are replaced by one goroutine.
	crashed chan *daemon
	tending sync.WaitGroup
	conns   []func()
	failed  atomic.Pointer[error]

	executors []*executor
	adversary *adversary
	damaged   map[string]bool
	// wentBack is what a step found to have gone back.
	wentBack error
	// met counts the failpoints with an effect.
	met map[string]int
}

func newWorld(ctx context.Context, p *plan) (*world, error) {
	dir, err := os.MkdirTemp(os.Getenv("WAYMARK_CHAOS_DIR"), "waymark-chaos-")
	if err != nil {
		return nil, err
	}
	w := &world{
		ctx: ctx, plan: p, dir: dir, rec: checker.NewRecorder(nil, 1),
		crashed: make(chan *daemon, 64), damaged: map[string]bool{}, met: map[string]int{},
	}
	for i := range max(p.shards, 1) {
		w.names = append(w.names, schema.NamesOf(fleetName, i))
	}
	if err := w.open(); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) open() error {
	var err error
	if w.server, err = natsd.Start(w.ctx, natsd.Config{StateDir: w.dir, Sync: natsd.SyncInterval}, zerolog.Nop()); err != nil {
		return err
	}
	if w.nc, err = w.connect(); err != nil {
		return err
	}
	if w.js, err = jetstream.New(w.nc); err != nil {
		return err
	}
	if err := kvstore.Provision(w.ctx, w.js, w.fleet()); err != nil {
		return err
	}
	if w.settings, _, err = kvstore.NewFleets(w.js).Get(w.ctx, fleetName); err != nil {
		return err
	}
	if w.shards, err = w.openShards(w.js, "harness"); err != nil {
		return err
	}
	if w.plan.stale {
		if w.replicas, err = newReplicas(w); err != nil {
			return err
		}
	}
	w.tending.Go(w.tend)
	if err := w.startDaemon(); err != nil {
		return err
	}
	for i := range w.plan.executors {
		x, err := newExecutor(w, fmt.Sprintf("ex-%d", i+1))
		if err != nil {
			return err
		}
		w.executors = append(w.executors, x)
	}
	w.adversary = &adversary{w: w, taken: map[string]bool{}}
	return nil
}

func (w *world) fleet() kvstore.FleetConfig {
	return kvstore.FleetConfig{Fleet: fleetName, QuotaBytes: 64 << 20, Shards: len(w.names)}
}

func (w *world) openShards(js jetstream.JetStream, who string) ([]*kvstore.Shard, error) {
	var list []*kvstore.Shard
	for i := range w.names {
		shard, err := kvstore.OpenShard(js, w.settings, i, who)
		if err != nil {
			return nil, err
		}
		list = append(list, shard)
	}
	return list, nil
}

// shardOf is the number of the shard that has a run.
func (w *world) shardOf(run string) int { return schema.ShardOf(run, len(w.names)) }

// subject is where a run's events are published.
func (w *world) subject(run string) string { return w.names[w.shardOf(run)].EventSubject(run) }

// fleetKey is the key of the daemons of fleets with keys, the same in every schedule.
var fleetKey = func() (key struct {
	name string
	sign nats.SignatureHandler
},
) {
	pair, err := nkeys.FromRawSeed(nkeys.PrefixByteUser, bytes.Repeat([]byte{7}, 32))
	if err == nil {
		key.sign = pair.Sign
		key.name, err = pair.PublicKey()
	}
	if err != nil {
		panic(err)
	}
	return key
}()

// connect returns a connection that the world closes in the end.
func (w *world) connect(opts ...nats.Option) (*nats.Conn, error) {
	closed := make(chan struct{})
	nc, err := nats.Connect(w.server.URL(), append(append(w.server.Options(), nats.MaxReconnects(-1), nats.ReconnectWait(2*time.Millisecond),
		nats.ReconnectJitter(0, 0), nats.ReconnectBufSize(-1), nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})), opts...)...)
	if err != nil {
		return nil, err
	}
	if w.plan.keyed {
		// The server of the schedule asks for no key, so that a connection with one could not be made: it gets it afterwards.
		nc.Opts.Nkey, nc.Opts.SignatureCB = fleetKey.name, fleetKey.sign
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns = append(w.conns, func() {
		nc.Close()
		<-closed
	})
	return nc, nil
}

// fail records an error of the harness itself.
func (w *world) fail(err error) { w.failed.CompareAndSwap(nil, &err) }

func (w *world) fault(format string, args ...any) *checker.Op {
	return w.rec.Begin(checker.Op{Actor: "nemesis", Kind: checker.Fault, Detail: fmt.Sprintf(format, args...)})
}

func (w *world) over(op *checker.Op, err error) {
	w.rec.End(op, func(op *checker.Op) {
		op.Outcome = checker.OK
		if err != nil {
			op.Outcome, op.Error = checker.Unknown, err.Error()
		}
	})
}

// restartServer stops the server cleanly and starts it again where it was.
func (w *world) restartServer() error {
	w.serving.Lock()
	defer w.serving.Unlock()
	port := w.server.Port()
	if err := w.server.Close(); err != nil {
		return err
	}
	err := w.eventually("the server starts again", func() error {
		s, err := natsd.Start(w.ctx, natsd.Config{StateDir: w.dir, Port: port, Sync: natsd.SyncInterval}, zerolog.Nop())
		if err == nil {
			w.server = s
		}
		return err
	})
	if err != nil {
		return err
	}
	return w.eventually("the harness is connected again", func() error { return w.nc.FlushTimeout(time.Second) })
}

// loseCheckpoints deletes the checkpoint buckets of shards.
func (w *world) loseCheckpoints(shards ...schema.Names) error {
	for _, names := range shards {
		if err := w.js.DeleteStream(w.ctx, "KV_"+names.CheckpointBucket()); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return err
		}
	}
	return nil
}

// expireLease lets the shards' leases run out, as they would if their holders were silent for so long.
func (w *world) expireLease() error {
	stream, err := w.js.Stream(w.ctx, "KV_"+schema.LeaseBucket)
	if err != nil {
		return err
	}
	for _, names := range w.names {
		if err := stream.Purge(w.ctx, jetstream.WithPurgeSubject("$KV."+schema.LeaseBucket+"."+kvstore.FoldLease(names))); err != nil {
			return err
		}
	}
	return nil
}

// eventually tries until there is no error any more.
func (w *world) eventually(what string, try func() error) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			if os.Getenv("WAYMARK_CHAOS_LOG") != "" {
				_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 2)
			}
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		case <-w.ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, context.Cause(w.ctx), err)
		}
	}
}

func (w *world) close() error {
	w.mu.Lock()
	daemons := w.daemons
	w.mu.Unlock()
	for _, d := range daemons {
		d.stop()
	}
	close(w.crashed)
	w.tending.Wait()
	for _, x := range w.executors {
		x.close()
	}
	if w.replicas != nil {
		w.replicas.close()
	}
	for _, done := range w.conns {
		done()
	}
	var err error
	if w.server != nil {
		err = w.server.Close()
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}
