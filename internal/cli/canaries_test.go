package cli

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// haystack is all that was stored, logged, printed, measured, exported or sent, by where it was found.
type haystack struct {
	mu    sync.Mutex
	parts map[string][]byte
}

func (h *haystack) add(where string, text []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.parts[where] = append(append(h.parts[where], text...), '\n')
}

// where are the places that have a text: as it is, in any of the codings that a text of letters and digits can take there, or packed.
func (h *haystack) where(text string) (found []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	forms := [][]byte{[]byte(text), []byte(url.QueryEscape(text))}
	// What stands within base64 begins at any of three offsets.
	for shift := range 3 {
		coded := base64.StdEncoding.EncodeToString(append(make([]byte, shift), text...))
		forms = append(forms, []byte(coded[4:len(coded)-4]))
	}
	for name, content := range h.parts {
		for _, form := range forms {
			if bytes.Contains(content, form) {
				found = append(found, name)
				break
			}
		}
	}
	return found
}

// unpacked is what is packed within a content: segments are frames of zstd, backups streams of s2.
func unpacked(content []byte) []byte {
	var all []byte
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err == nil {
		defer dec.Close()
		for rest := content; ; {
			at := bytes.Index(rest, []byte{0x28, 0xb5, 0x2f, 0xfd})
			if at < 0 {
				break
			}
			// Behind the frame stands what is none: it is read up to there.
			if err := dec.Reset(bytes.NewReader(rest[at:])); err == nil {
				some, _ := io.ReadAll(dec)
				all = append(all, some...)
			}
			rest = rest[at+4:]
		}
	}
	if plain, err := io.ReadAll(s2.NewReader(bytes.NewReader(content))); err == nil {
		all = append(all, plain...)
	}
	return all
}

// files adds every file below a folder.
func (h *haystack) files(t *testing.T, what, dir string) {
	t.Helper()
	n := 0
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		n++
		h.add(what, []byte(path))
		h.add(what, content)
		h.add(what+", unpacked", unpacked(content))
		return err
	}))
	require.Positive(t, n, "%s: %s is empty", what, dir)
}

// streams adds every message of every stream.
func (h *haystack) streams(t *testing.T, js jetstream.JetStream) {
	t.Helper()
	names := js.StreamNames(t.Context())
	for name := range names.Name() {
		stream, err := js.Stream(t.Context(), name)
		require.NoError(t, err)
		state := stream.CachedInfo().State
		for seq := state.FirstSeq; seq <= state.LastSeq; seq++ {
			m, err := stream.GetMsg(t.Context(), seq)
			if err != nil {
				continue // purged
			}
			h.add("stream "+name, []byte(m.Subject))
			h.add("stream "+name, m.Data)
			h.add("stream "+name+", unpacked", unpacked(m.Data))
			for k, v := range m.Header {
				h.add("stream "+name, []byte(k+" "+strings.Join(v, " ")))
			}
		}
	}
	require.NoError(t, names.Err())
}

// spilling is a server with a user of each kind, and all that it may say.
func spilling(t *testing.T, users ...string) (srv *server.Server, log *debugLog, seed []byte, dir string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err = pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	opts := &server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, SyncAlways: true, Debug: true, MaxPayload: 1 << 20}
	for i, password := range users {
		opts.Users = append(opts.Users, &server.User{Username: fmt.Sprintf("user-%d", i), Password: password})
	}
	opts.Nkeys = []*server.NkeyUser{{Nkey: public}}
	srv, err = server.NewServer(opts)
	require.NoError(t, err)
	log = new(debugLog)
	srv.SetLogger(log, true, false)
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	require.Eventually(t, func() bool { return srv.ReadyForConnections(time.Second) }, time.Minute, 10*time.Millisecond)
	return srv, log, seed, opts.StoreDir
}

// debugLog is a server's log with all but its protocol.
type debugLog struct{ serverLog }

func (j *debugLog) Debugf(format string, v ...any) { j.add("DBG", format, v) }

