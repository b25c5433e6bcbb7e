package transcript_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// grower writes the first n of a transcript's messages or lines, as its agent had left the file by then.
type grower struct {
	format transcript.Format
	path   string
	length int
	write  func(tb require.TestingT, n int)
}

func newGrower(tb require.TestingT, format transcript.Format, source, path string) *grower {
	whole, err := os.ReadFile(source)
	require.NoError(tb, err)
	g := &grower{format: format, path: path}
	if format == transcript.ClaudeCode {
		lines := bytes.SplitAfter(bytes.TrimSpace(whole), []byte("\n"))
		g.length = len(lines)
		g.write = func(tb require.TestingT, n int) {
			require.NoError(tb, os.WriteFile(path, bytes.Join(lines[:n], nil), 0o600))
		}
		return g
	}
	var doc map[string]any
	require.NoError(tb, json.Unmarshal(bytes.SplitAfter(whole, []byte("\n"))[0], &doc))
	member := "messages"
	if format == transcript.SWEAgent {
		member = "history"
	}
	entries, ok := doc[member].([]any)
	require.True(tb, ok)
	steps, _ := doc["trajectory"].([]any)
	g.length = len(entries)
	g.write = func(tb require.TestingT, n int) {
		part := maps.Clone(doc)
		part[member] = entries[:n]
		if format == transcript.SWEAgent {
			part["trajectory"] = done(steps, entries, n)
		}
		if n < len(entries) {
			part["revision"] = n // a member of the document that changes while it grows
			delete(part, "info")
		}
		b, err := json.Marshal(part, json.Deterministic(true))
		require.NoError(tb, err)
		require.NoError(tb, os.WriteFile(path, append(b, '\n'), 0o600))
	}
	return g
}

// done are the steps of an agent that has written n of its history's entries: it saves its file once a step is done. A trajectory may lack a
// step, or have one that the history does not tell.
func done(steps, entries []any, n int) []any {
	waiting := map[any]bool{}
	for i, e := range entries {
		o, ok := e.(map[string]any)
		if ok && o["role"] == "assistant" && o["is_demo"] != true && (i >= n || i == n-1 && n < len(entries)) {
			waiting[o["action"]] = true
		}
	}
	if i := slices.IndexFunc(steps, func(s any) bool {
		o, ok := s.(map[string]any)
		return ok && waiting[o["action"]]
	}); i >= 0 {
		return steps[:i]
	}
	return steps
}

// runs reads the first n of the transcript.
func (g *grower) runs(tb require.TestingT, n int) []*transcript.Run {
	g.write(tb, n)
	f, err := transcript.Open(g.path, transcript.Options{Format: g.format})
	require.NoError(tb, err)
	var runs []*transcript.Run
	for run := range f.Runs() {
		runs = append(runs, run)
	}
	require.NoError(tb, f.Err())
	require.Empty(tb, f.Report().Problems)
	return runs
}

// reopened folds an import of each of the runs, which are one that grows.
func reopened(tb require.TestingT, runs []*transcript.Run) *schema.State {
	s := schema.NewState("default", runs[0].ID)
	stream := schema.StreamSequence(0)
	apply := func(e *schema.Event) {
		stream++
		header, body := e.Encode()
		rec := schema.NewRecord(stream, header, body)
		v := s.Apply(schema.NoKeys, &rec)
		require.Equal(tb, schema.Applied, v.Kind, "%s: %s %s", e.Type, v.Reason, v.Detail)
	}
	options := transcript.EventOptions{Fleet: "default", Executor: "importer"}
	for i, run := range runs {
		list, err := transcript.Events(run, options)
		require.NoError(tb, err, "import %d", i+1)
		options.After = s
		if i > 0 && len(list) > 0 {
			h := &s.Head
			takeover, err := schema.NewControl("default", "daemon", run.ID, h.Epoch+1, fmt.Sprintf("n%d", i), &schema.RunResumedData{
				Executor: "importer", Reason: schema.TakeoverReopen, RequestID: fmt.Sprintf("r%d", i),
				From: schema.From{Epoch: h.Epoch, Sequence: h.Sequence, Digest: h.Digest},
			}, time.Unix(0, 0))
			require.NoError(tb, err)
			apply(takeover)
			list, err = transcript.Events(run, options)
			require.NoError(tb, err, "import %d", i+1)
		}
		for _, e := range list {
			apply(e)
		}
		again, err := transcript.Events(run, options)
		require.NoError(tb, err, "import %d again", i+1)
		require.Empty(tb, again, "import %d again", i+1)
	}
	return s
}

