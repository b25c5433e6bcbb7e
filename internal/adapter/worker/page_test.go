//go:build unix

package worker_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestMain(m *testing.M) {
	switch script, role := os.Getenv("PLAY"), os.Getenv("ROLE"); {
	case script != "":
		os.Exit(play(script)) //nolint:forbidigo // this process is the program
	case role != "":
		os.Exit(perform(role)) //nolint:forbidigo // this process is an executor
	}
	natstest.Main(m)
}

// play is a program that writes the lines of a script that begin with "<", and expects those that begin with ">". At "="
// it waits for the end of the pipe in the script's directory. After the script it answers requests for a model with a
// last text. What it did not expect goes to a file.
func play(script string) int {
	text, err := os.ReadFile(script)
	if err != nil {
		return 1
	}
	in := bufio.NewScanner(os.Stdin)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if rest, ours := strings.CutPrefix(line, "< "); ours {
			fmt.Println(rest) //nolint:forbidigo // the protocol's output
			continue
		}
		if line == "=" {
			_, _ = os.ReadFile(filepath.Join(filepath.Dir(script), "pipe")) // when the test has written
			continue
		}
		if !in.Scan() {
			return 0
		}
		want := strings.TrimPrefix(line, "> ")
		if got := in.Text(); shape(got) != shape(want) {
			_ = os.WriteFile(script+".failed", []byte("want "+want+"\ngot  "+got+"\n"), 0o600)
			return 1
		}
	}
	_ = os.WriteFile(script+".played", nil, 0o600)
	for in.Scan() {
		var request struct {
			ID int64 `json:"id"`
		}
		if json.Unmarshal(in.Bytes(), &request) == nil && request.ID > 0 {
			fmt.Printf(`{"id":%d,"text":"Done."}`+"\n", request.ID) //nolint:forbidigo // the protocol's output
		}
	}
	return 0
}

// scripted is a bench whose programs play the lines of a script, and their command.
func scripted(t *testing.T, text string) (b *bench, script string, command []string) {
	t.Helper()
	script = filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte(text), 0o600))
	self, err := os.Executable()
	require.NoError(t, err)
	b = newBench(t, "PLAY="+script)
	t.Cleanup(func() {
		failed, _ := os.ReadFile(script + ".failed")
		require.Empty(t, string(failed))
	})
	return b, script, []string{self}
}

// shape is a line without the times in it.
func shape(line string) string {
	return regexp.MustCompile(`"within_ms":\d+`).ReplaceAllString(line, `"within_ms":N`)
}

// The lines on the page are those that worker and program exchange.
func TestPage_Lines_AreTheProtocol(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/any-language.md")
	require.NoError(t, err)
	hello := regexp.MustCompile("(?s)```json\n(\\{\"hello\".*?)```").FindStringSubmatch(string(page))
	require.NotNil(t, hello)
	blocks := regexp.MustCompile("(?s)```\n(> .*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 3)
	own := `{"hello":{"protocol":1,"agent":"clerk","own_loop":true}}`
	book := `{"hello":{"protocol":1,"agent":"clerk","tools":[{"name":"book","replay":"verify"}]}}`
	for i, c := range []struct {
		name, hello string
		run         func(t *testing.T, b *bench)
	}{
		{"loop", strings.Join(strings.Fields(hello[1]), " "), func(t *testing.T, b *bench) {
			t.Helper()
			b.submit("r1", "Go.")
			b.answer("r1", `{"decision":"allow"}`)
		}},
		{"verify", book, func(t *testing.T, b *bench) {
			t.Helper()
			run, err := b.w.Fleet("dead", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "clerk", Task: "Book."})
			require.NoError(t, err)
			turn, err := run.StartTurn(t.Context(), publisher.TurnSpec{})
			require.NoError(t, err)
			call := publisher.ToolCall{ID: "c1", Name: "book", Arguments: []byte(`{"to":"Ann"}`), Replay: schema.ReplayVerify, VerifySubject: "verify.clerk.book"}
			keys, err := turn.Answer(t.Context(), publisher.Answer{Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "book")}}, Calls: []publisher.ToolCall{call}})
			require.NoError(t, err)
			require.NoError(t, turn.Begin(t.Context(), keys[0]))
			require.NoError(t, run.Interrupt(t.Context(), schema.InterruptedShutdown))
		}},
		{"own", own, func(_ *testing.T, b *bench) { b.submit("r1", "Mail Ann.") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lines := strings.ReplaceAll(blocks[i][1], "\n  ", "") // the page breaks long lines
			b, script, program := scripted(t, "< "+c.hello+"\n"+lines)
			t.Cleanup(func() { require.FileExists(t, script+".played") })
			b.work("one", program)
			c.run(t, b)
			require.Equal(t, schema.StatusCompleted, b.w.Ended("r1").Status)
		})
	}
}
