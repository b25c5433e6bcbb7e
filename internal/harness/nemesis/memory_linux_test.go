package nemesis_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// memoryGroups is where Linux' first version of control groups bounds memory.
const memoryGroups = "/sys/fs/cgroup/memory"

// cell is a control group with the processes of one name: the system kills one that exceeds the memory limit.
type cell struct {
	dir string
}

// newCell makes one, or skips the test where that is not possible.
func newCell(t *testing.T, name string) *cell {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("running out of memory needs root, for a control group: run make chaos CHAOSFLAGS=\"-run OutOfMemory\" as root")
	}
	c := &cell{dir: filepath.Join(memoryGroups, fmt.Sprintf("waymark-nemesis-%d-%s-%s", os.Getpid(), strings.ReplaceAll(t.Name(), "/", "-"), name))}
	if err := os.Mkdir(c.dir, 0o700); err != nil {
		t.Skipf("running out of memory needs control groups of version 1 with the memory controller: %v", err)
	}
	t.Cleanup(func() {
		// The system takes note of the end of the last process in its own time.
		require.Eventually(t, func() bool {
			err := syscall.Rmdir(c.dir)
			return err == nil || errors.Is(err, os.ErrNotExist)
		}, patience, 10*time.Millisecond, "%s cannot be removed", c.dir)
	})
	return c
}

// hold makes a process of the world start in the cell, each time.
func (c *cell) hold(p *process) {
	command := p.command
	p.command = func() *exec.Cmd {
		cmd := command()
		args := append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(c.dir, "cgroup.procs")}, cmd.Args...)
		held := exec.CommandContext(context.Background(), "/bin/sh", args[1:]...)
		held.Env = cmd.Env
		return held
	}
}

// may sets how many bytes the cell's processes may use; -1 is any number. Reclaimable memory (file caches) is
// reclaimed.
func (c *cell) may(limit int64) error {
	return os.WriteFile(filepath.Join(c.dir, "memory.limit_in_bytes"), []byte(strconv.FormatInt(limit, 10)), 0o600)
}

// value reads a number from a file of the cell, from the line that begins with a word.
func (c *cell) value(file, word string) (int64, error) {
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(text) {
		if name, number, found := strings.Cut(strings.TrimSpace(string(line)), " "); found && name == word {
			return strconv.ParseInt(number, 10, 64)
		}
	}
	return 0, fmt.Errorf("%s has no %s: %s", file, word, text)
}

// exhaust leaves a process a little memory above its usage, and makes it do more work until the system kills it.
func (c *cell) exhaust(ctx context.Context, p *process, room int64, work func(ctx context.Context)) error {
	before, err := c.value("memory.oom_control", "oom_kill")
	if err != nil {
		return err
	}
	var has int64
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for limited := errors.New("not yet"); limited != nil; {
		if has, err = c.value("memory.stat", "rss"); err != nil {
			return err
		}
		// File caches cannot be reclaimed at once while they are being written.
		if limited = c.may(has + room); limited != nil && !errors.Is(limited, syscall.EBUSY) {
			return limited
		}
		select {
		case <-every.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	working, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var hands sync.WaitGroup
	for range 8 {
		hands.Go(func() {
			for working.Err() == nil {
				work(working)
			}
		})
	}
	select {
	case <-p.life.gone:
	case <-working.Done():
		err = fmt.Errorf("%s, which had %d bytes and may take %d more, still runs", p.name, has, room)
	}
	cancel()
	hands.Wait()
	kills, killsErr := c.value("memory.oom_control", "oom_kill")
	if err = errors.Join(err, killsErr, c.may(-1)); err != nil {
		return err
	}
	if kills == before {
		return fmt.Errorf("%s ended, and not because of memory: %w", p.name, p.life.err)
	}
	return nil
}

func TestOutOfMemory_DaemonOrServer_LosesNothing(t *testing.T) {
	t.Parallel() // it mostly waits
	if testing.Short() {
		t.Skip("short: real servers and programs are broken")
	}
	if !testbin.Full(t) {
		t.Skip(`sample: it takes minutes: run make chaos CHAOSFLAGS="-run OutOfMemory"`)
	}
	for _, servers := range []int{1, 3} {
		t.Run(fmt.Sprintf("servers=%d", servers), func(t *testing.T) {
			if only := number(t, "WAYMARK_CHAOS_SERVERS", 0); only != 0 && only != uint64(servers) { //nolint:gosec // 1 or 3
				t.Skipf("WAYMARK_CHAOS_SERVERS=%d leaves out worlds of %d servers", only, servers)
			}
			outOfMemory(t, servers, int(number(t, "WAYMARK_CHAOS_ROUNDS", 3))) //nolint:gosec // a few
		})
	}
}

// outOfMemory kills a daemon and a server by lack of memory, several times.
func outOfMemory(t *testing.T, servers, times int) {
	t.Helper()
	cells := make(map[string]*cell)
	s := scaleOf(servers)
	s.quota = "256MiB"
	for _, name := range []string{"daemon-0", "server-0"} {
		cells[name] = newCell(t, name)
	}
	s.held = func(p *process) {
		if c := cells[p.name]; c != nil {
			c.hold(p)
		}
	}
	r := newRound(t, s, number(t, "WAYMARK_CHAOS_SEED", 1))
	// A run whose complete state is large to read; and large messages to store.
	big := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(strings.Repeat("remember this ", 10_000))}}
	glutton := r.world.fleet("glutton", 0, s.timeout)
	var run *publisher.Run
	r.eventually("the large run cannot be written", func() (err error) {
		if run == nil {
			if run, err = glutton.Start(t.Context(), publisher.RunSpec{ID: "large", Task: "grow"}); err != nil {
				return err
			}
		}
		for range 60 {
			if err := run.AddMessage(t.Context(), big); err != nil {
				return errors.Join(err, run.Resolve(t.Context()))
			}
		}
		return nil
	})
	read := func(ctx context.Context) {
		request, cancel := context.WithTimeout(ctx, s.timeout)
		defer cancel()
		// The answering daemon folds the whole run. The request may fail: a daemon dies of it.
		_, _ = r.js.Conn().RequestWithContext(request, schema.ServiceSubject(schema.VerbGet, schema.DefaultFleet, run.ID()), []byte(`{"view":"state"}`))
	}
	var written atomic.Int64
	write := func(ctx context.Context) {
		if own, err := glutton.Start(ctx, publisher.RunSpec{ID: fmt.Sprintf("written-%d", written.Add(1)), Task: "grow"}); err == nil {
			for range 20 {
				if own.AddMessage(ctx, big) != nil {
					return
				}
			}
			_ = own.End(ctx, publisher.RunEnd{}) // it may fail: the server dies of it
		}
	}
	strike := func(name string, p *process, work func(ctx context.Context)) {
		r.suffer(fault{name: name, strike: func(ctx context.Context, _ *storm) error { return cells[p.name].exhaust(ctx, p, 2<<20, work) }})
	}
	for range times {
		strike("daemon-out-of-memory", r.daemons[0], read)
		strike("server-out-of-memory", r.nodes[0], write)
	}
	r.judge()
	for _, what := range []string{"daemon", "server"} {
		r.outages(t, what+"-out-of-memory")
	}
}
