package deploycheck_test

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/stretchr/testify/require"
)

// What the surfaces say while they have nothing to say.
const (
	noAlert, noFinding, isReady, noneStuck, nothingStuck, noPerson = "-", "no finding", "200 ok", "no run is stuck", "nothing is stuck…No run is stuck.", "no run needs a person"
)

// said is what an operator reads first, in the words of each surface; "…" stands for any text. The empty string is what
// the surface says while nothing is wrong.
type said struct{ alert, summary, doctor, ready, stuck, page, inbox string }

func (s *said) surfaces() []*string {
	return []*string{&s.doctor, &s.ready, &s.stuck, &s.page, &s.inbox}
}

// fill fills in what the surfaces say while nothing is wrong.
func (s *said) fill() {
	for i, words := range s.surfaces() {
		*words = cmp.Or(*words, quiet[i])
	}
}

const pages = "pages of `waymark ui`"

// names of the surfaces after the alert.
var names = []string{"`waymark doctor`", "`/readyz`", "`runs ls --stuck`", pages, "`waymark inbox`"}

var quiet = []string{noFinding, isReady, noneStuck, nothingStuck, noPerson}

// failing is a failure.
type failing struct {
	name string
	// cause is an expression for words that name the cause; empty for a failure that the daemon mends.
	cause string
	// note follows the table on the page.
	note string
	// strike does it, and mend undoes it; nil: the site is not used again.
	strike, mend func(*site)
	said
	// took is how long each surface took: the alert's without its "for", which lasts.
	took  [6]time.Duration
	lasts time.Duration
	tried bool
}

// says reports whether a text has the words; while nothing may be wrong, it may say nothing else.
func says(text, words string) bool {
	switch words {
	case noFinding, noneStuck, noPerson:
		return text == words
	case isReady:
		return strings.ReplaceAll(text, "; "+isReady, "") == isReady
	}
	parts := strings.Split(words, "…")
	for i := range parts {
		parts[i] = regexp.QuoteMeta(parts[i])
	}
	return regexp.MustCompile(strings.Join(parts, ".*")).MatchString(text)
}

// calm waits until the surfaces say that nothing is wrong, and makes a Prometheus that has scraped the fleet for half an hour.
func (s *site) calm(t *testing.T) {
	t.Helper()
	looks := s.looks()
	for i, look := range looks {
		said := ""
		require.Eventually(t, func() bool { said = look(); return says(said, quiet[i]) }, patience, 500*time.Millisecond, "%s: %v", names[i], late{&said})
	}
	s.prom = newWorld(t)
	for i, address := range s.health {
		s.prom.targets[fmt.Sprintf("daemon-%d", i+1)] = address
	}
	require.Eventually(t, func() bool { s.prom.scrapeAfter(time.Millisecond); return len(s.prom.rules.since) == 0 }, patience, 500*time.Millisecond)
	for range 31 {
		require.Empty(t, s.prom.scrapeAfter(time.Minute), "the fleet is in good order")
	}
}

// late is a text that is read when it is printed.
type late struct{ text *string }

func (l late) String() string { return *l.text }

// due reports whether an alert with this summary is pending or fires.
func (w *world) due(name string) bool {
	for key := range w.rules.since {
		if strings.HasPrefix(key, name+"map[") {
			return true
		}
	}
	return false
}

// wants waits until each surface says what it must, and notes how long each took.
func (f *failing) wants(t *testing.T, s *site) {
	t.Helper()
	looks := s.looks()
	began, last := time.Now(), make([]string, len(looks))
	surfaces := f.surfaces()
	right := func(i int) bool { // no page says that nothing is stuck while the command knows better, or knows nothing
		return says(last[i], *surfaces[i]) && (names[i] != pages || f.stuck == noneStuck || !strings.Contains(last[i], "nothing is stuck"))
	}
	var group sync.WaitGroup
	for i := range surfaces {
		group.Go(func() {
			for {
				last[i] = looks[i]()
				f.took[i+1] = time.Since(began)
				if right(i) || f.took[i+1] > patience {
					return
				}
				pauseFor(t, 500*time.Millisecond)
			}
		})
	}
	var wrong []string
	f.rule(t, s.prom.rules)
	for f.alert != noAlert && !s.prom.due(f.alert) {
		if f.took[0] = time.Since(began); f.took[0] > patience {
			wrong = append(wrong, "alert "+f.alert+" is not due, but "+fmt.Sprint(slices.Sorted(maps.Keys(s.prom.rules.since))))
			break
		}
		before := time.Now()
		pauseFor(t, 500*time.Millisecond)
		s.prom.scrapeAfter(time.Since(before))
	}
	f.took[0] = time.Since(began)
	group.Wait()
	for i, words := range f.surfaces() {
		if *words == quiet[i] { // it may have been too early
			last[i] = looks[i]()
		}
		if i == 0 {
			t.Logf("%4.0f s %s", f.took[0].Seconds(), f.alert)
		}
		t.Logf("%4.0f s %s: %s", f.took[i+1].Seconds(), names[i], last[i])
		if !right(i) || f.took[i+1] > patience {
			wrong = append(wrong, fmt.Sprintf("%s says %q after %s, and not %q", names[i], last[i], f.took[i+1], *words))
		}
	}
	require.Empty(t, wrong, f.name)
	if f.alert != noAlert {
		var got []alert // in few steps: a scrape takes seconds while servers are down
		for range 6 {
			got = append(got, s.prom.scrapeAfter(max(scrapeEvery, f.lasts/4))[f.alert]...)
		}
		require.True(t, slices.ContainsFunc(got, func(a alert) bool { return says(a.annotations["summary"], f.summary) }), "%v", got)
	}
	f.tried = true
}