// TestSecrets_Canaries_AppearNowhere puts one string of its own into every place where a secret may come in, has a fleet
// and all commands work, and looks for each of them in every byte that came out. What is to be there is looked for in the same way.
func TestSecrets_Canaries_AppearNowhere(t *testing.T) {
	if testing.Short() {
		t.Skip("short: every command, with secrets in every place")
	}
	const (
		plain      = "visibleCanaryOfTheTask7"
		plainLarge = "visibleCanaryOfTheLarge8"
		field      = "hiddenCanaryOfAField1"
		pattern    = "hiddenCanaryOfAText2"
		daemonKey  = "hiddenCanaryOfTheDaemon3"
		urlKey     = "hiddenCanaryOfAnAddress4"
		wrongKey   = "hiddenCanaryOfAWrongOne5"
		token      = "hiddenCanaryOfAToken6"
	)
	h := &haystack{parts: make(map[string][]byte)}
	srv, serverLog, seed, store := spilling(t, daemonKey, urlKey)
	address := strings.TrimPrefix(srv.ClientURL(), "nats://")
	state := t.TempDir()
	env := func(values map[string]string) func(string) string {
		return func(name string) string {
			if v, ok := values[name]; ok {
				return v
			}
			return map[string]string{"WAYMARK_STATE_DIR": state, "HOME": state, "XDG_CONFIG_HOME": state, "WAYMARK_LOG_LEVEL": "debug"}[name]
		}
	}
	operator := env(map[string]string{"NATS_URL": "nats://user-1:" + urlKey + "@" + address})
	seedFile := filepath.Join(t.TempDir(), "executor.nk")
	require.NoError(t, os.WriteFile(seedFile, seed, 0o600))

	daemonLog := new(lockedBuffer)
	line, stop, err := startDaemonTo(daemonLog, []string{"--quota", "64MiB", "--http", "127.0.0.1:0", "--synced", "--silence", "10m"},
		env(map[string]string{"NATS_URL": srv.ClientURL(), "NATS_USER": "user-0", "NATS_PASSWORD": daemonKey}))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	h.add("daemon's output", []byte(line))
	other := new(lockedBuffer)
	otherLine, stopOther, err := startDaemonTo(other, []string{"--no-fold", "--http", "off", "--name", "second", "--nats", "nats://user-1:" + urlKey + "@" + address}, env(nil))
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stopOther() })
	h.add("second daemon's output", []byte(otherLine))

	// An executor with a key of its own, which takes secrets out of what it publishes.
	nkey, err := nats.NkeyOptionFromSeed(seedFile)
	require.NoError(t, err)
	fleet, err := publisher.Connect(t.Context(), publisher.Config{
		URL: srv.ClientURL(), Options: []nats.Option{nkey}, Executor: "executor", Agent: "clerk",
		Redaction: &publisher.Redaction{Fields: []string{"password", "api-key"}, Detectors: []publisher.Detector{{Name: "canary", Pattern: regexp.MustCompile(pattern)}}},
	})
	require.NoError(t, err)
	work(t, h, fleet, plain, plainLarge, field, pattern)
	require.NoError(t, fleet.Close(t.Context()))

	h.commands(t, operator)
	h.refusals(t, env, address, wrongKey, token)
	base := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)
	require.NotNil(t, base, line)
	for _, path := range []string{"/", "/metrics", "/healthz", "/readyz", "/debug/pprof/cmdline", "/nothing"} {
		_, body := ask(t, base[1]+path)
		h.add("page "+path, []byte(body))
	}

	nc, err := nats.Connect(srv.ClientURL(), nats.UserInfo("user-0", daemonKey))
	require.NoError(t, err)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	segments := "KV_" + schema.NamesOf(schema.DefaultFleet, 0).SegmentBucket()
	require.Eventually(t, func() bool {
		stream, err := js.Stream(t.Context(), segments)
		return err == nil && stream.CachedInfo().State.Msgs > 0
	}, time.Minute, 20*time.Millisecond, "no segment is sealed")
	h.streams(t, js)
	nc.Close()
	for name, end := range map[string]func() (int, string){"daemon's log": stop, "second daemon's log": stopOther} {
		code, text := end()
		require.Zero(t, code, text)
		h.add(name, []byte(text))
	}
	srv.Shutdown()
	srv.WaitForShutdown()
	h.files(t, "store", store)
	h.add("server's log", []byte(serverLog.String()))

	for name, secret := range map[string]string{
		"a field": field, "a text": pattern, "the daemon's password": daemonKey, "an address": urlKey, "a wrong password": wrongKey, "a token": token,
		"the executor's seed": string(seed),
	} {
		require.Empty(t, h.where(secret), "the secret of %s is in", name)
	}
	// What is no secret is found wherever it is to be: else the search proves nothing.
	for _, where := range []string{
		"store", "stream WAYMARK_EVENTS_default_0", "waymark runs get", "waymark events", "backup, unpacked",
	} {
		require.Contains(t, h.where(plain), where)
	}
	require.Contains(t, h.where(plain), "stream "+segments+", unpacked")
	require.Contains(t, h.where(plainLarge), "stream OBJ_"+schema.BlobBucket(schema.DefaultFleet))
	require.Contains(t, h.where("[redacted"), "waymark runs get")
	for _, where := range []string{"daemon's log", "second daemon's log", "server's log", "page /metrics", "waymark doctor", "refused"} {
		require.Greater(t, len(h.parts[where]), 200, where)
	}
	size := 0
	for _, content := range h.parts {
		size += len(content)
	}
	t.Logf("%d bytes in %d kinds of places", size, len(h.parts))
}