// contents is what a run is about, whatever the turns.
func contents(s *schema.State) (list []string) {
	for _, m := range s.Joined() {
		for _, p := range m.Parts {
			list = append(list, fmt.Sprintf("%s %s %s %s %s %s %v", m.Role, p.Type, p.ID, p.Name, canonical(p.Arguments), canonical(p.Response), p.Content != nil && *p.Content != ""))
		}
	}
	slices.Sort(list) // an answer that is several lines is before the results that the source has between them
	for _, c := range s.Calls {
		list = append(list, fmt.Sprintf("%s %s %s %s %s", c.ToolCallID, c.Name, canonical(c.Arguments), c.Outcome, canonical(c.Result)))
	}
	return list
}

// requireGrown compares a run that was imported while it grew with the whole imported once.
func requireGrown(tb require.TestingT, whole, grown *schema.State) {
	require.Equal(tb, contents(whole), contents(grown))
	require.Equal(tb, whole.Head.Status, grown.Head.Status)
	require.Equal(tb, whole.Head.Counts.ToolCalls, grown.Head.Counts.ToolCalls)
	require.Equal(tb, whole.Head.Counts.ToolResults, grown.Head.Counts.ToolResults+grown.Head.Counts.Settled)
	require.GreaterOrEqual(tb, len(grown.Turns), len(whole.Turns), "the rest of an answer that was imported in its middle is a turn")
	for i := range grown.Turns {
		require.NotNil(tb, grown.Turns[i].Answer)
	}
	require.Equal(tb, whole.Head.Usage, grown.Head.Usage, "no token is counted twice")
	require.Equal(tb, whole.Ended.Status, grown.Ended.Status)
	require.Equal(tb, whole.Ended.Summary, grown.Ended.Summary)
	require.Equal(tb, whole.Ended.Output, grown.Ended.Output)
}

func TestEvents_TranscriptGrowsAnywhere_StateAndExportAreTheWholes(t *testing.T) {
	t.Parallel()
	for _, f := range transcript.Formats() {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			rapid.Check(t, func(rt *rapid.T) {
				source := writeGenerated(rt, folder, f, transcriptgen.Spec{Seed: rapid.Uint64().Draw(rt, "seed"), Turns: rapid.IntRange(1, 6).Draw(rt, "turns")})
				g := newGrower(rt, f, source, filepath.Join(folder, "grown"+filepath.Ext(source)))
				cuts := rapid.SliceOfN(rapid.IntRange(1, g.length), 0, 4).Draw(rt, "cuts")
				slices.Sort(cuts)
				var parts []*transcript.Run
				for _, n := range append(cuts, g.length) {
					if runs := g.runs(rt, n); len(runs) > 0 && runs[0].Parent == nil {
						parts = append(parts, runs[0])
					}
				}
				whole := parts[len(parts)-1]
				list, err := transcript.Events(whole, transcript.EventOptions{Fleet: "default", Executor: "importer"})
				require.NoError(rt, err)
				once, grown := fold(t, whole.ID, list), reopened(rt, parts)
				requireGrown(rt, once, grown)
				require.Equal(rt, string(export(t, once, f)), string(export(t, grown, f)))
			})
		})
	}
}

