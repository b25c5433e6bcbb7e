package main

import (
	"maps"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const events = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: short: takes long\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB","Output":"    a_test.go:9: got 1, want 2\n"}
{"Action":"fail","Package":"p","Test":"TestB","Elapsed":1.5}
{"Action":"output","Package":"p","Test":"TestC","Output":"    a_test.go:12: sample: 2 of 9\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"--- PASS: TestC (1.00s)\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"fatal error: all goroutines are asleep\n"}
{"Action":"pass","Package":"p","Test":"TestC","Elapsed":1}
{"Action":"output","Package":"p","Test":"TestD","Output":"panic: deadline\n"}
{"Action":"output","Package":"p","Output":"FAIL\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t2.5s\n"}
{"Action":"fail","Package":"p","Elapsed":2.5}
`

func TestFollow_Events_BecomeOutcomesAndWhatFailedIsPrinted(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	list, err := follow(strings.NewReader(events), &out)
	require.NoError(t, err)
	require.Equal(t, []outcome{
		{Package: "p", Test: "TestA", Action: skipped, Reason: "short: takes long"},
		{Package: "p", Test: "TestB", Action: failed, Seconds: 1.5, Output: "    a_test.go:9: got 1, want 2\n"},
		{Package: "p", Test: "TestC", Action: passed, Seconds: 1, Reason: "sample: 2 of 9"},
		{
			Package: "p", Action: failed, Seconds: 2.5, Line: "FAIL\tp\t2.5s",
			Output: "panic: deadline\nfatal error: all goroutines are asleep\nFAIL\tp\t2.5s\n",
		},
	}, list)
	require.Equal(t, "    a_test.go:9: got 1, want 2\npanic: deadline\nfatal error: all goroutines are asleep\nFAIL\tp\t2.5s\n", out.String())
}

// go test has no event for a benchmark that ended well.
func TestFollow_Benchmarks_EndAsTheirPackageDoes(t *testing.T) {
	t.Parallel()
	list, err := follow(strings.NewReader(`{"Action":"run","Package":"p","Test":"BenchmarkA"}
{"Action":"output","Package":"p","Test":"BenchmarkA","Output":"BenchmarkA-2   \t       1\t     10045 ns/op\n"}
{"Action":"run","Package":"p","Test":"BenchmarkB"}
{"Action":"skip","Package":"p","Test":"BenchmarkB"}
{"Action":"pass","Package":"p","Elapsed":1}
{"Action":"run","Package":"q","Test":"BenchmarkC"}
{"Action":"fail","Package":"q","Elapsed":1}
`), new(strings.Builder))
	require.NoError(t, err)
	require.Equal(t, []outcome{
		{Package: "p", Test: "BenchmarkB", Action: skipped, Reason: "no reason given"},
		{Package: "p", Test: "BenchmarkA", Action: passed},
		{Package: "p", Action: passed, Seconds: 1},
		{Package: "q", Test: "BenchmarkC", Action: failed},
		{Package: "q", Action: failed, Seconds: 1},
	}, list)
}

func TestLeft_EachReason_HasItsCommand(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	printLeft(&out, []outcome{
		{Package: modulePath + "/p", Test: "TestA", Action: skipped, Reason: "short: takes long"},
		{Package: modulePath + "/p", Test: "TestA/b", Action: skipped, Reason: "needs root"},
		{Package: modulePath + "/p", Test: "TestC", Action: passed, Reason: "sample: 2 of 9"},
		{Package: modulePath + "/p", Test: "TestD", Action: passed},
	})
	require.Equal(t, "== left out; to run: make check-full (1)\n  p.TestA: takes long\n"+
		"== left out; to run: make check-full FULL=1 (1)\n  p.TestC, in part: 2 of 9\n"+
		"== NOT PROVEN here; each line says what is missing (1)\n  p.TestA/b: needs root\n", out.String())
}

var sources = fstest.MapFS{
	"p/a_test.go": {Data: []byte("package p\nfunc TestA(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: long\")\n }\n}\nfunc TestB(t *testing.T) {}\n" +
		"func BenchmarkC(b *testing.B) {}\nfunc TestMain(m *testing.M) {}\nfunc Testify() {}\nfunc ExampleD() {\n // Output: 1\n}\nfunc ExampleE() {}\n")},
	"p/tag_test.go":       {Data: []byte("//go:build waymark_failpoints\n\npackage p\nfunc TestF(t *testing.T) {}\n")},
	"p/a_windows_test.go": {Data: []byte("package p\nfunc TestG(t *testing.T) {}\n")},
	"p/other_test.go":     {Data: []byte("//go:build plan9\n\npackage p\nfunc TestH(t *testing.T) {}\n")},
	"m/s_test.go":         {Data: []byte("package m\nfunc TestScripts_Short_Pass(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: slow\")\n }\n}\n")},
}

func TestLongTests_Sources_AreThoseThatAskShort(t *testing.T) {
	t.Parallel()
	long, err := longTests(sources)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"p": {"TestA"}, "m": {"TestScripts_Short_Pass"}}, long)
	require.Equal(t, []string{"-run", "^(TestA|TestScripts_Short_Pass)$", "./m", "./p"}, longArguments(long))
	long["internal/harness/h"] = []string{"TestH"}
	require.Equal(t, []string{"-run", "^(TestA|TestH|TestScripts_Short_Pass)$", "./internal/harness/h", "./m", "./p"}, longArguments(long), "the longest begin first")
}

func TestLongSkip_Sources_AreTheNamesOfLongTestsAlone(t *testing.T) {
	t.Parallel()
	skip, err := longSkip(sources)
	require.NoError(t, err)
	require.Equal(t, []string{"-skip", "^(TestA|TestScripts_Short_Pass)$"}, skip)
	shared := maps.Clone(sources)
	shared["q/a_test.go"] = &fstest.MapFile{Data: []byte("package q\nfunc TestA(t *testing.T) {}\n")}
	shared["o/go.mod"] = &fstest.MapFile{Data: []byte("module o\n")}
	shared["o/o_test.go"] = &fstest.MapFile{Data: []byte("package o\nfunc TestScripts_Short_Pass(t *testing.T) {}\n")}
	skip, err = longSkip(shared)
	require.NoError(t, err)
	require.Equal(t, []string{"-skip", "^(TestScripts_Short_Pass)$"}, skip, "q.TestA is not long; go test of this module does not reach o.TestScripts_Short_Pass")
}

// They are in no go test of the main module, but in a tier all the same.
func TestLongTests_OtherModule_AreLeftToItsOwnStep(t *testing.T) {
	t.Parallel()
	other := fstest.MapFS{
		"go.mod":          {Data: []byte("module m\n")},
		"t/go.mod":        {Data: []byte("module m/t\n")},
		"t/in/p_test.go":  {Data: []byte("package in\nfunc TestI(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: long\")\n }\n}\n")},
		"own/own_test.go": {Data: []byte("package own\nfunc TestO(t *testing.T) {\n if testing.Short() {\n t.Skip(\"short: long\")\n }\n}\n")},
	}
	long, err := longTests(other)
	require.NoError(t, err)
	require.Equal(t, map[string][]string{"own": {"TestO"}}, long)
	var out strings.Builder
	require.ErrorIs(t, all(&out, other, []outcome{{Package: modulePath + "/own", Test: "TestO", Action: passed}}), errFailed)
	require.Contains(t, out.String(), "in NO TIER: each test has to be in one, see the Makefile (1)\n  t/in.TestI\n")
}

func TestAll_TestInNoRecord_FailsAndIsNamed(t *testing.T) {
	t.Parallel()
	outcomes := []outcome{
		{Package: modulePath + "/p", Test: "TestA", Action: skipped, Reason: "short: long"},
		{Package: modulePath + "/p", Test: "TestA", Action: passed},
		{Package: modulePath + "/p", Test: "TestB", Action: passed},
		{Package: modulePath + "/p", Test: "TestB/sub", Action: passed},
		{Package: modulePath + "/p", Test: "BenchmarkC", Action: passed},
		{Package: modulePath + "/p", Test: "ExampleD", Action: passed},
		{Package: modulePath + "/m", Test: "TestScripts_Short_Pass", Action: passed},
		{Package: modulePath + "/p", Action: passed, Line: "ok  \tp\t1s"},
	}
	var out strings.Builder
	require.ErrorIs(t, all(&out, sources, outcomes), errFailed)
	require.Contains(t, out.String(), "== in NO TIER: each test has to be in one, see the Makefile (1)\n  p.TestF\n")
	require.Contains(t, out.String(), "for another system (2)\n  p.TestG\n  p.TestH\n")

	out.Reset()
	require.NoError(t, all(&out, sources, append(outcomes, outcome{Package: modulePath + "/p", Test: "TestF", Action: passed})))
	require.NotContains(t, out.String(), "NO TIER")
	require.True(t, strings.HasSuffix(out.String(), "ok  \tp\t1s\n6 passed, 0 failed, 0 skipped\n"), out.String())

	failing := append(outcomes, outcome{Package: modulePath + "/p", Test: "TestF", Action: failed, Output: "f_test.go:7: no\n"})
	out.Reset()
	require.ErrorIs(t, all(&out, sources, failing), errFailed)
	require.True(t, strings.HasSuffix(out.String(), "== FAILED: p.TestF\nf_test.go:7: no\nok  \tp\t1s\n5 passed, 1 failed, 0 skipped\n"), out.String())
}
