package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// servers are the NATS servers of a world: one within this process, or one or three processes.
type servers struct {
	own      *natsd.Server
	children []*child
	// url and credentials of executors and daemons in other processes.
	url, user, password string
	// dirs are the servers' state directories.
	dirs []string
}

const clusterSize = 3

// startServers starts the specified servers, with their state below dir.
func startServers(ctx context.Context, spec WorldSpec, o Options, dir string) (s *servers, err error) {
	s = new(servers)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	role := serverRole{Interval: spec.Sync == SyncDefault}
	switch spec.Server {
	case Embedded:
		role.StateDir = s.dir(dir, "server")
		if s.own, err = natsd.Start(ctx, role.config(), o.Logger); err != nil {
			return s, err
		}
		s.url = s.own.URL()
		return s, s.readCredentials(ctx)
	case OwnProcess:
		role.StateDir = s.dir(dir, "server")
		if err := s.launch(ctx, o, "the server", role); err != nil {
			return s, err
		}
		return s, s.readCredentials(ctx)
	case ThreeNodes:
		ports, err := freePorts(ctx, clusterSize)
		if err != nil {
			return s, err
		}
		s.user, s.password = "bench", rand.Text()
		for i := range clusterSize {
			node := role
			node.StateDir = s.dir(dir, fmt.Sprintf("node-%d", i))
			node.Cluster = &natstest.Cluster{Name: "bench", Node: i, Ports: ports, User: s.user, Password: s.password}
			if err := s.launch(ctx, o, fmt.Sprintf("node %d", i), node); err != nil {
				return s, err
			}
		}
		return s, nil
	}
	return s, fmt.Errorf("%w: server is %q", ErrOptions, spec.Server)
}

func (s *servers) dir(base, name string) string {
	dir := filepath.Join(base, name)
	s.dirs = append(s.dirs, dir)
	return dir
}

func (s *servers) launch(ctx context.Context, o Options, name string, role serverRole) error {
	c, err := startChild(ctx, o.Child, name, childRole{Server: &role})
	if err != nil {
		return err
	}
	s.children = append(s.children, c)
	s.url = strings.TrimPrefix(s.url+","+c.first.URL, ",")
	return nil
}

// readCredentials reads the credentials that a single server generated.
func (s *servers) readCredentials(ctx context.Context) error {
	end, err := natsconn.Discover(ctx, s.dirs[0])
	if err != nil {
		return err
	}
	opts, err := end.Options()
	if err != nil {
		return err
	}
	var o nats.Options
	for _, opt := range opts {
		if err := opt(&o); err != nil {
			return err
		}
	}
	s.user, s.password = o.User, o.Password
	return nil
}

// connect opens a connection over TCP, as an executor does.
func (s *servers) connect(name string) (*link, error) {
	return dial(s.url, name, nats.UserInfo(s.user, s.password))
}

// connectInside connects a daemon to a server in the same process, if possible without a socket.
func (s *servers) connectInside(name string) (*link, error) {
	if s.own == nil {
		return s.connect(name)
	}
	return linkWith(name, s.own.Connect)
}

// stop ends the servers cleanly.
func (s *servers) stop() error {
	var errs []error
	if s.own != nil {
		errs = append(errs, s.own.Close())
	}
	for _, c := range s.children {
		errs = append(errs, c.stop())
	}
	return errors.Join(errs...)
}

// freePorts finds unused ports. Another process may take one before it is used: the start then fails.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var lc net.ListenConfig
	ports := make([]int, n)
	for i := range ports {
		l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // held until all are found, so that they differ
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("listening on %s gave no port", l.Addr())
		}
		ports[i] = addr.Port
	}
	return ports, nil
}
