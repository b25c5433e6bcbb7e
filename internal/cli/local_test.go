package cli

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/serve"
)

// listening are the addresses on which this process listens, by its own files: Linux only.
func listening(t *testing.T) []string {
	t.Helper()
	inodes := map[string]bool{}
	files, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range files {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", f.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); err == nil && ok {
			inodes[strings.TrimSuffix(inode, "]")] = true
		}
	}
	var list []string
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open(filepath.Join("/proc/self/net", table))
		if os.IsNotExist(err) {
			continue // no IPv6 here
		}
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			// 0A is LISTEN; an unconnected UDP socket is in state 07.
			if len(fields) < 10 || fields[3] != "0A" && fields[3] != "07" || !inodes[fields[9]] {
				continue
			}
			address, port, _ := strings.Cut(fields[1], ":")
			raw, err := hex.DecodeString(address)
			require.NoError(t, err)
			for word := range slices.Chunk(raw, 4) { // each 32 bits in the order of the machine, which is little-endian
				slices.Reverse(word)
			}
			var n int
			_, err = fmt.Sscanf(port, "%x", &n)
			require.NoError(t, err)
			list = append(list, net.JoinHostPort(net.IP(raw).String(), fmt.Sprint(n)))
		}
		require.NoError(t, lines.Err())
		require.NoError(t, f.Close())
	}
	return list
}

