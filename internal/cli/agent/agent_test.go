package agent_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/nats/natsconn"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// waymark is the program; claude and codex are the real agents, empty where they are missing.
var waymark, claude, codex = "", os.Getenv("WAYMARK_CLAUDE"), os.Getenv("WAYMARK_CODEX")

func TestMain(m *testing.M) {
	code := testbin.Main(m.Run, claude+codex != "", func(programs []string) { waymark = programs[0] }, "../../../cmd/waymark")
	os.Exit(code) //nolint:forbidigo // a program of tests
}

const (
	limit = time.Minute
	every = 20 * time.Millisecond
)

// kind is an agent: its program, and arguments of a session.
type kind struct {
	name, program string
	allow         []string
	begin, resume func(id, prompt string) []string
	refused       string // in the request after a refused tool
}

var kinds = []kind{
	{
		"claude", claude,
		[]string{"--allowedTools=Bash,Read,Agent"},
		func(id, prompt string) []string { return []string{"-p", prompt, "--session-id", id} },
		func(id, prompt string) []string { return []string{"-p", prompt, "--resume", id} },
		`"is_error":true`,
	},
	{
		"codex", codex,
		[]string{"--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"},
		func(_, prompt string) []string { return []string{"exec", prompt} },
		func(id, prompt string) []string { return []string{"exec", "resume", id, prompt} },
		"blocked by PreToolUse hook",
	},
}

// world is a daemon, a scripted model, and a project in which the agents work.
type world struct {
	t *testing.T
	kind
	model          *model
	project, state string
	home           string
	daemon         *child
	fleet          *publisher.Fleet
}

func newWorld(t *testing.T, k kind, answer func(n int, body string) []block) *world {
	t.Helper()
	if k.program == "" {
		t.Skip("the agent is missing: make agentcheck fetches it by npm")
	}
	dir := t.TempDir()
	w := &world{t: t, kind: k, model: newModel(t, answer), project: filepath.Join(dir, "project"), state: filepath.Join(dir, "state"), home: filepath.Join(dir, "home")}
	for _, d := range []string{w.project, w.home} {
		require.NoError(t, os.MkdirAll(d, 0o700))
	}
	t.Cleanup(w.killAll)
	w.startDaemon()
	end, err := natsconn.Discover(t.Context(), w.state)
	require.NoError(t, err)
	options, err := end.Options()
	require.NoError(t, err)
	w.fleet, err = publisher.Connect(t.Context(), publisher.Config{URL: end.URL, Options: options, Executor: "test", Heartbeat: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.fleet.Close(context.Background())) })
	return w
}

// startDaemon starts the daemon, with the store and the port of the one before.
func (w *world) startDaemon() {
	w.t.Helper()
	w.daemon = w.start("serve", "--silence", "2s", "--http", "off", "--quota", "64MiB")
	require.Eventually(w.t, func() bool { return strings.Contains(w.daemon.output(), "waymark is ready") }, limit, every)
}

func (w *world) killDaemon() {
	kill(w.t, w.daemon.Process.Pid)
	<-w.daemon.gone
}

// child is a process of a test. Its output is a file: what it has started writes to it for longer.
type child struct {
	*exec.Cmd
	file string
	gone chan struct{}
}

func (c *child) output() string {
	text, _ := os.ReadFile(c.file)
	return string(text)
}

// start starts waymark. It is killed at the end of the test.
func (w *world) start(args ...string) *child {
	w.t.Helper()
	return w.startProgram(waymark, args...)
}

func (w *world) startProgram(program string, args ...string) *child {
	w.t.Helper()
	c := &child{Cmd: exec.CommandContext(context.Background(), program, args...), gone: make(chan struct{})}
	out, err := os.CreateTemp(filepath.Dir(w.project), "output-")
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, out.Close()) }()
	c.Dir, c.Stdout, c.Stderr, c.file = w.project, out, out, out.Name()
	c.Env = []string{
		"HOME=" + w.home, "PATH=/usr/local/bin:/usr/bin:/bin", "WAYMARK_STATE_DIR=" + w.state, "CODEX_HOME=" + filepath.Join(w.home, ".codex"),
		"ANTHROPIC_API_KEY=sk-ant-scripted", "ANTHROPIC_BASE_URL=" + w.model.URL, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1", "IS_SANDBOX=1",
		"TMPDIR=" + w.project, // Codex wants its home elsewhere
	}
	if program == waymark { // hooks do not go through a proxy
		c.Env = append(c.Env, "HTTP_PROXY=http://127.0.0.1:9")
	}
	require.NoError(w.t, c.Start())
	go func() {
		_ = c.Wait()
		close(c.gone)
	}()
	w.t.Cleanup(func() {
		_ = c.Process.Kill()
		<-c.gone
		if w.t.Failed() {
			w.t.Logf("%s %s:\n%s", program, strings.Join(args, " "), c.output())
		}
	})
	return c
}