// A session in which results come between the lines of one answer, as tools that run while the model still speaks give them.
func TestEvents_SessionGrowsInsideAnAnswer_ExportIsTheWhole(t *testing.T) {
	t.Parallel()
	said := func(n int, id, block string) string {
		return fmt.Sprintf(`{"type":"assistant","uuid":"a%d","sessionId":"s","message":{"id":%q,"role":"assistant","content":[%s],"usage":{"input_tokens":9,"output_tokens":%d}}}`, n, id, block, n)
	}
	call := func(n int) string {
		return said(n, "m1", fmt.Sprintf(`{"type":"tool_use","id":"t%d","name":"Read","input":{}}`, n))
	}
	result := func(n int) string {
		return fmt.Sprintf(`{"type":"user","uuid":"r%d","sessionId":"s","message":{"role":"user","content":[{"type":"tool_result","tool_use_id":"t%d","content":"r%d"}]}}`, n, n, n)
	}
	lines := []string{
		`{"type":"user","uuid":"u","sessionId":"s","message":{"role":"user","content":"go"}}`,
		said(1, "m1", `{"type":"text","text":"I look."}`), call(2), result(2), call(3), call(4), result(4), result(3), call(5),
		said(6, "m2", `{"type":"text","text":"And?"}`), result(5), said(7, "m2", `{"type":"text","text":"Done."}`),
	}
	path := filepath.Join(t.TempDir(), "s.jsonl")
	prefix := func(n int) *transcript.Run {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(lines[:n], "\n")+"\n"), 0o600))
		runs, rep := open(t, path, transcript.Options{})
		require.Empty(t, rep.Problems)
		return runs[0]
	}
	whole := fold(t, "s", events(t, prefix(len(lines))))
	want := string(export(t, whole, transcript.ClaudeCode))
	require.Equal(t, len(lines), strings.Count(want, "\n"))
	require.Len(t, whole.Turns, 2)
	require.EqualValues(t, 12, whole.Head.Usage.OutputTokens)
	var all []*transcript.Run
	for i := 1; i <= len(lines); i++ {
		all = append(all, prefix(i))
	}
	check := func(parts ...*transcript.Run) *schema.State {
		grown := reopened(t, parts)
		requireGrown(t, whole, grown)
		require.Equal(t, want, string(export(t, grown, transcript.ClaudeCode)))
		for _, older := range all {
			list, err := transcript.Events(older, transcript.EventOptions{Fleet: "default", Executor: "importer", After: grown})
			require.NoError(t, err)
			require.Empty(t, list, "an older copy adds nothing")
		}
		return grown
	}
	require.EqualValues(t, 4, check(all...).Head.Counts.Settled, "each call was imported without its result first")
	for i := range all {
		for j := i; j < len(all); j++ {
			check(all[i], all[j], all[len(all)-1])
		}
	}
}

// fiveSteps are the cuts of a transcript that is imported five times while it grows.
func fiveSteps(length int) []int {
	return []int{max(1, length/5), max(1, 2*length/5), max(1, 3*length/5), max(1, 4*length/5), length}
}

func TestReplay_SessionImportedInFiveGrowingSteps_EqualsTheWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("importer")
	for _, f := range transcript.Formats() {
		folder := t.TempDir()
		source := writeGenerated(t, folder, f, transcriptgen.Spec{Seed: 3, Turns: 12})
		g := newGrower(t, f, source, filepath.Join(folder, "grown"+filepath.Ext(source)))
		id := string(f)
		for i, n := range fiveSteps(g.length) {
			run := g.runs(t, n)[0]
			run.ID = id
			out, err := transcript.Replay(t.Context(), fleet, run, transcript.ReplayOptions{})
			require.NoError(t, err, "%s, import %d", id, i+1)
			require.Equal(t, i > 0, out.Reopened, "%s, import %d", id, i+1)
			out, err = transcript.Compare(t.Context(), fleet, run, transcript.ReplayOptions{})
			require.NoError(t, err)
			require.Equal(t, out.Steps, out.Done, "%s, import %d again", id, i+1)
		}
		run := g.runs(t, g.length)[0]
		run.ID = id
		whole, grown := fold(t, id, events(t, run)), w.recovered(fleet, id)
		requireGrown(t, whole, grown)
		require.Equal(t, string(export(t, whole, f)), string(export(t, grown, f)))
	}
}

func TestReplay_OlderCopyOfTheTranscript_NothingIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("importer")
	folder := t.TempDir()
	source := writeGenerated(t, folder, transcript.OpenAIChat, transcriptgen.Spec{Seed: 3, Turns: 6, Plain: true})
	g := newGrower(t, transcript.OpenAIChat, source, filepath.Join(folder, "older.jsonl"))
	whole, older := g.runs(t, g.length)[0], g.runs(t, g.length/2)[0]
	_, err := transcript.Replay(t.Context(), fleet, whole, transcript.ReplayOptions{})
	require.NoError(t, err)
	before := w.recovered(fleet, whole.ID).Head.Digest
	older.ID = whole.ID
	out, err := transcript.Replay(t.Context(), fleet, older, transcript.ReplayOptions{})
	require.NoError(t, err)
	require.Equal(t, out.Steps, out.Done)
	require.Contains(t, out.More, "messages, the transcript")
	require.Equal(t, before, w.recovered(fleet, whole.ID).Head.Digest)
}

