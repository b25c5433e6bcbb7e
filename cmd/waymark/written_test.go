package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// writtenFleet is a fleet with a daemon, whose runs a test writes event by event, as an executor without the SDK does.
type writtenFleet struct {
	t     *testing.T
	where []string
	js    jetstream.JetStream
	fleet *publisher.Fleet
	last  map[string]schema.Sequence
	epoch map[string]schema.Epoch
	nonce int
}

func newWrittenFleet(t *testing.T) *writtenFleet {
	t.Helper()
	where, js, fleet := provisioned(t)
	_, stop, err := startDaemon(append([]string{"--http", "off", "--silence", "10m"}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	return &writtenFleet{t: t, where: where, js: js, fleet: fleet, last: map[string]schema.Sequence{}, epoch: map[string]schema.Epoch{}}
}

// ask runs a command line in a terminal of 80 columns, or where a program reads its output.
func (w *writtenFleet) ask(columns string, args ...string) (code int, stdout, stderr string) {
	w.t.Helper()
	var out, complaints bytes.Buffer
	getenv := func(name string) string {
		if name == "COLUMNS" {
			return columns
		}
		return ""
	}
	code = run(w.t.Context(), append(args, w.where...), getenv, strings.NewReader(""), &out, &complaints)
	return code, out.String(), complaints.String()
}

// told is the output of a command that succeeds.
func (w *writtenFleet) told(args ...string) string {
	w.t.Helper()
	code, stdout, stderr := w.ask("", args...)
	require.Zero(w.t, code, "%v: %s%s", args, stdout, stderr)
	return stdout
}

func (w *writtenFleet) store(e *schema.Event) {
	w.t.Helper()
	header, body := e.Encode()
	_, err := w.js.PublishMsg(w.t.Context(), &nats.Msg{Subject: schema.NamesOf(schema.DefaultFleet, 0).EventSubject(e.Subject), Header: header, Data: body})
	require.NoError(w.t, err)
}

// event makes the executor's next event with data as it is.
func (w *writtenFleet) event(run, name string, turn int32, data string) *schema.Event {
	w.t.Helper()
	epoch := max(w.epoch[run], 1)
	w.last[run]++
	return &schema.Event{
		Source: schema.Source(schema.DefaultFleet, "e"), Type: schema.TypeOf(name), Subject: run, Time: schema.FormatTime(time.Now()), Epoch: epoch,
		Sequence: w.last[run], Turn: turn, DataContentType: schema.ContentTypeJSON, Data: []byte(data),
	}
}

// write stores the executor's next event with data as it is.
func (w *writtenFleet) write(run, name string, turn int32, data string) {
	w.t.Helper()
	e := w.event(run, name, turn, data)
	e.Seal()
	w.store(e)
}

// control stores a control event.
func (w *writtenFleet) control(run string, epoch schema.Epoch, data schema.Data) {
	w.t.Helper()
	w.nonce++
	e, err := schema.NewControl(schema.DefaultFleet, "daemon", run, epoch, fmt.Sprintf("n%d", w.nonce), data, time.Now())
	require.NoError(w.t, err)
	w.store(e)
}

// Ids have a hash of the data's bytes: a recording with other spaces is one of other events.
func TestConform_ExportOfDataWithSpacesAndLineBreaks_FindsNoBreach(t *testing.T) {
	t.Parallel()
	w := newWrittenFleet(t)
	want := []string{
		`{"agent": "a", "executor": "e", "instance": "i-1"}`,
		"{\n  \"turn\": 1,\n  \"message\": {\"role\": \"assistant\", \"parts\": [{\"type\": \"text\", \"content\": \"hi\"}]}\n}",
		"{ \"key\":\"a\",\r \"value\": 1.0 }",
		`{"status": "completed"}`,
	}
	w.write("r1", schema.RunStarted, 0, want[0])
	w.write("r1", schema.TurnAnswered, 1, want[1])
	w.write("r1", schema.StateSet, 0, want[2])
	w.write("r1", schema.RunEnded, 0, want[3])
	for _, words := range []string{"export r1 --format cloudevents", "events r1 --all --no-follow --json --raw"} {
		lines := w.told(strings.Fields(words)...)
		require.Equal(t, len(want), strings.Count(lines, "\n"), lines)
		require.NotContains(t, lines, "\r")
		require.Equal(t, 2, strings.Count(lines, `"data_base64":`), lines)
		for i, line := range strings.Split(strings.TrimSpace(lines), "\n") {
			e, err := schema.Decode(nil, []byte(line))
			require.NoError(t, err)
			require.Equal(t, want[i], string(e.Data), words)
		}
		file := filepath.Join(t.TempDir(), "run.jsonl")
		require.NoError(t, os.WriteFile(file, []byte(lines), 0o600))
		code, stdout, stderr := w.ask("", "conform", file, "--strict")
		require.Zero(t, code, "%s: %s%s", words, stdout, stderr)
		require.Contains(t, stdout, "4 events of 1 run judged")
		code, stdout, stderr = w.ask("", "otel", "--file", file, "--endpoint", "http://127.0.0.1:1", "--json")
		require.NotContains(t, stdout+stderr, "line 2", "the exporter of spans reads it, too: %d %s", code, stderr)
	}
	recording := filepath.Join(t.TempDir(), "recording.jsonl")
	w.told("conform", "--run", "r1", "--no-follow", "--record", recording)
	w.told("conform", recording, "--strict")
}
