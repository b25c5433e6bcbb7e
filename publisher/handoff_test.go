package publisher_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestHandoff_DoubleFiles_AreListedOnce(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder", Now: func() time.Time { return began }}, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a1", Name: `c:\W\OUT.md`}))
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a2", URI: "file:///C:/w/new.md"}))
	d := run.Handoff(schema.HandoffOfferedData{
		Reason:    "task_complete",
		Completed: []schema.HandoffCompleted{{File: `C:\w\a.go`, Status: "partial", Notes: "the parser is left"}, {File: `C:\w\b.go`, Status: "done"}, {File: `c:/w/A.go`, Status: "done", Tests: &schema.HandoffTests{Passed: 2}}},
		Context:   &schema.HandoffContext{FilesModified: []string{`C:\w\a.go`, `C:\w\out.md`, `c:/w/a.go`, `\\srv\share\x`, `//SRV/share/X`, "src/x.go", "src/X.go"}},
	}).Data()
	require.Equal(t, []schema.HandoffCompleted{
		{File: `C:\w\a.go`, Status: "done", Tests: &schema.HandoffTests{Passed: 2}}, {File: `C:\w\b.go`, Status: "done"},
	}, d.Completed)
	require.Equal(t, []string{`C:\w\a.go`, `C:\w\out.md`, `\\srv\share\x`, "src/x.go", "src/X.go", "file:///C:/w/new.md"}, d.Context.FilesModified)
	require.Equal(t, schema.FormatTime(began), d.CreatedAt)
	require.Equal(t, "coder", d.AgentID)
	require.Equal(t, "critic", run.Handoff(schema.HandoffOfferedData{Reason: "error", AgentID: "critic"}).Data().AgentID)
	require.Equal(t, "2026-01-02T03:04:06Z", run.Handoff(schema.HandoffOfferedData{Reason: "error", CreatedAt: "2026-01-02T03:04:06Z"}).Data().CreatedAt)
}

func TestHandoff_BeyondTheSize_IsWarnedOfBeforeAndInTheLog(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	logger := zerolog.New(&log)
	run, err := publisher.Unrecorded(t.Context(), publisher.Config{Executor: "e", Agent: "coder", Logger: &logger}, publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	data := schema.HandoffOfferedData{
		Reason: "threshold_critical", HandoffID: "h1", Context: &schema.HandoffContext{Issues: []string{strings.Repeat("x", schema.HandoffSizeWarning)}},
	}
	h := run.Handoff(data)
	check, err := h.Check()
	require.NoError(t, err)
	require.Equal(t, schema.HandoffCheck{SizeChars: schema.HandoffSizeWarning}, check)
	_, err = h.Offer(t.Context())
	require.NoError(t, err)
	require.Empty(t, log.String())

	data.Context.Patterns = []string{"y"}
	h = run.Handoff(data)
	check, err = h.Check()
	require.NoError(t, err)
	require.Contains(t, check.Warning, "4001 characters")
	require.Empty(t, log.String(), "nothing is offered yet")
	require.Equal(t, int64(1), run.Head().Counts.Handoffs)
	offer, err := h.Offer(t.Context())
	require.NoError(t, err)
	require.True(t, offer.Data.TooLong())
	require.True(t, run.Head().SizeWarning)
	require.Contains(t, log.String(), `"level":"warn","run":"r1","handoff":"h1","size_chars":4001`)

	_, err = run.Handoff(schema.HandoffOfferedData{Reason: "because"}).Check()
	require.ErrorContains(t, err, "/reason")
}

func TestHandoff_DocumentOfAnotherTool_IsOffered(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	document := `{"reason":"threshold_critical","createdAt":"2026-01-02T03:04:05Z","agentId":"agent-7","completed":[{"file":"a.ts","status":"partial"},{"file":".\\a.ts","status":"done"}],
		"remaining":[{"description":"write b.ts","referencePattern":"a.ts"}],"context":{"filesModified":["a.ts","./a.ts"]}}`
	data, err := schema.ParseHandoff([]byte(document))
	require.NoError(t, err)
	data.HandoffID = "h1"
	offer, err := run.Handoff(*data).Offer(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"a.ts"}, offer.Data.Context.FilesModified)
	require.Equal(t, []schema.HandoffCompleted{{File: "a.ts", Status: "done"}}, offer.Data.Completed)
	require.Equal(t, "2026-01-02T03:04:05Z agent-7", offer.Data.CreatedAt+" "+offer.Data.AgentID)
	require.Equal(t, "a.ts", offer.Data.Remaining[0].ReferencePattern)
	s := w.requireSameFold(run)
	require.Equal(t, offer.Data, *s.Handoffs[0].Offered)
}

