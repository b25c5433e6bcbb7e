package waymarktest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// record runs an agent and writes what waymark events --json --raw writes.
func record(t *testing.T, config func(*publisher.Config), loop publisher.Loop) string {
	t.Helper()
	answer := ""
	if config != nil {
		answer = `{"decision":"allow"}`
	}
	return recordWork(t, config, loop.Work, answer)
}

// recordWork is record of any work. answer is what a person answers to all questions; empty for none.
func recordWork(t *testing.T, config func(*publisher.Config), work publisher.Work, answer string) string {
	t.Helper()
	return recordWith(t, config, work, func(w *waymarktest.World, e *waymarktest.Executor) {
		if answer == "" {
			return
		}
		w.Await("fix-login", schema.StatusWaiting)
		for _, o := range w.State("fix-login").Head.Interrupts {
			require.NoError(t, e.Fleet().Input(t.Context(), "fix-login", publisher.Input{InterruptID: o.InterruptID, EventID: o.Position.ID, Payload: []byte(answer)}))
		}
	})
}

// recordWith is recordWork with what people do meanwhile.
func recordWith(
	t *testing.T, config func(*publisher.Config), work publisher.Work, people func(*waymarktest.World, *waymarktest.Executor),
) string {
	t.Helper()
	w := waymarktest.Start(t)
	e := w.Serve("ex-1", publisher.ExecutorSpec{Agents: map[string]func(context.Context, *publisher.Run) (publisher.Work, error){
		"agent": func(context.Context, *publisher.Run) (publisher.Work, error) { return work, nil },
	}}, config)
	_, err := e.Fleet().Submit(t.Context(), publisher.RunSpec{ID: "fix-login", Agent: "agent", Task: "Mail bob.", Labels: map[string]string{"team": "a"}})
	require.NoError(t, err)
	people(w, e)
	w.Ended("fix-login")
	var lines [][]byte
	require.NoError(t, w.Reader().Events(t.Context(), "fix-login", func(rec schema.Record) error {
		e, err := schema.Decode(rec.Header, rec.Body)
		require.NoError(t, err)
		line, err := e.EncodeStructured()
		lines = append(lines, line)
		return err
	}))
	file := filepath.Join(t.TempDir(), "run.jsonl")
	require.NoError(t, os.WriteFile(file, append(bytes.Join(lines, []byte("\n")), '\n'), 0o600))
	return file
}

// sending is the tool of mailer without an outside.
func sending(replay schema.Replay, result string) publisher.Tool {
	return publisher.NewTool("send_mail", "Sends a mail.", replay, func(context.Context, mail) (string, error) {
		if result == "" {
			return "", fmt.Errorf("mailbox is full")
		}
		return result, nil
	})
}

// played is the mailer, with the model and the tools of the record.
func played(r *waymarktest.Recorded, change func(*publisher.Loop)) publisher.Work {
	loop := mailer(sending(publisher.Hold, "sent"), nil)
	loop.Model = r.Model
	if change != nil {
		change(&loop)
	}
	return loop.Work
}

func TestReplay_SameAgent_NoDivergence(t *testing.T) {
	t.Parallel()
	for _, result := range []string{"sent", ""} {
		file := record(t, nil, mailer(sending(publisher.Hold, result), nil))
		waymarktest.Replay(t, file, nil, func(r *waymarktest.Recorded) publisher.Work { return played(r, nil) })
	}
	asks := func(c *publisher.Config) { c.Policy = askFirst }
	file := record(t, asks, mailer(sending(publisher.Hold, "sent"), nil))
	waymarktest.Replay(t, file, asks, func(r *waymarktest.Recorded) publisher.Work { return played(r, nil) })
}

func TestReplay_CodeWasChanged_FirstDivergenceIsNamed(t *testing.T) {
	t.Parallel()
	file := record(t, nil, mailer(sending(publisher.Hold, "sent"), nil))
	for name, c := range map[string]struct {
		change func(*publisher.Loop)
		says   string
	}{
		"another system message": {
			func(l *publisher.Loop) { l.System = "You write mail." },
			"in turn 1 message 1 to the model differs\n  recorded: {\"role\":\"system\"",
		},
		"a tool is gone": {
			func(l *publisher.Loop) { l.Tools = l.Tools[1:] },
			"in turn 2 message 4 to the model differs",
		},
		"a limit": {
			func(l *publisher.Loop) { l.MaxTurns = 2 },
			"the run reaches its limit turns before turn 3; the recorded run does not",
		},
		"a completion tool": {
			func(l *publisher.Loop) { l.Complete = "look_up" },
			"its completion is the completion tool look_up in turn 1; in the record it is no completion tool",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			said := found(t, func(tb testing.TB) {
				tb.Helper()
				waymarktest.Replay(tb, file, nil, func(r *waymarktest.Recorded) publisher.Work { return played(r, c.change) })
			})
			require.Contains(t, said, c.says)
		})
	}
	said := found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.Replay(tb, file, nil, func(r *waymarktest.Recorded) publisher.Work {
			return func(ctx context.Context, run *publisher.Run) error {
				turn, err := run.StartTurn(ctx, publisher.TurnSpec{})
				if err != nil {
					return err
				}
				_, err = turn.Tool(ctx, publisher.ToolCall{ID: "z", Name: "delete"}, r.Tool)
				return err
			}
		})
	})
	require.Contains(t, said, "call z of tool delete in turn 1 is not recorded")
}

// replayed is what is said of a file.
func replayed(t *testing.T, file string) string {
	t.Helper()
	return found(t, func(tb testing.TB) {
		tb.Helper()
		waymarktest.Replay(tb, file, nil, nil)
	})
}

func TestReplay_FileCannotBePlayed_SaysWhy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, c := range map[string]struct{ content, says string }{
		"none":    {"", "no run.started: export the whole run"},
		"garbage": {"{}\n", "garbage.jsonl:1: not a structured CloudEvent"},
	} {
		file := filepath.Join(dir, name+".jsonl")
		require.NoError(t, os.WriteFile(file, []byte(c.content), 0o600))
		require.Contains(t, replayed(t, file), c.says)
	}
	require.Contains(t, replayed(t, filepath.Join(dir, "missing")), "waymark events RUN --all --no-follow --json --raw")
	unfinished := filepath.Join(dir, "unfinished.jsonl")
	b, err := os.ReadFile(record(t, nil, mailer(sending(publisher.Hold, "sent"), nil)))
	require.NoError(t, err)
	lines := bytes.SplitAfter(bytes.TrimSpace(b), []byte("\n"))
	require.NoError(t, os.WriteFile(unfinished, bytes.Join(lines[:len(lines)-1], nil), 0o600))
	require.Contains(t, replayed(t, unfinished), "run fix-login is running: export a run that has completed or failed")
	// A result above 256 KiB is in the blob store.
	large := record(t, nil, mailer(sending(publisher.Pure, string(bytes.Repeat([]byte("x"), 300<<10))), nil))
	require.Contains(t, replayed(t, large), "is in the blob store, or encrypted")
}
