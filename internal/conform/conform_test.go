package conform_test

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/waymarkio/waymark/internal/conform"
	"github.com/waymarkio/waymark/schema"
)

var update = flag.Bool("update", false, "write the recordings and the table of rules again")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares a recording with the one that is kept.
func golden(t *testing.T, name string, have []byte) {
	t.Helper()
	file := filepath.Join("testdata", filepath.FromSlash(name))
	if *update {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755)) //nolint:gosec // every user may read test data
		require.NoError(t, os.WriteFile(file, have, 0o644))        //nolint:gosec // every user may read test data
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "write it with: go test ./internal/conform -update")
	require.True(t, bytes.Equal(bytes.ReplaceAll(want, []byte("\r\n"), []byte("\n")), have), "%s differs; write it with: go test ./internal/conform -update", file)
}

func judge(t *testing.T, recording []byte, expect ...string) *conform.Report {
	t.Helper()
	c, err := conform.New(conform.Config{Expect: expect})
	require.NoError(t, err)
	require.NoError(t, c.ReadRecording("test.jsonl", bytes.NewReader(recording)))
	return c.Report()
}

func TestRules_BadRecordings_EachBreaksOne(t *testing.T) {
	t.Parallel()
	for _, rule := range conform.Rules() {
		t.Run(rule.ID, func(t *testing.T) {
			build := broken[rule.ID]
			require.NotNil(t, build, "add a recording that breaks %s", rule.Text)
			recording := build(t).out.Bytes()
			if len(recording) < 64<<10 { // the others are made each time
				golden(t, "broken/"+rule.ID+".jsonl", recording)
			}
			report := judge(t, recording)
			found := map[string]int{}
			for _, f := range report.Findings {
				found[f.Rule]++
				require.NotEmpty(t, f.Expected)
				require.NotEmpty(t, f.Found)
				require.NotEmpty(t, f.Next)
				require.NotEmpty(t, f.Place())
				require.True(t, strings.HasSuffix(f.Section, "#"+rule.Section))
			}
			require.Equal(t, []string{rule.ID}, slices.Sorted(maps.Keys(found)), "%+v", report.Findings)
			require.Equal(t, rule.Level != conform.Must, report.Passed)
			require.Equal(t, rule.Level == conform.Must, report.Must > 0)
		})
	}
	for id := range broken {
		_, ok := conform.RuleOf(id)
		require.True(t, ok, "recording of a rule that there is not: %s", id)
	}
}

func TestRules_DeadLetterReasons_EachHasRule(t *testing.T) {
	t.Parallel()
	for _, reason := range schema.Reasons() {
		id, ok := conform.ReasonRule(reason)
		require.True(t, ok, "no rule for %s", reason)
		rule, ok := conform.RuleOf(id)
		require.True(t, ok)
		require.Equal(t, conform.Must, rule.Level, "what is refused is no matter of taste: %s", reason)
	}
}

func TestEvent_InWrongShard_FoundNotFolded(t *testing.T) {
	t.Parallel()
	r := newTape(t)
	r.wire = true
	r.start()
	header, body := r.make(&schema.TurnStartedData{Turn: 1}, 1).Encode()
	r.message("waymark.events.f.1.r-1", header, body)
	r.write(&schema.TurnStartedData{Turn: 1}, 1)

	report := judge(t, r.out.Bytes())
	require.Len(t, report.Findings, 1)
	f := report.Findings[0]
	require.Equal(t, "WM-E-003", f.Rule)
	require.Equal(t, "the subject waymark.events.f.0.r-1", f.Expected)
	require.Equal(t, "waymark.events.f.1.r-1", f.Found)
}

func TestRules_List_OrderedWithTexts(t *testing.T) {
	t.Parallel()
	last := ""
	for _, r := range conform.Rules() {
		require.Regexp(t, `^WM-E-\d{3}$`, r.ID)
		require.NotEqual(t, last, r.ID)
		last = r.ID
		require.True(t, strings.HasSuffix(r.Text, "."), r.Text)
		require.NotEmpty(t, r.Next)
		require.Contains(t, []conform.Level{conform.Must, conform.Should}, r.Level)
		require.Contains(t, []conform.Source{conform.Log, conform.Wire, conform.Beats}, r.Source)
	}
	require.Len(t, slices.CompactFunc(slices.SortedFunc(slices.Values(conform.Rules()), func(a, b conform.Rule) int { return strings.Compare(a.ID, b.ID) }),
		func(a, b conform.Rule) bool { return a.ID == b.ID }), len(conform.Rules()))
}
