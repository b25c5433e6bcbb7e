package lint_test

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// phrase is a phrase that may not come back, and the plain words for it.
type phrase struct {
	word    string // in lower case
	pattern string // an expression with the word in it; empty: the word, in prose and in names
	instead string
}

// phrases are patterns for comments, strings, names and pages. A space in a pattern also matches a line break within a comment.
// A word in lower case matches a word of prose, a part of a name in camel case, and a part of a file's name.
var phrases = []phrase{
	// Processes are not persons.
	{"whoever", "", "name the actor"},
	{"whomever", "", "name the actor"},
	{"nobody", "", "name the actor: no client, no other executor"},
	{"somebody", "", "name the actor"},
	{"anybody", "", "name the actor"},
	{"everybody", "", "name the actors"},
	{"who", `\b(?:[Oo]f|[Ff]or|[Tt]o|[Bb]y|[Tt]han|[Ff]rom|[Ww]ith|[Tt]hose|[Oo]ne) who\b`, "name the actor"},
	{"who", `\b[Ww]ho (?:asks?|folds?|writes?|reads?|publish(?:es)?|claims?|heartbeats?|seals?|purges?|holds?|leads?|watch(?:es)?|lives?|dies?|shares?|takes?|` +
		`comes?|goes|wants?|connects?|knows?|looks?|waits?)\b`, "name the actor"},
	{"who", `(?:^|// |\. |; )Who (?:is|was|may|has|had|does|did|can|cannot|would|could|should|needs?)\b[^?\n]*(?:\n|$)`, "name the actor"},
	// Rare words, and common words used in a private sense.
	{"anew", "", "again"},
	{"lawful", "", "valid"},
	{"unlawful", "", "invalid"},
	{"beside", `\b[Bb]eside\b|[a-z]Beside(?:[A-Z]|\b)`, "next to, besides or with"},
	{"betimes", "", "early"},
	{"thereof", "", "of it"},
	{"heed", "", "follow, observe"},
	{"heeds", "", "follows, observes"},
	{"heeded", "", "followed, observed"},
	{"foretell", "", "predict, preflight"},
	{"foretold", "", "predicted"},
	{"vain", `\bin vain\b`, "without effect, twice"},
	{"by", `\b(?:go|goes|going|went) by\b`, "use, depend on, follow"},
	{"hand", `\bin hand\b`, "active, in progress"},
	{"stand", `\bas (?:it stands|they stand)\b`, "unchanged"},
	{"accord", `\bown accord\b`, "automatically"},
	{"well", `\b(?:is|are|all) well(?:[.,;:)"]|$)`, "healthy, works"},
	{"before", `\bstands? before\b`, "precedes"},
	{"want", `\bfor want of\b`, "because there is no"},
	{"silence", `\bwhole silence\b`, "full timeout"},
	{"come", `\bof the \w+ to come\b`, "next"},
	// Old names of things.
	{"folder", `\b[Ff]olders? (?:folds?|seals?|purges?|catch(?:es)?|stores?|leads?|announces?)\b`, "fold worker"},
	{"folder", `\b[Ff]olders? (?:have|has|had) (?:caught|folded|sealed|purged|to (?:seal|fold|purge))\b`, "fold worker"},
	{"withoutafolder", `WithoutAFolder`, "WithoutFoldWorker"},
	{"janitor", "", "purger"},
	{"eraser", "", "remover"},
	{"reign", "", "term"},
	{"reigns", "", "terms"},
	{"roster", "", "LiveRuns"},
	{"lookout", "", "shardStatus"},
	{"turnstile", "", "publishSlot"},
	{"stray", "", "unclaimed assignment"},
	{"strays", "", "unclaimed assignments"},
	{"givenup", `\bgivenUp\b`, "abandoned"},
	{"letgo", `\bletGo\b`, "release"},
	{"erryield", `\berrYield\b`, "errSuperseded"},
	{"errhandover", `\berrHandOver\b`, "errRebalanced"},
	{"errmoved", `\berrMoved\b`, "errSealedDuringRead"},
	{"modelfold", `\bmodelfold\b`, "referencefold"},
	{"doubt.go", `(?:^|/)doubt(?:_\w+)?\.go$`, "indoubt.go"},
	{"late.go", `(?:^|/)late(?:_\w+)?\.go$`, "lateresult.go"},
	{"steady.go", `(?:^|/)steady(?:_\w+)?\.go$`, "reconnect.go"},
}

// wordsDebt are the directories and files that still have such phrases. It only shrinks: a path that has none is taken out.
var wordsDebt = []string{}

// wordsExempt are data that was recorded, texts of others, and this list.
var wordsExempt = []string{"internal/lint/words_test.go", "docs/profiles", "LICENSE", "deploy/packages/copyright"}

// wordsSuffixes are the files that people write.
var wordsSuffixes = []string{
	".go", ".md", ".yaml", ".yml", ".sh", ".mk", ".mjs", ".js", ".py", ".html", ".css", ".conf", ".env", ".service", ".patch", ".txtar", ".json", ".rules", "Makefile",
	"prerm", "postrm", "preinst", "postinst", ".gitignore", "Dockerfile", ".dockerignore",
}

