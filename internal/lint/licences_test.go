package lint_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// licences are those that allow passing the binary on under any terms, with their notices, each recognised by words
// of its own text. Any other licence needs a decision: add it here with the reason, or leave the module out of the
// binary.
var licences = map[string]*regexp.Regexp{
	"MIT":        regexp.MustCompile(`Permission\s+is\s+hereby\s+granted,\s+free\s+of\s+charge,\s+to\s+any\s+person\s+obtaining\s+a\s+copy`),
	"Apache-2.0": regexp.MustCompile(`Apache License\s+Version 2\.0, January 2004`),
	"BSD":        regexp.MustCompile(`Redistributions? (?:of|in) (?:source code|binary form)`),
	"ISC":        regexp.MustCompile(`Permission to use, copy, modify, and/or distribute this software for any\s+purpose`),
}

// refused are phrases of licences with further conditions, even if a module may be used under another one as well.
var refused = regexp.MustCompile(`GNU (?:LESSER |AFFERO )?GENERAL PUBLIC LICENSE|FreeType Project LICENSE|Mozilla Public License|Business Source License|Server Side Public License`)

func TestBinary_Modules_HavePermissiveLicences(t *testing.T) {
	t.Parallel()
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", `{{with .Module}}{{if not .Main}}{{.Path}} {{.Dir}}{{end}}{{end}}`, "./cmd/waymark")
	list.Dir = filepath.Join("..", "..")
	said := new(strings.Builder) // on a machine that has no module yet, which ones are fetched
	list.Stderr = said
	out, err := list.Output()
	require.NoError(t, err, "%s", said)
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		module, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if module == "" || seen[module] {
			continue
		}
		seen[module] = true
		var text strings.Builder
		for _, pattern := range []string{"LICEN[CS]E*", "licen[cs]e*", "COPYING*"} {
			files, err := filepath.Glob(filepath.Join(dir, pattern))
			require.NoError(t, err)
			for _, file := range files {
				if b, err := os.ReadFile(file); err == nil { // a directory of licences is not a text
					text.Write(b)
				}
			}
		}
		require.NotRegexp(t, refused, text.String(), "the licence of %s asks for more than its notice", module)
		known := false
		for _, words := range licences {
			known = known || words.MatchString(text.String())
		}
		require.True(t, known, "%s in %s has no licence that this test knows: look at it", module, dir)
	}
	require.Greater(t, len(seen), 20, "the binary has modules")
}
