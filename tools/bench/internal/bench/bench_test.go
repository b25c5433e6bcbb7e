package bench_test

import (
	"bytes"
	"context"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/tools/bench/internal/bench"
)

// quick are options under which a case takes seconds.
func quick(t *testing.T) bench.Options {
	t.Helper()
	return bench.Options{Quick: true, Child: child, Store: t.TempDir(), Version: "test", Logger: natstest.Logger(t)}
}

// measure runs cases and returns their lines, after they were written and read again.
func measure(t *testing.T, o bench.Options, cases ...bench.Case) []bench.Result {
	t.Helper()
	var lines bytes.Buffer
	require.NoError(t, bench.Run(t.Context(), cases, o, func(r *bench.Result) error {
		_, err := r.WriteTo(&lines)
		return err
	}))
	results, err := bench.ReadResults(&lines)
	require.NoError(t, err)
	left, err := os.ReadDir(o.Store)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directories are gone")
	return results
}

func TestCases_EveryVariant_WellFormedLine(t *testing.T) {
	cases := bench.Cases()
	if testing.Short() {
		cases = cases[:1]
		t.Logf("short: of %d cases only %s", len(bench.Cases()), cases[0].Name)
	}
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			o := quick(t)
			results := measure(t, o, c)
			require.Len(t, results, len(c.Variants(o.Defaults())))
			for _, r := range results {
				require.Empty(t, r.Error)
				require.Equal(t, c.Name, r.Case)
				require.True(t, r.Quick)
				require.NotZero(t, r.Verified, "it was read back")
				require.NotNil(t, r.Ours)
				require.Positive(t, r.Ours.Count)
				require.Equal(t, "test", r.Version)
				require.NotZero(t, r.Machine.CPUs)
				require.NotEmpty(t, r.Began)
			}
		})
	}
}

// oneRun is a case of a run with two turns; what it hands in for verification is changed before.
func oneRun(change func(wrote []bench.Wrote) []bench.Wrote) bench.Case {
	return bench.Case{Name: "one", About: "one run", Variants: func(bench.Options) []bench.Variant {
		return []bench.Variant{{Setup: func(ctx context.Context, w *bench.World) (*bench.Trial, error) {
			f, err := w.Fleet(ctx, "executor")
			if err != nil {
				return nil, err
			}
			players, err := bench.StartRuns(ctx, f, "run", 2, bench.FullTurn)
			if err != nil {
				return nil, err
			}
			return &bench.Trial{
				Ours: func(ctx context.Context, _ int) (bench.Sample, error) {
					return bench.Together(ctx, []bench.Turner{players[0], players[1]}, 2)
				},
				Verify: func(ctx context.Context) error { return w.Verify(ctx, change(bench.WroteBy(players...))) },
			}, nil
		}}}
	}}
}

func TestCase_WrongData_Fails(t *testing.T) {
	for name, change := range map[string]func([]bench.Wrote) []bench.Wrote{
		"another digest":          func(w []bench.Wrote) []bench.Wrote { w[1].Head.Digest = w[0].Head.Digest; return w },
		"an event that is gone":   func(w []bench.Wrote) []bench.Wrote { w[0].Head.Counts.Events++; return w },
		"a sequence not reached":  func(w []bench.Wrote) []bench.Wrote { w[0].Head.Sequence++; return w },
		"another epoch":           func(w []bench.Wrote) []bench.Wrote { w[0].Head.Epoch++; return w },
		"nothing to be looked at": func([]bench.Wrote) []bench.Wrote { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var lines []bench.Result
			err := bench.Run(t.Context(), []bench.Case{oneRun(change)}, quick(t), func(r *bench.Result) error {
				lines = append(lines, *r)
				return nil
			})
			require.ErrorIs(t, err, bench.ErrWrongData)
			require.Len(t, lines, 1)
			require.NotEmpty(t, lines[0].Error, "the line says so")
			require.Nil(t, lines[0].Ours, "and has no figures")
		})
	}
}

func TestCase_RunMissing_Fails(t *testing.T) {
	c := oneRun(func(w []bench.Wrote) []bench.Wrote { w[0].Run = "gone"; return w })
	err := bench.Run(t.Context(), []bench.Case{c}, quick(t), func(*bench.Result) error { return nil })
	require.ErrorContains(t, err, "gone")
}

func same(w []bench.Wrote) []bench.Wrote { return w }

func TestCases_EveryServerKind_Measured(t *testing.T) {
	for name, c := range map[string]struct {
		server   bench.ServerKind
		sync     bench.Sync
		daemons  int
		shards   int
		replicas string
		kinds    []string
	}{
		"embedded":                       {bench.Embedded, bench.SyncAlways, 0, 1, "R1", []string{"all"}},
		"embedded, default sync, shards": {bench.Embedded, bench.SyncDefault, 0, 3, "R1", []string{"all"}},
		"all processes":                  {bench.OwnProcess, bench.SyncAlways, 2, 2, "R1", []string{"all", "daemon", "measuring", "server"}},
		"cluster":                        {bench.ThreeNodes, bench.SyncAlways, 0, 1, "R3", []string{"all", "measuring", "server"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := quick(t)
			o.Server, o.Sync, o.Daemons, o.Shards = c.server, c.sync, c.daemons, c.shards
			results := measure(t, o, oneRun(same))
			require.Len(t, results, 1)
			r := results[0]
			require.Equal(t, c.server, r.Server)
			require.Equal(t, c.sync, r.Sync)
			require.Equal(t, c.replicas, r.Replicas)
			require.Equal(t, c.shards, r.Shards)
			require.EqualValues(t, 12, r.Ours.Count)
			require.EqualValues(t, 14, r.Verified, "two runs began, and had two turns each")
			require.InDelta(t, 4*bench.TurnPayload, *r.PayloadBytes, 0)
			require.Greater(t, *r.LogBytes, *r.PayloadBytes, "each event has headers")
			require.Nil(t, r.Raw, "there was no raw round")
			if r.CPU != nil {
				require.ElementsMatch(t, c.kinds, slices.Collect(maps.Keys(r.CPU)))
			}
		})
	}
}

