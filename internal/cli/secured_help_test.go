package cli

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
)

// securedWait bounds each wait of the tests on the shipped configuration.
const securedWait = time.Minute

// authority signs certificates for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	dir  string
}

func newAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	a := &authority{cert: cert, key: key, dir: dir}
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(a.dir, name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// server writes name.pem and name.key, valid until then.
func (a *authority) server(t *testing.T, name string, until time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "nats"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"nats-1", "nats-2", "nats-3", "localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	require.NoError(t, err)
	private, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	a.write(t, name+".pem", "CERTIFICATE", der)
	a.write(t, name+".key", "EC PRIVATE KEY", private)
}

// serverLog is a server's log.
type serverLog struct {
	mu    sync.Mutex
	lines []string
}

func (j *serverLog) add(level, format string, v []any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, level+" "+fmt.Sprintf(format, v...))
}

func (j *serverLog) Noticef(format string, v ...any) { j.add("INF", format, v) }
func (j *serverLog) Warnf(format string, v ...any)   { j.add("WRN", format, v) }
func (j *serverLog) Fatalf(format string, v ...any)  { j.add("FTL", format, v) }
func (j *serverLog) Errorf(format string, v ...any)  { j.add("ERR", format, v) }
func (j *serverLog) Debugf(string, ...any)           {}
func (j *serverLog) Tracef(string, ...any)           {}

// String is the whole log, for failures.
func (j *serverLog) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return strings.Join(j.lines, "\n")
}

// has reports whether a line has all of the words.
func (j *serverLog) has(words ...string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
lines:
	for _, line := range j.lines {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		return true
	}
	return false
}

// secured is three servers that run the shipped configuration.
type secured struct {
	dir      string
	ca       *authority
	ports    [3]int
	routes   [3]int
	monitors [3]int
	servers  [3]*server.Server
	logs     *serverLog
	fleets   string
	// printed is all that commands printed.
	printed lockedBuffer
}

const storeKey = "test-only-5f1d3c0b9a"

// startSecured starts the three servers of deploy/nats/three-nodes with the fleets named, which the command adds.
func startSecured(t *testing.T, fleets ...string) *secured {
	t.Helper()
	s := &secured{dir: t.TempDir(), logs: new(serverLog)}
	s.fleets = filepath.Join(s.dir, "fleets")
	s.ca = newAuthority(t, s.dir)
	s.ca.server(t, "server", time.Now().Add(time.Hour))
	free := natstest.FreePorts(t, 9)
	copy(s.ports[:], free[:3])
	copy(s.routes[:], free[3:6])
	copy(s.monitors[:], free[6:])
	var includes strings.Builder
	for _, fleet := range fleets {
		s.waymark(t, 0, "fleet", "add", fleet, "--dir", s.fleets, "--offline", "--replicas", "3", "--quota", "64MiB",
			"--verify", "tools.>", "--nats", s.url(), "--tls-ca", filepath.Join(s.dir, "ca.pem"))
		s.waymark(t, 0, "fleet", "add", fleet, "--dir", s.fleets, "--offline", "--executor", "second") // the role keeps its shared key
		config, err := os.ReadFile(filepath.Join(s.fleets, "fleet-"+fleet+".conf"))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, "fleet-"+fleet+".conf"), config, 0o600))
		fmt.Fprintf(&includes, "include \"fleet-%s.conf\"\n", fleet)
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "fleets.conf"), []byte(includes.String()), 0o600))
	shipped, err := os.ReadFile(filepath.Join("..", "..", "deploy", "nats", "three-nodes", "nats.conf"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "store-key.conf"), []byte("key: \""+storeKey+"\"\n"), 0o600))
	for i := range s.servers {
		node := fmt.Sprintf("nats-%d", i+1)
		text := string(shipped)
		for from, to := range map[string]string{
			// Not by the environment, which the tests of a package share.
			"$WAYMARK_NODE": node, "$WAYMARK_LISTEN": "127.0.0.1",
			"/etc/waymark/tls": s.dir, "/var/lib/waymark/nats": filepath.Join(s.dir, node), "max_file_store: 100G": "max_file_store: 20G",
			"port: 4222": fmt.Sprintf("port: %d", s.ports[i]), "port: 6222": fmt.Sprintf("port: %d", s.routes[i]),
			"nats://nats-1:6222": fmt.Sprintf("nats://127.0.0.1:%d", s.routes[0]), "nats://nats-2:6222": fmt.Sprintf("nats://127.0.0.1:%d", s.routes[1]),
			"nats://nats-3:6222": fmt.Sprintf("nats://127.0.0.1:%d", s.routes[2]), "127.0.0.1:8222": fmt.Sprintf("127.0.0.1:%d", s.monitors[i]),
		} {
			require.Contains(t, text, from, "what the test replaces is in the shipped file")
			text = strings.ReplaceAll(text, from, to)
		}
		file := filepath.Join(s.dir, node+".conf")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		s.start(t, i)
	}
	t.Cleanup(func() {
		for _, srv := range s.servers {
			srv.Shutdown()
		}
		for _, srv := range s.servers {
			srv.WaitForShutdown()
		}
	})
	for _, srv := range s.servers {
		require.Eventually(t, func() bool { return srv.ReadyForConnections(time.Millisecond) && srv.JetStreamIsCurrent() },
			securedWait, 10*time.Millisecond, "the cluster forms: %v", s.logs)
	}
	for _, fleet := range fleets {
		s.waymark(t, 0, "fleet", "add", fleet, "--dir", s.fleets)
	}
	return s
}

