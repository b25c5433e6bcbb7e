package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/journal"
	"github.com/waymarkio/waymark/internal/player"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
)

// executorVariable makes this test binary an executor; its value has the settings.
const executorVariable = "WAYMARK_E2E_EXECUTOR"

// executorSettings are the settings of an executor.
type executorSettings struct {
	Name     string          `json:"name"`
	StateDir string          `json:"state_dir"`
	Journal  string          `json:"journal"`
	Jobs     []executorOrder `json:"jobs"`
}

// executorOrder is one run: its id, and the transcript that it executes.
type executorOrder struct {
	File   string            `json:"file"`
	Format transcript.Format `json:"format"`
	// Script is the id that the run has in the file, Run the one it gets.
	Script string `json:"script"`
	Run    string `json:"run"`
	// Resume takes the run over, knowing nothing of how far it is.
	Resume bool `json:"resume"`
}

// exitUnavailable is the exit code of an executor that gave up because the server was away: another one must
// continue.
const exitUnavailable = 3

// executorMain plays its orders one after the other until it is killed or done.
func executorMain(settings string) int {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	err := execute(ctx, settings)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, err)
	for _, away := range []error{publisher.ErrUnavailable, publisher.ErrUnresolved, publisher.ErrNoService, errAway} {
		if errors.Is(err, away) {
			return exitUnavailable
		}
	}
	return 1
}

var errAway = errors.New("the server is away")

func execute(ctx context.Context, settings string) (err error) {
	var s executorSettings
	if err := json.Unmarshal([]byte(settings), &s); err != nil {
		return err
	}
	witness, err := journal.Open(s.Journal, time.Now)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, witness.Close()) }()
	nc, _, err := dial(ctx, s.StateDir)
	if err != nil {
		return fmt.Errorf("%w: %w", errAway, err)
	}
	defer nc.Close()
	fleet, err := publisher.Connect(ctx, publisher.Config{Conn: nc, Executor: s.Name, PublishTimeout: patience / 3, RequestTimeout: patience / 3})
	if err != nil {
		return err
	}
	p := &player.Player{Fleet: fleet, Journal: witness, Tool: player.Recorded, Now: time.Now}
	scripts := make(map[string][]*transcript.Run)
	for _, order := range s.Jobs {
		if scripts[order.File] == nil {
			if scripts[order.File], err = readScripts(order.File, order.Format); err != nil {
				return err
			}
		}
		i := slices.IndexFunc(scripts[order.File], func(r *transcript.Run) bool { return r.ID == order.Script })
		if i < 0 {
			return fmt.Errorf("%s has no run %s", order.File, order.Script)
		}
		script := *scripts[order.File][i]
		script.ID = order.Run
		play := p.Play
		if order.Resume {
			play = p.Resume
		}
		if err := play(ctx, &script); err != nil {
			return err
		}
	}
	return nil
}

func readScripts(file string, format transcript.Format) ([]*transcript.Run, error) {
	f, err := transcript.Open(file, transcript.Options{Format: format})
	if err != nil {
		return nil, err
	}
	return slices.Collect(f.Runs()), f.Err()
}

// executor starts an executor process.
func (w *world) executor(tb testing.TB, name string, orders []executorOrder) *child {
	tb.Helper()
	self, err := os.Executable()
	require.NoError(tb, err)
	settings, err := json.Marshal(executorSettings{Name: name, StateDir: w.state(), Journal: w.journal(), Jobs: orders})
	require.NoError(tb, err)
	cmd := exec.CommandContext(context.Background(), self)
	cmd.Env = environment(executorVariable + "=" + string(settings))
	return startChild(tb, name, cmd)
}
