package publisher_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
)

// bare takes what the environment of the tests says of servers away.
func bare(t *testing.T) {
	t.Helper()
	for _, name := range natsconn.Variables() {
		t.Setenv(name, "")
	}
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	t.Setenv("WAYMARK_STATE_DIR", t.TempDir())
	t.Setenv("WAYMARK_FLEET", "")
}

// credentials are what the server lets this user in with.
func (w *world) credentials(t *testing.T) (all nats.Options) {
	t.Helper()
	for _, option := range w.server.NATSD().Options() {
		require.NoError(t, option(&all))
	}
	return all
}

func TestConnect_NoConnectionNamed_FindsTheServerAsTheCommandsDo(t *testing.T) {
	w := newWorld(t)
	context := filepath.Join(w.server.StateDir(), "nats", "waymark.json")
	credentials := w.credentials(t)
	for name, set := range map[string]func(t *testing.T){
		"the server of this machine": func(t *testing.T) {
			t.Helper()
			t.Setenv("WAYMARK_STATE_DIR", w.server.StateDir())
		},
		"NATS_CONTEXT, a path": func(t *testing.T) {
			t.Helper()
			t.Setenv("NATS_CONTEXT", context)
		},
		"NATS_URL": func(t *testing.T) {
			t.Helper()
			t.Setenv("NATS_URL", w.server.URL())
			t.Setenv("NATS_USER", credentials.User)
			t.Setenv("NATS_PASSWORD", credentials.Password)
		},
		"our variable before NATS_URL": func(t *testing.T) {
			t.Helper()
			t.Setenv("NATS_URL", "nats://unused.invalid")
			t.Setenv("WAYMARK_NATS_URL", w.server.URL())
			t.Setenv("WAYMARK_NATS_USER", credentials.User)
			t.Setenv("WAYMARK_NATS_PASSWORD", credentials.Password)
		},
		"the selected context": func(t *testing.T) {
			t.Helper()
			dir := filepath.Join(t.TempDir(), "nats", "context")
			require.NoError(t, os.MkdirAll(dir, 0o700))
			file, err := os.ReadFile(context)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "chosen.json"), file, 0o600))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "..", "context.txt"), []byte("chosen\n"), 0o600))
			t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "..", ".."))
		},
	} {
		t.Run(name, func(t *testing.T) {
			bare(t)
			set(t)
			f := w.fleet(func(c *publisher.Config) { c.Conn = nil })
			require.Equal(t, w.server.URL(), publisher.ConnOf(f).ConnectedUrl())
			require.Negative(t, publisher.ConnOf(f).Opts.ReconnectBufSize)
		})
	}
}

