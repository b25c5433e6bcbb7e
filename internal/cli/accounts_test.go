package cli

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// becomesKnown adds a fleet that the servers' configuration has had since a moment ago, and serves it.
func (s *secured) becomesKnown(t *testing.T, fleet string, servers []*server.Server, addresses []string) {
	t.Helper()
	add := func(code failure.Code) string {
		return s.waymark(t, int(code), "fleet", "add", fleet, "--dir", s.fleets)
	}
	reload := func(servers []*server.Server) {
		for _, srv := range servers {
			require.NoError(t, srv.Reload())
		}
	}
	requireHas(t, add(failure.Refused), "does not know fleet "+fleet)
	reload(servers)
	said := add(failure.Unavailable)
	requireHas(t, said, "reload these servers once more: nats-server --signal reload")
	for _, address := range addresses {
		for _, role := range access.ClientRoles() {
			requireHas(t, said, fmt.Sprintf("%s (%s)", address, role))
		}
	}
	if len(servers) > 1 {
		reload(servers[1:])
		said = add(failure.Unavailable)
		requireHas(t, said, addresses[0])
		require.NotContains(t, strings.SplitN(said, "hint:", 2)[0], addresses[1])
	}
	reload(servers[:1])
	add(failure.OK)
	s.daemon(t, fleet)
	for _, role := range access.ClientRoles() {
		s.as(t, fleet, role, 0, "runs", "ls")
	}
}

func TestFleetAdd_FleetNewInAReload_SaysToReloadAgain(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: two daemons")
	}
	k := startKeyed(t)
	k.serve(t)
	f := k.executor(t, "one")
	k.waymark(t, 0, "fleet", "add", "search", "--dir", k.fleets, "--offline", "--quota", "64MiB", "--nats", k.addr)
	file := filepath.Join(k.dir, "nats.conf")
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	include := `include "fleets/fleet-` + keyedFleet + `.conf"`
	require.Contains(t, string(text), include)
	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), include, include+"\n  include \"fleets/fleet-search.conf\"", 1)), 0o600))
	k.becomesKnown(t, "search", []*server.Server{k.srv}, []string{k.addr})
	require.Zero(t, f.Conn().Reconnects, "the fleet that was there is not disturbed")
}

func TestFleetAdd_FleetNewInAReloadOfThree_SaysToReloadAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	s := startSecured(t, "payments")
	u := s.connect(t, "payments", access.Observer)
	s.waymark(t, 0, "fleet", "add", "search", "--dir", s.fleets, "--offline", "--replicas", "3", "--quota", "64MiB",
		"--nats", s.url(), "--tls-ca", filepath.Join(s.dir, "ca.pem"), "--include", filepath.Join(s.dir, "fleets.conf"))
	s.becomesKnown(t, "search", s.servers[:], strings.Split(s.url(), ","))
	require.Zero(t, u.Reconnects, "the fleet that was there is not disturbed")
}

