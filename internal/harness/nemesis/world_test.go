//go:build unix

package nemesis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/base/failpoint"
	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/internal/harness/mutant"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// scale is how large a world is.
type scale struct {
	servers, daemons, executors int
	// slots and pause of each executor.
	slots int
	pause int64
	turns int
	steal int
	// timeout of executors' publishes and requests.
	timeout time.Duration
	// storeDirs are the directories of the servers' state; nil means below the world's own directory.
	storeDirs []string
	// maxStore bounds each server's store; 0 means the server's choice.
	maxStore int64
	quota    string
	// ping of the servers; 0 means their default.
	ping time.Duration
	// loops are the executors that work on Loops, in addition to the others.
	loops loopScale
	// quarantines: daemons quarantine runs by their default, instead of none.
	quarantines bool
	// toolless executors call no tools.
	toolless bool
	// embedded: the only server is a daemon's own, and there is no other daemon.
	embedded bool
	// mutant is switched on in servers and daemons; empty means none.
	mutant string
	// mutants is the directory of the programs with all mutants, and failpoints in the daemon: see [withMutants].
	// Empty means that daemons are the ordinary program.
	mutants string
	// tool is how long a tool takes at most before and after its effect, in milliseconds.
	tool int
	// metrics: every process serves its resource usage. leak is a mistake built into the executors.
	metrics bool
	leak    string
	// older is the directory of an older version's programs, for the daemons and executors named in old.
	older string
	old   map[string]bool
	// held is called with each server and daemon before it is started for the first time; nil means nothing is done with them.
	held func(p *process)
}

func scaleOf(servers int) scale {
	return scale{servers: servers, daemons: servers, executors: 3, slots: 4, pause: 20, turns: 71, steal: 10, tool: 60, timeout: 5 * time.Second, quota: "64MiB"}
}

// world is servers, daemons and executors, each a process, with a proxy between any two that talk.
type world struct {
	tb    testing.TB
	dir   string
	scale scale
	seed  uint64

	user, password string
	nodes          []*process
	ports          []int
	// names of the servers, as they call themselves.
	names []string
	// routes[i][j] is how server i reaches server j.
	routes [][]*Proxy
	// links of each client to each server.
	links     map[string][]*Proxy
	daemons   []*process
	executors []*process
	// halt is the failpoint at which new daemons stop, in the form of [failpoint.PointVariable]; empty means none.
	halt string
	// late: only the first server is started with the world.
	late bool
	// violations are the checker's; the timeline shows the operations concerned.
	violations []checker.Violation
	record     *checker.Recorder
	own        *os.File
	js         jetstream.JetStream
}

// newWorld starts everything but the executors, and waits until it works.
func newWorld(tb testing.TB, s scale, seed uint64) *world {
	tb.Helper()
	w := emptyWorld(tb, s, seed)
	w.startServers()
	for i := range s.daemons {
		w.daemons = append(w.daemons, w.daemon(i))
	}
	for _, d := range w.daemons {
		w.must(w.serve(d))
	}
	return w
}

// emptyWorld has no processes yet.
func emptyWorld(tb testing.TB, s scale, seed uint64) *world {
	tb.Helper()
	w := &world{tb: tb, dir: tb.TempDir(), scale: s, seed: seed, links: make(map[string][]*Proxy)}
	for _, sub := range []string{"logs", "history", "outside"} {
		require.NoError(tb, os.Mkdir(filepath.Join(w.dir, sub), 0o700))
	}
	var err error
	w.own, err = os.Create(filepath.Join(w.history(), "nemesis.jsonl"))
	require.NoError(tb, err)
	w.record = checker.NewWriter(w.own, 1)
	tb.Cleanup(w.end)
	return w
}

func (w *world) history() string { return filepath.Join(w.dir, "history") }
func (w *world) logs() string    { return filepath.Join(w.dir, "logs") }

