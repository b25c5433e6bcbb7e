//go:build unix

package nemesis_test

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// A golden store is the state directory of a daemon that was stopped, as a version of Waymark left it: streams, buckets
// and settings, with runs in every state. Every version opens those of all versions before it. One is made for
// each new set of stored formats, by "make golden", and never changed afterwards.
const goldenDir = "testdata/golden"

// goldenName names the stored formats of this version. A new one needs a new golden store.
func goldenName() string {
	return fmt.Sprintf("checkpoint%d-segment%d-live%d-ended%d-watermark%d-settings%d-lease%d",
		schema.CheckpointFormat, schema.SegmentFormat, schema.LiveFormat, schema.EndedFormat,
		kvstore.WatermarkFormat, schema.SettingsFormat, kvstore.LeaseFormat)
}

// goldenRun is the state of a run in a golden store when the store was made.
type goldenRun struct {
	Run string `json:"run"`
	// Head as the daemon of that version answered.
	Head jsontext.Value `json:"head"`
	// Digest of the head, and Content: the SHA-256 of the frames of its events.
	Digest  string `json:"digest"`
	Content string `json:"content"`
	Events  int    `json:"events"`
}

// goldenFlags keep the daemon from writing anything by itself.
var goldenFlags = []string{"--silence", "24h"}

func TestGoldenStores_Open_ReadAndWritten(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	if os.Getenv("WAYMARK_GOLDEN") == "write" {
		writeGolden(t)
	}
	stores, err := filepath.Glob(filepath.Join(goldenDir, "*.tar.gz"))
	require.NoError(t, err)
	require.Contains(t, stores, filepath.Join(goldenDir, goldenName()+".tar.gz"), "a stored format has changed: make golden")
	for _, store := range stores {
		t.Run(strings.TrimSuffix(filepath.Base(store), ".tar.gz"), func(t *testing.T) {
			w := &lone{dir: t.TempDir()}
			unpackGolden(t, store, w.state())
			var runs []goldenRun
			b, err := os.ReadFile(strings.TrimSuffix(store, ".tar.gz") + ".json")
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(b, &runs))
			require.Greater(t, len(runs), 20)
			w.serve(t, goldenFlags...)
			w.requireGolden(t, runs)
			w.writeOn(t, runs)
			var verified struct {
				Runs    int `json:"runs"`
				Damaged int `json:"damaged"`
			}
			require.NoError(t, json.Unmarshal(w.cli(t, "verify", "--all", "--json"), &verified))
			require.Zero(t, verified.Damaged)
			require.GreaterOrEqual(t, verified.Runs, len(runs))
			// And again, after a kill.
			w.kill(t)
			w.serve(t, goldenFlags...)
			require.Eventually(t, func() bool { return len(w.listed(t, "--all")) == verified.Runs }, time.Minute, 50*time.Millisecond,
				"a list has the folded runs: the last one may be late")
		})
	}
}

// requireGolden compares every run with its recorded state.
func (w *lone) requireGolden(t *testing.T, runs []goldenRun) {
	t.Helper()
	listed, fleet := names(w.listed(t, "--all")), w.fleet(t, "golden-reader")
	for i := range runs {
		want := &runs[i]
		require.Contains(t, listed, want.Run)
		have := golden(t, fleet, want.Run)
		require.Equal(t, want.Digest, have.Digest, "%s", want.Run)
		require.Equal(t, want.Events, have.Events, "%s", want.Run)
		require.Equal(t, want.Content, have.Content, "the events of %s, to the byte", want.Run)
		// Later versions may add members to a run, and nothing else.
		now := members(t, have.Head)
		for name, value := range members(t, want.Head) {
			require.JSONEq(t, string(value), string(now[name]), "%s of %s", name, want.Run)
		}
	}
	// Events of a later version are kept and named.
	var future strings.Builder
	require.NoError(t, fleet.Events(t.Context(), "golden-future", func(rec schema.Record) error {
		_, err := fmt.Fprintf(&future, "%v %s\n", rec.Header, rec.Body)
		return err
	}))
	for _, text := range []string{`ce-type:[io.waymark.dream.recalled.v3]`, `ce-mood:[blue]`, `"colour":"green"`, `"type":"hologram"`, `"half_life_ms":7`} {
		require.Contains(t, future.String(), text)
	}
	var head schema.Head
	require.NoError(t, json.Unmarshal(golden(t, fleet, "golden-future").Head, &head))
	require.EqualValues(t, 1, head.Counts.Unknown)
	out, _, err := w.try(t, "verify", "golden-future", "--strict")
	require.Error(t, err)
	require.Contains(t, string(out), "the vocabulary has no type io.waymark.dream.recalled.v3")
}