// work is a run that meets the secrets in every place that an executor has for one, and grows until it is sealed.
func work(t *testing.T, h *haystack, fleet *publisher.Fleet, plain, plainLarge, field, pattern string) {
	t.Helper()
	ctx := t.Context()
	message := func(text string) schema.Message {
		return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
	}
	run, err := fleet.Start(ctx, publisher.RunSpec{ID: "r1", Task: plain + " with " + pattern, Labels: map[string]string{"password": field}})
	require.NoError(t, err)
	large := strings.Repeat("words ", 60<<10)
	require.NoError(t, run.AddMessage(ctx, message(large+pattern+plainLarge)))
	turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{message("use " + pattern)}})
	require.NoError(t, err)
	call := publisher.ToolCall{ID: "c1", Name: "login", Replay: schema.ReplayPure, Arguments: []byte(`{"Password":"` + field + `","deep":[{"API_KEY":{"a":"` + field + `"}}],"file":"/tmp/` + pattern + `"}`)}
	_, err = turn.Answer(ctx, publisher.Answer{Message: textMessage(schema.RoleAssistant, "calling"), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	_, err = turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result(map[string]string{"password": field, "text": pattern, "large": large + pattern})
	})
	require.NoError(t, err)
	turn, err = run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{message("again " + pattern)}})
	require.NoError(t, err)
	call = publisher.ToolCall{ID: "c2", Name: "fail", Replay: schema.ReplayPure, Arguments: []byte(`{}`)}
	_, err = turn.Answer(ctx, publisher.Answer{Message: textMessage(schema.RoleAssistant, "again"), Calls: []publisher.ToolCall{call}})
	require.NoError(t, err)
	_, err = turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, fmt.Errorf("cannot log in with %s", pattern)
	})
	require.ErrorIs(t, err, publisher.ErrToolFailed)
	require.NoError(t, run.Error(ctx, schema.Error{Type: "login", Message: "bad " + pattern}, "run"))
	// Refused by the fold, and by the server: errors say what they are about.
	_, err = turn.Call(ctx, call)
	h.add("error of the SDK", fmt.Appendf(nil, "%v", err))
	for i := range 400 {
		require.NoError(t, run.AddMessage(ctx, message(fmt.Sprintf("%d of %s", i, pattern))))
	}
	require.NoError(t, run.Wait(ctx, schema.RunWaitingData{InterruptID: "q1", Reason: "human_input", Message: "is " + pattern + " right?"}))
	answer, err := fleet.Start(ctx, publisher.RunSpec{ID: "r2", Task: "poison"})
	require.NoError(t, err)
	// A dead letter keeps what was refused: here an event without a run, and without secrets.
	_, err = fleet.Conn().Request(schema.NamesOf(schema.DefaultFleet, 0).EventSubject(answer.ID()), []byte(`{"no":"event"}`), time.Minute)
	require.NoError(t, err)
}

