package nemesis_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/waymarkio/waymark/internal/harness/nemesis"
	"github.com/waymarkio/waymark/internal/harness/testbin"
)

// network is two network namespaces of the kernel, each with a TUN device, and this process between them, which
// forwards the packets of one to the other, or loses them. Every link of the world goes through it: dialling sockets
// are in the near one, listening sockets in the far one, and between them are the kernel's own connections, with real
// retransmissions, and no sign that a packet was lost.
type network struct {
	t         *testing.T
	near, far *namespace
	// loss returns the share of lost packets from one to another; nil is none. Numbers are those of link: -1 is a
	// client.
	loss         atomic.Pointer[func(from, to int) float64]
	passed, lost atomic.Int64
	work         sync.WaitGroup
}

// namespace is a network namespace.
type namespace struct {
	fd  int
	tun *os.File
	// net is the third byte of its addresses.
	net byte
}

// firstPeer is the last byte of a client's address; servers come after it.
const firstPeer = 10

func newNetwork(t *testing.T) *network {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("losing packets needs root, for network namespaces: run make chaos CHAOSFLAGS=\"-run Packets\" as root")
	}
	n := &network{t: t}
	for i, ns := range []**namespace{&n.near, &n.far} {
		var err error
		if *ns, err = newNamespace(byte(i)); err != nil {
			t.Skipf("losing packets needs network namespaces and /dev/net/tun, which this machine does not allow: %v", err)
		}
		made := *ns
		t.Cleanup(func() { require.NoError(t, errors.Join(made.tun.Close(), unix.Close(made.fd))) })
	}
	n.work.Go(func() { n.carry(n.near, n.far) })
	n.work.Go(func() { n.carry(n.far, n.near) })
	t.Cleanup(func() {
		// The reads end at their deadline; the devices are closed after them.
		require.NoError(t, errors.Join(n.near.tun.SetReadDeadline(time.Unix(1, 0)), n.far.tun.SetReadDeadline(time.Unix(1, 0))))
		n.work.Wait()
	})
	return n
}

// newNamespace makes one whose TUN device has an address for a client and for each of three servers: 10.77.net.10 and so on.
func newNamespace(third byte) (*namespace, error) {
	ns := &namespace{net: third, fd: -1}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, because it belongs to another namespace now
		done <- ns.make()
	}()
	return ns, <-done
}

func (ns *namespace) make() (err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if ns.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq("tun0")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, request); err != nil {
		return fmt.Errorf("TUNSETIFF: %w", err)
	}
	ns.tun = os.NewFile(uintptr(fd), "tun")
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unix.Close(control)) }()
	set := func(name string, what uint, fill func(*unix.Ifreq) error) error {
		request, err := unix.NewIfreq(name)
		if err == nil {
			err = fill(request)
		}
		if err == nil {
			err = unix.IoctlIfreq(control, what, request)
		}
		if err != nil {
			return fmt.Errorf("%s, request %#x: %w", name, what, err)
		}
		return nil
	}
	for i := range 4 {
		name := "tun0"
		if i > 0 {
			name += ":" + strconv.Itoa(i)
		}
		err = errors.Join(
			err,
			set(name, unix.SIOCSIFADDR, func(r *unix.Ifreq) error { return r.SetInet4Addr(ns.address(i - 1).To4()) }),
			set(name, unix.SIOCSIFNETMASK, func(r *unix.Ifreq) error { return r.SetInet4Addr([]byte{255, 255, 0, 0}) }),
		)
	}
	return errors.Join(err, set("tun0", unix.SIOCSIFFLAGS, func(r *unix.Ifreq) error {
		r.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
		return nil
	}))
}

// address is that of a server, or of a client, in a namespace.
func (ns *namespace) address(who int) net.IP { return net.IPv4(10, 77, ns.net, byte(firstPeer+1+who)) }

// within does something on a thread that is in the namespace: sockets that are made there stay there.
func (ns *namespace) within(do func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Setns(ns.fd, unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("setns: %w", err)
			return
		}
		done <- do()
	}()
	return <-done
}

// carry forwards packets until the device is closed.
func (n *network) carry(from, to *namespace) {
	buf := make([]byte, 1<<16)
	for {
		size, err := from.tun.Read(buf)
		if err != nil {
			return
		}
		packet := buf[:size]
		if size < 20 || packet[0]>>4 != 4 {
			continue // the kernel greets its neighbours by IPv6
		}
		source, target := int(packet[15])-firstPeer-1, int(packet[19])-firstPeer-1
		if loss := n.loss.Load(); loss != nil && rand.Float64() < (*loss)(source, target) { //nolint:gosec // chance is all that is asked for
			n.lost.Add(1)
			continue
		}
		n.passed.Add(1)
		_, _ = to.tun.Write(packet) // one that does not fit in is lost, as anywhere
	}
}

