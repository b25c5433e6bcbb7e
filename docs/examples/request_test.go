package examples_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// address is where a program of its own finds the server, with its login.
func (w *world) address() string {
	w.tb.Helper()
	var o nats.Options
	for _, option := range w.server.Options() {
		require.NoError(w.tb, option(&o))
	}
	u, err := url.Parse(w.server.URL())
	require.NoError(w.tb, err)
	u.User = url.UserPassword(o.User, o.Password)
	return u.String()
}

// plainRun publishes the run of the page's commands.
func (w *world) plainRun(t *testing.T) {
	t.Helper()
	nc := w.server.Conn(t)
	for line := range strings.Lines(snippets(t, "plain.sh")["plain"]) {
		m := regexp.MustCompile(`^nats pub (\S+)((?: -H \S+)*) '(.*)'\n$`).FindStringSubmatch(line)
		require.NotNil(t, m, line)
		msg := nats.NewMsg(m[1])
		msg.Data = []byte(m[3])
		for _, h := range strings.Split(m[2], " -H ")[1:] {
			name, value, ok := strings.Cut(h, ":")
			require.True(t, ok)
			msg.Header[name] = []string{value}
		}
		if m[2] == "" {
			continue // a heartbeat
		}
		_, err := nc.RequestMsg(msg, patience)
		require.NoError(t, err, line)
	}
}

// requireAnswers wants the answers to the page's requests, in their order.
func requireAnswers(t *testing.T, answers [][]byte) {
	t.Helper()
	type answer struct {
		Epoch int                `json:"epoch"`
		Head  struct{ Turn int } `json:"head"`
		State *struct {
			Messages []struct {
				Role  string
				Parts []struct{ Content string }
			}
			Calls []struct {
				Name    string
				InDoubt bool `json:"in_doubt"`
			}
		} `json:"state"`
		InDoubt []json.RawMessage `json:"in_doubt"`
	}
	got := make([]answer, len(answers))
	for i := range answers {
		require.NoError(t, json.Unmarshal(answers[i], &got[i]), "%s", answers[i])
	}
	require.Len(t, got, 4)
	require.Equal(t, "Write to Ann.", got[0].State.Messages[0].Parts[0].Content)
	require.Equal(t, "mail", got[0].State.Calls[0].Name)
	require.Nil(t, got[1].State, "the head alone")
	require.Equal(t, 1, got[1].Head.Turn)
	require.Empty(t, got[2].State.Messages, "before the first turn")
	require.Equal(t, 2, got[3].Epoch)
	require.Len(t, got[3].InDoubt, 1)
	require.True(t, got[3].State.Calls[0].InDoubt)
	require.Len(t, got[3].State.Messages, 1)
}

// asked are the page's requests: subject and body.
func asked(t *testing.T) (out [][2]string) {
	t.Helper()
	for line := range strings.Lines(snippets(t, "plain.sh")["ask"]) {
		m := regexp.MustCompile(`^nats req --raw (\S+) '(.*)'\n$`).FindStringSubmatch(line)
		require.NotNil(t, m, line)
		out = append(out, [2]string{m[1], m[2]})
	}
	return out
}

func TestTheRequestsOnThePage_ByRequestAndReply_AnswerWithTheConversation(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.plainRun(t)
	nc := w.server.Conn(t)
	var answers [][]byte
	for _, r := range asked(t) {
		m, err := nc.Request(r[0], []byte(r[1]), patience)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get("Nats-Service-Error-Code"), "%s", m.Data)
		answers = append(answers, m.Data)
	}
	requireAnswers(t, answers)
}

func TestTheRequestsOnThePage_ByTheNATSCommand_AnswerWithTheConversation(t *testing.T) {
	t.Parallel()
	nats, err := exec.LookPath("nats")
	if err != nil {
		t.Skip("no nats command on this machine: the test by request and reply sends the same requests")
	}
	w := newWorld(t)
	home := t.TempDir()
	var answers [][]byte
	for _, page := range []string{"plain", "ask"} {
		for line := range strings.Lines(snippets(t, "plain.sh")[page]) {
			cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", line)
			cmd.Env = append(os.Environ(), "NATS_URL="+w.address(), "XDG_CONFIG_HOME="+home, "HOME="+home, "PATH="+filepath.Dir(nats)+":"+os.Getenv("PATH"))
			var said strings.Builder
			cmd.Stderr = &said
			out, err := cmd.Output()
			require.NoError(t, err, "%s: %s%s", line, out, said.String())
			if page == "ask" {
				answers = append(answers, out)
			} else if strings.Contains(line, "ce-id") {
				w.stored(t, "run-1", line)
			}
		}
	}
	requireAnswers(t, answers)
}

