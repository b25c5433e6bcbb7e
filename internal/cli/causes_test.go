package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/schema"
)

// causes are where an operator looks for a cause.
type causes struct {
	url    string
	doctor func(columns string) string
}

// name requires that the first finding of the doctor matches, with at most ten lines that are not ok, and that /readyz
// says the same with this status.
func (c causes) name(t *testing.T, status int, cause string) {
	t.Helper()
	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = ask(t, c.url+"/readyz")
		return code == status && regexp.MustCompile(cause).MatchString(body)
	}, securedWait, 500*time.Millisecond, "%v", late{&body})
	require.Eventually(t, func() bool {
		body = c.doctor("200")
		lines := strings.Split(body, "\n")
		return len(lines) > 1 && regexp.MustCompile(`^(FAILED|warning) +\w+ +.*`+cause).MatchString(lines[1])
	}, securedWait, 500*time.Millisecond, "%v", late{&body})
	bad := 0
	for line := range strings.Lines(body) {
		if strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "ok ") && !strings.HasPrefix(line, "RESULT ") && !strings.HasPrefix(line, "waymark: ") {
			bad++
		}
	}
	require.LessOrEqual(t, bad, 10, body)
	for _, width := range []int{80, 100, 200} {
		said := c.doctor(strconv.Itoa(width))
		t.Logf("%d columns:\n%s", width, said)
		table, _, _ := strings.Cut(said, "\nwhat to do:\n")
		for line := range strings.Lines(table) {
			require.LessOrEqual(t, len([]rune(strings.TrimRight(line, "\n"))), width, table)
		}
	}
}

// late is a text that is read when it is printed.
type late struct{ text *string }

func (l late) String() string { return *l.text }

func causesOf(t *testing.T, getenv func(string) string, url string, args ...string) causes {
	t.Helper()
	return causes{url, func(columns string) string {
		var out, complaints lockedBuffer
		variables := func(name string) string {
			if name == "COLUMNS" {
				return columns
			}
			return getenv(name)
		}
		Run(t.Context(), append(args, "--timeout", "10s", "doctor"), variables, strings.NewReader(""), &out, &complaints)
		return out.String() + complaints.String()
	}}
}

// One server that is down is a warning, and two are a failure; each has one line.
func TestCauses_ServersAreDown_AreNamed(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: a cluster of three servers")
	}
	const fleet = "payments"
	s := startSecured(t, fleet)
	start := func(flags ...string) (url string) {
		line, stop, err := startDaemon(append(flags, "--fleet", fleet, "--context", s.context(fleet, access.Daemon), "--synced", "--http", "127.0.0.1:0"), s.getenv)
		require.NoError(t, err)
		t.Cleanup(func() { _, _ = stop() })
		return regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)[1]
	}
	url := start("--name", "first")
	start("--name", "second", "--no-fold")
	said := s.as(t, fleet, access.Observer, 0, "fleet")
	require.Regexp(t, `(?m)^DAEMON +VERSION +FOLDS +STARTED$`, said)
	require.Regexp(t, `(?m)^first +0\.0\.0-devel\S* +shard 0 +`, said)
	require.Regexp(t, `(?m)^second +0\.0\.0-devel\S* +nothing +`, said, "a daemon that does not fold is one, too")
	require.NotContains(t, s.as(t, fleet, access.Executor, 0, "fleet"), "DAEMON", "executors may not ask for the daemons")

	c := causesOf(t, s.getenv, url, "--fleet", fleet, "--context", s.context(fleet, access.Observer))
	down := func(i int) {
		s.servers[i].Shutdown()
		s.servers[i].WaitForShutdown()
	}
	down(0)
	c.name(t, http.StatusOK, `server nats-1 is down(, last seen \S+ ago)?: 7 streams have a replica there(\s|$)`)
	down(1)
	c.name(t, http.StatusServiceUnavailable, `server nats-1 is down.*: \d streams have a replica there, and \d of them take no write`)
	require.Contains(t, c.doctor("200"), "server nats-2 is down")
}

