package transcript_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

func writeFile(tb testing.TB, name, content string) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), name)
	require.NoError(tb, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// A session is written line by line: the first lines are no messages, and nothing is wrong with them.
func TestClaudeCode_NoMessageYet_IsNoted(t *testing.T) {
	t.Parallel()
	runs, rep := open(t, writeFile(t, "s.jsonl", `{"type":"progress","uuid":"u","data":{"type":"x"}}`), transcript.Options{})
	require.Empty(t, runs)
	require.Empty(t, rep.Problems)
	require.Len(t, rep.Notes, 1)
	require.Contains(t, rep.Notes[0], "s.jsonl has no message yet")
}

func TestImport_BadInput_NamedRestImported(t *testing.T) {
	t.Parallel()
	const good = `{"id":"good","messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"ho"}]}` + "\n"
	const goodLine = `{"type":"user","uuid":"u1","sessionId":"s","message":{"role":"user","content":"hi"}}` + "\n"
	deep := strings.Repeat("[", 600) + strings.Repeat("]", 600)
	for _, tt := range []struct {
		name, file, content string
		// problem is a part of the error, line and path its place; runs is what is imported nevertheless.
		problem string
		line    int
		path    string
		runs    int
	}{
		{"a broken line is named and the next one imported", "a.jsonl", `{"messages":[{"role"` + "\n" + good, "not valid JSON", 1, "", 1},
		{"a broken last line is named", "a.jsonl", good + `{"messages":`, "not valid JSON", 2, "", 1},
		{"a member that is there twice is named", "a.jsonl", good + `{"messages":[{"role":"user","role":"user"}]}`, "duplicate", 2, "/messages/0/role", 1},
		{"too deep nesting is named", "a.jsonl", good + `{"messages":[{"role":"user","content":` + deep + `}]}`, "nested too deep", 2, "", 1},
		{"a message without a role is named", "a.jsonl", good + `{"messages":[{"content":"x"}]}`, "no role", 2, "/messages/0", 1},
		{"a role that says nothing is named", "a.jsonl", good + `{"messages":[{"role":"","content":"x"}]}`, "no role", 2, "/messages/0", 1},
		{"a message that is no object is named", "a.jsonl", good + `{"messages":[5]}`, "not an object", 2, "/messages/0", 1},
		{"a conversation without messages is named", "a.jsonl", good + `{"message":[]}`, "no list of messages", 2, "/messages", 1},
		{"something after a line's value is named", "a.jsonl", good + good[:len(good)-1] + "x\n" + good, "not valid JSON", 2, "", 2},
		{"something after a document is named", "a.json", "{\n\"messages\":[]}\n\n x", "follows", 4, "", 1},
		{"something after an array is named", "a.json", "[\n" + strings.TrimSpace(good) + "]\n[1]", "follows", 3, "", 1},
		{"a broken line of a session is named", "s.jsonl", goodLine + "{\n" + goodLine, "not valid JSON", 2, "", 1},
		{"a session line without its message is named", "s.jsonl", goodLine + `{"type":"user","uuid":"u2"}`, "no message", 2, "", 1},
		{"a session line whose role says nothing is named", "s.jsonl", goodLine + `{"type":"user","uuid":"u2","message":{"role":""}}`, "no role", 2, "", 1},
		{"a trajectory whose history is no list is named", "t.traj", `{"history":{}}`, "no list of history", 1, "/history", 0},
		{"a history entry without a role is named", "t.traj", `{"history":[{"role":"user","content":""},{"content":""}]}`, "no role", 1, "/history/1", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := writeFile(t, tt.file, tt.content)
			runs, rep := open(t, path, transcript.Options{})
			require.Len(t, runs, tt.runs)
			require.Len(t, rep.Problems, 1)
			p := rep.Problems[0]
			require.ErrorContains(t, p, tt.problem)
			require.Equal(t, tt.line, p.Line, p.Error())
			if tt.path != "" {
				require.Equal(t, tt.path, p.Path)
			}
			require.Equal(t, path, p.File)
			for _, run := range runs {
				fold(t, run.ID, events(t, run))
			}
		})
	}
}