// The slices of a document are not written to, also if they have room behind them.
func TestHandoff_Document_StaysAsItIs(t *testing.T) {
	t.Parallel()
	run := start(t, newWorld(t).fleet(), "r1")
	require.NoError(t, run.Artifact(t.Context(), schema.ArtifactAddedData{ArtifactID: "a1", Name: "b.go"}))
	files := append(make([]string, 0, 4), "a.go")
	completed := append(make([]schema.HandoffCompleted, 0, 4), schema.HandoffCompleted{File: "a.go", Status: "partial"}, schema.HandoffCompleted{File: "./a.go", Status: "done"})
	data := schema.HandoffOfferedData{Reason: "error", Completed: completed, Context: &schema.HandoffContext{FilesModified: files}}
	d := run.Handoff(data).Data()
	require.Equal(t, []string{"a.go", "b.go"}, d.Context.FilesModified)
	require.Equal(t, []schema.HandoffCompleted{{File: "a.go", Status: "done"}}, d.Completed)
	require.Equal(t, []string{"a.go", ""}, files[:2])
	require.Equal(t, []schema.HandoffCompleted{{File: "a.go", Status: "partial"}, {File: "./a.go", Status: "done"}, {}}, completed[:3])
	require.Equal(t, files, data.Context.FilesModified)
}

// An executor in another language writes the document as it is.
func TestHandoff_CamelCaseOnTheWire_IsFoldedInOurNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(), "r1")
	e := &schema.Event{
		ID: "x1", Source: schema.Source("default", "exec-1"), Type: schema.TypeOf(schema.HandoffOffered), Subject: "r1", Epoch: 1, DataContentType: schema.ContentTypeJSON,
		Data: []byte(`{"handoffId":"h1","reason":"error","remaining":[{"description":"` + strings.Repeat("x", 4001) + `","referencePattern":"a.ts"}],"context":{"filesModified":["C:\\a.ts","c:/A.ts"]}}`),
	}
	w.put(e)
	require.NoError(t, run.Sync(t.Context()))
	s := w.requireSameFold(run)
	require.Equal(t, "h1", s.Handoffs[0].HandoffID)
	require.Equal(t, "a.ts", s.Handoffs[0].Offered.Remaining[0].ReferencePattern)
	require.Equal(t, []string{`C:\a.ts`}, s.Handoffs[0].Offered.Context.FilesModified)
	require.True(t, s.Head.SizeWarning, "the text counts, although its writer did not count it")
}

// The stamp of a hand-off does not make a repeated offer another event.
func TestHandoff_OfferWithoutAnAnswer_IsRepeatedAsTheSameEvent(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := newProxy(t, w.server.URL())
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := w.fleet(func(c *publisher.Config) {
		c.Conn, c.URL, c.Options = nil, p.url(), w.server.Options()
		c.Now = func() time.Time { now = now.Add(time.Second); return now }
	})
	run := start(t, f, "r1")
	p.deafen(f)
	_, err := run.Handoff(schema.HandoffOfferedData{Reason: "error", HandoffID: "h1"}).Offer(t.Context())
	require.ErrorIs(t, err, publisher.ErrUnresolved)
	p.heal(f)
	_, err = run.Handoff(schema.HandoffOfferedData{Reason: "error", HandoffID: "h1"}).Offer(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"run.started", "handoff.offered"}, names(w.log("r1")))
	w.requireSameFold(run)
}