// stored waits until the event of a line is in the run: nats pub does not wait for it.
func (w *world) stored(t *testing.T, run, line string) {
	t.Helper()
	id := regexp.MustCompile(`ce-id:(\S+)`).FindStringSubmatch(line)[1]
	reader := w.fleet("reader-"+id, nil)
	require.Eventually(t, func() bool {
		head, err := reader.Head(t.Context(), run)
		return err == nil && fmt.Sprint(head.Counts.Events) >= id
	}, patience, patience/1000)
}

// The program on the page reads a run larger than a message, in a module that has nothing but nats.go.
func TestTheRequestOnThePage_InAnEmptyModule_ReadsALargeRun(t *testing.T) {
	if testing.Short() {
		t.Skip("short: builds a program in a module of its own")
	}
	t.Parallel()
	dir := t.TempDir()
	run := func(env []string, name string, args ...string) string {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
		return string(out)
	}
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	client := regexp.MustCompile(`github.com/nats-io/nats.go (v\S+)`).FindStringSubmatch(string(mod))
	require.NotNil(t, client)
	code, err := os.ReadFile("request/main.go")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), code, 0o600))
	run(nil, "go", "mod", "init", "example.com/reader")
	run(nil, "go", "mod", "edit", "-require=github.com/nats-io/nats.go@"+client[1])
	run(nil, "go", "mod", "tidy")
	run(nil, "go", "build", "-o", "reader", ".")
	require.NotContains(t, run(nil, "go", "list", "-deps", "."), "waymark")

	w := newWorld(t)
	r := start(t, w.fleet("ex-1", nil))
	const turns, bytes = 33, 100 << 10
	for i := range turns {
		turn, err := r.StartTurn(t.Context(), publisher.TurnSpec{Messages: []schema.Message{{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(fmt.Sprint("task ", i))}}}})
		require.NoError(t, err)
		call := publisher.ToolCall{ID: "c1", Name: "look", Arguments: []byte(`{"n":123456789012345678.90}`), Replay: schema.ReplayPure}
		_, err = turn.Answer(t.Context(), publisher.Answer{
			Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "look")}},
			Calls:   []publisher.ToolCall{call},
		})
		require.NoError(t, err)
		_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result(strings.Repeat("x", bytes))
		})
		require.NoError(t, err)
	}
	env := []string{"NATS_URL=" + w.address()}
	for _, request := range [][2]string{
		{"waymark.get.default.r1", ""},
		{"waymark.recover.default.r1", `{"executor":"reader","request_id":"take-1"}`},
	} {
		lines := strings.Split(strings.TrimSuffix(run(env, "./reader", request[0], request[1]), "\n"), "\n")
		require.Len(t, lines, 1+3*turns)
		for i := range turns {
			said := lines[1+3*i:]
			require.Equal(t, fmt.Sprintf("user text task %d   ", i), said[0])
			require.Equal(t, "assistant tool_call  look {\"n\":123456789012345678.90} ", said[1], "to the letter")
			require.Equal(t, `tool tool_call_response    "`+strings.Repeat("x", bytes)+`"`, said[2])
		}
		require.Equal(t, strings.Contains(request[0], "recover"), lines[0] == "epoch 2")
	}

	// What is in the object store is named.
	r, err = w.fleet("ex-2", nil).Start(t.Context(), publisher.RunSpec{ID: "r2"})
	require.NoError(t, err)
	turn := startTurn(t, r)
	call := publisher.ToolCall{ID: "c1", Name: "look", Replay: schema.ReplayPure}
	_, err = turn.Answer(t.Context(), publisher.Answer{
		Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "look")}}, Calls: []publisher.ToolCall{call},
	})
	require.NoError(t, err)
	_, err = turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.Result(strings.Repeat("x", 4*bytes))
	})
	require.NoError(t, err)
	require.Regexp(t, `(?m)^tool has /parts/0/response elsewhere: waymark-blob:r2\.sha256-[0-9a-f]{64} $`, run(env, "./reader", "waymark.get.default.r2", ""))
}
