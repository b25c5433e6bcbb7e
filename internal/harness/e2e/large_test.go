package e2e_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
	"github.com/waymarkio/waymark/publisher"
)

func TestLargeRun_5000Turns_Recovered(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	file := generate(t, transcript.OpenAIChat, "jsonl", transcriptgen.Spec{Seed: 5, Turns: 5000, Text: 4200, Plain: true})
	state, epoch := largeRun(t, file, 40<<20)
	require.EqualValues(t, 5000, state)
	require.EqualValues(t, 2, epoch)
}

func TestLargeResult_10MB_Recovered(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	file := generate(t, transcript.ClaudeCode, "jsonl", transcriptgen.Spec{Seed: 6, Turns: 6, Result: 10 << 20, Plain: true})
	largeRun(t, file, 10<<20)
}

// largeRun imports a file with one run under the default limits, compares it with the source, and takes it over.
func largeRun(t *testing.T, file string, least int64) (turns int32, epoch uint64) {
	t.Helper()
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.GreaterOrEqual(t, info.Size(), least)
	w := newWorld(t)
	require.EqualValues(t, 1<<20, w.conn(t).MaxPayload(), "the server's default limit")

	s := readSource(t, file)
	begun := time.Now()
	w.cli(t, "import", file)
	importTook := time.Since(begun)

	fleet := w.fleet(t, "proof")
	run := s.runs[0].ID
	begun = time.Now()
	state := s.prove(t, fleet, 0, run)
	proofTook := time.Since(begun)
	require.Zero(t, w.deadLetters(t))

	begun = time.Now()
	handle, err := fleet.Resume(t.Context(), run, publisher.ResumeSpec{Reason: "reopen"})
	require.NoError(t, err)
	require.Len(t, handle.State().Messages, len(state.Messages))
	t.Logf("%d bytes, %d events: import %s, read and proof %s, takeover %s", info.Size(), state.Head.Counts.Events,
		importTook.Round(time.Millisecond), proofTook.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond))
	return state.Head.Turn, uint64(handle.Epoch())
}
