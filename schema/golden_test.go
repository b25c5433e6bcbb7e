package schema_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ce "github.com/cloudevents/sdk-go/v2/event"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/schema"
)

// golden is a file of testdata/cloudevents: one event in both modes, and the values that every implementation must
// compute from it.
type golden struct {
	Header      map[string]string `json:"binary_headers"`
	Body        string            `json:"binary_body"`
	Structured  jsontext.Value    `json:"structured"`
	ContentHash string            `json:"content_hash"`
}

// goldenEvents has one event of every type, and some of other shapes, by file name.
func goldenEvents(tb testing.TB) (names []string, events map[string]*schema.Event) {
	tb.Helper()
	at := time.Date(2026, 3, 1, 12, 0, 0, 123000000, time.UTC)
	events = map[string]*schema.Event{}
	add := func(name string, e *schema.Event, err error) {
		require.NoError(tb, err, name)
		names = append(names, name)
		events[name] = e
	}
	for _, d := range samples() {
		name := d.EventName()
		if schema.ControlOnly(name) {
			epoch := schema.Epoch(1)
			if name == schema.RunResumed {
				epoch = 2
			}
			e, err := schema.NewControl("f", "daemon", "r1", epoch, "n1", d, at)
			add(name, e, err)
			continue
		}
		w := schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1}
		e, err := w.Event(d, 1, at, 0)
		add(name, e, err)
	}
	w := schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1}
	e, err := w.Event(samples()[0], 0, at, 0)
	require.NoError(tb, err)
	e.TraceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	e.DataRef = schema.DataRef("r1", strings.Repeat("0", 64))
	e.Extensions = map[string]string{"note": `100% "sure" – naïve 🐛`, "zone": "a b"}
	e.Seal()
	add("extensions", e, nil)
	add("foreign-text", &schema.Event{
		ID: "x 1", Source: "urn:example:s", Type: "com.example.note", Subject: "r1",
		DataContentType: "text/plain", Data: []byte("plain \"text\"\n"),
	}, nil)
	add("foreign-without-data", &schema.Event{ID: "1", Source: "/s", Type: "com.example.ping"}, nil)
	return names, events
}

func TestGolden_Events_SameInEveryMode(t *testing.T) {
	names, events := goldenEvents(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			e := events[name]
			header, body := e.Encode()
			structured, err := e.EncodeStructured()
			require.NoError(t, err)
			g := golden{Header: map[string]string{}, Body: string(body), Structured: structured, ContentHash: e.ContentHash().String()}
			for k, v := range header {
				require.Len(t, v, 1)
				g.Header[k] = v[0]
			}
			want := readGolden(t, name+".json", g)
			require.Equal(t, want.ContentHash, g.ContentHash)

			back, err := schema.Decode(headerOf(want.Header), []byte(want.Body))
			require.NoError(t, err)
			require.Equal(t, normal(e), normal(back))
			require.Equal(t, g.ContentHash, back.ContentHash().String())
			back, err = schema.Decode(map[string][]string{"content-type": {"application/cloudevents+json; charset=UTF-8"}}, structured)
			require.NoError(t, err)
			require.Equal(t, normal(e), normal(back))
			require.Equal(t, g.ContentHash, back.ContentHash().String())

			// The CloudEvents SDK reads the structured form, and its event converts back to the same event.
			var sdk ce.Event
			require.NoError(t, sdk.UnmarshalJSON(structured))
			require.NoError(t, sdk.Validate())
			require.Equal(t, e.ID, sdk.ID())
			back, err = schema.FromCloudEvent(sdk)
			require.NoError(t, err)
			require.Equal(t, g.ContentHash, back.ContentHash().String())
			// And its own encoding decodes to the same event.
			encoded, err := sdk.MarshalJSON()
			require.NoError(t, err)
			back, err = schema.Decode(nil, encoded)
			require.NoError(t, err)
			require.Equal(t, e.ContentHash(), back.ContentHash())
		})
	}
}

// normal makes empty and absent values equal.
func normal(e *schema.Event) schema.Event {
	c := *e
	if len(c.Data) == 0 {
		c.Data = nil
	}
	return c
}

func headerOf(m map[string]string) map[string][]string {
	header := make(map[string][]string, len(m))
	for k, v := range m {
		header[k] = []string{v}
	}
	return header
}

// readGolden compares got with the file, or writes it with -update.
func readGolden(t *testing.T, name string, got golden) golden {
	t.Helper()
	path := filepath.Join("testdata", "cloudevents", name)
	text, err := json.Marshal(got, json.Deterministic(true), jsontext.WithIndent("  "))
	require.NoError(t, err)
	text = append(text, '\n')
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, text, 0o644))
	}
	stored, err := os.ReadFile(path)
	require.NoError(t, err, "go test ./schema -update writes it")
	require.Equal(t, string(stored), string(text))
	var want golden
	require.NoError(t, json.Unmarshal(stored, &want))
	return want
}

func TestGolden_Files_NoneLeftOver(t *testing.T) {
	names, _ := goldenEvents(t)
	files, err := filepath.Glob(filepath.Join("testdata", "cloudevents", "*.json"))
	require.NoError(t, err)
	require.Len(t, files, len(names))
}

func TestGolden_Samples_Valid(t *testing.T) {
	for _, d := range samples() {
		require.NoError(t, schema.Validate(d), d.EventName())
	}
	for _, name := range schema.EventNames() { // those of types with a plausible sample are valid, too
		require.NoError(t, schema.Validate(randomlog.Example(name)), name)
	}
}
