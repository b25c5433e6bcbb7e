package bench_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

func TestWholeTurnsTable_Rows_AreMediansByRuns(t *testing.T) {
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
	const theirs = `{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","source":"make bench-turn","runs":64,"turns":20,`
	lines, err := bench.ReadResults(strings.NewReader(strings.Repeat(theirs+`"turns_per_second":1000,"turn_p50_us":50000}`+"\n", 2) +
		theirs + `"turns_per_second":1600,"turn_p50_us":20000}` + "\n" + theirs + `"turns_per_second":1,"turn_p50_us":1,"quick":true}`))
	require.NoError(t, err)
	lines = append(lines, own(64, 64, 3000, 20000), own(1, 0, 500, 1375), own(1, 0, 500, 1375), own(1, 0, 9, 99999))
	require.Equal(t, [][]string{
		{"Waymark", "embedded, R1, sync always", "1", "", "500", "1375", "", "", "", "700", "3"},
		{"Restate 1.7", "its own, make bench-turn", "64", "", "1000", "50000", "", "", "", "", "3"},
		{"Restate 1.7 (quick: means nothing)", "its own, make bench-turn", "64", "", "1.00", "1.00", "", "", "", "", "1"},
		{"Waymark", "embedded, R1, sync always", "64", "64", "3000", "20000", "", "", "", "700", "1"},
	}, bench.WholeTurnsTable(lines))
}

func TestReadResults_PeerOfAnotherFormat_IsRefused(t *testing.T) {
	for _, line := range []string{`{"waymark_bench_peer":2,"system":"x","runs":1,"turns":1}`, `{"waymark_bench_peer":1,"runs":1,"turns":1}`} {
		_, err := bench.ReadResults(strings.NewReader(line))
		require.ErrorIs(t, err, bench.ErrResult)
		require.ErrorContains(t, err, "peer format")
	}
}
