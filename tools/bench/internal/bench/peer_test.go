package bench_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

func TestReport_Peers_SameWorkloadTogether(t *testing.T) {
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

func TestReport_WholeTurns_AreMediansWithAimsAgainstRestate(t *testing.T) {
	own := func(runs, executors int, rate, p50 float64) bench.Result {
		parameters := map[string]any{"steps": "full", "runs": float64(runs), "turns": 20.0}
		if executors > 0 {
			parameters["executors"] = float64(executors)
		}
		return bench.Result{
			Case: "turn", Parameters: parameters, Server: bench.Embedded, Sync: bench.SyncAlways, Replicas: "R1", Shards: 1,
			Ours: &bench.Figures{PerSecond: &rate, P50: &p50}, CPU: map[string]float64{"all": 700},
		}
	}
	lines, err := bench.ReadResults(strings.NewReader(
		`{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-peers","runs":64,"turns":20,"turns_per_second":9,"turn_p50_us":9}` + "\n" + strings.Repeat(
			`{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-turn","runs":64,"turns":20,"turns_per_second":1000,"turn_p50_us":50000}`+"\n", 2) +
			`{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-turn","runs":64,"turns":20,"turns_per_second":1600,"turn_p50_us":20000}` + "\n" +
			`{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-turn","runs":1,"turns":200,"turns_per_second":400,"turn_p50_us":2500}` + "\n" +
			`{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-turn","runs":16,"turns":3,"turns_per_second":1,"turn_p50_us":1,"quick":true}`))
	require.NoError(t, err)
	lines = append(lines, own(1, 0, 500, 1375), own(1, 0, 500, 1375), own(1, 0, 9, 99999), own(64, 0, 1900, 30000), own(64, 64, 3000, 20000), own(16, 0, 1, 1))
	dir := t.TempDir()
	_, err = bench.WriteReport(dir, lines)
	require.NoError(t, err)
	page, err := os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	for _, row := range []string{
		"| Restate 1.7 | its own, make bench-turn | 64 |  | 1000 | 50000 |  | 3 |",
		"| Waymark | embedded, R1, sync always | 1 |  | 500 | 1375 | 700 | 3 |",
		"| Waymark | embedded, R1, sync always | 64 | 64 | 3000 | 20000 | 700 | 1 |",
		"| 1 run | embedded, R1, sync always | p50 us | at most 0.55 | 1375 | 2500 | 0.55 | reached |",
		"| 64 runs | embedded, R1, sync always | turns/s | at least 2.00 | 1900 | 1000 | 1.90 | **missed** |",
		"| 64 runs, an executor process each | embedded, R1, sync always | turns/s | at least 3.00 | 3000 | 1000 | 3.00 | reached |",
	} {
		require.Contains(t, string(page), row)
	}
	require.NotContains(t, string(page), "| 16 runs | embedded", "quick lines are compared with nothing")

	_, err = bench.WriteReport(dir, []bench.Result{own(1, 0, 500, 1375)})
	require.NoError(t, err)
	page, err = os.ReadFile(filepath.Join(dir, "report.md"))
	require.NoError(t, err)
	require.NotContains(t, string(page), "several systems", "Waymark's own lines are in the section of the case")
}