// Each executor and observer has a key: a new one works before the old one is revoked, alone, and events name it.
func TestFleetAdd_KeyOfAnExecutor_IsExchangedAlone(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon and executors")
	}
	k := startKeyed(t, "--executor", "ci,prod", "--observer", "grafana", "--operator", "ann")
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	add := func(flags ...string) {
		k.waymark(t, 0, append([]string{"fleet", "add", keyedFleet, "--dir", k.fleets, "--offline"}, flags...)...)
		require.NoError(t, k.srv.Reload())
	}
	carried := func(key string) string { // to its machine: its owner keeps it after it is revoked
		seed, err := os.ReadFile(filepath.Join(k.fleets, keyedFleet+"-"+key+".nk"))
		require.NoError(t, err)
		file := filepath.Join(t.TempDir(), "key.nk")
		require.NoError(t, os.WriteFile(file, seed, 0o600))
		return file
	}
	sdk := func(name string) *publisher.Fleet { return k.sdk(t, name, access.Executor, carried("executor."+name)) }
	closed := func(f *publisher.Fleet) func() bool { return func() bool { return !f.Conn().IsConnected() } }
	ci, prod := sdk("ci"), sdk("prod")
	k.waymark(t, 0, "--fleet", keyedFleet, "--context", k.people["grafana"].Context, "runs", "ls")
	for name, f := range map[string]*publisher.Fleet{"ci": ci, "prod": prod} {
		r, err := f.Start(ctx, publisher.RunSpec{ID: "of-" + name})
		require.NoError(t, err)
		require.NoError(t, f.Cancel(ctx, "of-"+name, "", "enough"))
		require.Equal(t, access.Executor, k.people[name].Role)
		requireHas(t, k.person(t, "ann", 0, "events", "of-"+name, "--all", "--no-follow", "--json", "--raw"), `"by":"executor:`+k.people[name].Key+`"`)
		require.NoError(t, r.End(ctx, publisher.RunEnd{Status: schema.StatusCancelled}))
	}

	add("--executor", "ci-2")
	second := sdk("ci-2")
	require.Zero(t, ci.Conn().Reconnects, "the old key works while the new one does")
	e, err := ci.NewExecutor(publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){"clerk": func(context.Context, *publisher.Run) (publisher.Work, error) { return nil, nil }}})
	require.NoError(t, err)
	served, followed := make(chan error, 1), make(chan string, 1)
	go func() { served <- e.Serve(ctx) }()
	grafana := carried("observer.grafana")
	go func() {
		var out, complaints lockedBuffer
		code := Run(ctx, []string{"--fleet", keyedFleet, "--nats", k.addr, "--nkey", grafana, "--inbox-prefix", access.InboxPrefix(access.Observer), "events", "--all"}, k.getenv, strings.NewReader(""), &out, &complaints)
		followed <- fmt.Sprint(code, complaints.String())
	}()
	require.Eventually(t, func() bool {
		connz, err := k.srv.Connz(&server.ConnzOptions{Account: access.AccountOf(access.Observer, keyedFleet)})
		return err == nil && len(connz.Conns) > 0 && connz.Conns[0].NumSubs > 0
	}, securedWait, time.Millisecond)
	require.NoError(t, os.Remove(filepath.Join(k.fleets, keyedFleet+"-executor.ci.nk")))
	add()
	require.Eventually(t, closed(ci), securedWait, time.Millisecond)
	require.ErrorIs(t, <-served, publisher.ErrNotPermitted, "an executor ends instead of asking for ever")
	for _, f := range []*publisher.Fleet{second, prod} {
		_, err := f.Head(ctx, "of-ci")
		require.NoError(t, err)
		require.Zero(t, f.Conn().Reconnects, "no other key is touched")
	}
	require.NoError(t, os.Remove(filepath.Join(k.fleets, keyedFleet+"-observer.grafana.nk")))
	require.FileExists(t, k.people["grafana"].Context)
	add()
	require.NoFileExists(t, k.people["grafana"].Context)
	requireHas(t, <-followed, fmt.Sprint(int(failure.Refused))+"waymark: the nats server refuses the credentials")
	k.person(t, "ann", 0, "runs", "ls")
}

// One role of one fleet takes all connections that it may have. The fleet's other roles, the daemon and other fleets
// connect on the same server, and a refused client is told why.
func TestConnections_AccountFull_RefusesNoOther(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	s := startSecured(t, "payments", "rival")
	s.daemon(t, "rival")
	first := s.executor(t, "rival", "one")
	url, _, _ := strings.Cut(s.url(), ",")
	var err error
	n := 0
	for ; err == nil && n <= 2*access.DefaultConnections; n++ {
		var nc *nats.Conn
		if nc, err = nats.Connect(url, append(s.options(t, "rival", access.Observer), nats.NoReconnect())...); err == nil {
			defer nc.Close()
		}
	}
	require.ErrorContains(t, err, "maximum account active connections exceeded")
	require.Equal(t, access.DefaultConnections, n-1)
	as := func(role access.Role, code failure.Code, args ...string) string {
		return s.waymark(t, int(code), append([]string{
			"--fleet", "rival", "--nats", url, "--tls-ca", filepath.Join(s.dir, "ca.pem"), "--inbox-prefix", access.InboxPrefix(role),
			"--nkey", filepath.Join(s.fleets, "rival-"+string(role)+".nk"),
		}, args...)...)
	}
	for _, args := range [][]string{{"runs", "ls"}, {"--json", "runs", "ls"}} {
		said := as(access.Observer, failure.Unavailable, args...)
		requireHas(t, said, "as many connections as it may have")
		requireHas(t, said, "waymark fleet add FLEET --connections N")
	}
	_, err = publisher.Connect(t.Context(), publisher.Config{
		URL: url, Options: s.options(t, "rival", access.Observer), Fleet: "rival", Executor: "two", Agent: "clerk",
	})
	require.ErrorIs(t, err, publisher.ErrUnavailable)
	require.ErrorContains(t, err, "--connections")

	for fleet, roles := range map[string][]access.Role{"payments": access.Roles(), "rival": {access.Executor, access.Operator, access.Daemon}} {
		for _, role := range roles {
			_, err := s.connectTo(t, url, fleet, role).Request("$JS.API.STREAM.INFO.WAYMARK_EVENTS_"+fleet+"_0", nil, securedWait)
			require.NoError(t, err, "%s of %s", role, fleet)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	r, err := first.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.NoError(t, r.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted}))
	requireHas(t, as(access.Operator, failure.OK, "runs", "get", "r1"), "completed")
}

