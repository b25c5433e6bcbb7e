package natsconn_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
)

func TestMain(m *testing.M) { natstest.Main(m) }

// world is an environment and a home with contexts.
type world struct {
	env    map[string]string
	config string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{config: t.TempDir()}
	w.env = map[string]string{"XDG_CONFIG_HOME": w.config}
	require.NoError(t, os.MkdirAll(filepath.Join(w.config, "nats", "context"), 0o700))
	return w
}

func (w *world) getenv(name string) string { return w.env[name] }

// save writes a context and returns its path.
func (w *world) save(t *testing.T, name string, fields map[string]string) string {
	t.Helper()
	b, err := json.Marshal(fields)
	require.NoError(t, err)
	path := filepath.Join(w.config, "nats", "context", name+".json")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return path
}

// selects does what "nats context select" does.
func (w *world) selects(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(w.config, "nats", "context.txt"), []byte(name+"\n"), 0o600))
}

func (w *world) resolve(t *testing.T, flags natsconn.Settings, stateDir string) (natsconn.Target, error) {
	t.Helper()
	return natsconn.Config{Flags: flags, Getenv: w.getenv, StateDir: stateDir}.Resolve(t.Context())
}

// connects reports whether the target accepts the caller.
func connects(t *testing.T, target natsconn.Target) error {
	t.Helper()
	closed := make(chan struct{})
	nc, err := target.Connect(t.Context(), nats.ClosedHandler(func(*nats.Conn) { close(closed) }))
	if err != nil {
		return err
	}
	defer func() {
		nc.Close()
		<-closed
	}()
	return nc.Flush()
}

// credentials are those of a test's server.
func credentials(t *testing.T, s *natstest.Server) (user, password string) {
	t.Helper()
	var o nats.Options
	for _, opt := range s.NATSD().Options() {
		require.NoError(t, opt(&o))
	}
	return o.User, o.Password
}

func TestSettings_Levels_FirstWithServerWins(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	user, password := credentials(t, server)
	w := newWorld(t)
	w.save(t, "chosen", map[string]string{"url": "nats://127.0.0.1:1", "user": "u", "password": "p"})
	w.save(t, "named", map[string]string{"url": server.URL(), "user": user, "password": password})

	w.selects(t, "chosen")
	target, err := w.resolve(t, natsconn.Settings{}, t.TempDir())
	require.NoError(t, err)
	require.Equal(t, natsconn.OriginSelected, target.Origin)
	require.ErrorIs(t, connects(t, target), natsconn.ErrUnreachable)

	target, err = w.resolve(t, natsconn.Settings{}, server.StateDir())
	require.NoError(t, err)
	require.Equal(t, natsconn.OriginLocal, target.Origin)
	require.NoError(t, connects(t, target))

	w.env["NATS_URL"] = "nats://127.0.0.1:2"
	target, err = w.resolve(t, natsconn.Settings{}, server.StateDir())
	require.NoError(t, err)
	require.Equal(t, natsconn.OriginEnvironment, target.Origin)
	require.Equal(t, "nats://127.0.0.1:2", target.Address())

	w.env["WAYMARK_NATS_URL"] = "nats://127.0.0.1:3"
	target, err = w.resolve(t, natsconn.Settings{}, server.StateDir())
	require.NoError(t, err)
	require.Equal(t, "nats://127.0.0.1:3", target.Address())

	target, err = w.resolve(t, natsconn.Settings{Context: "named"}, server.StateDir())
	require.NoError(t, err)
	require.Equal(t, natsconn.OriginFlag, target.Origin)
	require.NoError(t, connects(t, target))
}

func TestSettings_Credentials_FollowServer(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	user, password := credentials(t, server)
	w := newWorld(t)
	context := w.save(t, "named", map[string]string{"url": server.URL(), "user": user, "password": password})

	// A token of another server must not reach the local one, nor a context's.
	w.env["NATS_TOKEN"] = "forgotten"
	target, err := w.resolve(t, natsconn.Settings{}, server.StateDir())
	require.NoError(t, err)
	require.NoError(t, connects(t, target))
	target, err = w.resolve(t, natsconn.Settings{Context: context}, "")
	require.NoError(t, err)
	require.NoError(t, connects(t, target))

	// For an address it is the only credential: refused, and not shown.
	target, err = w.resolve(t, natsconn.Settings{URL: server.URL()}, "")
	require.NoError(t, err)
	err = connects(t, target)
	require.ErrorIs(t, err, natsconn.ErrRefused)
	require.NotContains(t, err.Error(), "forgotten")

	// Flags win over both.
	right := natsconn.Settings{URL: server.URL(), User: user, Password: password}
	target, err = w.resolve(t, right, "")
	require.NoError(t, err)
	require.NoError(t, connects(t, target))
	target, err = w.resolve(t, natsconn.Settings{Context: "named", User: "other", Password: "else"}, "")
	require.NoError(t, err)
	require.ErrorIs(t, connects(t, target), natsconn.ErrRefused)

	// A context's credentials go to no other server than its own.
	_, err = w.resolve(t, natsconn.Settings{Context: "named", URL: "nats://127.0.0.1:1"}, "")
	require.ErrorIs(t, err, natsconn.ErrSettings)
	require.ErrorContains(t, err, "--nats and the url of context")
	w.save(t, "nowhere", map[string]string{"user": user, "password": password})
	target, err = w.resolve(t, natsconn.Settings{Context: "nowhere", URL: server.URL()}, "")
	require.NoError(t, err)
	require.NoError(t, connects(t, target))
}