// looks ask the surfaces after the alert.
func (s *site) looks() []func() string {
	return []func() string{s.doctor, s.ready, s.stuck, s.page, s.inbox}
}

// rule finds the "for" of the alert.
func (f *failing) rule(t *testing.T, r *rules) {
	t.Helper()
	at := slices.IndexFunc(r.list, func(r rulefmt.Rule) bool { return r.Alert == f.alert })
	require.Equal(t, f.alert == noAlert, at < 0, f.alert)
	if at >= 0 {
		f.lasts = time.Duration(r.list[at].For)
	}
}

func pauseFor(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

func TestFailures_Twenty_AreNamed(t *testing.T) {
	if testing.Short() {
		t.Skip("short: real daemons and servers fail")
	}
	all := scenarios()
	t.Run("failures", func(t *testing.T) {
		for _, c := range all {
			t.Run(c.rows[0].name, func(t *testing.T) {
				t.Parallel()
				s := c.start(t)
				for _, f := range c.rows {
					f.fill()
					s.calm(t)
					f.strike(s)
					f.wants(t, s)
					if f.mend != nil {
						f.mend(s)
					}
				}
			})
		}
	})
	if *update {
		for _, c := range all {
			for _, f := range c.rows {
				require.True(t, f.tried, "the page has the seconds of all failures; not tried: %s", f.name)
			}
		}
		require.NoError(t, os.WriteFile(failuresPage, []byte(pageOf(all)), 0o644)) //nolint:gosec // a page
	}
}

// failuresPage is the page that the test writes.
const failuresPage = "../../docs/failures.md"

// pageOf is docs/failures.md.
func pageOf(all []scenario) string {
	const head = `# Failures

After this page you know which surface names a failure, how soon, and in which words.

A test does each failure to real daemons and NATS servers, and reads what an operator reads: the rules of
` + "`deploy/prometheus/alerts.yaml`" + ` over the scraped metrics, and first lines. The seconds are those of one run on a
small machine; an alert fires after its ` + "`for`" + ` in addition. They are bold where the words name the cause; "–" means
that nothing is wrong there. What to do: [alerts.md](alerts.md).

<!-- written by: go test -C tools/deploycheck -run Failures . -update -->
| failure | alert | ` + "`doctor` | `/readyz` | `runs ls --stuck` | pages | `inbox`" + ` |
|---|---|---|---|---|---|---|
`
	var table, words strings.Builder
	for _, c := range all {
		for _, f := range c.rows {
			f.fill()
			fmt.Fprintf(&table, "| %s |", f.name)
			fmt.Fprintf(&words, "\n### %s\n\n", f.name)
			if f.note != "" {
				fmt.Fprintf(&words, "%s\n", f.note)
			}
			rows := ""
			if f.alert == noAlert {
				table.WriteString(" – |")
			} else {
				fmt.Fprintf(&table, " `%s` %s + %s |", f.alert, f.after(0, f.summary), model.Duration(f.lasts))
				rows = fmt.Sprintf("| `%s` | %s |\n", f.alert, f.summary)
			}
			for i, words := range f.surfaces() {
				if *words == quiet[i] {
					table.WriteString(" – |")
					continue
				}
				fmt.Fprintf(&table, " %s |", f.after(i+1, *words))
				rows += fmt.Sprintf("| %s | %s |\n", names[i], *words)
			}
			table.WriteString("\n")
			if rows != "" {
				if f.note != "" {
					words.WriteString("\n")
				}
				fmt.Fprintf(&words, "| where | first words |\n|---|---|\n%s", rows)
			}
		}
	}
	return head + table.String() + "\n## The words\n" + words.String()
}

// after is how long a surface took to say words: bold if they name the cause.
func (f *failing) after(i int, words string) string {
	text := fmt.Sprintf("%.0f s", f.took[i].Seconds())
	if f.named(words) {
		text = "**" + text + "**"
	}
	return text
}

// named reports whether words name the cause.
func (f *failing) named(words string) bool {
	return f.cause != "" && regexp.MustCompile(f.cause).MatchString(words)
}

// TestFailures_Page_HasWhatIsTried compares docs/failures.md with the failures, without the seconds.
func TestFailures_Page_HasWhatIsTried(t *testing.T) {
	all := scenarios()
	for _, c := range all {
		for _, f := range c.rows {
			f.rule(t, newRules(t))
			require.Equal(t, f.cause != "" && f.note == "", f.named(f.summary) || slices.ContainsFunc(f.surfaces(), func(words *string) bool { return f.named(*words) }), f.name)
		}
	}
	text, err := os.ReadFile(failuresPage)
	require.NoError(t, err)
	seconds := regexp.MustCompile(`\d+ s`)
	require.Equal(t, seconds.ReplaceAllString(pageOf(all), "N s"), seconds.ReplaceAllString(string(text), "N s"), "run all Failures with -update")
}