// run starts a session under waymark agent run.
func (w *world) run(args []string) *child {
	w.t.Helper()
	w.config()
	return w.start(slices.Concat([]string{"agent", "run", "--", w.program}, args[:1], w.allow, args[1:])...)
}

// config writes Codex's configuration into the home: it asks the scripted model.
func (w *world) config() {
	w.t.Helper()
	dir := filepath.Join(w.home, ".codex")
	require.NoError(w.t, os.MkdirAll(dir, 0o700))
	text := fmt.Sprintf("model = \"m\"\nmodel_provider = \"s\"\n[model_providers.s]\nname = \"s\"\nbase_url = %q\nwire_api = \"responses\"\n[features]\nenable_request_compression = false\n", w.model.URL+"/v1")
	require.NoError(w.t, os.WriteFile(filepath.Join(dir, "config.toml"), []byte(text), 0o600))
}

// id is the id of the world's first run, once it has begun.
func (w *world) id() (id string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		list, err := w.fleet.List(w.t.Context(), schema.ListRequest{})
		if err == nil && len(list.Runs) == 1 {
			id = list.Runs[0].Run
		}
		return id != ""
	}, limit, every)
	return id
}

// await waits for the end of a child, and returns its output.
func (w *world) await(c *child) string {
	w.t.Helper()
	select {
	case <-c.gone:
	case <-time.After(limit):
		require.Fail(w.t, "the process does not end", c.output())
	}
	return c.output()
}

// until waits for a condition of a run.
func (w *world) until(id, what string, holds func(*schema.State) bool) *schema.State {
	w.t.Helper()
	var state *schema.State
	require.Eventually(w.t, func() bool {
		var err error
		state, err = w.fleet.Get(w.t.Context(), id)
		return err == nil && holds(state)
	}, limit, every, what)
	return state
}

func status(want schema.Status) func(*schema.State) bool {
	return func(s *schema.State) bool { return s.Head.Status == want }
}

func (w *world) file(name string) string {
	text, _ := os.ReadFile(filepath.Join(w.project, name))
	return string(text)
}

// inTool waits until the shell command of a call has begun.
func (w *world) inTool(name string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return strings.Contains(w.file(name), "begun") }, limit, every)
}