func (w *world) must(err error) {
	w.tb.Helper()
	require.NoError(w.tb, err)
}

// end kills everything. A failed test leaves its records.
func (w *world) end() {
	for _, p := range slices.Concat(w.executors, w.daemons, w.nodes) {
		if err := p.kill(); err != nil {
			w.tb.Error(err)
		}
	}
	for _, list := range append(w.routes, w.allLinks()...) {
		for _, p := range list {
			if p != nil {
				_ = p.Close() // its listener may be closed already
			}
		}
	}
	if err := errors.Join(w.record.Err(), w.own.Close()); err != nil {
		w.tb.Error(err)
	}
	if w.tb.Failed() || os.Getenv("WAYMARK_CHAOS_KEEP") != "" {
		w.keep()
	}
}

func (w *world) allLinks() [][]*Proxy {
	var all [][]*Proxy
	for _, list := range w.links {
		all = append(all, list)
	}
	return all
}

// keep moves history and logs to where they can be looked at.
func (w *world) keep() {
	to := os.Getenv("WAYMARK_CHAOS_DIR")
	if to == "" {
		to = os.TempDir()
	}
	to = filepath.Join(to, fmt.Sprintf("%s-%dx-%d-%d", strings.ReplaceAll(w.tb.Name(), "/", "-"), w.scale.servers, w.seed, os.Getpid()))
	h, err := w.read()
	err = errors.Join(err, os.MkdirAll(to, 0o700))
	if err == nil {
		err = errors.Join(
			writeTo(filepath.Join(to, "history.jsonl"), h.Write),
			writeTo(filepath.Join(to, "timeline.txt"), func(out io.Writer) error { return h.Timeline(out, w.guilty) }),
		)
	}
	err = errors.Join(err, os.CopyFS(filepath.Join(to, "logs"), os.DirFS(w.logs())))
	w.tb.Logf("history, timeline and logs of this round are in %s (%v)", to, err)
}

func writeTo(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
}