func TestTurn_ExecutorProcesses_ShareTheRuns(t *testing.T) {
	t.Parallel()
	found, err := bench.Find("turn")
	require.NoError(t, err)
	o := quick(t)
	o.Runs, o.Turns, o.Executors = 5, 2, 2
	results := measure(t, o, found[0])
	o.Runs = 1
	lone := measure(t, o, found[0])
	require.Len(t, results, 1)
	require.Len(t, lone, 2, "one run takes small steps, too")
	for _, r := range results {
		require.EqualValues(t, 2, r.Parameters["executors"])
		require.EqualValues(t, 10, r.Ours.Count, "two turns of each run")
		require.EqualValues(t, 10, r.Raw.Count)
		require.NotNil(t, r.StoredPerPayload)
		if r.CPU != nil {
			require.Contains(t, r.CPU, "executor")
			require.Contains(t, r.RawCPU, "executor", "the raw writers are in the same processes")
		}
	}
	// Behind its start a run has a turn of warm-up and two of the round, of three events.
	require.EqualValues(t, 5*(1+3*3), results[0].Verified)
	require.EqualValues(t, 1+3*3, lone[0].Verified)
	require.EqualValues(t, 1, lone[0].Parameters["executors"], "at most one a run")
	require.InDelta(t, 10*bench.TurnPayload, *results[0].PayloadBytes, 0)
	if testing.Short() {
		t.Skip("short: without a model and tools that take their time")
	}
	o.Runs = 16
	timed := measure(t, o, found[0])
	require.Len(t, timed, 2)
	require.Equal(t, "timed", timed[1].Parameters["steps"])
	require.EqualValues(t, 32, timed[1].Ours.Count)
	require.Less(t, *timed[1].Ours.P50, 200e3, "the times of model and tools are no part of it")
}

func TestMeasurement_Interrupted_LeavesNothing(t *testing.T) {
	o := quick(t)
	o.Server, o.Daemons = bench.OwnProcess, 1
	ctx, cancel := context.WithCancel(t.Context())
	c := oneRun(same)
	variants := c.Variants
	c.Variants = func(o bench.Options) []bench.Variant {
		list := variants(o)
		setup := list[0].Setup
		list[0].Setup = func(ctx context.Context, w *bench.World) (*bench.Trial, error) {
			trial, err := setup(ctx, w)
			cancel()
			return trial, err
		}
		return list
	}
	err := bench.Run(ctx, []bench.Case{c}, o, func(*bench.Result) error { t.Error("a line of what was not measured"); return nil })
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(o.Store)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestOptions_Invalid_NamesField(t *testing.T) {
	for field, o := range map[string]bench.Options{
		"sync":      {Sync: "never"},
		"rounds":    {Rounds: -1},
		"runs":      {Runs: -1},
		"turns":     {Turns: -1},
		"shards":    {Shards: 65},
		"daemons":   {Daemons: 17},
		"executors": {Executors: 257},
	} {
		err := bench.Run(t.Context(), nil, o, nil)
		require.ErrorIs(t, err, bench.ErrOptions)
		require.ErrorContains(t, err, field)
	}
	o := quick(t)
	o.Child, o.Server = nil, bench.OwnProcess
	err := bench.Run(t.Context(), []bench.Case{oneRun(same)}, o, func(*bench.Result) error { return nil })
	require.ErrorIs(t, err, bench.ErrOptions, "processes need a command")
}

func TestCases_Name_Found(t *testing.T) {
	found, err := bench.Find("turn", "boundary")
	require.NoError(t, err)
	require.Len(t, found, 2)
	require.Equal(t, "boundary", found[0].Name, "in the order of the list")
	all, err := bench.Find()
	require.NoError(t, err)
	require.Len(t, all, len(bench.Cases()))
	_, err = bench.Find("boundary", "moon")
	require.ErrorIs(t, err, bench.ErrUnknownCase)
	require.ErrorContains(t, err, `"moon"`)
	for _, c := range bench.Cases() {
		require.Regexp(t, "^[a-z]+$", c.Name)
		require.NotEqual(t, "report", c.Name, "it is a command")
		require.NotEmpty(t, c.About)
	}
}

func TestResults_BadLine_Named(t *testing.T) {
	for name, line := range map[string]string{
		"no JSON":        "x",
		"another format": `{"waymark_bench":2,"case":"boundary"}`,
		"another thing":  `{"hello":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			good := `{"waymark_bench":1,"case":"boundary","server":"embedded","sync":"always","replicas":"R1","shards":1,"rounds":1,"verified_events":1,"version":"v","machine":{},"began":"","took_s":0}`
			_, err := bench.ReadResults(strings.NewReader(good + "\n\n" + line + "\n"))
			require.ErrorIs(t, err, bench.ErrResult)
			require.ErrorContains(t, err, "line 3")
			results, err := bench.ReadResults(strings.NewReader(good))
			require.NoError(t, err)
			require.Len(t, results, 1)
		})
	}
}
