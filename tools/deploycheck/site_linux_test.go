package deploycheck_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
)

// payments is the fleet of each site.
const payments = "payments"

// patience bounds each wait.
const patience = time.Minute

// process is a program that a test started.
type process struct {
	*exec.Cmd
	// first is the first line of its output.
	first string
	ended sync.Once
	log   *logged
}

// logged keeps what a process wrote.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (p *process) kill() {
	p.ended.Do(func() {
		_ = p.Process.Kill() // it may have ended
		_ = p.Wait()
	})
}

// site is a fleet with its daemons and NATS servers, and what an operator looks at.
type site struct {
	*testing.T
	program, dir string
	// state is the state directory of an embedded NATS server; empty for servers of their own.
	state string
	// addr are the addresses of those servers, and servers the servers.
	addr    []string
	servers []*server.Server
	daemons []*process
	health  []string
	// via are the flags of the operator's connection.
	via     []string
	pages   http.Client
	pagesAt string
	prom    *world
	// doctors are the flags of doctor's connection, if it has others.
	doctors []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	program, err := built()
	require.NoError(t, err)
	return &site{T: t, program: program, dir: t.TempDir()}
}

// embedded is a daemon with its own NATS server in a directory.
func embedded(t *testing.T) *site {
	t.Helper()
	s := newSite(t)
	return s.embed(filepath.Join(s.dir, "state"))
}

func (s *site) embed(state string) *site {
	s.Helper()
	s.state = state
	s.via = []string{"--state-dir", state, "--fleet", payments}
	s.daemon("--quota", "64MiB", "--shards", "1")
	s.open()
	return s
}

// external is a fleet with keys on so many NATS servers, which have the accounts that "waymark fleet add" writes.
func external(t *testing.T, servers, daemons int) *site {
	t.Helper()
	s := newSite(t)
	ports := natstest.FreePorts(t, 2*servers)
	routes := make([]string, servers)
	for i := range servers {
		s.addr = append(s.addr, fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
		routes[i] = fmt.Sprintf("%q", fmt.Sprintf("nats://127.0.0.1:%d", ports[servers+i]))
	}
	fleets := filepath.Join(s.dir, "fleets")
	s.must("fleet", "add", payments, "--dir", fleets, "--offline", "--executor", "first,second", "--quota", "64MiB", "--replicas", fmt.Sprint(servers), "--nats", strings.Join(s.addr, ","))
	for i := range servers {
		text := fmt.Sprintf("server_name: nats-%d\nlisten: \"127.0.0.1:%d\"\njetstream { store_dir: %q, max_file_store: 20G }\naccounts {\n  include \"fleets/fleet-%s.conf\"\n}\n",
			i+1, ports[i], s.store(i), payments)
		if servers > 1 {
			text += fmt.Sprintf("cluster { name: c, listen: \"127.0.0.1:%d\", routes: [%s] }\n", ports[servers+i], strings.Join(routes, ", "))
		}
		require.NoError(t, os.WriteFile(s.config(i), []byte(text), 0o600))
		s.servers = append(s.servers, nil)
		s.startServer(i)
	}
	t.Cleanup(func() {
		for i := range s.servers {
			s.stopServer(i)
		}
	})
	for _, srv := range s.servers {
		require.Eventually(t, func() bool { return srv.ReadyForConnections(time.Millisecond) && srv.JetStreamIsCurrent() }, patience, 10*time.Millisecond)
	}
	s.must("fleet", "add", payments, "--dir", fleets)
	s.via = []string{"--fleet", payments, "--context", s.context(access.Operator)}
	for i := range daemons {
		s.daemon("--synced", "--name", fmt.Sprintf("daemon-%d", i+1))
	}
	s.open()
	return s
}

func (s *site) config(i int) string { return filepath.Join(s.dir, fmt.Sprintf("nats-%d.conf", i+1)) }
func (s *site) store(i int) string  { return filepath.Join(s.dir, fmt.Sprintf("nats-%d", i+1)) }
func (s *site) context(role access.Role) string {
	return filepath.Join(s.dir, "fleets", payments+"-"+string(role)+".json")
}

func (s *site) startServer(i int) {
	s.Helper()
	opts, err := server.ProcessConfigFile(s.config(i))
	require.NoError(s, err)
	opts.NoSigs, opts.NoLog = true, true
	s.servers[i], err = server.NewServer(opts)
	require.NoError(s, err)
	s.servers[i].Start()
}

func (s *site) stopServer(i int) {
	s.servers[i].Shutdown()
	s.servers[i].WaitForShutdown()
}

// daemon starts one more daemon.
func (s *site) daemon(flags ...string) {
	s.Helper()
	s.daemons, s.health = append(s.daemons, nil), append(s.health, "")
	s.startDaemon(len(s.daemons)-1, flags...)
}

func (s *site) startDaemon(i int, flags ...string) {
	s.Helper()
	if s.health[i] == "" {
		s.health[i] = fmt.Sprintf("http://127.0.0.1:%d", natstest.FreePorts(s.T, 1)[0])
	}
	where := s.via
	if s.state == "" {
		where = []string{"--fleet", payments, "--context", s.context(access.Daemon)}
	}
	args := append(append([]string{"serve", "--http", strings.TrimPrefix(s.health[i], "http://")}, where...), flags...)
	s.daemons[i] = s.start(args...)
	require.Contains(s, s.daemons[i].first, "http=", s.daemons[i].log)
}

// command is a command of this site, with an environment of its own.
func (s *site) command(args ...string) *exec.Cmd {
	cmd := exec.Command(s.program, args...)
	cmd.Dir = s.dir
	cmd.Env = []string{"HOME=" + s.dir, "XDG_CONFIG_HOME=" + s.dir, "PATH=" + os.Getenv("PATH"), "COLUMNS=400", "TMPDIR=" + s.dir}
	return cmd
}

// start starts a program and awaits the first line of its output; that is empty if it ends before.
func (s *site) start(args ...string) *process {
	s.Helper()
	p := &process{Cmd: s.command(args...), log: new(logged)}
	p.Stderr = p.log
	out, err := p.StdoutPipe()
	require.NoError(s, err)
	require.NoError(s, p.Start())
	s.Cleanup(p.kill)
	lines := bufio.NewReader(out)
	p.first, _ = lines.ReadString('\n')
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	return p
}

// must runs a command that may not fail.
func (s *site) must(args ...string) {
	s.Helper()
	said, err := s.command(args...).CombinedOutput()
	require.NoError(s, err, "waymark %s: %s", strings.Join(args, " "), said)
}

// ask runs a command of the operator.
func (s *site) ask(args ...string) (stdout, stderr string) {
	cmd := s.command(append(slices.Clone(s.via), args...)...)
	var out, complaints strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &complaints
	_ = cmd.Run() // what it said counts
	return out.String(), complaints.String()
}

// open starts "waymark ui" and enters its pages.
func (s *site) open() {
	s.Helper()
	p := s.start(append([]string{"ui", "--json"}, s.via...)...)
	var said struct{ File string }
	require.NoError(s, json.Unmarshal([]byte(p.first), &said), p.log)
	address, err := os.ReadFile(said.File)
	require.NoError(s, err)
	jar, err := cookiejar.New(nil)
	require.NoError(s, err)
	s.pages = http.Client{Jar: jar, Timeout: patience, Transport: &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(addr) // a browser resolves *.localhost; a resolver of Go need not
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}}
	at, entrance, _ := strings.Cut(strings.TrimSpace(string(address)), "/enter")
	s.pagesAt = at
	_, err = s.read("/enter" + entrance)
	require.NoError(s, err)
}

