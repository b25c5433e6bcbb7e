package cli

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestServe_StateDirectoryInUse_IsSaidBeforeThePort(t *testing.T) {
	t.Parallel()
	getenv := env("WAYMARK_STATE_DIR", t.TempDir())
	line, stop, err := startDaemon([]string{"--http", "127.0.0.1:0"}, getenv)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	address := regexp.MustCompile(` http=http://(\S+)`).FindStringSubmatch(line)
	require.NotNil(t, address, line)
	var out, complaints lockedBuffer
	code := Run(t.Context(), []string{"serve", "--http", address[1]}, getenv, strings.NewReader(""), &out, &complaints)
	require.Equal(t, int(failure.Conflict), code, complaints.String())
	require.Contains(t, complaints.String(), "is in use by process")
	require.Contains(t, complaints.String(), "hint: stop that process, or set another directory with --state-dir")
	complaints = lockedBuffer{}
	code = Run(t.Context(), []string{"serve", "--http", address[1]}, env("WAYMARK_STATE_DIR", t.TempDir()), strings.NewReader(""), &out, &complaints)
	require.Equal(t, int(failure.Unavailable), code, "another directory: the port is the reason")
	require.Contains(t, complaints.String(), "--http")
}

func TestNoDaemon_Role_HintFits(t *testing.T) {
	t.Parallel()
	for _, role := range access.ClientRoles() {
		c := &base.Client{NATS: &nats.Conn{Opts: nats.Options{InboxPrefix: access.InboxPrefix(role)}}, Fleet: "payments"}
		hint := c.StartHint(t.Context())
		require.Contains(t, hint, "have the role "+string(role))
		require.Contains(t, hint, "waymark serve --fleet payments --context FILE; FILE is the payments-daemon.json that")
		// A file in the directory of the one in use is named by its path.
		dir := t.TempDir()
		c.Target.Context = filepath.Join(dir, "payments-"+string(role)+".json")
		require.Contains(t, c.StartHint(t.Context()), " --context FILE; ")
		require.NoError(t, os.WriteFile(filepath.Join(dir, "payments-daemon.json"), []byte("{}"), 0o600))
		require.Contains(t, c.StartHint(t.Context()), schema.Flag("context", filepath.Join(dir, "payments-daemon.json")))
	}
}

// A command that asks for another fleet than the one that is served says so, and what named it.
func TestNoDaemon_AnotherFleetIsServed_HintNamesBothAndWhereTheNameIsFrom(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	context := server.NATSD().Endpoint().Context
	ask := func(variable string, code failure.Code, args ...string) string {
		var out bytes.Buffer
		got := Run(t.Context(), append([]string{"--context", context}, args...), env("WAYMARK_FLEET", variable), strings.NewReader(""), &out, &out)
		require.Equal(t, int(code), got, &out)
		return out.String()
	}
	said := ask("", failure.Unavailable, "runs", "ls")
	require.Equal(t, []string{"--context", context, "serve"}, pasted(t, said, "hint: start its daemon there:"))

	_, stop, err := startDaemon([]string{"--http", "off", "--context", context, "--fleet", "payments", "--quota", "64MiB"}, env())
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	for _, command := range []struct {
		args []string
		code failure.Code
	}{
		{[]string{"runs", "ls"}, failure.Unavailable}, // asks the daemon
		{[]string{"plan", "r"}, failure.NotFound},     // reads as the SDK does
		{[]string{"doctor"}, failure.NotFound},        // reads the settings
	} {
		for _, by := range []struct{ variable, flag, says string }{
			{"", "", "hint: fleet default is the default, "},
			{"other", "", "hint: fleet other comes from WAYMARK_FLEET, "},
			{"", "other", "hint: fleet other comes from --fleet, "},
			{"payments", "default", "hint: fleet default comes from --fleet, "},
		} {
			args := command.args
			if by.flag != "" {
				args = append([]string{"--fleet", by.flag}, args...)
			}
			// A command listens for daemons for a moment only.
			require.Eventually(t, func() bool {
				return strings.Contains(ask(by.variable, command.code, args...), by.says+"but the daemons there serve payments: name one of them with --fleet, or start its daemon there: waymark ")
			}, securedWait, pollEvery, "%v %+v", args, by)
		}
		require.NotContains(t, ask("payments", failure.OK, "runs", "ls"), "hint: ")
	}
}

// The server of a state directory answers before the daemon that started it has made its fleet.
func TestNoDaemon_LocalServerJustStarted_HintIsToTryAgain(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	local := env("WAYMARK_STATE_DIR", server.StateDir())
	for command, code := range map[string]failure.Code{"runs ls": failure.Unavailable, "plan r": failure.NotFound, "fleet retention": failure.NotFound} {
		var out bytes.Buffer
		require.Equal(t, int(code), Run(t.Context(), strings.Fields(command), local, strings.NewReader(""), &out, &out), &out)
		requireHas(t, out.String(), "hint: the daemon of that server is starting: try again in a few seconds\n")
	}
}

