package bench_test

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

var update = flag.Bool("update", false, "write the golden report again")

func goldenResults(t *testing.T) []bench.Result {
	t.Helper()
	file, err := os.Open(filepath.Join("testdata", "results.jsonl"))
	require.NoError(t, err)
	defer func() { require.NoError(t, file.Close()) }()
	results, err := bench.ReadResults(file)
	require.NoError(t, err)
	return results
}

func TestReport_Lines_AimsAndPlots(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	files, err := bench.WriteReport(dir, goldenResults(t))
	require.NoError(t, err)
	require.Equal(t, []string{"report.md", "growth-bytes.svg", "growth-p50.svg", "boundaries.svg"}, files)
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	golden := filepath.Join("testdata", "report.md")
	if *update {
		require.NoError(t, os.WriteFile(golden, page, 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, string(want), string(page))
	for _, name := range files[1:] {
		require.Contains(t, string(page), "]("+name+")")
		svg, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		requireXML(t, string(svg))
		require.NotContains(t, string(svg), "NaN")
	}
	bytes, err := os.ReadFile(filepath.Join(dir, "growth-bytes.svg"))
	require.NoError(t, err)
	for _, text := range []string{"full (embedded", "paced (embedded", "at most 2.00", "at most 3.00", ">1000<", ">50<"} {
		require.Contains(t, string(bytes), text)
	}
}

func requireXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := d.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
	}
}

func TestReport_MeasuredTwice_LastCounts(t *testing.T) {
	results := goldenResults(t)[:1]
	again := results[0]
	figures := *again.Ours
	rate := 424242.0
	figures.PerSecond = &rate
	again.Ours = &figures
	dir := t.TempDir()
	_, err := bench.WriteReport(dir, append(results, again))
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Contains(t, string(page), "424242")
	require.NotContains(t, string(page), "2128", "the first time")
}

func TestReport_Empty_Refused(t *testing.T) {
	_, err := bench.WriteReport(t.TempDir(), nil)
	require.ErrorIs(t, err, bench.ErrResult)
}
