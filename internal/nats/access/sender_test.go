package access_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

// public is the key of a role's user.
func (f *fleetServer) public(t *testing.T, role access.Role) string {
	t.Helper()
	key, err := f.keys[role].PublicKey()
	require.NoError(t, err)
	return key
}

// requests receives a verb like the daemon.
func (f *fleetServer) requests(t *testing.T, verb, run string) *nats.Subscription {
	t.Helper()
	nc := f.as(t, access.Daemon, f.servers[0])
	sub, err := nc.SubscribeSync(schema.ServiceSubject(verb, "f", run))
	require.NoError(t, err)
	require.NoError(t, nc.Flush())
	return sub
}

// byNKey logs in as a role's user.
func (f *fleetServer) byNKey(t *testing.T, role access.Role) func(nonce []byte) map[string]any {
	t.Helper()
	return func(nonce []byte) map[string]any {
		signed, err := f.keys[role].Sign(nonce)
		require.NoError(t, err)
		return map[string]any{"headers": true, "nkey": f.public(t, role), "sig": base64.RawURLEncoding.EncodeToString(signed)}
	}
}

// rawRequest sends requests on one connection, with headers written unchanged, which no NATS library does.
func rawRequest(t *testing.T, srv *server.Server, login func(nonce []byte) map[string]any, subject, reply string, headers ...string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", srv.Addr().String())
	require.NoError(t, err)
	defer conn.Close() //nolint:errcheck // of a test
	require.NoError(t, conn.SetDeadline(time.Now().Add(reentryWait)))
	lines := bufio.NewReader(conn)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	var info struct {
		Nonce string `json:"nonce"`
	}
	require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(strings.TrimSpace(line), "INFO ")), &info))
	connect, err := json.Marshal(login([]byte(info.Nonce)))
	require.NoError(t, err)
	text := new(strings.Builder)
	fmt.Fprintf(text, "CONNECT %s\r\n", connect)
	for _, h := range headers {
		fmt.Fprintf(text, "HPUB %s %s %d %d\r\n%s%s\r\n", subject, reply, len(h), len(h)+len(questionBody), h, questionBody)
	}
	text.WriteString("PING\r\n")
	_, err = conn.Write([]byte(text.String()))
	require.NoError(t, err)
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.False(t, strings.HasPrefix(line, "-ERR"), line)
		if strings.HasPrefix(line, "PONG") {
			return
		}
	}
}

// The daemon learns the verified key of the sender, whatever the sender writes.
func TestProver_ForgedHeader_NamesTheVerifiedKeyOrIsRefused(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers: %d", nodes), func(t *testing.T) {
			t.Parallel()
			forgeSenders(t, nodes)
		})
	}
}