func TestCauses_StreamIsMissing_IsNamedAndNoRestartIsAdvised(t *testing.T) {
	t.Parallel()
	live := natstest.Start(t)
	context := live.NATSD().Endpoint().Context
	getenv := env("WAYMARK_STATE_DIR", t.TempDir())
	line, stop, err := startDaemon([]string{"--http", "127.0.0.1:0", "--context", context, "--quota", "64MiB", "--shards", "2"}, getenv)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	c := causesOf(t, getenv, regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)[1], "--context", context)
	stream := schema.NamesOf(schema.DefaultFleet, 1).EventStream()
	require.NoError(t, live.JetStream(t).DeleteStream(t.Context(), stream))
	c.name(t, http.StatusServiceUnavailable, "stream "+stream+" is missing")
	_, body := ask(t, c.url+"/readyz")
	require.Contains(t, body, "next: do not restart the daemon; if the store of the NATS server was lost, restore a backup")
	said := c.doctor("200")
	require.Contains(t, said, "do not restart the daemon")
	require.Regexp(t, `(?m)^unknown +not checked +.*writes`, said)

	// Even the streams of the settings are gone.
	for name := range live.JetStream(t).StreamNames(t.Context()).Name() {
		require.NoError(t, live.JetStream(t).DeleteStream(t.Context(), name))
	}
	c.name(t, http.StatusServiceUnavailable, "(streams .* are missing|fleet default is missing at .*, although its daemon .* runs)")
}

// withoutJetStream starts a server whose JetStream is off.
func withoutJetStream(t *testing.T) *server.Server {
	t.Helper()
	live, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true})
	require.NoError(t, err)
	live.Start()
	t.Cleanup(func() { live.Shutdown(); live.WaitForShutdown() })
	require.True(t, live.ReadyForConnections(securedWait))
	return live
}

// The daemon gives its start up after a minute.
func TestCauses_JetStreamStaysOff_StartFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("short: the daemon waits for a minute")
	}
	args := []string{"--http", "off", "--nats", withoutJetStream(t).ClientURL()}
	_, _, err := startDaemonTo(new(lockedBuffer), args, env("WAYMARK_STATE_DIR", t.TempDir()))
	require.ErrorContains(t, err, "JetStream is off at ")
}

// A daemon that waits for JetStream says so once, with the next step.
func TestCauses_JetStreamIsOff_IsNamedWhileTheDaemonWaits(t *testing.T) {
	t.Parallel()
	live := withoutJetStream(t)
	getenv := env("WAYMARK_STATE_DIR", t.TempDir())
	address := fmt.Sprintf("127.0.0.1:%d", natstest.FreePorts(t, 1)[0])
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log, ended := new(lockedBuffer), make(chan int, 1)
	go func() {
		ended <- Run(ctx, []string{"serve", "--http", address, "--nats", live.ClientURL(), "--log-format", "json"}, getenv, strings.NewReader(""), io.Discard, log)
	}()
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "waiting for nats") }, securedWait, 50*time.Millisecond)
	c := causesOf(t, getenv, "http://"+address, "--nats", live.ClientURL())
	c.name(t, http.StatusServiceUnavailable, "JetStream is off at "+live.ClientURL())
	_, body := ask(t, c.url+"/readyz")
	require.Regexp(t, `start: waiting for NATS at \S+ since \S+: JetStream is off at `, body)
	stop()
	<-ended
	require.Regexp(t, `"error":"JetStream is off at \S+","message":"start was interrupted"`, log.String())
	require.Equal(t, 1, strings.Count(log.String(), `"message":"waiting for nats"`), log)
}

func TestCauses_KeyMayNotLook_IsNamed(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	said := k.as(t, keyedFleet, access.Executor, 1, "doctor")
	require.Regexp(t, `^RESULT.*\nFAILED +rights +this key may not look at all: `, said)
	require.Regexp(t, `(?m)^  rights: use credentials of this fleet for one of these roles: observer, operator `, said)
	require.Equal(t, 1, strings.Count(said, "may not look"))
}
