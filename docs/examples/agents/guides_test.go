//go:build unix

package agents_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guide is what a reader of a page starts with: a clone of Waymark, and an empty module of their own next to it.
type guide struct {
	t   *testing.T
	dir string
	env []string
}

// newGuide makes an empty module as the README says, with the programs that the pages show.
func newGuide(t *testing.T) *guide {
	t.Helper()
	root, err := filepath.Abs("../../..")
	require.NoError(t, err)
	g := &guide{t: t, dir: t.TempDir(), env: os.Environ()}
	require.NoError(t, os.Symlink(root, filepath.Join(g.dir, "waymark")))
	require.NoError(t, os.Mkdir(filepath.Join(g.dir, "mine"), 0o700))
	g.run("mine", "go", "mod", "init", "example.com/mine")
	edit := regexp.MustCompile(`(?m)^go mod edit .*$`).FindString(g.page("README.md"))
	require.NotEmpty(t, edit, "the README says how go.mod names the clone")
	g.run("mine", strings.Fields(edit)...)
	return g
}

// page is the text of a page of the repository.
func (g *guide) page(name string) string {
	g.t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, "waymark", name))
	require.NoError(g.t, err)
	return string(text)
}

func (g *guide) write(name, text string) {
	g.t.Helper()
	file := filepath.Join(g.dir, name)
	require.NoError(g.t, os.MkdirAll(filepath.Dir(file), 0o700))
	require.NoError(g.t, os.WriteFile(file, []byte(text), 0o600))
}

// run runs a command in a folder to its end, and returns what it printed.
func (g *guide) run(dir string, args ...string) string {
	g.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(g.t.Context()), args[0], args[1:]...)
	cmd.Dir, cmd.Env = filepath.Join(g.dir, dir), g.env
	out, err := cmd.CombinedOutput()
	require.NoError(g.t, err, "%s: %s", strings.Join(args, " "), out)
	return string(out)
}

// start starts a program; the returned function kills it, as kill -9 does.
func (g *guide) start(dir string, args ...string) (kill func(), out *os.File) {
	g.t.Helper()
	out, err := os.CreateTemp(g.t.TempDir(), "out")
	require.NoError(g.t, err)
	cmd := exec.CommandContext(context.Background(), args[0], args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = filepath.Join(g.dir, dir), g.env, out, out
	require.NoError(g.t, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			_ = cmd.Process.Signal(syscall.SIGKILL)
			_ = cmd.Wait() // it was killed
		}
	}
	g.t.Cleanup(kill)
	return kill, out
}

// completed is a line of runs get.
var completed = regexp.MustCompile(`(?m)^status +completed`)

// program is a whole program on a page.
var program = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")

// TestGuides_EmptyModule_CompileAndRun follows docs/first-agent.md from an empty module: the whole program as the page shows it, the files that the
// pages link or show parts of, and its commands.
func TestGuides_EmptyModule_CompileAndRun(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	const page = "docs/first-agent.md"
	shown := program.FindAllStringSubmatch(g.page(page), -1)
	require.Len(t, shown, 1)
	g.write("mine/writer/main.go", shown[0][1])
	require.Contains(t, g.page(page), "(examples/shortest/main.go)")
	g.write("mine/greeter/main.go", g.page("docs/examples/shortest/main.go"))
	parts, err := filepath.Glob(filepath.Join(g.dir, "waymark", "docs", "examples", "*.go"))
	require.NoError(t, err)
	for _, file := range parts {
		if !strings.HasSuffix(file, "_test.go") {
			g.write("mine/parts/"+filepath.Base(file), g.page("docs/examples/"+filepath.Base(file)))
		}
	}
	g.run("mine", "go", "mod", "tidy")
	g.run("mine", "go", "vet", "./...")
	g.run("mine", "go", "build", "-o", "bin/", "./writer", "./greeter")
	g.run("waymark", "go", "build", "-o", filepath.Join(g.dir, "mine", "bin")+"/", "./cmd/waymark")

	api := newAPI(t, writes)
	api.stop = 2
	for _, name := range []string{"NATS_URL", "NATS_CONTEXT", "WAYMARK_NATS_URL", "WAYMARK_NATS_CONTEXT", "WAYMARK_FLEET"} {
		g.env = append(g.env, name+"=")
	}
	g.env = append(g.env, "WAYMARK_STATE_DIR="+filepath.Join(g.dir, "state"), "WAYMARK_HTTP=off", "ANTHROPIC_API_KEY=none", "ANTHROPIC_BASE_URL="+api.server.URL)
	_, log := g.start("mine", "bin/waymark", "serve")
	require.Eventually(t, func() bool {
		text, err := os.ReadFile(log.Name())
		return err == nil && strings.Contains(string(text), "waymark is ready")
	}, time.Minute, 20*time.Millisecond)

	// Kill it at any moment and start it again. It dies while the model is shown the result.
	require.Contains(t, g.page(page), "`waymark start writer --task \"Write a haiku.\"`")
	kill, _ := g.start("mine", "bin/writer")
	g.run("mine", "bin/waymark", "start", "writer", "--id", "haiku", "--task", "Write a haiku.")
	api.await(2)
	kill()
	g.start("mine", "bin/writer")
	require.Eventually(t, func() bool {
		return completed.MatchString(g.run("mine", "bin/waymark", "runs", "get", "haiku"))
	}, time.Minute, 100*time.Millisecond)
	require.Len(t, api.requests(), 3, "the model is not asked again for an answer that was there")
	written, err := os.ReadFile(filepath.Join(g.dir, "mine", "page.txt"))
	require.NoError(t, err)
	require.Equal(t, "Hello.", string(written))

	// The shortest program: waymark start greeter --wait.
	require.Contains(t, g.page(page), "`waymark start greeter --wait`")
	g.start("mine", "bin/greeter")
	require.Contains(t, g.run("mine", "bin/waymark", "start", "greeter", "--wait"), "the run is completed")
}
