package bench_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/bench"
)

func TestOtherSystemsStandBesideOurLinesOfTheSameWorkload(t *testing.T) {
	peers, err := bench.ReadResults(strings.NewReader(
		`{"waymark_bench_peer":1,"system":"Other 1.0","store":"Store 2","source":"here","runs":1,"turns":200,"per_second":7,"p50_us":4242,"recovery_ms":99.5,"machine":"m"}`))
	require.NoError(t, err)
	require.Len(t, peers, 1)
	dir := t.TempDir()
	_, err = bench.WriteReport(dir, append(goldenResults(t), peers...))
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.Contains(t, string(page), "| Other 1.0 | Store 2, here | 1 | 200 | 7.00 | 4242 |  |  |  | 99.5 |")
	require.Contains(t, string(page), "| Waymark | embedded, R1, sync always | 1 | 200 |")
	require.NotContains(t, string(page), "## peer")
	for _, line := range []string{`{"waymark_bench_peer":2,"system":"x","runs":1,"turns":1}`, `{"waymark_bench_peer":1,"runs":1,"turns":1}`} {
		_, err := bench.ReadResults(strings.NewReader(line))
		require.ErrorIs(t, err, bench.ErrResult)
		require.ErrorContains(t, err, "peer format")
	}
}