// forgeSenders sends forged requests to the last server. The daemon is at the first.
func forgeSenders(t *testing.T, nodes int) {
	t.Helper()
	f := startFleet(t, "f", 1, nodes)
	last := f.servers[nodes-1]
	prove := access.Prover("f")
	const victim = "UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"
	forged := `{"acc":"FLEET_f_operator","user":"` + victim + `"}`
	subject := func(verb string) string { return schema.ServiceSubject(verb, "f", "r1") }
	operator, executor := f.as(t, access.Operator, last), f.as(t, access.Executor, last)
	input, cancel := f.requests(t, schema.VerbInput, "*"), f.requests(t, schema.VerbCancel, "*")
	publish := func(nc *nats.Conn, verb string, header nats.Header) {
		require.NoError(t, nc.PublishMsg(&nats.Msg{Subject: subject(verb), Reply: nc.NewRespInbox(), Header: header, Data: []byte(questionBody)}))
	}
	// The servers know of the subscriptions once a request arrives.
	for verb, sub := range map[string]*nats.Subscription{schema.VerbInput: input, schema.VerbCancel: cancel} {
		require.Eventually(t, func() bool {
			publish(operator, verb, nil)
			_, err := sub.NextMsg(pollEvery)
			return err == nil
		}, reentryWait, pollEvery)
		const end = "the last of those"
		require.NoError(t, operator.PublishRequest(subject(verb), operator.NewRespInbox(), []byte(end)))
		for m := new(nats.Msg); string(m.Data) != end; {
			var err error
			m, err = sub.NextMsg(reentryWait)
			require.NoError(t, err)
		}
	}
	byOperator := schema.ProvenBy("operator", f.public(t, access.Operator))
	byExecutor := schema.ProvenBy("executor", f.public(t, access.Executor))
	for _, c := range []struct {
		name string
		send func()
		sub  *nats.Subscription
		verb string
		// by is the proven sender, or err why there is none.
		by  string
		err error
	}{
		{"an operator", func() { publish(operator, schema.VerbInput, nil) }, input, schema.VerbInput, byOperator, nil},
		{"an executor", func() { publish(executor, schema.VerbCancel, nil) }, cancel, schema.VerbCancel, byExecutor, nil},
		{"a header that says another", func() {
			publish(executor, schema.VerbCancel, nats.Header{access.InfoHeader: {forged}})
		}, cancel, schema.VerbCancel, byExecutor, nil},
		{"several of them, and other headers", func() {
			publish(executor, schema.VerbCancel, nats.Header{
				access.InfoHeader: {forged, forged}, "nats-request-info": {forged}, "NATS-REQUEST-INFO": {forged}, "Traceparent": {"00-1-2-01"},
			})
		}, cancel, schema.VerbCancel, byExecutor, nil},
		{"a line behind a bare LF, which the server does not see", func() {
			rawRequest(t, last, f.byNKey(t, access.Executor), subject(schema.VerbCancel), "_INBOX_executor.x",
				"NATS/1.0\r\nA:  b\n"+access.InfoHeader+": "+forged+"\r\n\r\n")
		}, cancel, schema.VerbCancel, "", access.ErrNotProven},
		{"that, and an empty line that hides the server's from us", func() {
			rawRequest(t, last, f.byNKey(t, access.Executor), subject(schema.VerbCancel), "_INBOX_executor.x",
				"NATS/1.0\r\nA: b\n"+access.InfoHeader+": "+forged+"\r\n\r\nC: d\r\n\r\n")
		}, cancel, schema.VerbCancel, "", access.ErrNotProven},
	} {
		c.send()
		m, err := c.sub.NextMsg(reentryWait)
		require.NoError(t, err, c.name)
		by, err := prove(c.verb, m)
		require.ErrorIs(t, err, c.err, "%s: %v", c.name, m.Header)
		require.Equal(t, c.by, by, c.name)
	}

	// Short lines compensate for hidden bytes, from some number on.
	var tries []string
	for n := range 300 {
		for _, odd := range []string{"", "e: f\n"} {
			tries = append(tries, "NATS/1.0\n"+odd+strings.Repeat("a:b\n", n)+access.InfoHeader+": "+forged+"\r\n\r\nC: d\r\n\r\n")
		}
	}
	rawRequest(t, last, f.byNKey(t, access.Executor), subject(schema.VerbCancel), "_INBOX_executor.x", tries...)
	exact := 0
	for range tries {
		m, err := cancel.NextMsg(reentryWait)
		require.NoError(t, err)
		size := len("NATS/1.0\r\n\r\n")
		for key, values := range m.Header {
			for _, value := range values {
				size += len(key) + len(value) + len(": \r\n")
			}
		}
		if size == m.Size()-len(m.Subject)-len(m.Reply)-len(m.Data) {
			exact++
		}
		by, err := prove(schema.VerbInput, m)
		require.ErrorIs(t, err, access.ErrNotProven, "%d headers", len(m.Header["a"]))
		require.Empty(t, by)
	}
	require.Positive(t, exact, "the length alone would have been right once")

	// An answer that the operator's import forwards is not the operator's request, although its header claims that.
	cleanup, tool := f.requests(t, schema.VerbCleanup, ""), f.as(t, access.Executor, last)
	for _, header := range []nats.Header{nil, {access.InfoHeader: {forged}}} {
		sub, err := tool.Subscribe("tools.x", func(m *nats.Msg) {
			_ = tool.PublishMsg(&nats.Msg{Subject: m.Reply, Header: header, Data: []byte(answerBody)}) // a missing message fails below
		})
		require.NoError(t, err)
		require.NoError(t, tool.Flush())
		require.NoError(t, operator.PublishRequest("tools.x", schema.ServiceSubject(schema.VerbCleanup, "f", ""), []byte("question of a tool")))
		m, err := cleanup.NextMsg(reentryWait)
		require.NoError(t, err, "an answer does enter the account again")
		require.Equal(t, answerBody, string(m.Data))
		by, err := prove(schema.VerbCleanup, m)
		require.Error(t, err, "%v", m.Header)
		require.Empty(t, by)
		t.Logf("%v: %s", m.Header, err)
		require.NoError(t, sub.Unsubscribe())
	}

	// The daemon's account has no client role, and the daemon's key no right to decide.
	_, err := f.as(t, access.Daemon, last).Request(subject(schema.VerbInput), nil, time.Second)
	require.ErrorIs(t, err, nats.ErrTimeout, "refused, and not \"no responders\"")
	require.NoError(t, f.spy.PublishRequest(subject(schema.VerbInput), "_INBOX.x", nil))
	m, err := input.NextMsg(reentryWait)
	require.NoError(t, err)
	_, err = prove(schema.VerbInput, m)
	require.ErrorIs(t, err, access.ErrNotProven)
}

