package natsd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gofrs/flock"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

// host is the only address the embedded server listens on, as it has no TLS.
const host = "127.0.0.1"

// Server is a running embedded server. Its methods may be called from any goroutine.
type Server struct {
	cfg    Config
	layout natsconn.Layout
	log    *serverLog
	lock   *flock.Flock
	nats   *server.Server
	id     identity
	end    natsconn.Endpoint

	marked  bool // running.json is ours; only Start uses it
	unclean atomic.Bool
	started chan struct{} // closed when the server's own start has returned
	stopped chan struct{} // closed when the server has shut down for any reason

	closeOnce sync.Once
	closeErr  error
}

// Start locks the state directory, starts the server in it and returns when it accepts connections. ctx bounds the
// start only. A long start is recovering a large store; ending it early waits for that recovery within
// Config.StopTimeout.
//
// It returns ErrInvalidConfig, natsconn.ErrUnusable, ErrDiskFull, ErrLocked, ErrPortInUse or ErrStart.
func Start(ctx context.Context, cfg Config, logger zerolog.Logger) (_ *Server, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg.withDefaults(), log: &serverLog{logger: logger, out: make(chan struct{})},
		started: make(chan struct{}), stopped: make(chan struct{}),
	}
	if s.layout, err = natsconn.LayoutOf(cfg.StateDir); err != nil {
		return nil, err
	}
	defer func() { err = noRoom(s.layout.Root, err) }()
	if err := createDirs(s.layout); err != nil {
		return nil, err
	}

	if err = s.acquire(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.abort())
		}
	}()

	if s.id, err = loadIdentity(s.layout); err != nil {
		return nil, err
	}
	port, err := s.choosePort(ctx)
	if err != nil {
		return nil, err
	}
	if err = s.mark(); err != nil {
		return nil, err
	}
	if err = s.run(ctx, port); err != nil {
		return nil, err
	}
	if err = s.publish(); err != nil {
		return nil, err
	}
	return s, nil
}

// abort undoes a failed Start. Before mark, running.json belongs to a process that ended uncleanly and must stay for
// the next start.
func (s *Server) abort() error {
	switch {
	case s.nats != nil:
		return s.close()
	case s.marked:
		return errors.Join(removeFile(s.layout.Running()), s.lock.Unlock())
	}
	return s.lock.Unlock()
}

// InUse returns a LockedError if another process uses the state directory, else nil.
func InUse(stateDir string) error {
	l, err := natsconn.LayoutOf(stateDir)
	if err != nil {
		return err
	}
	s := &Server{layout: l}
	if _, err := os.Stat(l.Lock()); err != nil {
		return nil //nolint:nilerr // an unused directory
	}
	if err := s.acquire(); err != nil {
		return err
	}
	return s.lock.Unlock()
}

// acquire locks the directory. The system releases a flock when the process ends, however it ends.
func (s *Server) acquire() error {
	s.lock = flock.New(s.layout.Lock(), flock.SetPermissions(fileMode))
	ok, err := s.lock.TryLock()
	if err != nil {
		return fmt.Errorf("%w: locking %s: %w", natsconn.ErrUnusable, s.layout.Lock(), err)
	}
	if ok {
		return nil
	}
	locked := &LockedError{Dir: s.layout.Root}
	var holder natsconn.Marker
	if natsconn.ReadState(s.layout.Running(), &holder) == nil { // without it the message only has less detail
		locked.PID, locked.Started = holder.PID, holder.Started
	}
	return errors.Join(locked, s.lock.Close())
}

// mark records an unclean stop of the previous process, then that this one runs.
func (s *Server) mark() error {
	var before natsconn.Marker
	switch err := natsconn.ReadState(s.layout.Running(), &before); {
	case err == nil || errors.Is(err, natsconn.ErrUnusable): // an unreadable marker was cut short: unclean as well
		if err := writeJSON(s.layout.Unclean(), before); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
	}
	_, err := os.Stat(s.layout.Unclean())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %w", natsconn.ErrUnusable, err)
	}
	s.unclean.Store(err == nil)
	s.marked = true
	return writeJSON(s.layout.Running(), natsconn.Marker{PID: os.Getpid(), Started: time.Now().UTC()})
}