// through makes a link that goes through the network: a proxy that listens in this process's own namespace, and dials
// in the near one; and one that listens in the far one, and dials the server.
func (n *network) through(from, to, port int) *nemesis.Proxy {
	n.t.Helper()
	ctx := n.t.Context()
	var listener net.Listener
	require.NoError(n.t, n.far.within(func() (err error) {
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(n.far.address(to).String(), "0"))
		return err
	}))
	target := listener.Addr().String()
	relay := nemesis.NewProxyOn(ctx, listener, func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	})
	n.t.Cleanup(func() { require.NoError(n.t, relay.Close()) })
	near, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(n.t, err)
	return nemesis.NewProxyOn(ctx, near, func(ctx context.Context) (conn net.Conn, err error) {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: n.near.address(from)}}
		err = n.near.within(func() (err error) {
			conn, err = dialer.DialContext(ctx, "tcp", target)
			return err
		})
		return conn, err
	})
}

// lossOf has a share of the packets lost for as long as strike takes.
func (n *network) lossOf(loss func(from, to int) float64, strike func() error) error {
	n.loss.Store(&loss)
	defer n.loss.Store(nil)
	return strike()
}

// TestNetwork_PacketLoss_LosesNothing loses packets between clients and servers and between servers: half of them, one way only, or all.
func TestNetwork_PacketLoss_LosesNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(servers) {
				t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, servers)
			}
			if !testbin.Full(t) && servers == 3 {
				t.Skip("sample: three servers are for the whole")
			}
			seed := number(t, "WAYMARK_CHAOS_SEED", uint64(time.Now().UnixNano()%1e9)) //nolint:gosec // any number will do
			for i := range number(t, "WAYMARK_CHAOS_ROUNDS", 1) {
				t.Run(fmt.Sprintf("seed=%d", seed+i), func(t *testing.T) { losePackets(t, servers, seed+i) })
			}
		})
	}
}

func losePackets(t *testing.T, servers int, seed uint64) {
	t.Helper()
	n := newNetwork(t)
	s := scaleOf(servers)
	s.through = n.through
	r := newRound(t, s, seed)
	list := n.weathers(servers)
	r.storm.rnd.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	most := 3
	if !testbin.Full(t) {
		most = 1
	}
	for _, f := range list[:min(most, len(list))] {
		r.suffer(f)
	}
	r.judge()
	require.Positive(t, n.lost.Load(), "no packet was lost")
	t.Logf("%d packets were handed on, and %d lost", n.passed.Load(), n.lost.Load())
}

// weathers are the possible faults of packets.
func (n *network) weathers(servers int) []fault {
	lose := func(name string, least, most int, loss func(from, to int) float64) fault {
		return fault{name: name, strike: func(ctx context.Context, s *storm) error {
			return n.lossOf(loss, func() error { return s.between(ctx, least, most) })
		}}
	}
	toServer := func(from, _ int) bool { return from == aClient }
	list := []fault{
		lose("packets-half", 4000, 12000, func(int, int) float64 { return 0.5 }),
		lose("packets-third", 4000, 12000, func(int, int) float64 { return 0.33 }),
		lose("packets-half-forth", 4000, 12000, func(from, to int) float64 { return share(toServer(from, to), 0.5) }),
		lose("packets-half-back", 4000, 12000, func(_, to int) float64 { return share(to == aClient, 0.5) }),
		lose("packets-none-forth", 3000, 9000, func(from, to int) float64 { return share(toServer(from, to), 1) }),
		lose("packets-none-back", 3000, 9000, func(_, to int) float64 { return share(to == aClient, 1) }),
		lose("packets-none", 3000, 12000, func(int, int) float64 { return 1 }),
	}
	if servers == 1 {
		return list
	}
	return append(
		list,
		lose("packets-half-between-servers", 4000, 12000, func(from, to int) float64 { return share(from != aClient && to != aClient, 0.5) }),
		fault{name: "packets-none-of-leader", strike: func(ctx context.Context, s *storm) error {
			leader, err := s.leader(ctx)
			if err != nil {
				return err
			}
			return n.lossOf(func(from, to int) float64 { return share(from == leader || to == leader, 1) }, func() error { return s.between(ctx, 6000, 14000) })
		}},
		fault{name: "packets-half-of-leader", strike: func(ctx context.Context, s *storm) error {
			leader, err := s.leader(ctx)
			if err != nil {
				return err
			}
			return n.lossOf(func(from, to int) float64 { return share(from == leader || to == leader, 0.5) }, func() error { return s.between(ctx, 6000, 14000) })
		}},
	)
}

// share is the loss of selected packets; others are not lost.
func share(meant bool, loss float64) float64 {
	if meant {
		return loss
	}
	return 0
}
