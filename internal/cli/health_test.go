package cli

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
)

// trio are three servers of one cluster in this process, each of which can be stopped and started again.
type trio struct {
	t       *testing.T
	opts    [3]server.Options
	servers [3]*server.Server
}

func startTrio(t *testing.T) *trio {
	t.Helper()
	c := &trio{t: t}
	var routes []string
	for i, port := range natstest.FreePorts(t, len(c.opts)) {
		routes = append(routes, fmt.Sprintf("nats://127.0.0.1:%d", port))
		c.opts[i] = server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(), Cluster: server.ClusterOpts{Name: "trio", Host: "127.0.0.1", Port: port, NoAdvertise: true},
		}
	}
	for i := range c.opts {
		c.opts[i].Routes = server.RoutesFromStr(strings.Join(routes, ","))
		c.start(i)
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.stop(i)
		}
	})
	require.Eventually(t, func() bool {
		for _, s := range c.servers {
			if s.JetStreamIsLeader() && len(s.JetStreamClusterPeers()) == len(c.servers) {
				return true
			}
		}
		return false
	}, 2*time.Minute, 20*time.Millisecond, "the cluster has a leader")
	return c
}

func (c *trio) start(i int) {
	c.t.Helper()
	opts := c.opts[i]
	s, err := server.NewServer(&opts)
	require.NoError(c.t, err)
	s.Start()
	c.servers[i] = s
}

func (c *trio) stop(i int) {
	c.servers[i].Shutdown()
	c.servers[i].WaitForShutdown()
}

// ask requests a path of a daemon.
func ask(t *testing.T, url string) (int, string) {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(url)
	require.NoError(t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	require.NoError(t, response.Body.Close())
	return response.StatusCode, string(body)
}

func TestHealth_NoQuorum_NotReadyThenReady(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	c := startTrio(t)
	values := map[string]string{"WAYMARK_STATE_DIR": t.TempDir(), "HOME": t.TempDir(), "XDG_CONFIG_HOME": t.TempDir()}
	line, stop, err := startDaemon([]string{
		"--nats", c.servers[0].ClientURL(), "--replicas", "3", "--quota", "64MiB", "--http", "127.0.0.1:0", "--name", "daemon-1",
	}, func(name string) string { return values[name] })
	require.NoError(t, err)
	defer stop()
	found := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)
	require.NotNil(t, found, line)
	url := found[1]
	require.Eventually(t, func() bool { code, _ := ask(t, url+"/readyz"); return code == http.StatusOK }, 2*time.Minute, 100*time.Millisecond)

	// The daemon's server is the minority: it is connected, and nothing is acknowledged.
	c.stop(1)
	c.stop(2)
	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = ask(t, url+"/readyz")
		return code == http.StatusServiceUnavailable
	}, 2*time.Minute, 100*time.Millisecond)
	require.Regexp(t, `^not ready\n(servers: server n\d is down|writes: the log of shard 0 acknowledges no write: .*; the last one was acknowledged at)`, body)
	code, body := ask(t, url+"/healthz")
	require.Equal(t, http.StatusOK, code, "a restart would mend nothing: %s", body)

	c.start(1)
	c.start(2)
	require.Eventually(t, func() bool { code, _ := ask(t, url+"/readyz"); return code == http.StatusOK }, 2*time.Minute, 100*time.Millisecond)

	c.stop(0)
	require.Eventually(t, func() bool {
		var code int
		code, body = ask(t, url+"/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "connection: ")
	}, 2*time.Minute, 100*time.Millisecond)
	require.Contains(t, body, "next: check that the NATS servers run and can be reached from here")
	code, _ = ask(t, url+"/healthz")
	require.Equal(t, http.StatusOK, code)
	c.start(0)
}