// children are the processes that a process has started.
func children(pid int) (pids []int) {
	var text []byte
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, task := range tasks {
		more, _ := os.ReadFile(task)
		text = append(append(text, ' '), more...)
	}
	for field := range strings.FieldsSeq(string(text)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// kill kills a process as kill -9 does.
func kill(t *testing.T, pid int) {
	t.Helper()
	p, err := os.FindProcess(pid)
	require.NoError(t, err)
	_ = p.Kill() // it may have ended
}

// killAll kills what sessions whose worker was killed have left.
func (w *world) killAll() {
	require.Eventually(w.t, func() bool {
		left := 0
		environments, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, name := range environments {
			if text, err := os.ReadFile(name); err == nil && bytes.Contains(text, []byte("HOME="+w.home+"\x00")) {
				pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
				kill(w.t, pid)
				left++
			}
		}
		return left == 0
	}, limit, every)
}

// newID is an id of a session.
func newID() string {
	b := make([]byte, 16)
	_, _ = rand.Read(b)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// once is a shell command that notes its effect, and takes until the file go is there.
const once = "echo begun >> effects; while [ ! -e go ]; do sleep 0.05; done; echo done >> effects; echo worked"

func working(n int, _ string) []block {
	if n == 0 {
		return []block{said("Working."), bash("toolu_1", once)}
	}
	return []block{said("Finished.")}
}

func (w *world) goOn() {
	require.NoError(w.t, os.WriteFile(filepath.Join(w.project, "go"), nil, 0o600))
}

func TestClaude_EachKindOfCall_IsClosedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kinds[0], func(n int, body string) []block {
		switch {
		case strings.Contains(body, "SUBTASK") && n == 0 && strings.Count(body, "toolu_") == 0:
			return []block{bash("toolu_s1", "echo sub")}
		case n == 0:
			return []block{
				said("Looking."), bash("toolu_1", "echo one"), bash("toolu_2", "exit 3"),
				{id: "toolu_3", tool: "Read", input: map[string]any{"file_path": "/none"}},
				{id: "toolu_4", tool: "Write", input: map[string]any{"file_path": "/denied", "content": "x"}},
				bash("toolu_5", "echo two"),
			}
		case n == 1 && !strings.Contains(body, "toolu_s1"):
			return []block{{id: "toolu_6", tool: "Agent", input: map[string]any{"description": "sub", "prompt": "SUBTASK", "subagent_type": "general-purpose"}}}
		}
		return []block{said("Finished.")}
	})
	id := newID()
	require.Contains(t, w.await(w.run(w.begin(id, "Do it."))), "Finished.")
	s := w.until(id, "the end", status(schema.StatusCompleted))
	closedOnce(t, s, 7)
	for _, c := range s.Calls {
		require.Equal(t, c.ToolCallID == "toolu_s1", strings.Contains(string(c.Source), "agent_id"), c.ToolCallID)
		if c.ToolCallID == "toolu_4" {
			require.Equal(t, "not_run", c.Error.Type)
		}
	}
	require.Contains(t, w.await(w.start("runs", "show", id)), "sub-agent general-purpose ")
}

func TestAgents_BridgeGone_ToolDoesNotRun(t *testing.T) {
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
			bridge := w.run(w.begin(newID(), "Do it."))
			select {
			case <-asked:
			case <-bridge.gone:
				require.Fail(t, "the session asks no model", bridge.output())
			}
			kill(t, bridge.Process.Pid)
			<-bridge.gone
			close(answer)
			require.Eventually(t, func() bool { return w.model.asked(w.refused) }, limit, every, "the model is told that the tool was refused")
			require.Empty(t, w.file("ran"))
		})
	}
}

func TestAgents_KilledInATool_PersonSettlesAndModelIsTold(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for victim, want := range map[string]schema.Status{"session": schema.StatusInterrupted, "worker": schema.StatusOrphaned} {
				t.Run(victim, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, k, working)
					run := w.run(w.begin(newID(), "Do it."))
					w.inTool("effects")
					id, session := w.id(), children(run.Process.Pid)
					require.Len(t, session, 1)
					if victim == "worker" {
						kill(t, run.Process.Pid)
					}
					kill(t, session[0])
					<-run.gone
					w.goOn() // the shell goes on without its session
					w.until(id, "left to others", status(want))
					require.Contains(t, w.await(w.start("plan", id)), "must be settled by a person")
					require.Contains(t, w.await(w.start("settle", id, "1", "toolu_1", "--how", "decided", "--result", `"seen by ann"`)), "settled")
					require.Contains(t, w.await(w.run(w.resume(id, "Go on."))), "Finished.")
					s := w.until(id, "the end", status(schema.StatusCompleted))
					require.True(t, w.model.asked("A person says what its outcome was: seen by ann"))
					require.Contains(t, w.transcripts(), "(call toolu_1): A person says", "a later resume does not tell it again")
					require.Equal(t, 1, strings.Count(w.file("effects"), "begun"))
					closedOnce(t, s, 1)
				})
			}
		})
	}
}