// reload hands a fleet's accounts, as the command wrote them, to the servers.
func (s *secured) reload(t *testing.T, fleet string) {
	t.Helper()
	config, err := os.ReadFile(filepath.Join(s.fleets, "fleet-"+fleet+".conf"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "fleet-"+fleet+".conf"), config, 0o600))
	for _, srv := range s.servers {
		require.NoError(t, srv.Reload())
	}
}

// start starts a server from its configuration file.
func (s *secured) start(t *testing.T, i int) {
	t.Helper()
	s.servers[i] = newServer(t, filepath.Join(s.dir, fmt.Sprintf("nats-%d.conf", i+1)))
	s.servers[i].SetLogger(s.logs, false, false)
	s.servers[i].Start()
}

// newServer makes a server from a configuration file. The caller starts it.
func newServer(t *testing.T, file string) *server.Server {
	t.Helper()
	opts, err := server.ProcessConfigFile(file)
	require.NoError(t, err)
	opts.NoSigs = true
	srv, err := server.NewServer(opts)
	require.NoError(t, err)
	return srv
}

func (s *secured) url() string {
	return fmt.Sprintf("tls://127.0.0.1:%d,tls://127.0.0.1:%d,tls://127.0.0.1:%d", s.ports[0], s.ports[1], s.ports[2])
}

// monitor is the monitoring address of the first server: on loopback, for users of its machine.
func (s *secured) monitor() string { return fmt.Sprintf("http://127.0.0.1:%d", s.monitors[0]) }

func (s *secured) context(fleet string, role access.Role) string {
	return filepath.Join(s.fleets, fleet+"-"+string(role)+".json")
}

// public is the public key of a role's shared user.
func (s *secured) public(t *testing.T, fleet string, role access.Role) string {
	t.Helper()
	seed, err := os.ReadFile(filepath.Join(s.fleets, fleet+"-"+string(role)+".nk"))
	require.NoError(t, err)
	pair, err := nkeys.FromSeed(bytes.TrimSpace(seed))
	require.NoError(t, err)
	key, err := pair.PublicKey()
	require.NoError(t, err)
	return key
}