func TestSettings_Impossible_RefusedBeforeConnecting(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.save(t, "empty", map[string]string{"description": "no address"})
	require.NoError(t, os.WriteFile(filepath.Join(w.config, "nats", "context", "torn.json"), []byte(`{"url":`), 0o600))
	w.save(t, "leaf", map[string]string{"url": "nats://h", "jetstream_domain": "hub"})
	w.save(t, "mapped", map[string]string{"url": "nats://h", "jetstream_api_prefix": "$JS.hub.API"})
	missing := filepath.Join(t.TempDir(), "missing")
	tests := map[string]struct {
		flags natsconn.Settings
		env   map[string]string
		want  error
		text  string
	}{
		"an unknown context lists those there are":  {flags: natsconn.Settings{Context: "nowhere"}, want: natsconn.ErrUnknownContext, text: "there are: empty, leaf, mapped, torn"},
		"a context that leads out of its directory": {flags: natsconn.Settings{Context: ".."}, want: natsconn.ErrUnknownContext, text: `".."`},
		"a context without an address":              {flags: natsconn.Settings{Context: "empty"}, want: natsconn.ErrUnknownContext, text: "names no url"},
		"a context that does not parse":             {flags: natsconn.Settings{Context: "torn"}, want: natsconn.ErrUnknownContext, text: "does not parse"},
		"a missing credentials file, by its flag":   {flags: natsconn.Settings{URL: "nats://h", Creds: missing}, want: natsconn.ErrSettings, text: "--creds"},
		"a missing credentials file, by its variable": {
			env: map[string]string{"NATS_URL": "nats://h", "NATS_CREDS": missing}, want: natsconn.ErrSettings, text: "NATS_CREDS",
		},
		"a domain of JetStream":          {flags: natsconn.Settings{Context: "leaf"}, want: natsconn.ErrSettings, text: `jetstream_domain "hub"`},
		"a prefix of JetStream's API":    {flags: natsconn.Settings{Context: "mapped"}, want: natsconn.ErrSettings, text: `jetstream_api_prefix "$JS.hub.API"`},
		"two kinds of credentials":       {flags: natsconn.Settings{URL: "nats://h", Token: "t", User: "u"}, want: natsconn.ErrSettings, text: "--token and --user"},
		"a password without a user":      {flags: natsconn.Settings{URL: "nats://h", Password: "p"}, want: natsconn.ErrSettings, text: "--password is set without --user"},
		"a certificate without its key":  {flags: natsconn.Settings{URL: "nats://h", Cert: missing}, want: natsconn.ErrSettings, text: "only work together"},
		"an address of another protocol": {flags: natsconn.Settings{URL: "http://h:1"}, want: natsconn.ErrSettings, text: "http://"},
		"an address without a host":      {flags: natsconn.Settings{URL: "nats://:4222"}, want: natsconn.ErrSettings, text: "names no host"},
		"an address keeps its password to itself": {
			flags: natsconn.Settings{URL: "nats://user:secret@h:port"}, want: natsconn.ErrSettings, text: `"nats://h:port"`,
		},
		"nothing is named and nothing runs": {want: natsconn.ErrNoServer, text: "endpoint.json"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			config := natsconn.Config{Flags: test.flags, Getenv: func(n string) string {
				if v := test.env[n]; v != "" {
					return v
				}
				return w.getenv(n)
			}, StateDir: t.TempDir()}
			_, err := config.Resolve(t.Context())
			require.ErrorIs(t, err, test.want)
			require.ErrorContains(t, err, test.text)
			require.NotContains(t, err.Error(), "secret")
		})
	}
}

func TestConnect_NothingRunning_NamesDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, err := newWorld(t).resolve(t, natsconn.Settings{}, dir)
	require.ErrorIs(t, err, natsconn.ErrNotRunning)
	require.ErrorContains(t, err, dir)
}

func TestSettings_Variables_DocumentedOnce(t *testing.T) {
	t.Parallel()
	names := natsconn.Variables()
	require.Len(t, names, 22)
	seen := map[string]bool{}
	for _, name := range names {
		require.False(t, seen[name], name)
		seen[name] = true
	}
	require.Equal(t, natsconn.Settings{URL: "a", Token: "b"}, natsconn.FromEnvironment(func(name string) string {
		return map[string]string{"NATS_URL": "a", "WAYMARK_NATS_TOKEN": "b", "NATS_TOKEN": "c"}[name]
	}))
}

func TestSettings_Flags_WithoutSecrets(t *testing.T) {
	t.Parallel()
	s := natsconn.Settings{
		URL: "nats://ann:secret@a:1, b:2", Context: "prod", Creds: "c", User: "ann", Password: "secret", NKey: "n", Token: "secret",
		CA: "ca", Cert: "cert", Key: "key",
	}
	var got []string
	for flag, value := range s.Flags() {
		got = append(got, flag+" "+value)
	}
	require.Equal(t, []string{
		"--nats nats://a:1,b:2", "--context prod", "--creds c", "--user ann", "--nkey n", "--tls-ca ca", "--tls-cert cert", "--tls-key key",
	}, got)
	require.Equal(t, "secret", s.Password, "the settings stay as they are")
}