func TestStart_LocalServerJustStarted_WaitsForItsFleet(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	var out, said lockedBuffer
	ended := make(chan int, 1)
	go func() {
		args := []string{"start", "coder", "--task", "Mend the parser."}
		ended <- Run(t.Context(), args, env("WAYMARK_STATE_DIR", server.StateDir()), strings.NewReader(""), &out, &said)
	}()
	require.Eventually(t, func() bool {
		return strings.Contains(said.String(), "waiting for the daemon of that server, which is starting\n")
	}, securedWait, pollEvery)
	require.NoError(t, kvstore.Provision(t.Context(), server.JetStream(t), kvstore.FleetConfig{Fleet: schema.DefaultFleet, QuotaBytes: 64 << 20}))
	require.Equal(t, 0, <-ended, said.String())
}

// The local server belongs to the daemon of another fleet, which has the state directory and the default HTTP address.
func TestNoDaemon_LocalServerServesAnotherFleet_PastedHintStartsTheDaemon(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	_, stop, err := startDaemon([]string{"--state-dir", dir, "--http", "127.0.0.1:0", "--quota", "64MiB"}, env())
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	other := func(name string) string {
		return map[string]string{"WAYMARK_STATE_DIR": dir, "WAYMARK_FLEET": "other", "WAYMARK_QUOTA": "64MiB"}[name]
	}
	ask := func(code failure.Code) string {
		var out bytes.Buffer
		require.Equal(t, int(code), Run(t.Context(), []string{"runs", "ls"}, other, strings.NewReader(""), &out, &out), &out)
		return out.String()
	}
	words := pasted(t, ask(failure.Unavailable), "or start its daemon there:")
	require.Equal(t, []string{"--fleet", "other", "serve", "--context", filepath.Join(dir, "nats", "waymark.json"), "--http", "127.0.0.1:0"}, words)
	_, stopOther, err := startDaemon(slices.DeleteFunc(words, func(word string) bool { return word == "serve" }), other)
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stopOther() })
	require.NotContains(t, ask(failure.OK), "hint: ")
}

// An observer cannot start a daemon: its own context is not in what the doctor says to do.
func TestDoctor_ObserverAndNoDaemon_SaysWhoseCredentialsToUse(t *testing.T) {
	t.Parallel()
	k := startKeyed(t)
	said := k.as(t, keyedFleet, access.Observer, int(failure.General), "doctor")
	require.Regexp(t, `(?m)^FAILED +daemon +no daemon answers`, said)
	require.Regexp(t, `have the role observer\): waymark serve --fleet `+keyedFleet+` --context /\S+/`+keyedFleet+`-daemon\.json`, said)
	require.NotContains(t, said, keyedFleet+"-observer.json")
	require.Equal(t, 1, strings.Count(said, "FAILED"), "what an observer may not see is no failure")
}

func TestConnection_UnknownCA_HintNamesTheFlag(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t, t.TempDir())
	ca.server(t, "server", time.Now().Add(time.Hour))
	pair, err := tls.LoadX509KeyPair(filepath.Join(ca.dir, "server.pem"), filepath.Join(ca.dir, "server.key"))
	require.NoError(t, err)
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}, TLSTimeout: 10,
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(securedWait))
	url := "tls://" + s.Addr().String()
	code, _, stderr := typedOffline(t, "runs", "ls", "--nats", url)
	require.Equal(t, int(failure.Unavailable), code, stderr)
	require.Contains(t, stderr, "hint: ")
	require.Contains(t, stderr, "--tls-ca FILE")
	_, _, stderr = typedOffline(t, "runs", "ls", "--nats", url, "--tls-ca", filepath.Join(ca.dir, "ca.pem"))
	require.Contains(t, stderr, "no daemon answers", "what the hint says works")
}

// Several streams can be wrong at once: each has a line, and one hint mends all of them.
func TestServe_SeveralStreamsWrong_HasALineForEach(t *testing.T) {
	t.Parallel()
	where, js, _ := provisioned(t)
	names := schema.NamesOf(schema.DefaultFleet, 0)
	wrong := []string{names.EventStream(), "KV_" + names.SegmentBucket(), "KV_" + names.CheckpointBucket()}
	for _, name := range wrong {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		config := stream.CachedInfo().Config
		config.MaxMsgSize = 1000
		_, err = js.UpdateStream(t.Context(), config)
		require.NoError(t, err)
	}
	var out bytes.Buffer
	code := Run(t.Context(), append([]string{"serve", "--http", "off", "--log-level", "disabled"}, where...), env(), strings.NewReader(""), &out, &out)
	require.Equal(t, int(failure.Conflict), code, &out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 4, out.String())
	for i, name := range wrong {
		begin := "waymark: "
		if i > 0 {
			begin = "  "
		}
		require.Regexp(t, "^"+begin+"stream "+name+" has the wrong configuration: max_msg_size is 1000, want ", lines[i])
	}
	require.Regexp(t, `^hint: fix them with: nats .*`+wrong[0]+`.* && nats .*`+wrong[1]+`.* && nats .*`+wrong[2], lines[3])
}

// A server without room for a fleet's streams says so once.
func TestServe_NoRoomForSeveralStreams_HasALine(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	var out bytes.Buffer
	args := []string{"serve", "--http", "off", "--log-level", "disabled", "--quota", "900TiB", "--shards", "3", "--context", server.NATSD().Endpoint().Context}
	code := Run(t.Context(), args, env(), strings.NewReader(""), &out, &out)
	require.Equal(t, int(failure.Full), code, &out)
	require.Regexp(t, `^waymark: provision fleet default: create stream WAYMARK_EVENTS_default_0 .*\nhint: .*\n$`, out.String())
}
