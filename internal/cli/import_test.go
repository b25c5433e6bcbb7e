package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// importWorld is a daemon and a directory of transcripts.
type importWorld struct {
	t      *testing.T
	dir    string
	nats   *natstest.Server
	server string
	getenv func(string) string
}

func newImportWorld(t *testing.T) *importWorld {
	t.Helper()
	server := natstest.Start(t)
	w := &importWorld{t: t, dir: t.TempDir(), nats: server, server: server.NATSD().Endpoint().Context, getenv: func(string) string { return "" }}
	_, stop, err := startDaemon([]string{"--http", "off", "--context", w.server, "--quota", "128MiB", "--log-level", "error"}, w.getenv)
	require.NoError(t, err)
	t.Cleanup(func() {
		code, log := stop()
		require.Equal(t, int(failure.OK), code, log)
	})
	return w
}

// Run runs a command; both outputs are one.
func (w *importWorld) run(want failure.Code, args ...string) string {
	w.t.Helper()
	return w.runWithin(w.t.Context(), want, args...)
}

func (w *importWorld) runWithin(ctx context.Context, want failure.Code, args ...string) string {
	w.t.Helper()
	var out bytes.Buffer
	code := Run(ctx, append([]string{"--context", w.server}, args...), w.getenv, strings.NewReader(""), &out, &out)
	require.Equal(w.t, int(want), code, "%v: %s", args, &out)
	return out.String()
}

