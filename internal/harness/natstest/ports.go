package natstest

import (
	"context"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// taken are the ports that this process has chosen.
var taken sync.Map

// FreePorts returns n consecutive ports without a listener on 127.0.0.1. They are below the range of automatically
// assigned ports, where a free port may go to the next connection.
func FreePorts(tb testing.TB, n int) []int {
	tb.Helper()
	for range 1000 {
		first := 10_000 + rand.IntN(20_000) //nolint:gosec // any free ones will do
		ports := make([]int, 0, n)
		for port := first; port < first+n && free(port); port++ {
			ports = append(ports, port)
		}
		if len(ports) == n {
			return ports
		}
	}
	require.Fail(tb, "no free ports", "%d in a row", n)
	return nil
}

func free(port int) bool {
	if _, known := taken.LoadOrStore(port, true); known {
		return false
	}
	l, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && l.Close() == nil
}
