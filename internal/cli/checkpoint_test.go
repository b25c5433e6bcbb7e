package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// A person's checkpoint that cannot have its name changes nothing.
func TestCheckpoint_NamesUsedUp_RefusedBeforeTheRunIsTaken(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	r, err := w.Fleet("e", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	for i := range schema.MaxMarks {
		require.NoError(t, r.Mark(t.Context(), fmt.Sprint("mark-", i)))
	}
	file := filepath.Join(t.TempDir(), "plan.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"plan":1}`), 0o600))
	code, _, complaints := w.ask("", "", "checkpoint", "r1", "--state", file, "--force")
	require.Equal(t, int(failure.Conflict), code)
	require.Contains(t, complaints, "64 named points")
	require.Contains(t, complaints, "--move")
	head, err := w.Fleet("looks", nil).Head(t.Context(), "r1")
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Epoch, "it is its executor's still")

	code, out, complaints := w.ask("", "", "checkpoint", "r1", "--state", file, "--force", "--name", "mark-0", "--move")
	require.Zero(t, code, complaints)
	require.Contains(t, out, "mark:mark-0")
}

// A file beyond the limit is named as too large, whatever is in it.
func TestSignal_PayloadBeyondTheLimit_SaysSo(t *testing.T) {
	t.Parallel()
	w := &world{waymarktest.Start(t), t}
	_, err := w.Fleet("e", nil).Start(t.Context(), publisher.RunSpec{ID: "r1", Agent: "coder"})
	require.NoError(t, err)
	code, _, complaints := w.ask("", `"`+strings.Repeat("x", 1<<20)+`"`, "signal", "r1", "note", "--payload", "@-")
	require.Equal(t, int(failure.Usage), code)
	require.Contains(t, complaints, "standard input has more than 1.0 MiB")
	require.NotContains(t, complaints, "not JSON")
}

// So many checkpoints of a run take so many intervals, however slow the machine is.
func TestServe_CheckpointInterval_IsTheLeastTimeBetweenCheckpoints(t *testing.T) {
	t.Parallel()
	where, _, fleet := provisioned(t)
	const interval, checkpoints = 400 * time.Millisecond, 3
	line, stop, err := startDaemon(append([]string{"--http", "127.0.0.1:0", "--checkpoint-interval", interval.String()}, where...), func(string) string { return "" })
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = stop() })
	address := regexp.MustCompile(` http=(\S+)`).FindStringSubmatch(line)
	require.Len(t, address, 2, line)
	began := time.Now()
	r, err := fleet.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	for put, written := 0, 1; put < checkpoints; written++ {
		require.Less(t, time.Since(began), time.Minute, "%d checkpoints of %d events", put, written)
		require.NoError(t, r.SetState(t.Context(), "step", written))
		_, page := ask(t, address[1]+"/metrics")
		put = 0
		for _, shard := range regexp.MustCompile(`(?m)^waymark_fold_checkpoints_total\{.*\} (\d+)$`).FindAllStringSubmatch(page, -1) {
			n, err := strconv.Atoi(shard[1])
			require.NoError(t, err)
			put += n
		}
		require.LessOrEqual(t, time.Duration(put)*interval, time.Since(began), "%d checkpoints of %d events", put, written+1)
	}
}
