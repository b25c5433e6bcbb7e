package bench_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

// turns is a line of whole turns of one executor process, or of as many as runs.
func turns(runs, executors int, rate, rawRate float64) bench.Result {
	p50, rawP50, by := 2000.0, 1000.0, rate/rawRate
	ratio := p50 / rawP50
	return bench.Result{
		Case: "turn", Parameters: map[string]any{"steps": "full", "runs": float64(runs), "turns": 20.0, "executors": float64(executors)},
		Server: bench.OwnProcess, Sync: bench.SyncAlways, Replicas: "R1", Shards: 1, Daemons: 1,
		Ours: &bench.Figures{PerSecond: &rate, P50: &p50}, Raw: &bench.Figures{PerSecond: &rawRate, P50: &rawP50}, RateRatio: &by, P50Ratio: &ratio,
		CPU:    map[string]float64{"all": 1500, "executor": 500, "daemon": 600, "server": 400},
		RawCPU: map[string]float64{"all": 500, "executor": 200, "server": 300},
	}
}

func TestTables_LinesOfOneThing_AreMedians(t *testing.T) {
	const theirs = `{"waymark_bench_peer":1,"system":"Restate 1.7","store":"its own","client":"Go","runs":64,"turns":20,`
	lines, err := bench.ReadResults(strings.NewReader(
		strings.Repeat(theirs+`"turns_per_second":1000,"turn_p50_us":50000,"client_cpu_us":300,"server_cpu_us":700}`+"\n", 2) +
			theirs + `"turns_per_second":1600,"turn_p50_us":20000,"client_cpu_us":1,"server_cpu_us":1}` + "\n" +
			theirs + `"turns_per_second":1,"turn_p50_us":1,"quick":true}`))
	require.NoError(t, err)
	lines = append(lines, turns(64, 64, 3000, 4000), turns(64, 1, 500, 1000), turns(64, 1, 500, 1000), turns(64, 1, 9, 9))
	tables := bench.Tables(lines)
	require.Len(t, tables, 3)
	const where = "process, R1, sync always, 1 daemon processes"
	require.Equal(t, "turns", tables[0].Name)
	require.Equal(t, [][]string{
		{"Restate 1.7", "its own", "64", "1", "1000", "50.0", "", "", "1.00", "0.30", "", "0.70", "3"},
		{"Restate 1.7 (quick: means nothing)", "its own", "64", "1", "1.00", "0.00", "", "", "", "", "", "", "1"},
		{"Waymark", where, "64", "64", "3000", "2.00", "", "", "1.50", "0.50", "0.60", "0.40", "1"},
		{"raw JetStream", where, "64", "64", "4000", "1.00", "", "", "0.50", "0.20", "", "0.30", "1"},
		{"Waymark", where, "64", "1", "500", "2.00", "", "", "1.50", "0.50", "0.60", "0.40", "3"},
		{"raw JetStream", where, "64", "1", "1000", "1.00", "", "", "0.50", "0.20", "", "0.30", "3"},
	}, tables[0].Rows[1:])
	require.Equal(t, "cases", tables[1].Name)
	require.Len(t, tables[1].Rows, 3, "peers are no cases")
	require.Equal(t, "shown", tables[2].Name)
	require.Equal(t, [][]string{
		{"line", "measured", "to reach", "verdict"},
		{"turns/s by raw, 64 runs of one process", "0.50", "at least 0.90", "missed"},
		{"turns/s by raw, 64 executors", "0.75", "at least 0.75", "reached"},
		{"turns/s, 64 runs of one process, by Restate's in one process, Go", "0.50", "at least 3.00", "missed"},
		{"turns/s, 64 executors, by Restate's in one process, Go", "3.00", "at least 2.00", "reached"},
	}, tables[2].Rows)
	lines = []bench.Result{turns(1, 1, 500, 1000), turns(16, 1, 500, 1000)}
	require.Contains(t, bench.Tables(lines)[2].Rows, []string{"turn of 1 run, p50 by raw's three messages", "2.00", "at most 1.40", "missed"})
	require.Contains(t, bench.Tables(lines)[2].Rows, []string{"CPU of a turn by raw's writer and server, 1 run", "3.00", "", ""}, "it has no goal")
	require.Empty(t, bench.Tables(nil))
}

func TestReadResults_PeerOfAnotherFormat_IsRefused(t *testing.T) {
	for _, line := range []string{`{"waymark_bench_peer":2,"system":"x","runs":1,"turns":1}`, `{"waymark_bench_peer":1,"runs":1,"turns":1}`} {
		_, err := bench.ReadResults(strings.NewReader(line))
		require.ErrorIs(t, err, bench.ErrResult)
		require.ErrorContains(t, err, "peer format")
	}
}
