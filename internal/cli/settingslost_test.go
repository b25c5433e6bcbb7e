package cli

import (
	"bytes"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/schema"
)

func TestServe_SettingsLostWhileServing_CureIsNamedAndWorks(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t)
	js := server.JetStream(t)
	values := map[string]string{"WAYMARK_STATE_DIR": t.TempDir(), "HOME": t.TempDir(), "XDG_CONFIG_HOME": t.TempDir()}
	getenv := func(name string) string { return values[name] }
	where := []string{"--context", server.NATSD().Endpoint().Context}
	start := func(flags ...string) (url string, stop func() (int, string)) {
		line, stop, err := startDaemon(append(append(flags, "--quota", "64MiB", "--http", "127.0.0.1:0"), where...), getenv)
		require.NoError(t, err)
		return regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)[1], stop
	}
	url, stop := start("--shards", "2")
	defer stop()
	_, err := js.Publish(t.Context(), schema.NamesOf(schema.DefaultFleet, 0).EventSubject("r1"), []byte("x"))
	require.NoError(t, err)
	require.NoError(t, js.DeleteKeyValue(t.Context(), schema.FleetBucket))

	var body string
	require.Eventually(t, func() bool {
		var code int
		code, body = ask(t, url+"/readyz")
		return code == http.StatusServiceUnavailable
	}, time.Minute, 100*time.Millisecond)
	require.Contains(t, body, "\nsettings: settings of fleet default are missing: ")
	require.Contains(t, body, "\nnext: restart the daemon with --shards 2 ")
	run := func(args ...string) (int, string) {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), append(args, where...), getenv, strings.NewReader(""), &stdout, &stderr)
		return code, stderr.String()
	}
	for _, command := range []string{"doctor", "inbox"} {
		code, stderr := run(command)
		require.Equal(t, int(failure.Damaged), code, "%s: %s", command, stderr)
		require.Contains(t, stderr, "the fleet had 2 shards")
		require.Contains(t, stderr, "serve --shards N")
	}
	code, log := stop()
	require.Equal(t, int(failure.OK), code, log)

	code, stderr := run("serve", "--http", "off")
	require.Equal(t, int(failure.Damaged), code, stderr)
	require.Contains(t, stderr, "the fleet had 2 shards")
	url, stop = start("--shards", "2")
	defer stop()
	code, body = ask(t, url+"/readyz")
	require.Equal(t, http.StatusOK, code, body)
}
