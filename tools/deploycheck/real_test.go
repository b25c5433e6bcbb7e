package deploycheck_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/value"
	"github.com/stretchr/testify/require"
)

// scrapeEvery is the interval of prometheus.yaml, on the test's own clock: no "for" is waited for.
const scrapeEvery = 15 * time.Second

// world has daemons, and a Prometheus of its own clock that scrapes them.
type world struct {
	t       *testing.T
	at      time.Time
	series  *series
	rules   *rules
	targets map[string]string // the addresses by their instances
	live    map[string]map[string]labels.Labels
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, at: time.Now(), series: newSeries(), rules: newRules(t), targets: make(map[string]string), live: make(map[string]map[string]labels.Labels)}
}

// scrape scrapes all daemons and evaluates the rules once, and returns the alerts that fire.
func (w *world) scrape() map[string][]alert {
	w.t.Helper()
	return w.scrapeAfter(scrapeEvery)
}

// scrapeAfter is scrape after so much time on the test's own clock.
func (w *world) scrapeAfter(d time.Duration) map[string][]alert {
	w.t.Helper()
	w.at = w.at.Add(d)
	for instance, address := range w.targets {
		seen, up := make(map[string]labels.Labels), 0.0
		for name, family := range w.get(address) {
			up = 1
			for _, m := range family.GetMetric() {
				l := labels.NewBuilder(labels.FromStrings(model.MetricNameLabel, name, "job", "waymark", "instance", instance))
				for _, pair := range m.GetLabel() {
					l.Set(pair.GetName(), pair.GetValue())
				}
				if family.GetType() != dto.MetricType_GAUGE && family.GetType() != dto.MetricType_COUNTER {
					continue // no alert of this test looks at a histogram
				}
				seen[l.Labels().String()] = l.Labels()
				w.series.add(l.Labels(), w.at.UnixMilli(), m.GetGauge().GetValue()+m.GetCounter().GetValue())
			}
		}
		for key, l := range w.live[instance] {
			if _, ok := seen[key]; !ok {
				w.series.add(l, w.at.UnixMilli(), math.Float64frombits(value.StaleNaN))
			}
		}
		w.live[instance] = seen
		w.series.add(labels.FromStrings(model.MetricNameLabel, "up", "job", "waymark", "instance", instance), w.at.UnixMilli(), up)
	}
	firing := w.rules.eval(w.t, w.series, w.at)
	delete(firing, "WaymarkDiskNearlyFull") // the disk is this machine's
	return firing
}

// get returns the metrics of a daemon; none if it does not answer.
func (w *world) get(address string) map[string]*dto.MetricFamily {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Get(address + "/metrics")
	if err != nil {
		return nil
	}
	defer func() { require.NoError(w.t, response.Body.Close()) }()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if response.StatusCode != http.StatusOK {
		return nil
	}
	require.NoError(w.t, err)
	return families
}

// serve starts a daemon of a fleet with its own server, and returns a function that kills it.
func (w *world) serve(program, dir, fleet string) (kill func()) {
	w.t.Helper()
	cmd := exec.Command(program, "serve", "--fleet", fleet, "--state-dir", dir, "--http", "127.0.0.1:0", "--quota", "64MiB", "--shards", "1", "--log-level", "error")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(w.t, err)
	require.NoError(w.t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			require.NoError(w.t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
		}
	}
	w.t.Cleanup(kill)
	lines := bufio.NewReader(out)
	line, err := lines.ReadString('\n')
	require.NoError(w.t, err)
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	found := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)
	require.NotNil(w.t, found, line)
	w.targets[fleet] = found[1]
	return kill
}

// request sends one request to the daemon's own NATS server.
func request(t *testing.T, dir, subject string) string {
	t.Helper()
	var context struct{ URL, User, Password string }
	text, err := os.ReadFile(filepath.Join(dir, "nats", "waymark.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &context))
	at, err := url.Parse(context.URL)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", at.Host)
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = fmt.Fprintf(conn, "CONNECT {\"verbose\":false,\"user\":%q,\"pass\":%q}\r\nSUB answer 1\r\nPUB %s answer 0\r\n\r\n", context.User, context.Password, subject)
	require.NoError(t, err)
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		if line[:4] == "MSG " {
			answer, err := lines.ReadString('\n')
			require.NoError(t, err)
			return answer
		}
	}
}

// until scrapes until all these alerts fire and reports after how long, on the clock of the scrapes, each did.
func (w *world) until(within time.Duration, names ...string) map[string][]alert {
	w.t.Helper()
	all, began := make(map[string][]alert), w.at
	for len(all) < len(names) {
		firing := w.scrape()
		for _, name := range names {
			if all[name] == nil && firing[name] != nil {
				all[name] = firing[name]
				w.t.Logf("%s after %s: %s", name, w.at.Sub(began), firing[name][0].annotations["summary"])
			}
		}
		require.LessOrEqual(w.t, w.at.Sub(began), within, "%v fire, and not all of %v", slices.Sorted(maps.Keys(firing)), names)
	}
	return all
}

func TestAlerts_RealDaemons_FireAboutWhatIsGone(t *testing.T) {
	dir := t.TempDir()
	program, err := built()
	require.NoError(t, err)
	w := newWorld(t)
	w.serve(program, filepath.Join(dir, "alive"), "alive")
	kill := w.serve(program, filepath.Join(dir, "dead"), "dead")
	for fleet, address := range w.targets {
		require.Eventually(t, func() bool {
			leading := w.get(address)["waymark_fold_leading"]
			return leading != nil && leading.GetMetric()[0].GetGauge().GetValue() == 1
		}, time.Minute, 100*time.Millisecond, fleet)
	}
	for range 40 {
		require.Empty(t, w.scrape(), "the fleets are in good order")
	}

	kill()
	got := w.until(3*time.Minute, "WaymarkFleetGone", "WaymarkDown")
	require.Len(t, got["WaymarkFleetGone"], 1)
	require.Equal(t, "dead", got["WaymarkFleetGone"][0].labels["fleet"])
	require.Len(t, got["WaymarkDown"], 1)
	require.Equal(t, "dead", got["WaymarkDown"][0].labels["instance"])

	answer := request(t, filepath.Join(dir, "alive"), "$JS.API.STREAM.DELETE.KV_WAYMARK_SEGMENTS_alive_0")
	require.Contains(t, answer, `"success":true`)
	require.Eventually(t, func() bool { return w.get(w.targets["alive"])["waymark_fleet_stream_trouble"] != nil }, time.Minute, 100*time.Millisecond)
	got = w.until(3*time.Minute, "WaymarkStreamBroken")
	require.Equal(t, "Stream KV_WAYMARK_SEGMENTS_alive_0 of fleet alive is missing", got["WaymarkStreamBroken"][0].annotations["summary"])

	w.at = w.at.Add(8 * 24 * time.Hour)
	got = w.until(time.Minute, "WaymarkBackupOld")
	require.Equal(t, "alive", got["WaymarkBackupOld"][0].labels["fleet"])
}