// matcher finds a phrase. It applies the expression only to the lines around the word: over the whole repository it takes a minute.
type matcher struct {
	word    string
	pattern *regexp.Regexp
	instead string
}

// compilePhrases turns words into patterns for prose and for parts of names, and lets a space match a line break.
func compilePhrases() []matcher {
	var compiled []matcher
	for _, p := range phrases {
		pattern := p.pattern
		if pattern == "" {
			title := strings.ToUpper(p.word[:1]) + p.word[1:]
			pattern = `(?:(?:\b|_)` + p.word + `|(?:\b|[a-z0-9_])` + title + `|\b` + strings.ToUpper(p.word) + `)`
			if len(title) <= 5 { // of a longer word also those that begin with it: nobody's, lawfully
				pattern += `(?:[^a-z]|s?\b|$)`
			}
		}
		compiled = append(compiled, matcher{
			word:    p.word,
			pattern: regexp.MustCompile(`(?m)` + strings.ReplaceAll(pattern, " ", `(?: |\s*\n[ \t]*(?://|#|>|\*)?[ \t]*)`)),
			instead: p.instead,
		})
	}
	return compiled
}

// find returns the places of the phrase. lower is the text in lower case, of the same length.
func (m matcher) find(text, lower string) (places [][]int) {
	lineOf, found := 0, 0 // the ends of the last line that was looked at, and of the last place
	for from := 0; ; {
		at := strings.Index(lower[from:], m.word)
		if at < 0 {
			return places
		}
		from += at + len(m.word)
		if from <= lineOf {
			continue
		}
		lineOf = from + lineEnd(text[from:])
		line := max(0, strings.LastIndexByte(text[:from], '\n'))
		start, end := 1+strings.LastIndexByte(text[:line], '\n'), lineOf+lineEnd(text[lineOf:]) // with the lines around
		for _, place := range m.pattern.FindAllStringIndex(text[start:end], -1) {
			if start+place[0] >= found {
				found = start + place[1]
				places = append(places, []int{start + place[0], found})
			}
		}
	}
}

// lineEnd is the offset behind the text's first line break.
func lineEnd(text string) int {
	if at := strings.IndexByte(text, '\n'); at >= 0 {
		return at + 1
	}
	return len(text)
}

// badPhrases returns the places of a file that have a phrase of the list.
func badPhrases(compiled []matcher, name, text string) []string {
	var findings []string
	lower := strings.Map(func(r rune) rune { // keeps offsets, which strings.ToLower does not
		if r >= 'A' && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
	for _, m := range compiled {
		for _, at := range m.find(text, lower) {
			line := 1 + strings.Count(text[:at[0]], "\n")
			findings = append(findings, fmt.Sprintf("%s:%d: %q: %s", name, line, strings.TrimSpace(text[at[0]:at[1]]), m.instead))
		}
		if m.pattern.MatchString(name) {
			findings = append(findings, fmt.Sprintf("%s: the file's name: %s", name, m.instead))
		}
	}
	return findings
}

// below reports whether a file is one of the paths or in one of them.
func below(name string, paths []string) bool {
	return slices.ContainsFunc(paths, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") })
}

// With -v it lists the phrases in the paths of wordsDebt.
func TestWords_EachFile_HasNoListedPhrase(t *testing.T) {
	t.Parallel()
	compiled := compilePhrases()
	walk(t, func(name string) {
		written := slices.ContainsFunc(wordsSuffixes, func(s string) bool { return strings.HasSuffix(path.Base(name), s) })
		if !written || below(name, wordsExempt) {
			return
		}
		findings := badPhrases(compiled, name, read(t, name))
		if !below(name, wordsDebt) {
			report(t, findings)
		} else if testing.Verbose() {
			for _, finding := range findings {
				t.Log("owed: " + finding)
			}
		}
	})
}

func TestBadPhrases_EachForm_IsFoundOrNot(t *testing.T) {
	t.Parallel()
	compiled := compilePhrases()
	for _, test := range []struct {
		name, text string
		found      int
	}{
		{"a.go", "// It is lawful.", 1},
		{"a.go", "// It is unlawful.", 1},
		{"a.go", "func requireLawful() {}", 1},
		{"a.go", "// a batch in\n// hand", 1},
		{"a.go", "// by it; the daemon goes\n// by the log", 1},
		{"a.go", "// for requests in handlers", 0},
		{"a.go", "var EraseRequest, foreign, theEdge, aNewOne int", 0},
		{"a.go", "func TestNobodyAsks() {}", 1},
		{"a.go", "http.NewRequest(http.MethodGet, url, http.NoBody)", 0},
		{"a.go", "// nobody's work", 1},
		{"a.go", "// Who folds a run, seals it.", 1},
		{"a.go", "// the operator who asked", 0},
		{"a.go", "// those who ask", 2},
		{"a.go", "// besides, it is well formed", 0},
		{"a.go", "// the key beside it", 1},
		{"a.go", "// all is well.", 1},
		{"docs/roster.md", "text", 1},
		{"publisher/late.go", "package publisher", 1},
		{"publisher/related.go", "package publisher", 0},
	} {
		require.Len(t, badPhrases(compiled, test.name, test.text), test.found, "%s: %s", test.name, test.text)
	}
}
