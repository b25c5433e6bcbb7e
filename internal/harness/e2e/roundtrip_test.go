package e2e_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/harness/transcriptgen"
	"github.com/waymarkio/waymark/internal/transcript"
)

func TestTranscripts_Real_RoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	if _, err := os.Stat(sharedData); err != nil {
		t.Skipf("no real transcripts at %s: the round trip over them is not proven by this run", sharedData)
	}
	roundTrip(t, transcriptFiles(t, sharedData))
}

func TestTranscripts_Foreign_RoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	folder := os.Getenv("WAYMARK_TRANSCRIPTS")
	if folder == "" {
		t.Skip("WAYMARK_TRANSCRIPTS is not set: no further transcripts to prove")
	}
	roundTrip(t, transcriptFiles(t, folder))
}

func TestTranscripts_OwnAndGenerated_RoundTrip(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real processes are started and killed")
	}
	files := transcriptFiles(t, ownData)
	for seed := range uint64(4) {
		for format, extension := range map[transcript.Format]string{
			transcript.OpenAIChat: "jsonl", transcript.ClaudeCode: "jsonl", transcript.SWEAgent: "traj",
		} {
			spec := transcriptgen.Spec{Seed: seed, Turns: 12, Text: 200}
			if format == transcript.OpenAIChat {
				spec.Runs = 4
			}
			files = append(files, generate(t, format, extension, spec))
		}
	}
	roundTrip(t, files)
}

// generate writes a generated transcript.
func generate(t *testing.T, format transcript.Format, extension string, spec transcriptgen.Spec) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "generated-"+string(format)+"."+extension)
	file, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, transcriptgen.Write(file, format, spec))
	require.NoError(t, file.Close())
	return path
}

// imported is the output of waymark import --json about a file.
type imported struct {
	Kind         string         `json:"kind"`
	Runs         int            `json:"runs"`
	Fate         string         `json:"fate"`
	Skipped      map[string]int `json:"skipped"`
	Problems     []string       `json:"problems"`
	MoreProblems int            `json:"more_problems"`
	Compactions  int            `json:"compactions"`
}

// roundTrip imports files with the program, each into a fleet of its own daemon, recovers and exports every run, and
// compares with the result of separate code that reads the source.
func roundTrip(t *testing.T, files []string) {
	t.Helper()
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			w := newWorld(t)
			s := readSource(t, file)
			out, stderr, err := w.try(t, "import", "--json", file)
			if len(s.want.Unreadable) == 0 {
				require.NoError(t, err, stderr)
			}
			runs, skipped, problems := 0, map[string]int{}, 0
			for _, line := range lines[imported](t, out) {
				if line.Kind == "file" {
					skipped, problems = line.Skipped, len(line.Problems)+line.MoreProblems
					continue
				}
				require.Equal(t, "imported", line.Fate, "%s", out)
				runs++
			}
			require.Equal(t, len(s.runs), runs)
			require.Equal(t, total(s.want.Skipped), total(skipped), "skipped lines, by the check %v, by the import %v", s.want.Skipped, skipped)
			require.Equal(t, len(s.want.Unreadable), problems, "what the check cannot read is what the import refuses")

			fleet := w.fleet(t, "proof")
			messages, calls := 0, 0
			for i, run := range s.runs {
				state := s.prove(t, fleet, i, run.ID)
				messages += s.want.Conversations[i].Messages
				calls += len(state.Calls)
				// The program's own export of every run takes a process each: for many runs in one file, a few.
				if i < 3 || testbin.Full(t) {
					require.NoError(t, s.want.Conversations[i].Export(w.cli(t, "export", run.ID)))
				}
			}
			t.Logf("%s: %d runs, %d messages, %d calls are equal; not proven: %d lines %v, unreadable %v",
				s.format, runs, messages, calls, s.want.Unproven(), s.want.Skipped, s.want.Unreadable)
			require.Zero(t, w.deadLetters(t))
		})
	}
}

func total(counts map[string]int) int {
	n := 0
	for v := range maps.Values(counts) {
		n += v
	}
	return n
}