// choosePort tries the port before the server opens its store: the server would first recover every stream and then
// fail. The port may be taken afterwards, so run checks again.
func (s *Server) choosePort(ctx context.Context) (int, error) {
	port := s.cfg.Port
	if port == 0 {
		port = s.id.Port
	}
	if port == 0 {
		return server.RANDOM_PORT, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	switch {
	case err == nil:
		return port, listener.Close()
	case s.cfg.Port == 0:
		return server.RANDOM_PORT, nil
	}
	return 0, portError(port, err)
}

func portError(port int, err error) error {
	return fmt.Errorf("%w: %s:%d: %w: stop what listens there, choose another port, or 0 for a free one",
		ErrPortInUse, host, port, err)
}

// maxPings without an answer end a connection.
const maxPings = 2

// options are the server's. DontListen is never set, even for in-process clients: with it, the server's shutdown
// hangs in lame duck mode.
func (s *Server) options(port int) *server.Options {
	opts := &server.Options{
		ServerName:             s.id.ServerName,
		Host:                   host,
		Port:                   port,
		Users:                  []*server.User{{Username: s.id.User, Password: s.id.Password}},
		MaxPayload:             DefaultMaxPayload,
		JetStream:              true,
		StoreDir:               s.layout.Store(),
		JetStreamMaxStore:      s.maxStore(),
		JetStreamMaxMemory:     maxMemory,
		SyncAlways:             s.cfg.Sync == SyncAlways,
		DisableJetStreamBanner: true,
		NoSigs:                 true,
		PingInterval:           DefaultPing,
		MaxPingsOut:            maxPings,
	}
	for _, key := range s.cfg.Keys {
		opts.Nkeys = append(opts.Nkeys, &server.NkeyUser{Nkey: key})
	}
	if s.cfg.Options != nil {
		s.cfg.Options(opts)
		s.id.User, s.id.Password = opts.Users[0].Username, opts.Users[0].Password
	}
	return opts
}

// maxStore is the limit of JetStream's files; 0 leaves it to the server. The server uses three quarters of the free
// space at its start. On a nearly full disk it would keep that limit, and refuse every write, however much room is
// made: so the size of the disk counts.
func (s *Server) maxStore() int64 {
	_, total, err := DiskRoom(s.layout.Root)
	if err != nil {
		return 0 // unknown on this system
	}
	return total / 4 * 3
}

// run starts the server and waits until it is ready.
func (s *Server) run(ctx context.Context, port int) error {
	ns, err := server.NewServer(s.options(port))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	s.nats = ns
	ns.SetLoggerV2(s.log, false, false, false)

	go func() {
		defer close(s.started)
		ns.Start()
	}()
	go func() {
		defer close(s.stopped)
		ns.WaitForShutdown()
	}()

	select {
	case <-s.started:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrStart, context.Cause(ctx))
	}
	fatal := s.log.fatalText()
	switch {
	case fatal != "" && port > 0 && ns.Addr() == nil:
		return portError(port, errors.New(fatal))
	case fatal != "":
		return fmt.Errorf("%w: %s", ErrStart, fatal)
	case ns.Addr() == nil || !ns.JetStreamEnabled():
		return fmt.Errorf("%w: it serves no clients or no JetStream, and does not say why: see its log", ErrStart)
	}
	return nil
}

// publish writes the files that clients need to find the server.
func (s *Server) publish() error {
	s.end = natsconn.Endpoint{
		URL:      s.nats.ClientURL(),
		Context:  s.layout.Context(),
		PID:      os.Getpid(),
		ServerID: s.nats.ID(),
		Started:  time.Now().UTC(),
	}
	if port := s.Port(); port != s.id.Port {
		s.id.Port = port
		if err := writeJSON(s.layout.Identity(), s.id); err != nil {
			return err
		}
	}
	natsContext := natsconn.ContextFile{
		Description: "Waymark's embedded server in " + s.layout.Root,
		URL:         s.end.URL,
		User:        s.id.User,
		Password:    s.id.Password,
	}
	if err := writeJSON(s.layout.Context(), natsContext); err != nil {
		return err
	}
	return writeJSON(s.layout.Endpoint(), s.end)
}