func (s *site) read(path string) (string, error) {
	answer, err := s.pages.Get(s.pagesAt + path)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close() // it was read
	return string(body), err
}

// connect connects as a role; on an embedded server every client is the user of its state directory.
func (s *site) connect(key string, role access.Role) *nats.Conn {
	s.Helper()
	options := []nats.Option{nats.ReconnectBufSize(-1), nats.MaxReconnects(-1), nats.ReconnectWait(100 * time.Millisecond), nats.RetryOnFailedConnect(false)}
	var nc *nats.Conn
	if s.state != "" {
		end, err := natsconn.Discover(s.Context(), s.state)
		require.NoError(s, err)
		nc, err = end.Connect(options...)
		require.NoError(s, err)
	} else {
		seed, err := os.ReadFile(filepath.Join(s.dir, "fleets", payments+"-"+key+".nk"))
		require.NoError(s, err)
		carried := filepath.Join(s.TempDir(), "key.nk") // its owner keeps it after it is revoked
		require.NoError(s, os.WriteFile(carried, seed, 0o600))
		nkey, err := nats.NkeyOptionFromSeed(carried)
		require.NoError(s, err)
		nc, err = nats.Connect(strings.Join(s.addr, ","), append(options, nkey, nats.CustomInboxPrefix(access.InboxPrefix(role)))...)
		require.NoError(s, err)
	}
	s.Cleanup(nc.Close)
	return nc
}

// jetStream is JetStream as the daemon has it.
func (s *site) jetStream() jetstream.JetStream {
	s.Helper()
	js, err := jetstream.New(s.connect(string(access.Daemon), access.Daemon))
	require.NoError(s, err)
	return js
}

