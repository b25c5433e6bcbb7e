package conform_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/conform"
)

// FuzzRecording reads anything as a recording: nothing panics, every finding names a rule, and what is found does not
// depend on how the recording is cut into files.
func FuzzRecording(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.jsonl"))
	require.NoError(f, err)
	require.NotEmpty(f, files)
	for _, name := range files {
		b, err := os.ReadFile(name)
		require.NoError(f, err)
		f.Add(b)
	}
	all := make([]string, 0, len(conform.Scenarios()))
	for _, s := range conform.Scenarios() {
		all = append(all, s.ID)
	}
	f.Fuzz(func(t *testing.T, recording []byte) {
		whole, err := conform.New(conform.Config{Expect: all})
		require.NoError(t, err)
		if err := whole.ReadRecording("a", bytes.NewReader(recording)); err != nil {
			require.ErrorIs(t, err, conform.ErrRecording)
			return
		}
		cut, err := conform.New(conform.Config{Expect: all})
		require.NoError(t, err)
		for line := range bytes.Lines(recording) {
			require.NoError(t, cut.ReadRecording("a", bytes.NewReader(line)))
		}
		a, b := whole.Report(), cut.Report()
		require.Equal(t, a.Must, b.Must)
		require.Equal(t, a.Should, b.Should)
		require.Equal(t, a.Scenarios, b.Scenarios)
		for i := range a.Findings {
			_, ok := conform.RuleOf(a.Findings[i].Rule)
			require.True(t, ok)
			require.Equal(t, a.Findings[i].Rule, b.Findings[i].Rule)
			require.NotEmpty(t, a.Findings[i].Expected)
			a.Findings[i].Place()
		}
	})
}