func members(t *testing.T, object jsontext.Value) map[string]jsontext.Value {
	t.Helper()
	m := map[string]jsontext.Value{}
	require.NoError(t, json.Unmarshal(object, &m))
	return m
}

// golden reads a run's current state.
func golden(tb testing.TB, fleet *publisher.Fleet, run string) goldenRun {
	tb.Helper()
	head, err := fleet.Head(tb.Context(), run)
	require.NoError(tb, err, "%s", run)
	text, err := json.Marshal(&head)
	require.NoError(tb, err)
	require.NoError(tb, (*jsontext.Value)(&text).Canonicalize())
	got := goldenRun{Run: run, Head: text, Digest: head.Digest}
	sum := sha256.New()
	require.NoError(tb, fleet.Events(tb.Context(), run, func(rec schema.Record) error {
		got.Events++
		_, err := sum.Write(schema.AppendFrame(nil, &rec))
		return err
	}))
	got.Content = hex.EncodeToString(sum.Sum(nil))
	return got
}

// writeOn takes every run over that has not ended, and ends it; and one that has ended.
func (w *lone) writeOn(t *testing.T, runs []goldenRun) {
	t.Helper()
	fleet := w.fleet(t, "golden-new")
	reopened, ended := false, 0
	for i := range runs {
		var head schema.Head
		require.NoError(t, json.Unmarshal(runs[i].Head, &head))
		spec := publisher.ResumeSpec{}
		if head.Status.Terminal() {
			if reopened {
				continue
			}
			reopened, spec.Reason = true, schema.TakeoverReopen
		}
		run, err := fleet.Resume(t.Context(), runs[i].Run, spec)
		require.NoError(t, err, "%s", runs[i].Run)
		require.NoError(t, run.AddMessage(t.Context(), schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("written on")}}))
		require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusFailed, Error: &schema.Error{Type: "test"}}))
		ended++
	}
	require.True(t, reopened)
	require.Greater(t, ended, 5)
	require.Eventually(t, func() bool { return len(w.listed(t, "--status", "running,waiting,orphaned,interrupted", "--all")) == 0 }, patience, 50*time.Millisecond)
	_, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "golden-later", Agent: "golden"})
	require.NoError(t, err)
}

// writeGolden makes a golden store of this version's formats. It replaces none.
func writeGolden(t *testing.T) {
	t.Helper()
	store := filepath.Join(goldenDir, goldenName()+".tar.gz")
	if _, err := os.Stat(store); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("%s is there: golden stores are never changed", store)
	}
	w := newLone(t, goldenFlags...)
	w.fill(t, 30)
	w.goldenRuns(t)
	var runs []goldenRun
	list := w.listed(t, "--all")
	require.Eventually(t, func() bool { // nothing moves any more
		before := list
		list = w.listed(t, "--all")
		return slices.EqualFunc(before, list, func(a, b schema.RunSummary) bool {
			return a.Run == b.Run && a.UpdatedAt == b.UpdatedAt && a.Status == b.Status
		})
	}, patience, 2*time.Second)
	fleet := w.fleet(t, "golden-reader")
	for _, run := range names(list) {
		runs = append(runs, golden(t, fleet, run))
	}
	require.NoError(t, w.server.terminate(t.Context()))
	require.NoError(t, os.MkdirAll(goldenDir, 0o755)) //nolint:gosec // test data is public
	packGolden(t, w.state(), store)
	b, err := json.Marshal(runs, json.Deterministic(true), jsontext.WithIndent(" "))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(strings.TrimSuffix(store, ".tar.gz")+".json", append(b, '\n'), 0o644)) //nolint:gosec // test data is public
}