// file writes a file and returns its path.
func (w *importWorld) file(name, text string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, filepath.FromSlash(name))
	require.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(w.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// talk is a conversation of so many questions and answers.
func talk(id string, turns int, first string) string {
	messages := make([]string, 0, turns)
	for i := range turns {
		messages = append(messages, fmt.Sprintf(`{"role":"user","content":"%s %d"},{"role":"assistant","content":"Answer %d."}`, first, i+1, i+1))
	}
	return fmt.Sprintf(`{"id":%q,"messages":[%s]}`, id, strings.Join(messages, ","))
}

// The table of exit codes of import, each met as a user meets it.
func TestImport_Failures_HaveExitCodes(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	file := w.file("talk.json", talk("talk", 1, "question"))

	t.Run("2: nothing, a pipe, an unknown format", func(t *testing.T) {
		requireHas(t, w.run(failure.Usage, "import"), "nothing to import")
		requireHas(t, w.run(failure.Usage, "import", w.file("notes.txt", "hello")), "--format")
		requireHas(t, w.run(failure.Usage, "import", os.DevNull), "not a regular file")
	})
	t.Run("4: no such file, no transcript in a directory", func(t *testing.T) {
		requireHas(t, w.run(failure.NotFound, "import", filepath.Join(w.dir, "none.json")), "none.json")
		w.file("other/readme.md", "hello")
		requireHas(t, w.run(failure.NotFound, "import", filepath.Join(w.dir, "other")), "no transcript")
	})
	t.Run("3: no daemon", func(t *testing.T) {
		var out bytes.Buffer
		code := Run(t.Context(), []string{"--state-dir", t.TempDir(), "import", file}, func(string) string { return "" }, nil, &out, &out)
		require.Equal(t, int(failure.Unavailable), code, &out)
	})
	t.Run("130: Ctrl-C", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		w.runWithin(ctx, failure.Interrupted, "import", file)
		w.runWithin(ctx, failure.Interrupted, "import", w.dir)
	})
	t.Run("0: a dry run writes nothing", func(t *testing.T) {
		requireHas(t, w.run(failure.OK, "import", "--dry-run", file), "1 would be imported")
		requireHas(t, w.run(failure.OK, "runs", "ls"), "no runs")
	})
	t.Run("0: imported, and listed at once", func(t *testing.T) {
		requireHas(t, w.run(failure.OK, "import", file), "1 imported")
		requireHas(t, w.run(failure.OK, "runs", "ls"), "talk")
	})
	t.Run("0: already there", func(t *testing.T) {
		requireHas(t, w.run(failure.OK, "import", file), "1 already there")
	})
	t.Run("0: a session that grew", func(t *testing.T) {
		w.file("talk.json", talk("talk", 2, "question"))
		requireHas(t, w.run(failure.OK, "import", "--dry-run", file), "1 would be appended")
		requireHas(t, w.run(failure.OK, "import", file), "1 appended")
		requireHas(t, w.run(failure.OK, "export", "talk"), "Answer 2.")
		requireHas(t, w.run(failure.OK, "runs", "get", "talk"), "completed")
		requireHas(t, w.run(failure.OK, "import", file), "1 already there")
	})
	t.Run("5: another session under the id", func(t *testing.T) {
		other := w.file("else.json", talk("talk", 2, "remark"))
		out := w.run(failure.Conflict, "import", other)
		requireHas(t, out, `"question 1"`)
		requireHas(t, out, `"remark 1"`)
		requireHas(t, out, "--run-id")
		requireHas(t, w.run(failure.OK, "import", "--run-id", "talk-2", other), "1 imported")
	})
	t.Run("5: another executor has the run", func(t *testing.T) {
		bob, err := publisher.Connect(t.Context(), publisher.Config{Conn: w.nats.Conn(t, nats.ReconnectBufSize(-1)), Executor: "bob"})
		require.NoError(t, err)
		defer func() { require.NoError(t, bob.Close(t.Context())) }()
		_, err = bob.Resume(t.Context(), "talk", publisher.ResumeSpec{Reason: schema.TakeoverReopen})
		require.NoError(t, err)
		requireHas(t, w.run(failure.OK, "import", file), "executor bob continues it")
		w.file("talk.json", talk("talk", 3, "question"))
		out := w.run(failure.Conflict, "import", file)
		requireHas(t, out, "bob")
		requireHas(t, out, "--take-over")
		requireHas(t, w.run(failure.Conflict, "import", "--dry-run", file), "in use")
		requireHas(t, w.run(failure.OK, "runs", "get", "talk"), "bob")
		requireHas(t, w.run(failure.OK, "import", "--take-over", file), "1 continued")
	})
	t.Run("6: a line that cannot be read, and 0 once it is mended", func(t *testing.T) {
		const (
			asked    = `{"type":"user","sessionId":"s","uuid":"u1","message":{"role":"user","content":"hello"}}` + "\n"
			answered = `{"type":"assistant","sessionId":"s","uuid":"u2","message":{"id":"m1","role":"assistant","content":[{"type":"text","text":"Hi"}]}}` + "\n"
		)
		session := w.file("session.jsonl", asked+answered+`{"type":"user","mess`)
		out := w.run(failure.Damaged, "import", session)
		requireHas(t, out, "session.jsonl:3")
		requireHas(t, out, "1 place in the input was not imported")
		requireHas(t, out, "--run-id ANOTHER")
		requireHas(t, w.run(failure.OK, "runs", "get", "session"), "failed")
		w.file("session.jsonl", asked+answered+asked+strings.ReplaceAll(answered, "m1", "m2"))
		requireHas(t, w.run(failure.OK, "import", session), "1 appended")
		requireHas(t, w.run(failure.OK, "runs", "get", "session"), "completed")
	})
	t.Run("0: a directory, with files of the same name", func(t *testing.T) {
		trajectory, err := os.ReadFile(filepath.Join("..", "transcript", "testdata", "small", "fix-rounding.traj"))
		require.NoError(t, err)
		w.file("tasks/a/task.traj", string(trajectory))
		w.file("tasks/b/task.traj", strings.ReplaceAll(string(trajectory), "round", "square"))
		w.file("tasks/b/notes.txt", "hello")
		w.file("tasks/b/settings.json", `{"colour":"red"}`)
		out := w.run(failure.OK, "import", filepath.Join(w.dir, "tasks"))
		requireHas(t, out, "a-task")
		requireHas(t, out, "b-task")
		requireHas(t, out, "2 imported")
		requireHas(t, out, "1 other file was omitted")
		requireHas(t, out, "settings.json")
		requireHas(t, w.run(failure.OK, "import", filepath.Join(w.dir, "tasks")), "2 already there")
	})
}