// read is the history of all processes so far.
func (w *world) read() (*checker.History, error) {
	names, err := filepath.Glob(filepath.Join(w.history(), "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var files []io.Reader
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		files = append(files, bytes.NewReader(text))
	}
	return checker.ReadHistory(files...)
}

// startServers starts the servers, with proxies between them, and waits until the cluster has a leader.
func (w *world) startServers() {
	w.tb.Helper()
	n := w.scale.servers
	routePorts := natstest.FreePorts(w.tb, n)
	w.ports = natstest.FreePorts(w.tb, n)
	w.user, w.password = "nemesis", "nemesis"
	w.routes = make([][]*Proxy, n)
	for i := range n {
		via := make([]int, n)
		w.routes[i] = make([]*Proxy, n)
		for j := range n {
			if i != j {
				w.routes[i][j] = w.link(routePorts[j])
				via[j] = w.routes[i][j].Port()
			}
		}
		settings := NodeSettings{StateDir: w.store(i), Port: w.ports[i], MaxStore: w.scale.maxStore, Ping: w.scale.ping.Milliseconds()}
		if n > 1 {
			settings.Cluster = &natstest.Cluster{Name: "nemesis", Node: i, Ports: routePorts, Via: via, User: w.user, Password: w.password}
		}
		if w.scale.embedded {
			w.nodes = append(w.nodes, w.embedded())
		} else {
			w.nodes = append(w.nodes, w.helper(fmt.Sprintf("server-%d", i), NodeVariable, func(int) any { return settings }))
		}
		if w.scale.held != nil {
			w.scale.held(w.nodes[i])
		}
		if i == 0 || !w.late {
			w.must(w.nodes[i].start())
		}
	}
	if w.late {
		return // the others are started by the test
	}
	w.awaitServers()
}

// awaitServers waits until all servers have started, and a cluster has a leader.
func (w *world) awaitServers() {
	w.tb.Helper()
	for i := range w.nodes {
		w.must(w.serving(i))
	}
	if len(w.nodes) == 1 {
		w.readCredentials()
	}
	for _, port := range w.ports {
		nc, err := nats.Connect("nats://127.0.0.1:"+strconv.Itoa(port), nats.UserInfo(w.user, w.password))
		w.must(err)
		w.names = append(w.names, nc.ConnectedServerName())
		js, err := jetstream.New(nc)
		w.must(err)
		w.eventually("JetStream does not begin", func() error {
			ctx, cancel := context.WithTimeout(w.tb.Context(), time.Second)
			defer cancel()
			_, err := js.AccountInfo(ctx)
			return err
		})
		closeConn(nc)
	}
}

// store is the state directory of a server.
func (w *world) store(i int) string {
	if w.scale.storeDirs != nil {
		return w.scale.storeDirs[i]
	}
	return filepath.Join(w.dir, fmt.Sprintf("server-%d", i))
}

// serving waits until a server has started.
func (w *world) serving(i int) error {
	if w.scale.embedded {
		return w.nodes[i].ready(nil)
	}
	var r Ready
	if err := w.nodes[i].ready(&r); err != nil {
		return err
	}
	if r.Error != "" {
		return fmt.Errorf("server %d: %s", i, r.Error)
	}
	return nil
}

// readCredentials reads the credentials that a single server generated.
func (w *world) readCredentials() {
	end, err := natsconn.Discover(w.tb.Context(), w.store(0))
	w.must(err)
	opts, err := end.Options()
	w.must(err)
	var o nats.Options
	for _, opt := range opts {
		w.must(opt(&o))
	}
	w.user, w.password = o.User, o.Password
}

// link leads to a port of a server.
func (w *world) link(port int) *Proxy {
	w.tb.Helper()
	return w.proxy(port)
}

func (w *world) proxy(port int) *Proxy {
	w.tb.Helper()
	p, err := NewProxy(w.tb.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	w.must(err)
	return p
}

// urls are those of all servers for one client, through proxies of its own, the given server first.
func (w *world) urls(client string, first int) string {
	w.tb.Helper()
	if w.links[client] == nil {
		for _, port := range w.ports {
			w.links[client] = append(w.links[client], w.link(port))
		}
	}
	var list []string
	for i := range w.links[client] {
		list = append(list, "nats://127.0.0.1:"+port(w.links[client][(first+i)%len(w.ports)]))
	}
	return strings.Join(list, ",")
}

// helper is a process of this program in another role. Settings are made again for each start.
func (w *world) helper(name, variable string, settings func(start int) any) *process {
	p := &process{name: name, logs: w.logs()}
	p.command = func() *exec.Cmd {
		text, err := json.Marshal(settings(p.starts))
		w.must(err)
		cmd := exec.CommandContext(context.Background(), testBinary)
		cmd.Env = testbin.Environment(variable+"="+string(text), "GOMAXPROCS=2")
		if variable == NodeVariable && w.scale.mutant != "" {
			cmd.Path = filepath.Join(w.scale.mutants, filepath.Base(testBinary))
			cmd.Env = append(cmd.Env, mutant.Variable+"="+w.scale.mutant)
		}
		if w.scale.metrics {
			cmd.Env = append(cmd.Env, MetricsVariable+"=1")
		}
		w.ofVersion(cmd, name)
		return cmd
	}
	return p
}

// silence is how long an executor may be silent.
const silence = 3 * time.Second

// daemon is a replica of the daemon.
func (w *world) daemon(i int) *process {
	name := fmt.Sprintf("daemon-%d", i)
	urls := w.urls(name, i)
	p := &process{name: name, logs: w.logs()}
	p.command = func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), waymarkBinary, "demo-child", "serve", "--json", "--nats", urls, "--http", "127.0.0.1:0",
			"--quota", w.scale.quota, "--replicas", strconv.Itoa(w.scale.servers), "--synced", "--purge-after", "2s", "--silence", silence.String(),
			"--name", fmt.Sprintf("%s-%d", name, p.starts), "--log-format", "json")
		if !w.scale.quarantines {
			cmd.Args = append(cmd.Args, "--max-claims=-1")
		}
		cmd.Env = testbin.Environment("WAYMARK_STATE_DIR="+filepath.Join(w.dir, name), "NATS_USER="+w.user, "NATS_PASSWORD="+w.password, "GOMAXPROCS=2")
		if w.scale.mutants != "" {
			cmd.Path = filepath.Join(w.scale.mutants, filepath.Base(waymarkBinary))
			cmd.Env = append(cmd.Env, mutant.Variable+"="+w.scale.mutant, failpoint.PointVariable+"="+w.halt)
		}
		w.ofVersion(cmd, name)
		return cmd
	}
	if w.scale.held != nil {
		w.scale.held(p)
	}
	return p
}