// goldenRuns makes the runs that no generator makes: in doubt, waiting, with a blob, with a mark, a fork, and one
// that a later version wrote.
func (w *lone) goldenRuns(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	first, second := w.fleet(t, "golden-1"), w.fleet(t, "golden-2")
	begin := func(id string) (*publisher.Run, *publisher.Turn) {
		run, err := first.Start(ctx, publisher.RunSpec{ID: id, Agent: "golden", Labels: map[string]string{"of": "old"}})
		require.NoError(t, err)
		turn, err := run.StartTurn(ctx, publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("Größe?")}}}})
		require.NoError(t, err)
		return run, turn
	}
	_, turn := begin("golden-doubt")
	for _, replay := range []schema.Replay{schema.ReplayPure, schema.ReplayIdempotent, schema.ReplayHold} {
		_, err := turn.Call(ctx, publisher.ToolCall{ID: "c-" + string(replay), Name: "tool", Replay: replay, Arguments: []byte(`{"a":[1,2]}`)})
		require.NoError(t, err)
	}
	_, err := second.Resume(ctx, "golden-doubt", publisher.ResumeSpec{})
	require.NoError(t, err)

	run, turn := begin("golden-blob")
	key, err := turn.Call(ctx, publisher.ToolCall{ID: "c", Name: "read", Replay: schema.ReplayPure})
	require.NoError(t, err)
	result, err := publisher.Result(strings.Repeat("a large text. ", 40_000))
	require.NoError(t, err)
	require.NoError(t, turn.Return(ctx, key[0], result))
	require.NoError(t, turn.End(ctx, publisher.TurnEnd{}))
	require.NoError(t, run.End(ctx, publisher.RunEnd{}))

	run, _ = begin("golden-wait")
	require.NoError(t, run.Mark(ctx, "here"))
	_, err = run.Handoff(schema.HandoffOfferedData{Reason: "task_complete", HandoffID: "h1"}).Offer(ctx)
	require.NoError(t, err)
	w.cli(t, "fork", "golden-wait", "--as", "golden-fork")
	nc := w.conn(t)
	for i, e := range goldenFuture {
		m := nats.NewMsg(schema.MappedSubject("default", "golden-future"))
		for name, value := range map[string]string{
			"ce-specversion": "1.0", "ce-id": fmt.Sprint(i), "ce-source": "/waymark/default/golden-9", "ce-type": e.kind, "ce-subject": "golden-future",
			"ce-time": "2026-01-31T12:00:00Z", "ce-epoch": "1", "ce-turn": e.turn, "ce-datacontenttype": "application/json", "ce-mood": "blue",
		} {
			m.Header.Set(name, value)
		}
		m.Data = []byte(e.data)
		_, err := nc.RequestMsgWithContext(ctx, m)
		require.NoError(t, err)
	}
}

// goldenFuture are events with data unknown to this version.
var goldenFuture = []struct{ kind, turn, data string }{
	{"io.waymark.run.started.v1", "0", `{"agent":"golden","executor":"golden-9","colour":"green"}`},
	{"io.waymark.turn.started.v1", "1", `{"turn":1,"messages":[{"role":"user","parts":[{"type":"hologram","content":"x","depth":3}],"tone":"soft"}]}`},
	{"io.waymark.dream.recalled.v3", "1", `{"dream":"sheep"}`},
	{"io.waymark.tool.called.v1", "1", `{"tool_call_id":"c1","name":"look","replay":"pure","half_life_ms":7}`},
}

func packGolden(t *testing.T, dir, to string) {
	t.Helper()
	file, err := os.Create(to)
	require.NoError(t, err)
	packed, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	require.NoError(t, err)
	out := tar.NewWriter(packed)
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		require.NoError(t, out.WriteHeader(&tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Size: int64(len(b))}))
		_, err = out.Write(b)
		return err
	}))
	require.NoError(t, errors.Join(out.Close(), packed.Close(), file.Close()))
}

func unpackGolden(t *testing.T, store, dir string) {
	t.Helper()
	file, err := os.Open(store)
	require.NoError(t, err)
	packed, err := gzip.NewReader(file)
	require.NoError(t, err)
	in := tar.NewReader(packed)
	for {
		entry, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(entry.Name))
		path := filepath.Join(dir, filepath.FromSlash(entry.Name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		b, err := io.ReadAll(in)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, b, 0o600))
	}
	require.NoError(t, file.Close())
}