// A file that was imported keeps its run when another file of its name comes to the directory.
func TestImport_SecondFileOfTheSameName_FirstKeepsItsID(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	talk := func(question string, turns int) string {
		return strings.Replace(talk("", turns, question), `"id":"",`, "", 1)
	}
	dir := filepath.Join(w.dir, "tasks")
	w.file("tasks/a/task.json", talk("question", 1))
	requireHas(t, w.run(failure.OK, "import", dir), "1 imported")
	w.file("tasks/b/task.json", talk("remark", 1))
	out := w.run(failure.OK, "import", dir)
	requireHas(t, out, "1 imported, 1 already there")
	requireHas(t, out, "run task keeps its id")
	requireHas(t, out, "b-task")
	require.NotContains(t, out, "a-task")
	w.file("tasks/a/task.json", talk("question", 2))
	w.file("tasks/b/task.json", talk("remark", 2))
	requireHas(t, w.run(failure.OK, "import", "--dry-run", dir), "2 would be appended")
	requireHas(t, w.run(failure.OK, "import", dir), "2 appended")
	requireHas(t, w.run(failure.OK, "export", "task"), "question 2")
	requireHas(t, w.run(failure.OK, "export", "b-task"), "remark 2")
	require.NotContains(t, w.run(failure.OK, "runs", "ls"), "a-task")
}

// Import names the files of a directory that it cannot import, with --json too, and imports the others.
func TestImport_DirectoryWithDamagedAndClosedFiles_NamesThem(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	trajectory, err := os.ReadFile(filepath.Join("..", "transcript", "testdata", "small", "fix-rounding.traj"))
	require.NoError(t, err)
	w.file("mixed/good.traj", string(trajectory))
	w.file("mixed/cut.traj", string(trajectory[:300]))
	w.file("mixed/empty.jsonl", "")
	want, code := []string{"cut.traj", "empty.jsonl"}, failure.OK
	if runtime.GOOS != "windows" && os.Getuid() != 0 {
		closed := w.file("mixed/closed.traj", string(trajectory))
		require.NoError(t, os.Chmod(closed, 0))
		require.NoError(t, os.MkdirAll(filepath.Join(w.dir, "mixed", "shut"), 0))
		want, code = append(want, "closed.traj", "shut"), failure.General
	}
	for _, args := range [][]string{{"import", "--dry-run"}, {"import", "--json"}, {"import"}} {
		out := w.run(code, append(args, filepath.Join(w.dir, "mixed"))...)
		for _, name := range want {
			requireHas(t, out, name)
		}
	}
	out := w.run(failure.Usage, "import", w.file("empty.jsonl", ""), w.file("blank.jsonl", " \n"), w.file("ok.traj", string(trajectory)))
	for _, name := range []string{"not imported: ", "empty.jsonl", "blank.jsonl"} {
		requireHas(t, out, name)
	}
}

// What is listed and counted reads as words do.
func TestImport_Output_PluralsAndJSON(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	session := w.file("one.jsonl", `{"type":"summary","leafUuid":"x","summary":"s"}`+"\n"+
		`{"type":"user","sessionId":"s","uuid":"u1","message":{"role":"user","content":"hello"}}`+"\n")
	out := w.run(failure.OK, "import", session)
	requireHas(t, out, "1 line is not a message")
	require.NotRegexp(t, `\b1 (turns|lines|calls|runs|files|places)\b`, out)
	var done struct {
		Fate   string        `json:"fate"`
		Status schema.Status `json:"status"`
		Events int           `json:"events"`
		Before int           `json:"events_before"`
	}
	line, _, _ := strings.Cut(w.run(failure.OK, "import", "--json", session), "\n")
	require.NoError(t, json.Unmarshal([]byte(line), &done))
	require.Equal(t, "already there", done.Fate)
	require.Equal(t, done.Events, done.Before)
	require.Equal(t, schema.StatusCompleted, done.Status)
}