// embedded is a daemon with a server of its own.
func (w *world) embedded() *process {
	p := &process{name: "server-0", logs: w.logs()}
	p.command = func() *exec.Cmd {
		cmd := exec.CommandContext(context.Background(), waymarkBinary, "demo-child", "--json", "serve", "--embedded", "--port", strconv.Itoa(w.ports[0]),
			"--http", "127.0.0.1:0", "--quota", w.scale.quota, "--purge-after", "2s", "--silence", silence.String(), "--max-claims=-1", "--log-format", "json")
		cmd.Env = testbin.Environment("WAYMARK_STATE_DIR="+w.store(0), "GOMAXPROCS=2")
		return cmd
	}
	return p
}

// serve starts a daemon and waits until it is ready. One that cannot start is started again, as a supervisor would.
func (w *world) serve(p *process) error {
	var last error
	for range 5 {
		if err := p.start(); err != nil {
			return err
		}
		if last = p.ready(nil); last == nil {
			return nil
		}
		if err := p.kill(); err != nil {
			return err
		}
	}
	return last
}

// outside is the directory that tools change; empty if none is called.
func (w *world) outside() string {
	if w.scale.toolless {
		return ""
	}
	return filepath.Join(w.dir, "outside")
}

// executor starts one more executor.
func (w *world) executor(i int) *process {
	name := fmt.Sprintf("executor-%d", i)
	urls := w.urls(name, i)
	return w.helper(name, ExecutorVariable, func(start int) any {
		s := ExecutorSettings{
			Name: name, URLs: urls, User: w.user, Password: w.password, Seed: w.seed + uint64(1000*i+start), //nolint:gosec // small
			History: filepath.Join(w.history(), fmt.Sprintf("%s.%d.jsonl", name, start)), First: int64(i+1)*1e12 + int64(start)*1e9,
			Slots: w.scale.slots, Pause: w.scale.pause, Turns: w.scale.turns, Steal: w.scale.steal, Heartbeat: 1000,
			Timeout: w.scale.timeout.Milliseconds(), Leak: w.scale.leak, Outside: w.outside(), Tool: w.scale.tool,
		}
		// One whose clock is an hour late, and one an hour early: nothing may depend on them.
		switch i {
		case 1:
			s.ClockOff = -time.Hour.Milliseconds()
		case 2:
			s.ClockOff = time.Hour.Milliseconds()
		}
		if i >= w.scale.executors {
			s.Loops, s.Turns, s.Pause = w.scale.loops.each, w.scale.loops.turns, w.scale.loops.pause
		}
		return s
	})
}

// load starts the executors.
func (w *world) load() {
	w.tb.Helper()
	for i := range w.scale.executors + w.scale.loops.executors {
		p := w.executor(i)
		w.executors = append(w.executors, p)
		w.must(p.start())
		w.must(p.ready(nil))
	}
}