func TestOpen_Invalid_RefusedByName(t *testing.T) {
	t.Parallel()
	two := `{"messages":[]}` + "\n" + `{"messages":[]}` + "\n"
	for _, tt := range []struct {
		name, content string
		opts          transcript.Options
		target        error
		text          string
	}{
		{"an empty file", "", transcript.Options{}, transcript.ErrUnknownFormat, "empty"},
		{"a text that is no JSON", "hello\nworld\n", transcript.Options{}, transcript.ErrUnknownFormat, "unknown transcript format"},
		{"JSON of something else", `{"a":1}`, transcript.Options{}, transcript.ErrUnknownFormat, "unknown transcript format"},
		{"an unknown format", two, transcript.Options{Format: "yaml"}, transcript.ErrUnknownFormat, "yaml"},
		{"a run id outside the grammar", two, transcript.Options{RunID: "a/b"}, nil, `run id "a/b"`},
		{"a run id for several runs", two, transcript.Options{RunID: "one"}, transcript.ErrSeveralRuns, "several"},
		{"an agent outside the grammar", two, transcript.Options{Agent: "a b"}, nil, `agent "a b"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := transcript.Open(writeFile(t, "x.jsonl", tt.content), tt.opts)
			require.ErrorContains(t, err, tt.text)
			if tt.target != nil {
				require.ErrorIs(t, err, tt.target)
			}
		})
	}
	_, err := transcript.Open(filepath.Join(t.TempDir(), "absent.jsonl"), transcript.Options{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = transcript.Open(t.TempDir(), transcript.Options{})
	require.ErrorContains(t, err, "folder")
}

func TestRunID_Generated_FitsAndHasTime(t *testing.T) {
	t.Parallel()
	line := func(id string) string {
		return fmt.Sprintf(`{"id":%q,"messages":[{"role":"user","content":"x"}]}`+"\n", id)
	}
	runs, rep := open(t, writeFile(t, "my file.jsonl", line("fits-1")+line("a/b c")+line("fits-1")+line(strings.Repeat("x", 80))+`{"messages":[]}`), transcript.Options{})
	var got []string
	for _, r := range runs {
		require.True(t, schema.ValidName(r.ID), r.ID)
		got = append(got, r.ID)
	}
	require.Equal(t, "fits-1", got[0])
	require.True(t, strings.HasPrefix(got[1], "a-b-c-"), got[1])
	require.Equal(t, "fits-1-3", got[2])
	require.True(t, strings.HasPrefix(got[4], "my-file-5-"), got[4])
	require.Len(t, rep.Notes, 5)

	runs, _ = open(t, writeFile(t, "my file.jsonl", line("fits-1")), transcript.Options{RunID: "chosen"})
	require.Equal(t, "chosen", runs[0].ID)
	require.Equal(t, "run-"+transcript.SafeID("///")[4:], transcript.SafeID("///"))
	require.NotEqual(t, transcript.SafeID("a b"), transcript.SafeID("a/b"))
}

func TestImport_Session_BringsSubAgents(t *testing.T) {
	t.Parallel()
	runs, rep := open(t, "testdata/mill-session.jsonl", transcript.Options{})
	got := make(map[string]*transcript.Run)
	for _, r := range runs {
		got[r.ID] = r
	}
	require.Len(t, runs, 4)
	require.Equal(t, &schema.Parent{Run: "mill-session", Turn: 2, ToolCallID: "task-a"}, got["mill-session-agent-a1f"].Parent)
	require.Equal(t, "surveyor", got["mill-session-agent-a1f"].Agent)
	require.Equal(t, &schema.Parent{Run: "mill-session", Turn: 3, ToolCallID: "task-b"}, got["mill-session-agent-b2e"].Parent)
	require.Equal(t, &schema.Parent{Run: "mill-session"}, got["mill-session-agent-acompact-0c"].Parent, "a compaction agent has no call")
	require.Equal(t, 1, rep.Compactions)
	main := got["mill-session"]
	var compaction *transcript.Compaction
	for _, s := range main.Steps {
		if s.Compaction != nil {
			compaction = s.Compaction
		}
	}
	require.Contains(t, compaction.Summary, "This session goes on from an earlier one")
	require.EqualValues(t, 167094, compaction.TokensBefore)
	require.EqualValues(t, 3, compaction.ThroughTurn)
	turn := main.Steps[0].Turn
	require.Nil(t, turn.Answer.FinishReasons, "a stop reason that is null stays null")
	require.EqualValues(t, 5, turn.Answer.Usage.OutputTokens, "the last line of the turn counts")

	// A child's own id, when its file is named alone.
	runs, _ = open(t, "testdata/mill-session/subagents/agent-a1f.jsonl", transcript.Options{})
	require.Equal(t, "mill-session-agent-a1f", runs[0].ID)
	require.Equal(t, "mill-session", runs[0].Parent.Run)
}

func TestLines_LongLine_ReadUpToLimit(t *testing.T) {
	t.Parallel()
	long := `{"messages":[{"role":"user","content":"` + strings.Repeat("x", 3<<20) + `"}]}` + "\n"
	path := writeFile(t, "long.jsonl", long+`{"messages":[]}`+"\n")
	runs, rep := open(t, path, transcript.Options{})
	require.Len(t, runs, 2)
	require.Empty(t, rep.Problems)
	var read int
	runs, rep = open(t, path, transcript.Options{MaxLine: 1 << 20, OnRead: func(n int) { read += n }})
	require.Len(t, runs, 1)
	require.ErrorContains(t, rep.Problems[0], "too long")
	require.Equal(t, 1, rep.Problems[0].Line)
	require.Equal(t, len(long)+16, read)
}

func TestImport_Times_EqualSource(t *testing.T) {
	t.Parallel()
	runs, _ := open(t, "testdata/mill-session.jsonl", transcript.Options{})
	list := events(t, runs[0])
	require.Equal(t, "2026-03-01T10:00:01Z", list[0].Time)
	for i, e := range list {
		require.True(t, strings.HasPrefix(e.Time, "2026-03-01T10:00:"), "event %d %s at %s", i, e.Type, e.Time)
	}
}

func TestExport_OtherFormat_Converted(t *testing.T) {
	t.Parallel()
	for _, path := range transcripts(t, "testdata") {
		runs, _ := open(t, path, transcript.Options{})
		for _, run := range runs {
			s := fold(t, run.ID, events(t, run))
			for _, f := range transcript.Formats() {
				out := export(t, s, f)
				name := filepath.Join(t.TempDir(), "out.jsonl")
				require.NoError(t, os.WriteFile(name, out, 0o600))
				back, rep := open(t, name, transcript.Options{Format: f})
				require.Empty(t, rep.Problems, "%s as %s: %s", run.ID, f, out)
				require.Len(t, back, 1)
				again := fold(t, back[0].ID, events(t, back[0]))
				// A demonstration's calls become calls where the format knows no demonstrations.
				extra := len(again.Calls) - len(s.Calls)
				require.GreaterOrEqual(t, extra, 0, "%s as %s", run.ID, f)
				for i := range s.Calls {
					require.Equal(t, s.Calls[i].Name, again.Calls[extra+i].Name)
					require.Equal(t, s.Calls[i].Outcome, again.Calls[extra+i].Outcome, "%s as %s: %s", run.ID, f, out)
				}
			}
		}
	}
}

func TestExport_CloudEvents_Unchanged(t *testing.T) {
	t.Parallel()
	runs, _ := open(t, "testdata/harbour.jsonl", transcript.Options{})
	list := events(t, runs[0])
	var out bytes.Buffer
	written, left, err := transcript.ExportCloudEvents(&out, func(yield func(schema.Record, error) bool) {
		for i, e := range list {
			header, body := e.Encode()
			if !yield(schema.NewRecord(schema.StreamSequence(i+1), header, body), nil) {
				return
			}
		}
		yield(schema.NewRecord(99, nil, []byte("no event")), nil)
	})
	require.NoError(t, err)
	require.Equal(t, len(list), written)
	require.Equal(t, 1, left)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, len(list))
	for i, line := range lines {
		e, err := schema.Decode(map[string][]string{"Content-Type": {"application/cloudevents+json"}}, []byte(line))
		require.NoError(t, err)
		require.Equal(t, list[i].ID, e.ID)
		require.Equal(t, list[i].ContentHash(), e.ContentHash())
	}
}

func TestExport_Blobs_Named(t *testing.T) {
	t.Parallel()
	runs, _ := open(t, "testdata/harbour.jsonl", transcript.Options{})
	s := fold(t, runs[0].ID, events(t, runs[0]))
	s.Calls[0].Refs = []schema.Ref{{Path: "/result", DataRef: "waymark-blob:x"}}
	require.ErrorIs(t, transcript.Export(&bytes.Buffer{}, s, transcript.OpenAIChat), transcript.ErrUnresolvedBlob)
	s.Calls[0].Refs = nil
	s.Messages[0].Refs = []schema.Ref{{Path: "/parts/0/content", DataRef: "waymark-blob:y"}}
	require.ErrorIs(t, transcript.Export(&bytes.Buffer{}, s, transcript.OpenAIChat), transcript.ErrUnresolvedBlob)
	s.Messages[0].Refs[0].KeyID = "k1"
	err := transcript.Export(&bytes.Buffer{}, s, transcript.OpenAIChat)
	require.ErrorIs(t, err, transcript.ErrEncrypted)
	require.ErrorContains(t, err, "message 1 at /parts/0/content is encrypted with key k1")
	require.NotContains(t, err.Error(), "blob store")
	s.Messages[0].Refs = nil
	s.Ended.Refs = []schema.Ref{{Path: "/output", KeyID: "k2"}}
	require.NoError(t, transcript.Export(&bytes.Buffer{}, s, transcript.OpenAIChat), "it has no place for the output")
	require.ErrorContains(t, transcript.Export(&bytes.Buffer{}, s, transcript.SWEAgent), "is encrypted with key k2")
}

// The user did not name the files next to a session: a link among them may lead to foreign data, or to an endless pipe.
func TestOpen_SubAgentsThatAreLinks_AreNotRead(t *testing.T) {
	t.Parallel()
	secret := []byte(`{"type":"user","uuid":"u9","message":{"role":"user","content":"a secret"}}` + "\n")
	for name, c := range map[string]struct {
		// at is where the link is, below the directory of the session; to is what it leads to, below another.
		at, to string
	}{
		"a file":               {"s/subagents/agent-x.jsonl", "subagents/agent-x.jsonl"},
		"the folder":           {"s/subagents", "subagents"},
		"the session's folder": {"s", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, elsewhere := t.TempDir(), t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(elsewhere, "subagents"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(elsewhere, "subagents", "agent-x.jsonl"), secret, 0o600))
			at := filepath.Join(dir, filepath.FromSlash(c.at))
			require.NoError(t, os.MkdirAll(filepath.Dir(at), 0o700))
			if err := os.Symlink(filepath.Join(elsewhere, filepath.FromSlash(c.to)), at); err != nil {
				t.Skipf("links cannot be made here: %v", err)
			}
			path := filepath.Join(dir, "s.jsonl")
			require.NoError(t, os.WriteFile(path, []byte(`{"type":"user","uuid":"u1","message":{"role":"user","content":"hello"}}`+"\n"), 0o600))
			runs, rep := open(t, path, transcript.Options{Format: transcript.ClaudeCode})
			require.Len(t, runs, 1)
			require.NotContains(t, fmt.Sprint(runs[0].Steps), "secret")
			require.Len(t, rep.Problems, 1)
			require.Equal(t, at, rep.Problems[0].File)
			require.ErrorContains(t, rep.Problems[0], "is a link or a special file")
		})
	}
}

func TestOpen_WhatIsGuessed_IsNoted(t *testing.T) {
	t.Parallel()
	blocks := `{"messages":[{"role":"user","content":"go"},{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"Read","input":{}}]},` +
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"x"}]}]}`
	numbers := `{"messages":[{"role":"assistant","tool_calls":[{"id":1,"type":"function","function":{"name":"a","arguments":""}},` +
		`{"id":2,"type":"function","function":{"name":"b","arguments":""}}]},{"role":"tool","tool_call_id":2,"content":"of b"},{"role":"tool","tool_call_id":1,"content":"of a"}]}`
	for name, test := range map[string]struct {
		content string
		format  transcript.Format
		note    string
	}{
		"blocks of another interface": {blocks, transcript.Auto, "2 parts in the form of Anthropic's Messages API"},
		"numbers as ids":              {numbers, transcript.Auto, "the first is 1"},
		"another format is given":     {`{"messages":[]}`, transcript.SWEAgent, "looks like openai-chat, but is read as swe-agent"},
		"no message":                  {`{"messages":[]}`, transcript.Auto, "has no message"},
		"no entry":                    {`{"history":[]}`, transcript.Auto, "has no message"},
		"the format that it is":       {`{"messages":[{"role":"user","content":"go"}]}`, transcript.OpenAIChat, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := writeFile(t, "x.json", test.content)
			runs, rep := open(t, path, transcript.Options{Format: test.format})
			if test.note == "" {
				require.Empty(t, rep.Notes)
				return
			}
			require.Len(t, rep.Notes, 1)
			require.Contains(t, rep.Notes[0], test.note)
			if test.format == transcript.Auto {
				prove(t, path)
			}
			if name == "numbers as ids" {
				s := fold(t, runs[0].ID, events(t, runs[0]))
				require.JSONEq(t, `"of a"`, string(s.Calls[0].Result))
				require.JSONEq(t, `"of b"`, string(s.Calls[1].Result))
			}
		})
	}
}

// The id of a sub-agent's run does not depend on where its file is named from.
func TestOpen_SubAgentFromWithinItsFolder_HasTheSessionsName(t *testing.T) {
	dir := t.TempDir()
	line := `{"type":"user","sessionId":"u","uuid":"u1","isSidechain":true,"agentId":"a1","message":{"role":"user","content":"go"}}` + "\n"
	folder := filepath.Join(dir, "mill", "subagents")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	for _, file := range []string{filepath.Join(dir, "mill.jsonl"), filepath.Join(folder, "agent-a1.jsonl")} {
		require.NoError(t, os.WriteFile(file, []byte(line), 0o600))
	}
	for from, path := range map[string]string{dir: "mill/subagents/agent-a1.jsonl", filepath.Join(dir, "mill"): "subagents/agent-a1.jsonl", folder: "agent-a1.jsonl"} {
		t.Chdir(from)
		require.True(t, transcript.IsSubagent(path), path)
		runs, _ := open(t, path, transcript.Options{})
		require.Equal(t, "mill-agent-a1", runs[0].ID, path)
	}
}