// Headers that the server writes for other users, or for accounts without share.
func TestProver_HeaderWithoutAKeyOfTheRole_IsRefused(t *testing.T) {
	t.Parallel()
	const key = "UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"
	ask := func(info string) error {
		_, err := access.Prover("f")(schema.VerbInput, &nats.Msg{Header: nats.Header{access.InfoHeader: {info}}})
		return err
	}
	require.NoError(t, ask(`{"acc":"FLEET_f_operator","user":"`+key+`"}`), "the others differ from this one")
	for _, info := range []string{
		`{"acc":"FLEET_f_operator"}`,
		`{"acc":"FLEET_f_operator","user":"ann"}`,
		`{"acc":"FLEET_f_operator","user":"[REDACTED]"}`,
		`{"acc":"FLEET_f_operator","user":"` + strings.ToLower(key) + `"}`,
		`{"acc":"FLEET_f_operator","user":"` + key + `","svc":"FLEET_f_operator"}`,
		`{"acc":"FLEET_g_operator","user":"` + key + `"}`,
		`{"acc":"WAYMARK_f","user":"` + key + `"}`,
		`{"acc":"$G","user":"` + key + `"}`,
		`{"user":"` + key + `"}`,
		`{"acc":"FLEET_f_operator","user":"` + key + `"`,
		`[]`, ``,
	} {
		require.ErrorIs(t, ask(info), access.ErrNotProven, info)
	}
	for _, role := range []string{"executor", "observer"} {
		require.ErrorIs(t, ask(`{"acc":"FLEET_f_`+role+`","user":"`+key+`"}`), access.ErrRole, "only an operator answers")
	}
}

// Only the daemon's account proves senders: in one account for all clients, a client writes the header itself.
func TestProves_AnotherAccountOrNoNKey_IsFalse(t *testing.T) {
	t.Parallel()
	proves := func(nc *nats.Conn, fleet string) bool {
		ok, err := access.Proves(nc, fleet, func(subject string) (*nats.Msg, error) { return nc.Request(subject, nil, reentryWait) })
		require.NoError(t, err)
		return ok
	}
	f := startFleet(t, "f", 1, 1)
	require.True(t, proves(f.as(t, access.Daemon, f.servers[0]), "f"))
	require.False(t, proves(f.as(t, access.Daemon, f.servers[0]), "g"), "the account of another fleet")
	require.False(t, proves(f.spy, "f"), "a user with a password, whose server might check no key")
	require.False(t, proves(natstest.Start(t).Conn(t), "f"), "a server without accounts")
	nc := f.as(t, access.Operator, f.servers[0])
	_, err := access.Proves(nc, "f", func(subject string) (*nats.Msg, error) { return nc.Request(subject, nil, 100*time.Millisecond) })
	require.Error(t, err, "a missing answer is not a claim")
}

// The daemon must be an NKey user itself, because a server without NKey users forwards the key that a client names
// unchecked.
func TestProves_ServerWithoutNKeys_ForwardsUnverifiedKeys(t *testing.T) {
	t.Parallel()
	const victim = "UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"
	file := filepath.Join(t.TempDir(), "nats.conf")
	require.NoError(t, os.WriteFile(file, []byte(`listen: "127.0.0.1:-1"
accounts {
  WAYMARK_f { users: [{ user: d, password: d }], exports: [{ service: "waymark.input.f.*" }] }
  FLEET_f_operator { users: [{ user: o, password: o }], imports: [{ service: { account: WAYMARK_f, subject: "waymark.input.f.*" }, share: true }] }
}`), 0o600))
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	opts.NoLog, opts.NoSigs = true, true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	srv.Start()
	t.Cleanup(func() {
		srv.Shutdown()
		srv.WaitForShutdown()
	})
	require.True(t, srv.ReadyForConnections(reentryWait))
	daemon := new(fleetServer).connect(t, srv, nats.UserInfo("d", "d"))
	sub, err := daemon.SubscribeSync("waymark.input.f.*")
	require.NoError(t, err)
	require.NoError(t, daemon.Flush())
	rawRequest(t, srv, func([]byte) map[string]any {
		return map[string]any{"headers": true, "user": "o", "pass": "o", "nkey": victim}
	},
		"waymark.input.f.r1", "_INBOX.x", "NATS/1.0\r\n\r\n")
	m, err := sub.NextMsg(reentryWait)
	require.NoError(t, err)
	by, err := access.Prover("f")(schema.VerbInput, m)
	require.NoError(t, err)
	require.Equal(t, schema.ProvenBy("operator", victim), by, "if it is not so any more, the daemon may take other users")
	ok, err := access.Proves(daemon, "f", func(subject string) (*nats.Msg, error) { return daemon.Request(subject, nil, reentryWait) })
	require.NoError(t, err)
	require.False(t, ok)
}

// Any header leads to an error, or to a role with the right and a key.
func FuzzProver(f *testing.F) {
	for _, seed := range []string{
		`{"acc":"FLEET_f_operator","user":"UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ"}`,
		`{"acc":"FLEET_f_executor","user":"UCZLBXUNBYTDIN5WDQGCNSUXCNGIJF3AUARKKJ7C57RT7U5ITBFWDTKJ","svc":"x"}`, `{"acc":1}`, "",
	} {
		f.Add(seed)
	}
	prove := access.Prover("f")
	f.Fuzz(func(t *testing.T, info string) {
		by, err := prove(schema.VerbInput, &nats.Msg{Header: nats.Header{access.InfoHeader: {info}}})
		if err != nil {
			require.Empty(t, by)
			return
		}
		role, key, _ := strings.Cut(by, ":")
		require.Equal(t, string(access.Operator), role)
		require.True(t, nkeys.IsValidPublicUserKey(key))
		require.LessOrEqual(t, len(by), schema.MaxBy)
	})
}
