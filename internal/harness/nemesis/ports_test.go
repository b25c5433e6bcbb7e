//go:build unix

package nemesis_test

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// taken are the ports that this process has chosen.
var taken sync.Map

// freePorts are some that nobody listens on. They are below those that systems give to who asks for any: a port that is free for a moment
// only goes to the next proxy or connection.
func freePorts(tb testing.TB, n int) []int {
	tb.Helper()
	var ports []int
	for len(ports) < n {
		port := 10_000 + rand.IntN(20_000) //nolint:gosec // any free one will do
		if _, known := taken.LoadOrStore(port, true); known {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		require.NoError(tb, err)
		require.NoError(tb, l.Close())
		ports = append(ports, port)
	}
	return ports
}