func TestCompare_MessagesDifferFurtherOn_ErrorSaysSo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "long.json")
	read := func(end string) *transcript.Run {
		text := `{"messages":[{"role":"user","content":"` + strings.Repeat("wheel ", 40) + end + `"}]}`
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		runs, _ := open(t, path, transcript.Options{})
		return runs[0]
	}
	there := fold(t, "long", events(t, read("one")))
	_, err := transcript.Events(read("two"), transcript.EventOptions{Fleet: "default", Executor: "x", After: there})
	require.ErrorIs(t, err, transcript.ErrDiverged)
	require.ErrorContains(t, err, "differs from the transcript further on")
}

func TestRuns_LineThatCannotBeRead_RunDoesNotEndCompleted(t *testing.T) {
	t.Parallel()
	const (
		asked    = `{"type":"user","sessionId":"s","uuid":"u1","message":{"role":"user","content":"hello"}}`
		answered = `{"type":"assistant","sessionId":"s","uuid":"u2","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"Hi"}]}}`
	)
	path := filepath.Join(t.TempDir(), "s.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(asked+"\n"+answered+"\n"+`{"type":"user","mess`+"\n"), 0o600))
	runs, rep := open(t, path, transcript.Options{})
	require.Len(t, rep.Problems, 1)
	require.Equal(t, schema.StatusFailed, runs[0].End.Status)
	require.Equal(t, "incomplete_transcript", runs[0].End.Error.Type)
	require.Contains(t, runs[0].End.Summary, "line 3")
	require.NotContains(t, runs[0].End.Summary, path, "the same file elsewhere gives the same run")

	damaged := runs[0]
	require.NoError(t, os.WriteFile(path, []byte(asked+"\n"+answered+"\n"+asked+"\n"+strings.ReplaceAll(answered, "m1", "m2")+"\n"), 0o600))
	runs, _ = open(t, path, transcript.Options{})
	mended := reopened(t, []*transcript.Run{damaged, runs[0]})
	require.Equal(t, schema.StatusCompleted, mended.Head.Status)
	require.Equal(t, essence(fold(t, "s", events(t, runs[0]))), essence(mended))
}

func TestOpen_Stopped_ReadingEndsAtOnce(t *testing.T) {
	t.Parallel()
	stopped := errors.New("stopped")
	step := 4
	if testing.Short() {
		step = 16
		t.Log("short: a quarter of the places")
	}
	for _, f := range transcript.Formats() {
		path := writeGenerated(t, t.TempDir(), f, transcriptgen.Spec{Seed: 1, Turns: 40, Text: 20 << 10, Plain: true})
		most := 40 // in the messages of a document, which is read as a whole
		if f == transcript.ClaudeCode {
			most = 16
		}
		for reads := 0; reads <= most; reads += step {
			n := 0
			opened, err := transcript.Open(path, transcript.Options{Stop: func() error {
				if n++; n > reads {
					return stopped
				}
				return nil
			}})
			if err == nil {
				for range opened.Runs() {
					continue
				}
				err = opened.Err()
			}
			require.ErrorIs(t, err, stopped, "%s, read or message %d", f, reads)
		}
	}
}

// The observation stands in the trajectory before the message with it is written, in another text.
func TestReplay_ObservationIsWrittenLater_MessageKeepsItsText(t *testing.T) {
	t.Parallel()
	const (
		before = `{"history":[{"role":"user","content":"fix"},{"role":"assistant","content":"I look","action":"ls"}],` +
			`"trajectory":[{"action":"ls","observation":"a.py","response":"I look"}],"info":{}}`
		after = `{"history":[{"role":"user","content":"fix"},{"role":"assistant","content":"I look","action":"ls"},` +
			`{"role":"user","content":"OBSERVATION: a.py"},{"role":"assistant","content":"Done","action":"submit"}],` +
			`"trajectory":[{"action":"ls","observation":"a.py","response":"I look"}],"info":{"exit_status":"submitted"}}`
	)
	path := filepath.Join(t.TempDir(), "fix.traj")
	var runs []*transcript.Run
	for _, text := range []string{before, after} {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		read, rep := open(t, path, transcript.Options{})
		require.Empty(t, rep.Problems)
		runs = append(runs, read[0])
	}
	out := string(export(t, reopened(t, runs), transcript.SWEAgent))
	require.Contains(t, out, `"content":"OBSERVATION: a.py"`)
	require.Contains(t, out, `"observation":"a.py"`)
	require.Contains(t, out, `"exit_status":"submitted"`)
}

func TestReplay_RunOfAnotherExecutor_IsRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	folder := t.TempDir()
	source := writeGenerated(t, folder, transcript.OpenAIChat, transcriptgen.Spec{Seed: 3, Turns: 6, Plain: true})
	g := newGrower(t, transcript.OpenAIChat, source, filepath.Join(folder, "grown.jsonl"))
	half, whole := g.runs(t, g.length/2)[0], g.runs(t, g.length)[0]
	mine, bob := w.fleet("importer"), w.fleet("bob")
	_, err := transcript.Replay(t.Context(), mine, half, transcript.ReplayOptions{})
	require.NoError(t, err)
	live, err := bob.Resume(t.Context(), half.ID, publisher.ResumeSpec{Reason: schema.TakeoverReopen})
	require.NoError(t, err)

	before := w.recovered(mine, half.ID).Head.Digest
	for _, again := range []func(context.Context, *publisher.Fleet, *transcript.Run, transcript.ReplayOptions) (transcript.Outcome, error){
		transcript.Replay, transcript.Compare,
	} {
		_, err = again(t.Context(), mine, whole, transcript.ReplayOptions{})
		require.ErrorIs(t, err, transcript.ErrInUse)
		require.ErrorContains(t, err, "bob")
		// The run has all of this one but its end, which is for bob to write.
		out, err := again(t.Context(), mine, half, transcript.ReplayOptions{})
		require.NoError(t, err)
		require.Equal(t, out.Steps, out.Done)
		require.False(t, out.Resumed)
		require.Contains(t, out.More, "bob")
	}
	require.Equal(t, before, w.recovered(mine, half.ID).Head.Digest)
	require.NoError(t, live.Mark(t.Context(), "still mine"))

	out, err := transcript.Replay(t.Context(), mine, whole, transcript.ReplayOptions{TakeOver: true})
	require.NoError(t, err)
	require.True(t, out.Resumed)
	require.Equal(t, schema.StatusCompleted, w.recovered(mine, half.ID).Head.Status)
}

// A run that never ended lacks its end: its executor may still be at work, whatever it has.
func TestReplay_RunNeverEnded_OnlyEndIsMissing_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	runs, _ := open(t, "testdata/harbour.jsonl", transcript.Options{})
	mine, bob := w.fleet("importer"), w.fleet("bob")
	list := events(t, runs[0])
	ctx, cancel := context.WithCancel(t.Context())
	_, err := transcript.Replay(ctx, bob, runs[0], transcript.ReplayOptions{OnBoundary: func(b transcript.Boundary) {
		if b.Step == len(list)-1 {
			cancel()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
	_, err = transcript.Replay(t.Context(), mine, runs[0], transcript.ReplayOptions{})
	require.ErrorIs(t, err, transcript.ErrInUse)
}

// A person said that the call was abandoned. That stands; the message of the transcript brings what it says itself.
func TestReplay_CallWasSettledAsAbandoned_MessageKeepsItsResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	fleet := w.fleet("importer")
	const asked = `{"id":"m","messages":[{"role":"user","content":"go"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"a","arguments":"{}"}}]}`
	path := filepath.Join(t.TempDir(), "m.json")
	read := func(text string) *transcript.Run {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		runs, _ := open(t, path, transcript.Options{})
		return runs[0]
	}
	_, err := transcript.Replay(t.Context(), fleet, read(asked+"]}"), transcript.ReplayOptions{})
	require.NoError(t, err)
	key := schema.CallKey{Turn: 1, ToolCallID: "c1", Occurrence: 1}
	_, err = fleet.Settle(t.Context(), "m", schema.SettleRequest{CallKey: key, How: schema.SettledAbandoned, By: "olga"})
	require.NoError(t, err)
	whole := read(asked + `,{"role":"tool","tool_call_id":"c1","content":"done"}]}`)
	for range 2 {
		_, err = transcript.Replay(t.Context(), fleet, whole, transcript.ReplayOptions{})
		require.NoError(t, err)
	}
	s := w.recovered(fleet, "m")
	require.Equal(t, schema.OutcomeAbandoned, s.Calls[0].Outcome)
	require.Equal(t, string(export(t, fold(t, "m", events(t, whole)), transcript.OpenAIChat)), string(export(t, s, transcript.OpenAIChat)))
}
