package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

var update = flag.Bool("update", false, "write the golden files")

// files are the transcripts in testdata, which are written by hand.
func files(tb testing.TB) []string {
	tb.Helper()
	all, err := filepath.Glob(filepath.Join("testdata", "*.*"))
	require.NoError(tb, err)
	var list []string
	for _, file := range all {
		if filepath.Ext(file) != ".txt" {
			list = append(list, file)
		}
	}
	require.Len(tb, list, 7)
	return list
}

// told is a run as text.
func told(r *Run) string {
	var b strings.Builder
	fmt.Fprintf(&b, "run %s, agent %s, model %q", r.ID, r.Agent, r.Model)
	if p := r.Parent; p != nil {
		fmt.Fprintf(&b, ", of call %q in turn %d of %s", p.ToolCallID, p.Turn, p.Run)
	}
	b.WriteByte('\n')
	for i, t := range r.Turns {
		fmt.Fprintf(&b, "turn %d\n", i+1)
		if c := t.Compacted; c != nil {
			fmt.Fprintf(&b, "  compacted through turn %d, %d to %d tokens: %q\n", c.ThroughTurn, c.TokensBefore, c.TokensAfter, c.Summary)
		}
		for j := range t.New {
			b.WriteString(toldMessage(&t.New[j]))
		}
		a := &t.Answer
		b.WriteString(toldMessage(&a.Message))
		if a.Usage != nil || a.ResponseID != "" || a.FinishReasons != nil || !a.Time.IsZero() {
			fmt.Fprintf(&b, "  answer %q of %q, %q, %+v, at %s\n", a.ResponseID, a.Model, a.FinishReasons, a.Usage, schema.FormatTime(a.Time))
		}
		for _, c := range a.Calls {
			fmt.Fprintf(&b, "  call %s: %s(%s)\n", c.ID, c.Name, c.Arguments)
		}
		for _, result := range t.Results {
			fmt.Fprintf(&b, "  result of call %d: %s", result.Call+1, result.Result)
			if result.IsError != nil {
				fmt.Fprintf(&b, ", error: %t", *result.IsError)
			}
			b.WriteByte('\n')
		}
	}
	b.WriteString("rest\n")
	for i := range r.Rest {
		b.WriteString(toldMessage(&r.Rest[i]))
	}
	fmt.Fprintf(&b, "end %s %q %s %+v %+v\n", r.End.Status, r.End.Summary, r.End.Output, r.End.Error, r.End.Usage)
	return b.String()
}

func toldMessage(m *schema.Message) string {
	said := "  " + m.Role
	if m.Name != "" {
		said += " " + m.Name
	}
	for i := range m.Parts {
		p := &m.Parts[i]
		said += " | " + p.Type
		if p.Content != nil {
			said += fmt.Sprintf(" %q", *p.Content)
		}
		if p.ID != "" {
			said += fmt.Sprintf(" %s %s", p.ID, p.Name)
		}
		if p.Occurrence != 0 || p.CallTurn != 0 {
			said += fmt.Sprintf(" (occurrence %d, turn %d)", p.Occurrence, p.CallTurn)
		}
	}
	return said + "\n"
}

func TestRead_EachFormat_TextsCallsAndResultsInOrder(t *testing.T) {
	t.Parallel()
	for _, file := range files(t) {
		runs, err := Read(file)
		require.NoError(t, err)
		var b strings.Builder
		for _, r := range runs {
			b.WriteString(told(r))
		}
		golden := file + ".txt"
		if *update {
			require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o600))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err)
		require.Equal(t, string(want), b.String(), file)
	}
}

func TestRead_Unreadable_NamedError(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ content, want string }{
		"nothing":                    {"", "not a transcript"},
		"another document":           {`{"a":1}`, "not a transcript"},
		"a torn line":                {"{\"messages\":[]}\n{\"messages\":[", "line 2"},
		"a message without role":     {`{"messages":[{"content":"x"}]}`, "conversation 1, message 1: a message has no role"},
		"messages are no list":       {`{"messages":3}`, "conversation 1"},
		"a history entry is none":    {`{"history":[3]}`, "trajectory 1"},
		"a line without its message": {`{"type":"user"}`, "value 1"},
		"a surrogate without a half": {`{"messages":[{"role":"user","content":"\ud83d"}]}`, "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "file.json")
			require.NoError(t, os.WriteFile(file, []byte(c.content), 0o600))
			_, err := Read(file)
			require.ErrorContains(t, err, "read transcript "+file)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestSafe_AnyName_ValidAndDistinct(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for _, name := range []string{"", "a", "a/b", "a b", "ä", "../x", "-a", strings.Repeat("x", 65), strings.Repeat("x", 66), "\x00", "日本"} {
		id := safe(name)
		require.True(t, schema.ValidName(id), "%q became %q", name, id)
		require.NotContains(t, seen, id, "%q", name)
		seen[id] = name
	}
}

func FuzzParse(f *testing.F) {
	for _, file := range files(f) {
		b, err := os.ReadFile(file)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		runs, err := parse("file", b, func() (map[string][]byte, error) { return map[string][]byte{"a1": b}, nil })
		if err != nil {
			return
		}
		for _, r := range runs {
			require.True(t, schema.ValidName(r.ID), r.ID)
			for _, turn := range r.Turns {
				require.LessOrEqual(t, len(turn.Results), len(turn.Answer.Calls))
			}
		}
	})
}
