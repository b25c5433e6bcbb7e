package transcript_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/harness/transcriptcheck"
	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/statedir"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/schema"
)

// kills is how many times an executor process dies in the full test.
const kills = 200

// journal is what executors wrote down outside of Waymark.
type journal struct {
	acked    int
	repeated []string
	runs     map[string]int
	// returned are the calls whose result was acknowledged.
	returned map[string]bool
}

// readJournal reads the lines that are whole.
func readJournal(tb testing.TB, path string) journal {
	tb.Helper()
	j := journal{runs: make(map[string]int), returned: make(map[string]bool)}
	b, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return j
	}
	require.NoError(tb, err)
	scanner := bufio.NewScanner(bytes.NewReader(b))
	for scanner.Scan() {
		var step int
		var name, call string
		line, whole := strings.CutSuffix(scanner.Text(), ";")
		switch {
		case !whole:
		case strings.HasPrefix(line, "acked "):
			_, err := fmt.Sscanf(line, "acked %d %s %s", &step, &name, &call)
			require.NoError(tb, err)
			if step <= j.acked {
				j.repeated = append(j.repeated, line)
			}
			j.acked = step
			j.returned[call] = j.returned[call] || name == schema.ToolReturned
		case strings.HasPrefix(line, "run "):
			_, err := fmt.Sscanf(line, "run %s", &call)
			require.NoError(tb, err)
			j.runs[call]++
			if j.returned[call] {
				j.repeated = append(j.repeated, line)
			}
		}
	}
	return j
}

// lineCounter counts the lines of a file that grows.
type lineCounter struct {
	path  string
	at    int64
	lines int
}

func (c *lineCounter) count(tb testing.TB) int {
	tb.Helper()
	f, err := os.Open(c.path)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(tb, err)
	defer func() { require.NoError(tb, f.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(f, c.at, 1<<20))
	require.NoError(tb, err)
	c.at += int64(len(b))
	c.lines += bytes.Count(b, []byte(";"))
	return c.lines
}

// A real process is killed at random boundaries and in random tools, and another one goes on each time.
func TestReplay_ProcessesKilled_Continued(t *testing.T) {
	t.Parallel()
	wanted := 12
	if testbin.Whole() {
		wanted = kills
	}
	if testing.Short() {
		wanted = 2
		t.Log("short: 2 kills")
	} else if wanted < kills {
		t.Logf("sample: %d kills of %d", wanted, kills)
	}
	w := newWorld(t)
	endpoint, err := statedir.Discover(t.Context(), w.server.StateDir())
	require.NoError(t, err)
	path := writeGenerated(t, t.TempDir(), transcript.ClaudeCode, transcriptgen.Spec{Seed: 5, Turns: 6 * wanted, Plain: true})
	want, err := transcriptcheck.Read(path, transcriptcheck.ClaudeCode)
	require.NoError(t, err)
	runs, _ := open(t, path, transcript.Options{RunID: "killed"})
	steps := len(events(t, runs[0]))
	book := filepath.Join(t.TempDir(), "journal")
	random := rand.New(rand.NewPCG(1, 2))
	killed, lines := 0, &lineCounter{path: book}
	for n := 0; ; n++ {
		require.Less(t, n, 2*wanted+10)
		job, err := json.Marshal(executorJob{
			URL: endpoint.URL, Context: endpoint.Context, Executor: fmt.Sprintf("exec-%d", n), File: path, RunID: "killed", Journal: book,
		})
		require.NoError(t, err)
		cmd := exec.Command(os.Args[0]) //nolint:gosec // the test binary itself
		cmd.Env = append(os.Environ(), childEnv+"="+string(job))
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		// Every process gets a few boundaries further, then dies wherever it is. It goes on until the kill reaches it: half of the
		// boundaries are left for that.
		target := lines.count(t) + 1 + random.IntN(steps/(2*wanted))
		died := false
		ticker := time.NewTicker(200 * time.Microsecond)
		for !died {
			select {
			case err := <-done:
				require.NoError(t, err, stderr.String())
				died = true
			case <-ticker.C:
				if killed < wanted && lines.count(t) >= target {
					require.NoError(t, cmd.Process.Kill())
					if err := <-done; err != nil {
						killed++
					}
					died = true
				}
			}
		}
		ticker.Stop()
		if readJournal(t, book).acked == steps {
			break
		}
	}
	j := readJournal(t, book)
	require.Empty(t, j.repeated, "an acknowledged boundary was published again, or a recorded result asked for again")
	f := w.fleet("reader")
	s := w.recovered(f, "killed")
	requireEqual(t, want.Conversations[0], s, transcript.ClaudeCode)
	require.Equal(t, outcome(fold(t, "killed", events(t, runs[0]))), outcome(s), "as without kills")
	require.Zero(t, s.Head.Counts.Settled, "no call with a result is in doubt")
	again := 0
	for i := range s.Calls {
		n := j.runs[callText(s.Calls[i].CallKey)]
		require.Positive(t, n, "call %v was never run", s.Calls[i].CallKey)
		again += n - 1
	}
	t.Logf("%d processes killed, epoch %d, %d boundaries, %d tool calls, %d run again", killed, s.Head.Epoch, steps, len(j.runs), again)
	require.Equal(t, wanted, killed)
}