// Close stops the server and releases the directory; another call returns the same result. Drain clients before. It
// returns ErrStopTimeout if the server does not end within Config.StopTimeout; the directory then stays locked until
// the process ends.
func (s *Server) Close() error {
	s.closeOnce.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

func (s *Server) close() error {
	// Clients must stop finding the server before it stops answering.
	found := removeFile(s.layout.Endpoint())
	if err := s.stop(); err != nil {
		return errors.Join(found, err)
	}
	if s.log.fullText() != "" {
		// Buckets with asynchronous persistence acknowledged data that found no room. The marker stays: the next
		// start is unclean, and derived data is made again.
		return errors.Join(found, s.lock.Unlock())
	}
	// JetStream leaves asynchronously persisted buckets in the page cache, even on a clean stop. The marker may only
	// be removed once they are on disk too.
	if s.cfg.Sync == SyncAlways {
		if err := syncTree(s.layout.Store()); err != nil {
			return errors.Join(found, fmt.Errorf("%w: writing back %s: %w", natsconn.ErrUnusable, s.layout.Store(), err), s.lock.Unlock())
		}
	}
	return errors.Join(found, removeFile(s.layout.Running()), s.lock.Unlock())
}

func (s *Server) stop() error {
	go func() { // ends when stopped is closed
		<-s.started // stopping a half-started server would leave its JetStream running
		s.nats.Shutdown()
	}()
	select {
	case <-s.stopped:
		return nil
	case <-time.After(s.cfg.StopTimeout):
		return s.stopTimeout()
	}
}

func (s *Server) stopTimeout() error {
	return fmt.Errorf("%w: %s: still busy in %s: end process %d before another one uses that directory",
		ErrStopTimeout, s.cfg.StopTimeout, s.layout.Root, os.Getpid())
}

// WaitForShutdown returns when the server has shut down for any reason, or with ctx's error.
func (s *Server) WaitForShutdown(ctx context.Context) error {
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Healthy runs the server's health check: it accepts connections, JetStream runs, and every stream and
// consumer on disk was recovered. It returns ErrUnhealthy. After a full disk it stays unhealthy until a restart.
func (s *Server) Healthy(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if status := s.nats.Healthz(nil); status.Error != "" || status.Status != "ok" {
		return fmt.Errorf("%w: %s (%s): look at its log and at the space in %s, then restart",
			ErrUnhealthy, status.Error, status.Status, s.layout.Root)
	}
	return nil
}

// OutOfSpace is closed once the server has reported a full disk; Full then returns its message. Such a server stores
// nothing until it is restarted, however much room is made: publishers get no answer.
func (s *Server) OutOfSpace() <-chan struct{} { return s.log.out }

// Full is the server's first message about a full disk; empty if there was none.
func (s *Server) Full() string { return s.log.fullText() }

// UncleanStart is true if an earlier process ended without Close and ClearUnclean was not called since: unsynced
// messages may be missing, whatever the streams report.
func (s *Server) UncleanStart() bool { return s.unclean.Load() }

// ClearUnclean records that the effects of an unclean stop were repaired.
func (s *Server) ClearUnclean() error {
	if err := removeFile(s.layout.Unclean()); err != nil {
		return err
	}
	s.unclean.Store(false)
	return nil
}

// Endpoint is how clients on this machine reach the server.
func (s *Server) Endpoint() natsconn.Endpoint { return s.end }

// URL is the address clients connect to, without credentials.
func (s *Server) URL() string { return s.end.URL }

// Port is the TCP port the server listens on.
func (s *Server) Port() int {
	if addr, ok := s.nats.Addr().(*net.TCPAddr); ok {
		return addr.Port
	}
	return s.id.Port // after Close
}

// StateDir is the absolute path of the state directory.
func (s *Server) StateDir() string { return s.layout.Root }

// Options carry the credentials, for clients that connect over TCP.
func (s *Server) Options() []nats.Option {
	return []nats.Option{nats.UserInfo(s.id.User, s.id.Password)}
}

// Connect opens a connection within this process, without a socket. Further options are added to the
// credentials. The caller drains or closes it before Close.
func (s *Server) Connect(opts ...nats.Option) (*nats.Conn, error) {
	all := append(s.Options(), nats.InProcessServer(s.nats))
	conn, err := nats.Connect(s.end.URL, append(all, opts...)...)
	if err != nil {
		return nil, fmt.Errorf("connecting to the embedded nats server: %w", err)
	}
	return conn, nil
}

// Map publishes messages on one subject on another, in the form of a subject mapping of the server's configuration.
// Mapping the same subject again replaces the mapping. It lasts as long as the server.
func (s *Server) Map(from, to string) error {
	if err := s.nats.GlobalAccount().AddMapping(from, to); err != nil {
		return fmt.Errorf("mapping subject %s to %s: %w", from, to, err)
	}
	return nil
}

// MaxStore is how many bytes JetStream may store and reserve.
func (s *Server) MaxStore() int64 {
	if c := s.nats.JetStreamConfig(); c != nil {
		return c.MaxStore
	}
	return 0
}

// Version is the version of the nats-server in this binary.
func Version() string { return server.VERSION }
