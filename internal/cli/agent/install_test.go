package agent_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// plain starts an agent as a person does.
func (w *world) plain(args []string) *child {
	w.t.Helper()
	allow := w.allow
	if w.name == "codex" {
		allow = append(slices.Clone(allow), "--dangerously-bypass-hook-trust") // /hooks needs a terminal
	}
	return w.startProgram(w.program, slices.Concat(args[:1], allow, args[1:])...)
}

// transcripts are the agent's own session files.
func (w *world) transcripts() (text string) {
	_ = filepath.WalkDir(w.home, func(path string, _ os.DirEntry, _ error) error {
		if filepath.Ext(path) == ".jsonl" {
			content, _ := os.ReadFile(path)
			text += string(content)
		}
		return nil
	})
	return text
}

// bridges are the processes that installed hooks have started.
func (w *world) bridges() (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range lines {
		if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte("\x00watch\x00")) && bytes.Contains(text, []byte(w.state)) {
			pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestAgents_InstalledBridgeGone_ToolDoesNotRun(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			asked, answer := make(chan struct{}), make(chan struct{})
			w := newWorld(t, k, func(n int, _ string) []block {
				if n == 0 {
					close(asked)
					<-answer
					return []block{bash("toolu_1", "echo ran > ran")}
				}
				return []block{said("Finished.")}
			})
			w.config()
			require.Contains(t, w.await(w.start("agent", "install", w.program)), "written")
			session := w.plain(w.begin(newID(), "Do it."))
			select {
			case <-asked:
			case <-session.gone:
				require.Fail(t, "the session asks no model", session.output())
			}
			bridges := w.bridges()
			require.Len(t, bridges, 1)
			kill(t, bridges[0])
			require.Eventually(t, func() bool { return len(w.bridges()) == 0 }, limit, every)
			close(answer)
			require.Contains(t, w.await(session), "Finished.")
			require.True(t, w.model.asked(w.refused), "the model is told that the tool was refused")
			require.Empty(t, w.file("ran"))
			w.until(w.id(), "left to others", status(schema.StatusOrphaned))
		})
	}
}

func TestAgents_InstalledNoServer_StartsOneOrRefusesTools(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for _, broken := range []bool{false, true} {
				w := newWorld(t, k, func(n int, _ string) []block {
					if n == 0 {
						return []block{bash("toolu_1", "echo ran > ran")}
					}
					return []block{said("Finished.")}
				})
				w.config()
				w.state = filepath.Join(filepath.Dir(w.project), "other")
				if broken { // nothing can be kept there
					require.NoError(t, os.WriteFile(w.state, nil, 0o600))
				}
				require.Contains(t, w.await(w.start("agent", "install", w.program)), "written")
				require.Contains(t, w.await(w.plain(w.begin(newID(), "Do it."))), "Finished.")
				require.Equal(t, broken, w.file("ran") == "")
				require.Equal(t, broken, w.model.asked(w.refused))
				if !broken {
					require.Contains(t, w.await(w.start("runs", "ls")), k.name)
				}
			}
		})
	}
}

func TestAgents_Installed_KilledInATool_PlanSaysItAndResumeGoesOn(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, k, working)
			w.config()
			settings := filepath.Join(w.home, ".codex", "hooks.json")
			if k.name == "claude" {
				settings = filepath.Join(w.home, ".claude", "settings.json")
			}
			require.NoError(t, os.MkdirAll(filepath.Dir(settings), 0o700))
			own := `{"hooks": {"PreToolUse": [{"hooks": [{"type": "command", "command": "echo hook >> own"}]}]}}`
			require.NoError(t, os.WriteFile(settings, []byte(own), 0o600))
			require.Contains(t, w.await(w.start("agent", "install", w.program, "--print")), "agent hook --of "+k.name)
			require.Contains(t, w.await(w.start("agent", "install", w.program)), "written")
			require.Contains(t, w.await(w.start("agent", "install", w.program)), "nothing to change")

			session := w.plain(w.begin(newID(), "Do it."))
			w.inTool("effects")
			id := w.id()
			kill(t, session.Process.Pid)
			<-session.gone
			w.goOn() // the shell goes on without its session
			w.until(id, "left to others", status(schema.StatusInterrupted))
			require.Contains(t, w.await(w.start("plan", id)), "must be settled by a person")
			require.Contains(t, w.await(w.start("settle", id, "1", "toolu_1", "--how", "decided", "--result", `"seen by ann"`)), "settled")
			require.Contains(t, w.await(w.plain(w.resume(id, "Go on."))), "Finished.")
			s := w.until(id, "the end", func(s *schema.State) bool { return s.Head.Status == schema.StatusCompleted })
			require.True(t, w.model.asked("A person says what its outcome was: seen by ann"))
			closedOnce(t, s, 1)
			require.Equal(t, 1, strings.Count(w.file("effects"), "begun"))
			require.Equal(t, "hook\n", w.file("own"))

			require.Contains(t, w.await(w.run(w.begin(newID(), "Do it."))), "Finished.")
			list, err := w.fleet.List(t.Context(), schema.ListRequest{})
			require.NoError(t, err)
			require.Len(t, list.Runs, 2, "the hooks of waymark agent run record, and the installed ones do not")
			require.Empty(t, w.bridges())

			require.Contains(t, w.await(w.start("agent", "uninstall", w.program)), "written")
			text, err := os.ReadFile(settings)
			require.NoError(t, err)
			require.Equal(t, own, string(text))
		})
	}
}

// closedOnce fails unless each call has an outcome, and as many outcomes as calls were recorded.
func closedOnce(t *testing.T, s *schema.State, calls int) {
	t.Helper()
	require.Empty(t, s.Head.OpenCalls)
	require.Len(t, s.Calls, calls)
	require.EqualValues(t, calls, s.Head.Counts.ToolResults+s.Head.Counts.ToolFailures+s.Head.Counts.Settled)
	require.Zero(t, s.Head.Counts.DeadLetters)
}