func TestAgents_SecondResume_FirstIsStoppedAndItsResultAdopted(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		for _, daemon := range []string{"alive", "killed"} {
			t.Run(k.name+" daemon "+daemon, func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, k, working)
				first := w.run(w.begin(newID(), "Do it."))
				w.inTool("effects")
				id := w.id()
				second := w.run(w.resume(id, "Go on."))
				w.until(id, "taken over", func(s *schema.State) bool { return s.Head.Epoch == 2 })
				if daemon == "killed" { // the tool ends while there is none
					w.killDaemon()
				}
				w.goOn()
				require.Eventually(t, func() bool { return strings.Contains(w.file("effects"), "done") }, limit, every)
				if daemon == "killed" {
					w.startDaemon()
				}
				require.Contains(t, w.await(first), "its agent was stopped here")
				require.Contains(t, w.await(second), "Finished.")
				s := w.until(id, "the end", status(schema.StatusCompleted))
				require.EqualValues(t, 1, s.Head.Counts.LateResults)
				require.Equal(t, []schema.Settlement{schema.SettledAdopted}, s.Calls[0].Settlements)
				require.Equal(t, "begun\ndone\n", w.file("effects"))
				require.True(t, w.model.asked("It did finish: worked"))
			})
		}
	}
}

func TestCodex_ParallelAndFailedCalls_AreClosedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kinds[1], func(n int, _ string) []block {
		if n == 0 {
			return []block{said("Looking."), bash("toolu_1", "echo one"), bash("toolu_2", "exit 3"), bash("toolu_3", "echo two")}
		}
		return []block{said("Finished.")}
	})
	require.Contains(t, w.await(w.run(w.begin("", "Do it."))), "Finished.")
	closedOnce(t, w.until(w.id(), "the end", status(schema.StatusCompleted)), 3)
}

func TestClaude_TwoBeginWithoutAServer_ShareOne(t *testing.T) {
	t.Parallel()
	w := newWorld(t, kinds[0], working)
	w.killDaemon()
	w.goOn()
	w.state += "-new"
	sessions := []*child{w.run(w.begin(newID(), "Do it.")), w.run(w.begin(newID(), "Do it."))}
	for _, session := range sessions {
		require.Contains(t, w.await(session), "Finished.")
	}
}

// serve starts a worker for an agent with a home of its own.
func (w *world) serve(home string, flags ...string) *child {
	w.t.Helper()
	w.home = filepath.Join(filepath.Dir(w.project), home)
	require.NoError(w.t, os.MkdirAll(w.home, 0o700))
	w.config()
	return w.start(slices.Concat([]string{"agent", "serve", "--name", home}, flags, []string{"--", w.program}, w.allow)...)
}

// settle says of each call that a person must settle that it worked.
func (w *world) settle(id string) {
	state, err := w.fleet.Get(w.t.Context(), id)
	if err != nil {
		return
	}
	for i := range state.Head.OpenCalls {
		open := &state.Head.OpenCalls[i]
		if !state.Head.Settleable(open) || open.State != schema.CallHeld {
			continue
		}
		for _, c := range state.Calls {
			if c.CallKey == open.CallKey {
				worked := regexp.MustCompile(`worked-\d+`).FindString(string(c.Arguments))
				_, _ = w.fleet.Settle(w.t.Context(), id, schema.SettleRequest{
					CallKey: open.CallKey, CallEpoch: open.Epoch, How: schema.SettledDecided, Result: fmt.Appendf(nil, `"(%s)"`, worked), By: "ann",
				}) // another takeover may have come
			}
		}
	}
}

func TestAgents_WorkerElsewhere_GoesOnFromTheRecord(t *testing.T) {
	t.Parallel()
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, k, func(n int, body string) []block {
				if n == 0 {
					return []block{said("Working."), bash("toolu_0", "echo looked")}
				}
				return working(n-1, body)
			})
			run := w.run(w.begin(newID(), "Mend the parser."))
			w.inTool("effects")
			id, session := w.id(), children(run.Process.Pid)
			kill(t, run.Process.Pid)
			kill(t, session[0])
			w.goOn()
			w.serve("elsewhere")
			w.until(id, "a person is asked", status(schema.StatusWaiting))
			require.Contains(t, w.await(w.start("settle", id, "1", "toolu_1", "--how", "decided", "--result", `"seen by ann"`)), "settled")
			closedOnce(t, w.until(id, "the end", status(schema.StatusCompleted)), 2)
			last := w.model.last()
			for _, part := range []string{"Mend the parser.", "toolu_0", "looked", "toolu_1", "seen by ann", "The process of this session died."} {
				require.Contains(t, last, part)
			}
		})
	}
}