// A connection with all subscriptions that it may have: its requests fail and say why, its events are stored. No other
// connection, also of the same key, is affected.
func TestSubscriptions_ConnectionFull_RefusesNoOther(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon and executors")
	}
	k := startKeyed(t)
	k.serve(t)
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	full, other := k.executor(t, "full"), k.executor(t, "other")
	r, err := full.Start(ctx, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	nc := full.Conn()
	var subs []*nats.Subscription
	for i := range 2 * access.ClientSubscriptions {
		sub, err := nc.Subscribe(fmt.Sprintf("%s.full.%d", access.InboxPrefix(access.Executor), i), func(*nats.Msg) {})
		require.NoError(t, err)
		subs = append(subs, sub)
	}
	require.NoError(t, nc.Flush())
	require.ErrorIs(t, nc.LastError(), nats.ErrMaxSubscriptionsExceeded)
	connz, err := k.srv.Connz(&server.ConnzOptions{Account: access.AccountOf(access.Executor, keyedFleet)})
	require.NoError(t, err)
	most := 0
	for _, c := range connz.Conns {
		most = max(most, int(c.NumSubs))
	}
	require.Equal(t, access.ClientSubscriptions, most)
	require.Eventually(t, func() bool {
		try, stop := context.WithTimeout(ctx, time.Second)
		defer stop()
		_, err := full.Head(try, "r1")
		return err != nil && strings.Contains(err.Error(), "the connection has as many as it may have")
	}, securedWait, time.Millisecond)

	require.NoError(t, r.Publish(ctx, &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("on")}}}, 0))
	_, err = other.Head(ctx, "r1")
	require.NoError(t, err)
	k.as(t, keyedFleet, access.Executor, 0, "runs", "get", "r1", "--view", "head")
	for _, sub := range subs {
		require.NoError(t, sub.Unsubscribe())
	}
	require.NoError(t, r.End(ctx, publisher.RunEnd{Status: schema.StatusCompleted}))
	_, err = full.Head(ctx, "r1")
	require.NoError(t, err)
}

// Servers read the whole of a request before the daemon can refuse it. Observers store nothing, so theirs are small.
func TestPayload_ObserverSendsMore_ConnectionEnds(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a daemon")
	}
	k := startKeyed(t)
	k.serve(t)
	list := schema.ServiceSubject(schema.VerbList, keyedFleet, "")
	body := func(size int) []byte { return append([]byte("{}"), bytes.Repeat([]byte(" "), size-2)...) }
	honest := k.jetStream(t, access.Observer).Conn()
	_, err := honest.Request(list, body(access.ObserverPayload), securedWait)
	require.NoError(t, err)
	require.ErrorIs(t, honest.Publish(list, body(access.ObserverPayload+1)), nats.ErrMaxPayload)
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(k.fleets, keyedFleet+"-observer.nk"))
	require.NoError(t, err)
	deaf, err := nats.Connect(k.addr, nkey, nats.SetCustomDialer(deafDialer{}), nats.MaxReconnects(-1))
	require.NoError(t, err)
	t.Cleanup(deaf.Close)
	require.NoError(t, deaf.Publish(list, body(access.ObserverPayload+1)))
	require.Eventually(t, func() bool { return deaf.Stats().Reconnects > 0 || deaf.IsClosed() }, securedWait, time.Millisecond, "the server ended the connection")
	k.as(t, keyedFleet, access.Observer, 0, "runs", "ls")
}

// deafDialer hides the largest message that the server takes.
type deafDialer struct{}

type deafConn struct{ net.Conn }

func (deafDialer) Dial(network, address string) (net.Conn, error) {
	conn, err := net.Dial(network, address)
	return deafConn{conn}, err
}

func (c deafConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	copy(b, bytes.Replace(b[:n], []byte(`"max_payload":65536`), []byte(`"max_payload":99999`), 1))
	return n, err
}