// It looks at every port that this process listens on, so it does not run in parallel with other tests.
func TestServe_Defaults_LocalUserOnly(t *testing.T) {
	host, _, err := net.SplitHostPort(serve.DefaultHTTP)
	require.NoError(t, err)
	require.True(t, net.ParseIP(host).IsLoopback())
	dir := t.TempDir()
	getenv := func(name string) string {
		return map[string]string{"HOME": dir, "XDG_CONFIG_HOME": dir, "WAYMARK_HTTP": "127.0.0.1:0", "WAYMARK_STATE_DIR": dir, "WAYMARK_QUOTA": "64MiB"}[name]
	}
	var before []string
	if runtime.GOOS == "linux" {
		before = listening(t)
	}
	log := new(lockedBuffer)
	ready, stop, err := startDaemonTo(log, nil, getenv)
	require.NoError(t, err)
	defer stop()
	url := regexp.MustCompile(` url=(\S+)`).FindStringSubmatch(ready)[1]
	page := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(ready)[1]

	t.Run("nothing listens beyond loopback, and nothing that was not asked for", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("the sockets of a process are read from /proc")
		}
		after := listening(t)
		var new []string
		for _, address := range after {
			host, _, err := net.SplitHostPort(address)
			require.NoError(t, err)
			require.True(t, net.ParseIP(host).IsLoopback(), "%s is reached from other machines", address)
			if !slices.Contains(before, address) {
				new = append(new, address)
			}
		}
		want := []string{strings.TrimPrefix(url, "nats://"), strings.TrimPrefix(page, "http://")}
		require.ElementsMatch(t, want, new, "neither a monitor nor a profiler")
	})

	t.Run("a connection without the credentials is refused", func(t *testing.T) {
		for _, opt := range []nats.Option{nats.Name("anonymous"), nats.UserInfo("waymark", "waymark"), nats.Token("waymark")} {
			_, err := nats.Connect(url, opt)
			require.ErrorIs(t, err, nats.ErrAuthorization)
		}
		require.Eventually(t, func() bool { return strings.Contains(log.String(), "authentication error") }, startLimit, pollEvery)
	})

	ask := func(t *testing.T, method, path string, change func(*http.Request)) (int, string, http.Header) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, page+path, nil)
		require.NoError(t, err)
		if change != nil {
			change(request)
		}
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		require.NoError(t, err)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		return response.StatusCode, string(body), response.Header
	}

	t.Run("pages of the web get nothing through a browser", func(t *testing.T) {
		for _, path := range []string{"/", "/healthz", "/readyz", "/metrics"} {
			status, body, header := ask(t, http.MethodGet, path, nil)
			require.Equal(t, http.StatusOK, status, body)
			require.Empty(t, header.Values("Access-Control-Allow-Origin"))
			require.Equal(t, "nosniff", header.Get("X-Content-Type-Options"))
			for name, change := range map[string]func(*http.Request){
				"a name made to resolve to this machine": func(r *http.Request) { r.Host = "rebound.example:9477" },
				"a name like localhost":                  func(r *http.Request) { r.Host = "localhost.rebound.example" },
				"another origin":                         func(r *http.Request) { r.Header.Set("Origin", "https://other.example") },
				"no origin":                              func(r *http.Request) { r.Header.Set("Origin", "null") },
				"a script of another site": func(r *http.Request) {
					r.Header.Set("Sec-Fetch-Site", "cross-site")
					r.Header.Set("Sec-Fetch-Mode", "no-cors")
				},
			} {
				status, body, _ := ask(t, http.MethodGet, path, change)
				require.Equal(t, http.StatusForbidden, status, "%s of %s: %s", path, name, body)
				require.NotContains(t, body, "waymark_")
			}
			for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
				status, _, _ := ask(t, method, path, nil)
				require.Equal(t, http.StatusMethodNotAllowed, status, "%s %s", method, path)
			}
			for name, change := range map[string]func(*http.Request){
				"by name":             func(r *http.Request) { r.Host = "LocalHost:1" },
				"by another loopback": func(r *http.Request) { r.Host = "[::1]:9477" },
				"by a link": func(r *http.Request) {
					r.Header.Set("Sec-Fetch-Site", "cross-site")
					r.Header.Set("Sec-Fetch-Mode", "navigate")
				},
				"by its own origin": func(r *http.Request) { r.Header.Set("Origin", page) },
			} {
				status, body, _ := ask(t, http.MethodGet, path, change)
				require.Equal(t, http.StatusOK, status, "%s %s: %s", path, name, body)
			}
		}
		require.Contains(t, log.String(), "http request refused")
		require.Contains(t, log.String(), "rebound.example")
	})

	t.Run("nothing else is served", func(t *testing.T) {
		for _, path := range []string{
			"/debug/pprof/", "/debug/pprof/heap", "/debug/vars", "/varz", "/connz", "/config", "/api", "/..%2f..%2fetc/passwd", "/metrics/../debug/pprof/cmdline",
			"/static/index.html",
		} {
			status, body, _ := ask(t, http.MethodGet, path, nil)
			require.Equal(t, http.StatusNotFound, status, "%s: %s", path, body)
		}
	})

	t.Run("its password is in no output", func(t *testing.T) {
		file := filepath.Join(dir, "nats", "waymark.json")
		b, err := os.ReadFile(file)
		require.NoError(t, err)
		var context struct {
			Password string `json:"password"`
		}
		require.NoError(t, json.Unmarshal(b, &context))
		require.Greater(t, len(context.Password), 20)
		var shown strings.Builder
		shown.WriteString(ready)
		for _, path := range []string{"/", "/healthz", "/readyz", "/metrics"} {
			_, body, _ := ask(t, http.MethodGet, path, nil)
			shown.WriteString(body)
		}
		for _, args := range [][]string{
			{"doctor"},
			{"doctor", "--json"},
			{"fleet"},
			{"fleet", "--json"},
			{"runs", "ls", "--json"},
			{"runs", "get", "missing"},
			{"--nats", strings.Replace(url, "nats://", "nats://waymark:"+context.Password+"@", 1), "runs", "get", "missing"},
			{"--nats", url, "--user", "waymark", "--password", context.Password + "x", "runs", "ls"},
			{"--nats", "nats://waymark:" + context.Password + "@127.0.0.1:1", "runs", "ls"},
			{"--version"},
			{"help"},
		} {
			var out lockedBuffer
			Run(t.Context(), args, getenv, strings.NewReader(""), &out, &out)
			shown.WriteString(out.String())
		}
		code, text := stop()
		require.Zero(t, code, text)
		shown.WriteString(text)
		require.Contains(t, shown.String(), "authentication error", "the log is looked at")
		require.NotContains(t, shown.String(), context.Password)
		// And on the disk only where its owner alone reads it.
		require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			if strings.Contains(string(content), context.Password) {
				info, err := d.Info()
				require.NoError(t, err)
				require.Zero(t, info.Mode().Perm()&0o077, "%s is readable by others", path)
			}
			return nil
		}))
	})
}