// commands has everything work that prints or writes.
func (h *haystack) commands(t *testing.T, getenv func(string) string) {
	t.Helper()
	dir := t.TempDir()
	h.waymark(t, getenv, 0, "verify", "--all") // waits for nothing: what follows reads as it is
	for _, args := range []string{
		"signal r1 note --payload 1", "signal r1 note --text wait", "runs ls", "runs ls --json", "runs ls --stuck", "runs show r1", "inbox", "runs get r1 --view state", "runs get r1 --full", "runs get r1 --json", "runs history r1", "artifacts r1", "events r1 --all --no-follow", "events r1 --all --no-follow --json --raw",
		"plan r1", "fleet show",
		"fleet retention", "cleanup --dry-run --max-age 1d", "input r1", "backup " + filepath.Join(dir, "saved"), "backup verify --runs " + filepath.Join(dir, "saved"),
		"cancel r1 --reason enough", "--version",
	} {
		h.waymark(t, getenv, 0, strings.Fields(args)...)
	}
	h.waymark(t, getenv, -1, "doctor")
	h.waymark(t, getenv, -1, "doctor", "--json")
	h.files(t, "backup", filepath.Join(dir, "saved"))
}

// refusals are those of wrong credentials, and of servers that are not there.
func (h *haystack) refusals(t *testing.T, env func(map[string]string) func(string) string, address, wrong, token string) {
	t.Helper()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "wrong.nk")
	require.NoError(t, os.WriteFile(file, seed, 0o600))
	for _, args := range [][]string{
		{"--nats", "nats://user-0:" + wrong + "@" + address},
		{"--nats", "nats://user-0:" + wrong + "@127.0.0.1:1"},
		{"--nats", "nats://user-0:" + wrong + "@:no port"},
		{"--nats", "nats://user-0:" + wrong + "%zz@" + address},
		{"--nats", "nats://" + address, "--user", "user-0", "--password", wrong},
		{"--nats", "nats://" + address, "--token", token},
		{"--nats", "nats://" + token + "@" + address},
		{"--nats", "nats://" + address, "--nkey", file},
		{"--nats", "nats://" + address, "--nkey", file + wrong[:1]},
		{"--nats", "nats://user-0:" + wrong + "@" + address + "," + "nats://x:" + wrong + "@127.0.0.1:1"},
	} {
		for _, command := range [][]string{{"runs", "ls"}, {"doctor"}, {"serve", "--http", "off", "--log-level", "debug", "--name", "third"}} {
			var out lockedBuffer
			ctx, cancel := context.WithTimeout(t.Context(), securedWait)
			code := Run(ctx, append(append(command, "--timeout", "2s"), args...), env(nil), strings.NewReader(""), &out, &out)
			cancel()
			require.NotZero(t, code, "%v: %s", command, out.String())
			h.add("refused", []byte(out.String()))
		}
	}
	require.Empty(t, h.where(string(seed)), "the seed that was refused is in")
	nkey, err := nats.NkeyOptionFromSeed(file)
	require.NoError(t, err)
	for _, refused := range []publisher.Config{
		{URL: "nats://user-0:" + wrong + "@" + address},
		{URL: "nats://user-0:" + wrong + "@127.0.0.1:1"},
		{URL: "nats://" + token + "@" + address},
		{URL: "nats://user-0:" + wrong + "@:no port"},
		{URL: "nats://user-0:" + wrong + "%zz@" + address},
		{URL: "nats://user-0:" + wrong + "@" + address + ", nats://" + token + "@127.0.0.1:1"},
		{URL: "nats://" + address, Options: []nats.Option{nkey}},
		{URL: address, Options: []nats.Option{nats.UserInfo("user-0", wrong)}},
		{URL: address, Options: []nats.Option{nats.Token(token)}},
		{URL: "user-0:" + wrong + "@" + address},
	} {
		refused.Executor, refused.Agent = "executor", "clerk"
		_, err := publisher.Connect(t.Context(), refused)
		require.Error(t, err)
		h.add("refused by the SDK", fmt.Appendf(nil, "%v\n%+v\n", err, err))
	}
}

// waymark runs a command, and adds what it printed; code -1 stands for any.
func (h *haystack) waymark(t *testing.T, getenv func(string) string, code int, args ...string) {
	t.Helper()
	var out lockedBuffer
	ctx, cancel := context.WithTimeout(t.Context(), securedWait)
	defer cancel()
	got := Run(ctx, args, getenv, strings.NewReader(""), &out, &out)
	if code >= 0 {
		require.Equal(t, code, got, "waymark %v: %.2000s", args, out.String())
	}
	require.NotEqual(t, int(failure.Usage), got, "waymark %v: %.2000s", args, out.String())
	name := "waymark " + args[0]
	if args[0] == "runs" {
		name += " " + args[1]
	}
	h.add(name, []byte(out.String()))
}