// executor serves agents until the test ends or kill is called, which announces nothing.
func (s *site) executor(key, name string, spec publisher.ExecutorSpec) (f *publisher.Fleet, kill func(), ended <-chan error) {
	s.Helper()
	nc := s.connect(key, access.Executor)
	f, err := publisher.Connect(s.Context(), publisher.Config{Conn: nc, Fleet: payments, Executor: name, Agent: "coder", RequestTimeout: 5 * time.Second})
	require.NoError(s, err)
	spec.Grace = time.Millisecond
	e, err := f.NewExecutor(spec)
	require.NoError(s, err)
	ctx, cancel := context.WithCancel(context.Background())
	done, served := make(chan struct{}), make(chan error, 1)
	go func() { defer close(done); served <- e.Serve(ctx) }()
	s.Cleanup(func() { nc.Close(); cancel(); <-done })
	return f, nc.Close, served
}

// submit submits a run.
func (s *site) submit(run, agent string) {
	s.Helper()
	nc := s.connect("executor.first", access.Executor)
	defer nc.Close()
	f, err := publisher.Connect(s.Context(), publisher.Config{Conn: nc, Fleet: payments, Executor: "submits"})
	require.NoError(s, err)
	_, err = f.Submit(s.Context(), publisher.RunSpec{ID: run, Agent: agent, Task: "Fix the login."})
	require.NoError(s, err)
}

// Surfaces.

var spaces = regexp.MustCompile(`\s+`)

// firstOf is the first line with text, without the program's name.
func firstOf(texts ...string) string {
	for _, text := range texts {
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(spaces.ReplaceAllString(line, " ")); line != "" {
				return strings.TrimPrefix(line, "waymark: ")
			}
		}
	}
	return ""
}

// doctor is the first finding that is bad.
func (s *site) doctor() string {
	out, complaints := s.ask(append(slices.Clone(s.doctors), "doctor", "--json")...)
	var said struct {
		Checks []struct{ Check, Result, Detail string }
	}
	var failed struct{ Error string }
	if err := json.Unmarshal([]byte(complaints), &failed); err == nil && out == "" {
		return failed.Error
	}
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&said); err != nil || len(said.Checks) == 0 {
		return firstOf(complaints, out)
	}
	for _, c := range said.Checks {
		if c.Result == "FAILED" || c.Result == "warning" {
			return c.Result + " " + c.Check + ": " + c.Detail
		}
	}
	return "no finding"
}

// ready is what the /readyz of each daemon says first.
func (s *site) ready() string {
	all := make([]string, len(s.health))
	for i, address := range s.health {
		all[i] = func() string {
			client := http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
			answer, err := client.Get(address + "/readyz")
			if err != nil {
				return "no answer"
			}
			defer func() { _ = answer.Body.Close() }() // it was read
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				return "no answer"
			}
			first, rest, _ := strings.Cut(string(body), "\n")
			return fmt.Sprint(answer.StatusCode, " ", firstOf(rest, first))
		}()
	}
	return strings.Join(all, "; ")
}

// stuck is the first line of runs ls --stuck.
func (s *site) stuck() string {
	out, complaints := s.ask("runs", "ls", "--stuck")
	if _, rows, ok := strings.Cut(out, "\n"); ok && rows != "" {
		return firstOf(rows)
	}
	return firstOf(complaints, out)
}

func (s *site) inbox() string {
	out, complaints := s.ask("inbox")
	return firstOf(out, complaints)
}

var (
	aside = regexp.MustCompile(`(?s)<p class="(?:facts|note|note bad|empty)"[^>]*>.*?</p>|<tr class="row[^>]* id="r-.*?</tr>`)
	tags  = regexp.MustCompile(`<[^>]*>`)
)

// page is what the fleet's page, and that of its stuck runs, say above the list of runs, and the first run of each.
func (s *site) page() string {
	var said []string
	for _, path := range []string{"/", "/?status=stuck"} {
		body, err := s.read(path)
		if err != nil {
			return "no answer"
		}
		var parts []string
		rows := 0
		for _, part := range aside.FindAllString(body, -1) {
			if strings.HasPrefix(part, "<tr") {
				if rows++; rows > 1 {
					continue
				}
			}
			parts = append(parts, firstOf(html.UnescapeString(tags.ReplaceAllString(strings.ReplaceAll(part, "\n", " "), " "))))
		}
		said = append(said, strings.Join(parts, " | "))
	}
	return strings.Join(said, " || ")
}

// between listens at an address, and passes on to another what clients write there, and what they get with a change to
// each line: of the same length, because messages say theirs.
func between(t *testing.T, listen, to string, change func([]byte) []byte) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", listen)
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() {
				defer func() { _ = client.Close() }() // the client may have
				for in := bufio.NewReader(server); ; {
					line, err := in.ReadBytes('\n')
					if _, writeErr := client.Write(change(line)); err != nil || writeErr != nil {
						return
					}
				}
			}()
		}
	}()
	return listener.Addr().String()
}