// --run-id is refused for several files and for several conversations in one file. The hint names a command that is taken there.
func TestImport_RunDiffers_HintIsTakenForFileDirectoryAndSeveralConversations(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	w.run(failure.OK, "import", w.file("first.json", talk("talk", 1, "question")))
	other := w.file("there/else.json", talk("talk", 1, "remark"))
	w.file("there/more.json", talk("more", 1, "question"))
	several := w.file("several.jsonl", talk("alone", 1, "question")+"\n"+talk("talk", 1, "aside")+"\n")
	for i, test := range []struct{ what, label string }{
		{other, "or import it under another id:"},
		{filepath.Dir(other), "or import it under another id:"},
		{several, "under another id: copy line 2 of " + several + " into a file of its own, then"},
	} {
		out := w.run(failure.Conflict, "import", test.what, "--format", "openai-chat", "--agent", "coder")
		require.Contains(t, out, "hint: nothing was written to it; ")
		args, id := pasted(t, out, test.label), fmt.Sprintf("another-%d", i)
		for j := range args {
			args[j] = strings.ReplaceAll(args[j], "ANOTHER", id)
		}
		if test.what == several {
			require.Equal(t, "FILE", args[len(args)-1])
			args[len(args)-1] = w.file("copy.json", talk("talk", 1, "aside"))
		}
		var said bytes.Buffer
		require.Zero(t, Run(t.Context(), args, w.getenv, strings.NewReader(""), &said, &said), "%v: %s", args, &said)
		requireHas(t, said.String(), id)
	}
}

// The lines behind a damaged one are in the run, so that the mended session differs from it. The hint names the command that brings it in.
func TestImport_DamagedLineInTheMiddle_HintBringsTheMendedSessionIn(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	line := func(n int, role string) string {
		return fmt.Sprintf(`{"type":%q,"sessionId":"s","uuid":"u%d","message":{"role":%q,"content":"text %d"}}`, role, n, role, n)
	}
	lines := []string{line(1, "user"), line(2, "assistant"), line(3, "user"), line(4, "assistant")}
	whole := strings.Join(lines, "\n") + "\n"
	lines[1] = lines[1][:30]
	session := w.file("session.jsonl", strings.Join(lines, "\n")+"\n")
	out := w.run(failure.Damaged, "import", session)
	args, id := pasted(t, out, "if other lines follow them:"), "another"
	w.file("session.jsonl", whole)
	requireHas(t, w.run(failure.Conflict, "import", session), "differs")
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "ANOTHER", id)
	}
	var said bytes.Buffer
	require.Zero(t, Run(t.Context(), args, w.getenv, strings.NewReader(""), &said, &said), "%v: %s", args, &said)
	requireHas(t, w.run(failure.OK, "export", id), "text 2")
	requireHas(t, w.run(failure.Damaged, "import", "--format", "openai-chat", w.file("blank.json", " ")), "there is no run to import")
}

// A session brings its sub-agents, whose files are left out of a directory. Where the session is not in it, that is said.
func TestImport_FolderOfASession_NamesTheSession(t *testing.T) {
	t.Parallel()
	w := newImportWorld(t)
	line := `{"type":"user","sessionId":"s","uuid":"u1","message":{"role":"user","content":"go"}}` + "\n"
	session := w.file("s.jsonl", line)
	w.file("s/subagents/agent-a1.jsonl", strings.Replace(line, `"sessionId"`, `"isSidechain":true,"agentId":"a1","sessionId"`, 1))
	folder := filepath.Join(w.dir, "s")
	out := w.run(failure.NotFound, "import", folder)
	requireHas(t, out, "1 sub-agent of a session is in "+folder+", but the session is not")
	args := pasted(t, out, "which includes them:")
	require.Equal(t, []string{"import", session}, args[len(args)-2:])
	w.file("s/talk.json", talk("talk", 1, "question"))
	requireHas(t, w.run(failure.OK, "import", folder), "1 sub-agent of a session is in "+folder)
	out = w.run(failure.OK, "import", w.dir)
	requireHas(t, out, "s-agent-a1")
	require.NotContains(t, out, "of a session is in")
}