// counting is a session of so many calls, one after the other. It goes on behind those whose result it has seen.
func counting(calls int) func(n int, body string) []block {
	return func(_ int, body string) []block {
		done := 0
		for done < calls && strings.Contains(body, fmt.Sprintf("(worked-%d)", done)) {
			done++
		}
		if done == calls {
			return []block{said("Finished.")}
		}
		return []block{bash("toolu_"+rand.Text(), fmt.Sprintf("echo begun-%[1]d. >> effects; sleep 0.1; printf '(%%s)' worked-%[1]d", done))}
	}
}

// Kills with a seed: of a session, of one of two workers, or of the daemon, which is started again. Each run ends; a hold call has its effect at most once.
func TestAgents_SeededKills_RunsEndAndNothingRunsAgainstItsPolicy(t *testing.T) {
	t.Parallel()
	kills := map[string]int{"claude": 6, "codex": 3}
	if testbin.Full(t) {
		kills = map[string]int{"claude": 100, "codex": 30}
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			killed(t, k, kills[k.name])
		})
	}
}

// killed kills a session, a worker or the daemon of one agent that many times, each time in another run.
func killed(t *testing.T, k kind, kills int) {
	t.Helper()
	const calls = 4
	w := newWorld(t, k, counting(calls))
	seed := uint64(1)
	if text := os.Getenv("WAYMARK_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	random := mathrand.New(mathrand.NewPCG(seed, 0)) //nolint:gosec // a seed
	pure := filepath.Join(filepath.Dir(w.project), "tools")
	require.NoError(t, os.WriteFile(pure, []byte("Bash = pure\n"), 0o600))
	for round := range kills {
		hold := round%2 == 0
		var flags []string
		if !hold {
			flags = []string{"--tools", pure}
		}
		victim, events := []string{"daemon", "session", "worker"}[round%3], 2+random.Int64N(2*calls+2)
		t.Logf("seed %d, round %d: hold %t, victim %s, after %d events", seed, round, hold, victim, events)
		require.NoError(t, os.RemoveAll(filepath.Join(w.project, "effects")))
		id := fmt.Sprintf("round-%d", round)
		_, err := w.fleet.Submit(t.Context(), publisher.RunSpec{ID: id, Agent: k.name, Task: "Count."})
		require.NoError(t, err)
		workers := []*child{w.serve(fmt.Sprint("a", round), flags...), w.serve(fmt.Sprint("b", round), flags...)}
		require.Eventually(t, func() bool { // a worker that found no daemon would start one
			heard := w.await(w.start("fleet", "executors"))
			return strings.Contains(heard, fmt.Sprint("a", round)) && strings.Contains(heard, fmt.Sprint("b", round))
		}, limit, every)
		w.until(id, "the moment", func(s *schema.State) bool { return s.Head.Counts.Events >= events })
		if victim == "daemon" {
			w.killDaemon()
			w.startDaemon()
		}
		for _, worker := range workers {
			session := children(worker.Process.Pid)
			if len(session) == 0 || victim == "daemon" {
				continue
			}
			if victim == "worker" {
				kill(t, worker.Process.Pid)
			}
			kill(t, session[0])
			break // the other one goes on
		}
		w.until(id, "the end", func(s *schema.State) bool {
			if s.Head.Status == schema.StatusWaiting || s.Head.Status.Claimable() {
				w.settle(id)
			}
			return s.Head.Status.Terminal()
		})
		s, err := w.fleet.Get(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, schema.StatusCompleted, s.Head.Status)
		require.Empty(t, s.Head.OpenCalls)
		require.Zero(t, s.Head.Counts.DeadLetters)
		t.Logf("round %d: epoch %d, %d calls, %d late results", round, s.Head.Epoch, len(s.Calls), s.Head.Counts.LateResults)
		for n := range calls {
			effects := strings.Count(w.file("effects"), fmt.Sprintf("begun-%d.", n))
			if hold {
				require.LessOrEqual(t, effects, 1, "call %d, policy hold", n)
			} else {
				require.Positive(t, effects, "call %d, policy pure", n)
			}
		}
		for _, worker := range workers {
			_ = worker.Process.Signal(os.Interrupt)
			w.await(worker)
		}
	}
}
