package e2e_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A tool ignores its timeout. An operator finds the run, and the hanging call, and stops the process; another one
// continues.
func TestOverdue_ToolDoesNotReturn_IsFoundAndGoesOnElsewhere(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request loopRequest
		answer := []loopCall{{ID: "c1", Tool: "look", At: 7}}
		if json.NewDecoder(r.Body).Decode(&request) == nil && request.Turn > 1 {
			answer = nil
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(model.Close)
	w := newWorld(t, append([]string{"--http", "127.0.0.1:0"}, shortSilence...)...)
	told, err := w.conn(t).SubscribeSync(schema.ObservedSubject("default", schema.RunOverdue, "*"))
	require.NoError(t, err)
	settings := loopSettings{Name: "stuck-1", StateDir: w.state(), Model: model.URL, Mails: filepath.Join(w.dir, "mails.txt"), ToolTimeout: 100, Stuck: true}
	stuck := w.again(t, settings.Name, loopVariable, settings).ready(t)
	fleet := w.fleet(t, "person")
	_, err = fleet.Submit(t.Context(), publisher.RunSpec{ID: "run-1", Agent: loopAgent, Task: "Do it."})
	require.NoError(t, err)

	m, err := told.NextMsg(patience)
	require.NoError(t, err)
	e, err := schema.Decode(m.Header, m.Data)
	require.NoError(t, err)
	var said schema.OverdueData
	require.NoError(t, json.Unmarshal(e.Data, &said))
	require.Equal(t, "stuck-1", said.Executor)
	require.Equal(t, "look", said.Tool)
	require.EqualValues(t, 100, said.LimitMS)
	out, stderr, err := w.try(t, "runs", "get", "run-1")
	require.NoError(t, err)
	require.Regexp(t, `tool look +1 +c1 +.* 100ms`, string(out))
	require.Contains(t, stderr, "stop its process")
	require.Contains(t, string(w.cli(t, "runs", "ls")), "running, overdue")
	require.Contains(t, string(w.cli(t, "fleet")), "1 overdue")
	require.Contains(t, w.metrics(t), `waymark_runs_overdue{fleet="default"} 1`+"\n")
	doctor, _, _ := w.try(t, "doctor")
	require.Regexp(t, `overdue +1 run with`, string(doctor))

	stuck.kill9(t)
	settings.Name, settings.Stuck = "sound-1", false
	w.again(t, settings.Name, loopVariable, settings).ready(t)
	require.Eventually(t, func() bool {
		head, err := fleet.Head(t.Context(), "run-1")
		return err == nil && head.Status == schema.StatusCompleted
	}, patience, 50*time.Millisecond)
	require.NotContains(t, string(w.cli(t, "fleet")), "overdue")
	require.NotContains(t, string(w.cli(t, "runs", "ls")), "overdue")
	require.NotContains(t, string(w.cli(t, "runs", "get", "run-1")), "overdue")
	require.Contains(t, w.metrics(t), `waymark_runs_overdue{fleet="default"} 0`+"\n")
	_, err = told.NextMsg(100 * time.Millisecond)
	require.Error(t, err, "it was told once")
}

// metrics returns the daemon's metrics, in Prometheus' text form.
func (w *world) metrics(t *testing.T) string {
	t.Helper()
	address := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(w.said)
	require.Len(t, address, 2, w.said)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address[1]+"/metrics", http.NoBody)
	require.NoError(t, err)
	answer, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, answer.Body.Close()) }()
	body, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return string(body)
}