func (s *secured) getenv(name string) string {
	return map[string]string{"HOME": s.dir, "XDG_CONFIG_HOME": s.dir, "WAYMARK_HTTP": "off", "WAYMARK_STATE_DIR": filepath.Join(s.dir, "state")}[name]
}

// waymark runs a command and returns what it printed, both streams.
func (s *secured) waymark(t *testing.T, code int, args ...string) string {
	t.Helper()
	var out lockedBuffer
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	got := Run(ctx, args, s.getenv, strings.NewReader(""), &out, &out)
	text := out.String()
	_, err := s.printed.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, code, got, "waymark %s:\n%.4000s", strings.Join(args, " "), text)
	require.NoError(t, ctx.Err(), "waymark %s ended by itself:\n%.4000s", strings.Join(args, " "), text)
	return text
}

// as runs a command as a user of a fleet.
func (s *secured) as(t *testing.T, fleet string, role access.Role, code int, args ...string) string {
	t.Helper()
	return s.waymark(t, code, append([]string{"--fleet", fleet, "--context", s.context(fleet, role)}, args...)...)
}

// options are those of a user's connection.
func (s *secured) options(t *testing.T, fleet string, role access.Role) []nats.Option {
	t.Helper()
	return s.optionsOf(t, fleet, role, string(role))
}

// optionsOf are those of one of the role's keys, such as executor.second.
func (s *secured) optionsOf(t *testing.T, fleet string, role access.Role, key string) []nats.Option {
	t.Helper()
	nkey, err := nats.NkeyOptionFromSeed(filepath.Join(s.fleets, fleet+"-"+key+".nk"))
	require.NoError(t, err)
	return []nats.Option{
		nkey, nats.RootCAs(filepath.Join(s.dir, "ca.pem")), nats.CustomInboxPrefix(access.InboxPrefix(role)),
		nats.ReconnectBufSize(-1), nats.MaxReconnects(-1),
	}
}

// user is a raw connection, and what the server refused it.
type user struct {
	*nats.Conn
	mu      sync.Mutex
	refused []string
}

func (s *secured) connect(t *testing.T, fleet string, role access.Role) *user {
	t.Helper()
	return s.connectTo(t, s.url(), fleet, role)
}

// connectTo connects to the servers at url and to no other.
func (s *secured) connectTo(t *testing.T, url, fleet string, role access.Role) *user {
	t.Helper()
	u := new(user)
	closed := make(chan struct{})
	nc, err := nats.Connect(url, append(s.options(t, fleet, role),
		nats.IgnoreDiscoveredServers(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			u.mu.Lock()
			defer u.mu.Unlock()
			u.refused = append(u.refused, err.Error())
		}))...)
	require.NoError(t, err)
	t.Cleanup(func() {
		nc.Close()
		<-closed
	})
	u.Conn = nc
	return u
}

// wasRefused reports whether the server refused something with these words.
func (u *user) wasRefused(words string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, text := range u.refused {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}

// daemon runs the daemon of a fleet until the test ends, and returns its log.
func (s *secured) daemon(t *testing.T, fleet string) *lockedBuffer {
	t.Helper()
	log := new(lockedBuffer)
	_, stop, err := startDaemonTo(log, []string{"--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced"}, s.getenv)
	require.NoError(t, err)
	t.Cleanup(func() {
		code, text := stop()
		require.Zero(t, code, "%s", text)
		require.NotContains(t, text, "ermissions", "the daemon has all that it needs")
	})
	return log
}

// onDisk reports whether a text stands in any file of the servers' stores.
func (s *secured) onDisk(t *testing.T, text string) bool {
	t.Helper()
	found := false
	for i := range s.servers {
		err := filepath.WalkDir(filepath.Join(s.dir, fmt.Sprintf("nats-%d", i+1)), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil //nolint:nilerr // files come and go
			}
			content, err := os.ReadFile(path)
			found = found || err == nil && bytes.Contains(content, []byte(text))
			return nil
		})
		require.NoError(t, err)
	}
	return found
}
