package runs

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/internal/story"
)

func TestFileName_HostileNames_BecomeOneElement(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"report.md":              "report.md",
		"Ünïcode 日本.txt":         "Ünïcode 日本.txt",
		"src/main.go":            "src_main.go",
		"../../etc/passwd":       "_._.._etc_passwd",
		`..\..\autoexec.bat`:     `_._.._autoexec.bat`,
		"/etc/passwd":            "_etc_passwd",
		`C:\x`:                   "C__x",
		"file.txt:stream":        "file.txt_stream",
		"..":                     "artifact",
		".":                      "artifact",
		"":                       "artifact",
		"   ":                    "artifact",
		".bashrc":                "_bashrc",
		"con":                    "_con",
		"CON.txt":                "_CON.txt",
		"nul .tar.gz":            "_nul .tar.gz",
		"LPT1":                   "_LPT1",
		"com¹.log":               "_com¹.log",
		"COM10":                  "COM10",
		"console":                "console",
		"CONIN$":                 "_CONIN$",
		"trailing. . ":           "trailing",
		"a\x00b\nc\x1b[31md":     "a_b_c_[31md",
		"gpj.\u202eexe":          "gpj._exe",
		"bad\xffutf8":            "bad_utf8",
		"line\u2028break\u200b!": "line_break_!",
	} {
		got := fileName(name)
		require.Equal(t, want, got, "%q", name)
		require.True(t, filepath.IsLocal(got), "%q", got)
		require.Equal(t, got, filepath.Base(got))
		require.Equal(t, got, fileName(got), "a safe name stays as it is")
	}
	long := fileName(strings.Repeat("ü", 300) + ".tar")
	require.LessOrEqual(t, len(long), maxFileName)
	require.True(t, utf8.ValidString(long))
	require.True(t, strings.HasSuffix(long, "ü.tar"))
}

func TestFileNames_NameIsTaken_GetsANumber(t *testing.T) {
	t.Parallel()
	var names fileNames
	require.Equal(t, "report.md", names.of("report.md"))
	require.Equal(t, "REPORT-2.md", names.of("REPORT.md"), "case does not count on every system")
	require.Equal(t, "report-3.md", names.of("report.md"))
	require.Equal(t, "report-2-2.md", names.of("report-2.md"))
	require.Equal(t, "LICENSE", names.of("LICENSE"))
	require.Equal(t, "LICENSE-2", names.of("LICENSE"))
}

func FuzzArtifact(f *testing.F) {
	f.Add("../a", []byte(`"YQ=="`))
	f.Add("con.txt", []byte(`{"a":1}`))
	f.Add("0", []byte(nil))
	f.Fuzz(func(t *testing.T, name string, value []byte) {
		list := story.Contents(value)
		require.NotEmpty(t, list)
		require.Equal(t, string(value), string(list[len(list)-1]), "the value itself is always among what it may stand for")
		got := fileName(name)
		require.True(t, filepath.IsLocal(got), "%q", got)
		require.Equal(t, got, filepath.Base(got))
		require.NotContains(t, got, `\`)
		require.NotContains(t, got, ":")
		require.LessOrEqual(t, len(got), maxFileName+1)
		require.True(t, utf8.ValidString(got))
	})
}

// An executor that names all of its artifacts alike does not make an operator wait for their names: each name is looked for from where the
// last one was found.
func TestFileNames_ManyOfOneName_AreNumberedInOrder(t *testing.T) {
	t.Parallel()
	var names fileNames
	require.Equal(t, "report-5.txt", names.of("report-5.txt"))
	require.Equal(t, "report.txt", names.of("report.txt"))
	for i := 2; i < 60_000; i++ {
		if i != 5 {
			require.Equal(t, "report-"+strconv.Itoa(i)+".txt", names.of("report.txt"))
		}
	}
}