func TestConnect_ServerNotFound_SaysWhatToDo(t *testing.T) {
	w := newWorld(t)
	for name, test := range map[string]struct {
		set    func(t *testing.T)
		config publisher.Config
		is     []error
		says   []string
		not    string
	}{
		"nowhere": {
			is:   []error{publisher.ErrUnavailable, natsconn.ErrNotRunning},
			says: []string{`"waymark serve"`, "NATS_URL", "NATS_CONTEXT", "URL in the configuration"},
		},
		"no home directory": {
			set: func(t *testing.T) {
				t.Helper()
				for _, name := range []string{"WAYMARK_STATE_DIR", "XDG_STATE_HOME", "HOME", "LocalAppData"} {
					t.Setenv(name, "")
				}
			},
			is:   []error{publisher.ErrUnavailable},
			says: []string{"WAYMARK_STATE_DIR", "NATS_URL"},
		},
		"a context that is not there": {
			set: func(t *testing.T) {
				t.Helper()
				t.Setenv("NATS_CONTEXT", "nowhere")
			},
			is:   []error{publisher.ErrConfig},
			says: []string{`"nowhere" does not exist`, "name another one in NATS_CONTEXT"},
		},
		"credentials that are not there": {
			set: func(t *testing.T) {
				t.Helper()
				t.Setenv("NATS_URL", w.server.URL())
				t.Setenv("NATS_CREDS", filepath.Join(t.TempDir(), "my.creds"))
			},
			is:   []error{publisher.ErrConfig},
			says: []string{"NATS_CREDS", "my.creds", "correct it, or unset it"},
		},
		"the fleet of the environment": {
			set: func(t *testing.T) {
				t.Helper()
				t.Setenv("WAYMARK_STATE_DIR", w.server.StateDir())
				t.Setenv("WAYMARK_FLEET", "payments")
			},
			is:   []error{publisher.ErrNotProvisioned},
			says: []string{"fleet payments has no stream", w.server.URL(), "waymark serve --fleet payments", "WAYMARK_FLEET"},
		},
		"wrong credentials": {
			set: func(t *testing.T) {
				t.Helper()
				t.Setenv("NATS_URL", w.server.URL())
				t.Setenv("NATS_TOKEN", "guessed-secret")
			},
			is:   []error{publisher.ErrNotPermitted},
			says: []string{w.server.URL(), "environment", "NATS_CREDS, NATS_NKEY, NATS_TOKEN"}, not: "guessed-secret",
		},
		"the environment's credentials are not for an address in code": {
			set: func(t *testing.T) {
				t.Helper()
				credentials := w.credentials(t)
				t.Setenv("NATS_USER", credentials.User)
				t.Setenv("NATS_PASSWORD", credentials.Password)
			},
			config: publisher.Config{URL: w.server.URL()},
			is:     []error{publisher.ErrNotPermitted}, says: []string{w.server.URL(), "Options in the configuration"},
		},
		"an address that is none": {
			config: publisher.Config{URL: "nats://me:hidden@ho st:1"},
			is:     []error{publisher.ErrConfig}, says: []string{"the URL of the configuration", "such as nats://127.0.0.1:4222"}, not: "hidden",
		},
		"no server at the address": {
			config: publisher.Config{URL: "nats://me:hidden@127.0.0.1:1"},
			is:     []error{publisher.ErrUnavailable}, says: []string{"127.0.0.1:1", "waymark serve", "URL and Options in the configuration"}, not: "hidden",
		},
		"no server at the address of the environment": {
			set: func(t *testing.T) {
				t.Helper()
				t.Setenv("WAYMARK_NATS_URL", "nats://127.0.0.1:1")
			},
			is: []error{publisher.ErrUnavailable}, says: []string{"127.0.0.1:1", "waymark serve", "correct the address in WAYMARK_NATS_URL or NATS_URL"},
		},
		"no server at the address of a context": {
			set: func(t *testing.T) {
				t.Helper()
				file := filepath.Join(t.TempDir(), "away.json")
				require.NoError(t, os.WriteFile(file, []byte(`{"url":"nats://127.0.0.1:1"}`), 0o600))
				t.Setenv("NATS_CONTEXT", file)
			},
			is: []error{publisher.ErrUnavailable}, says: []string{"127.0.0.1:1", "correct the address in ", "away.json"},
		},
		"a selected context that is gone": {
			set: func(t *testing.T) {
				t.Helper()
				dir := t.TempDir()
				require.NoError(t, os.MkdirAll(filepath.Join(dir, "nats"), 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "nats", "context.txt"), []byte("gone"), 0o600))
				t.Setenv("XDG_CONFIG_HOME", dir)
			},
			is: []error{publisher.ErrConfig}, says: []string{`"gone" does not exist`, "nats context select"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			bare(t)
			if test.set != nil {
				test.set(t)
			}
			test.config.Executor = "exec-1"
			_, err := publisher.Connect(t.Context(), test.config)
			for _, is := range test.is {
				require.ErrorIs(t, err, is)
			}
			for _, text := range test.says {
				require.ErrorContains(t, err, text)
			}
			if test.not != "" {
				require.NotContains(t, err.Error(), test.not)
			}
		})
	}
}

// A caller that gives up does not wait for a server that accepts connections and says nothing.
func TestConnect_ContextEnds_ReturnsAtOnce(t *testing.T) {
	t.Parallel()
	var lc net.ListenConfig
	listener, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, listener.Close()) })
	stop := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		link, err := listener.Accept()
		if err != nil {
			return
		}
		cancel(stop)
		_, _ = io.Copy(io.Discard, link) // until the client closes it
		_ = link.Close()
	}()
	begin := time.Now()
	_, err = publisher.Connect(ctx, publisher.Config{URL: "nats://" + listener.Addr().String(), Executor: "exec-1"})
	require.ErrorIs(t, err, stop)
	require.Less(t, time.Since(begin), 4*time.Second, "it waited for the greeting")
}