// dial connects this process, through proxies of its own.
func (w *world) dial(name string, first int) *nats.Conn {
	w.tb.Helper()
	nc, err := Dial(w.tb.Context(), name, w.urls(name, first), w.user, w.password)
	w.must(err)
	w.tb.Cleanup(func() { closeConn(nc) })
	return nc
}

// fleet is the SDK in this process.
func (w *world) fleet(name string, first int, timeout time.Duration) *publisher.Fleet {
	w.tb.Helper()
	nc := w.dial(name, first)
	var fleet *publisher.Fleet
	w.eventually("the fleet is not there", func() (err error) {
		fleet, err = publisher.Connect(w.tb.Context(), publisher.Config{
			Conn: nc, Executor: name, Agent: name, PublishTimeout: timeout, RequestTimeout: timeout, Heartbeat: time.Second,
		})
		return err
	})
	w.tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_ = fleet.Close(ctx) // the servers may be gone
	})
	return fleet
}

// eventually tries something until it works.
func (w *world) eventually(what string, try func() error) {
	w.tb.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); <-tick.C {
		if err = try(); err == nil {
			return
		}
	}
	require.Fail(w.tb, what, "%v", err)
}

// streams returns the servers' descriptions of all streams.
func streams(ctx context.Context, js jetstream.JetStream) ([]*jetstream.StreamInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var list []*jetstream.StreamInfo
	lister := js.ListStreams(ctx)
	for info := range lister.Info() {
		list = append(list, info)
	}
	return list, lister.Err()
}

// replicated returns an error while a replica of a stream is away or lags.
func (w *world) replicated(ctx context.Context, js jetstream.JetStream) error {
	list, err := streams(ctx, js)
	if err != nil {
		return err
	}
	if len(list) == 0 {
		return errors.New("no stream is listed")
	}
	for _, info := range list {
		if w.scale.servers == 1 {
			continue
		}
		name := info.Config.Name
		if info.Cluster == nil || info.Cluster.Leader == "" {
			return fmt.Errorf("stream %s has no leader", name)
		}
		if info.Config.Replicas != w.scale.servers || len(info.Cluster.Replicas) != w.scale.servers-1 {
			return fmt.Errorf("stream %s has %d replicas and %d followers", name, info.Config.Replicas, len(info.Cluster.Replicas))
		}
		for _, r := range info.Cluster.Replicas {
			if r.Offline || !r.Current {
				return fmt.Errorf("stream %s: replica on %s: offline %t, current %t, %d behind", name, r.Name, r.Offline, r.Current, r.Lag)
			}
		}
	}
	return nil
}

// shardOf is the shard of a run.
func shardOf(ctx context.Context, js jetstream.JetStream, run string) (*kvstore.Shard, error) {
	settings, _, err := kvstore.NewFleets(js).Get(ctx, schema.DefaultFleet)
	if err != nil {
		return nil, err
	}
	return kvstore.OpenShard(js, settings, schema.ShardOf(run, settings.Shards), "nemesis")
}

// checkpoint is the one that is stored of a run.
func checkpoint(ctx context.Context, js jetstream.JetStream, run string) (*schema.Checkpoint, error) {
	shard, err := shardOf(ctx, js, run)
	if err != nil {
		return nil, err
	}
	c, _, err := shard.Checkpoints.GetFresh(ctx, run)
	return c, err
}

// foldedSince is an error until the stored checkpoint of a run has all that its log has now.
func (w *world) foldedSince(ctx context.Context, fleet *publisher.Fleet, run string) error {
	head, err := fleet.Head(ctx, run)
	if err != nil {
		return err
	}
	// The run continues during this: its checkpoint may be ahead of the read.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(10 * time.Second); ; <-tick.C {
		c, err := checkpoint(ctx, w.js, run)
		if err == nil && c.Counts.Events >= head.Counts.Events {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("run %s: the checkpoint has %d events of %d", run, c.Counts.Events, head.Counts.Events)
		}
		if time.Now().After(end) {
			return err
		}
	}
}
