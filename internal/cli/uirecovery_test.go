package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/harness/loadgen"
	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/internal/harness/testbin"
	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/schema"
)

// The histories of the test below, and samples of them: before a push, and in "make check-full".
const fewHistories, sampledHistories, histories = 50, 200, 1000

// What the recovery page shows of random histories, as text, is what the command prints as JSON.
func TestUI_RecoveryPageOfRandomHistories_SaysWhatPlanPrints(t *testing.T) {
	t.Parallel()
	count := histories
	if !testbin.Whole() {
		count = sampledHistories
		t.Logf("sample: %d histories of %d; WAYMARK_E2E_FULL=1 compares all", count, histories)
	}
	if testing.Short() {
		count = fewHistories
		t.Logf("short: %d histories of %d", count, histories)
	}
	// A silence would be an event between the command and the page. The logs have many events that the daemon rejects and logs.
	quiet := zerolog.Nop()
	w := &world{waymarktest.StartWith(t, waymarktest.Config{Fleet: "f", Silence: 24 * time.Hour, Logger: &quiet}), t}
	js, err := jetstream.New(w.Conn())
	require.NoError(t, err)
	settings, _, err := kvstore.NewFleets(js).Get(t.Context(), "f")
	require.NoError(t, err)
	name := func(n int) string { return fmt.Sprintf("run-%04d", n) }
	for n := range count {
		run := name(n)
		subject := schema.NamesOf("f", schema.ShardOf(run, settings.Shards)).EventSubject(run)
		log := rapid.Custom(func(t *rapid.T) []schema.Record { return randomlog.Draw(t, randomlog.Config{Run: run}, 40).Records }).Example(n)
		for i := range log {
			_, err := js.PublishMsgAsync(&nats.Msg{Subject: subject, Header: log[i].Header, Data: log[i].Body})
			if errors.Is(err, nats.ErrBadHeaderMsg) {
				continue // no log can have it
			}
			require.NoError(t, err)
		}
	}
	<-js.PublishAsyncComplete()
	require.NoError(t, loadgen.AwaitFolded(t.Context(), js, "f"))

	getenv := func(name string) string { return map[string]string{"WAYMARK_STATE_DIR": w.StateDir()}[name] }
	b := browse(t, getenv, "--fleet", "f")
	seen := make(map[string]int)
	for n := range count {
		code, text := command(t, t.TempDir(), "plan", name(n), "--json", "--fleet", "f", "--state-dir", w.StateDir())
		path := "/run/" + name(n) + "/recovery"
		if code == int(failure.NotFound) {
			response, err := b.Get(b.url + path)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusNotFound, response.StatusCode, "%s: %s", path, text)
			seen["no run"]++
			continue
		}
		printed, _, _ := strings.Cut(text, "\n{\"error\"")
		plan := new(printedPlan)
		require.NoError(t, json.Unmarshal([]byte(printed), plan), "exit code %d: %s", code, text)
		want, got := plan.shown(), recoveryOf(t, b.page(path))
		require.Equal(t, want, got, "%s\n%s", path, text)
		for heading, calls := range got.Calls {
			seen[heading] += len(calls)
		}
		seen["reused"] += got.Reused
		seen[plan.Next]++
		if plan.Incomplete {
			seen["incomplete"]++
		}
	}
	t.Logf("%d histories: %v", count, seen)
	for _, what := range []string{"Made again", "Left to a person", "reused", "continue", "wait", "ended"} {
		require.Positive(t, seen[what], "no history has it: %s", what)
	}
	if count == histories {
		for _, what := range []string{"Asked about", "Closed without a run", "cancel", "incomplete"} {
			require.Positive(t, seen[what], "no history has it: %s", what)
		}
	}
}

// printedPlan is what the command prints, as its reader sees it.
type printedPlan struct {
	Next        string
	Quarantined bool
	Incomplete  bool
	From        struct {
		Epoch, Sequence, Turn int64
		Position              struct{ ID string }
	}
	Epoch int64
	Turn  struct {
		Turn, Messages int64
		Action         string
	}
	Calls, Reused  []printedCall
	PhasesSkipped  []string `json:"phases_skipped"`
	PhaseRestarted string   `json:"phase_restarted"`
	Saved          struct {
		Turns, Tokens, Calls int64
		Usage                struct {
			In  int64 `json:"input_tokens"`
			Out int64 `json:"output_tokens"`
		}
		ModelMS    int64 `json:"model_ms"`
		ToolMS     int64 `json:"tool_ms"`
		DurationMS int64 `json:"duration_ms"`
	}
}

type printedCall struct {
	Turn           int64
	ID             string `json:"tool_call_id"`
	Occurrence     int64
	Name           string
	Action, Why    string
	Outcome        string
	IdempotencyKey string `json:"idempotency_key"`
	VerifySubject  string `json:"verify_subject"`
	Commands       []string
}

// shownPlan is a recovery page, read.
type shownPlan struct {
	Next, Turn        string
	From              [3]int64
	Position          string
	Epoch, Superseded int64
	Incomplete        bool
	// Calls by the heading that they are under, each as a line.
	Calls         map[string][]string
	Reused        int
	ReusedLines   []string
	FailedAgain   int64
	NotReused     map[string]int64
	Phases, Again string
	// Saved are model answers, calls, tokens, tokens in, tokens out; then the time of all, of models and of tools.
	Saved [5]int64
	Times [3]string
}

// The words of the page, by those of the command.
var (
	headings = map[string]string{
		"make": "Made again", "rerun": "Made again", "verify": "Asked about", "hold": "Left to a person", "wait": "Left to a person",
		"adopt": "Closed without a run", "deny": "Closed without a run",
	}
	nextWords = map[string]string{
		"continue": "takes the run over and continues it", "wait": "until the run gets an answer", "cancel": "and ends it", "ended": "the run has ended",
		"quarantined": "no executor can claim it",
	}
	turnWords = map[string]string{"continue": "continues after", "repeat": "starts again", "next": "begins"}
)

func (p *printedPlan) shown() *shownPlan {
	s := &shownPlan{
		Next: p.Next, Turn: fmt.Sprintf("%d %s", p.Turn.Turn, p.Turn.Action), From: [3]int64{p.From.Epoch, p.From.Sequence, p.From.Turn}, Position: p.From.Position.ID,
		Epoch: p.Epoch, Incomplete: p.Incomplete, Calls: make(map[string][]string), Reused: len(p.Reused), NotReused: make(map[string]int64),
		Phases: strings.Join(p.PhasesSkipped, " "), Again: p.PhaseRestarted,
		Saved: [5]int64{p.Saved.Turns, p.Saved.Calls, p.Saved.Tokens, p.Saved.Usage.In, p.Saved.Usage.Out},
	}
	if p.Quarantined {
		s.Next = "quarantined"
	}
	if p.Turn.Action == "repeat" {
		s.Superseded = p.Turn.Messages
	}
	for i, ms := range []int64{p.Saved.DurationMS, p.Saved.ModelMS, p.Saved.ToolMS} {
		if p.Saved.DurationMS > 0 {
			s.Times[i] = story.Span(time.Duration(ms) * time.Millisecond)
		}
	}
	occurrence := func(c *printedCall) string {
		if c.Occurrence > 1 {
			return fmt.Sprintf(" (%d)", c.Occurrence)
		}
		return ""
	}
	for _, c := range p.Calls {
		heading := headings[c.Action]
		line := fmt.Sprintf("%s %s%s %d %s", c.Name, c.ID, occurrence(&c), c.Turn, c.Why)
		if c.VerifySubject != "" {
			line += " Asks " + c.VerifySubject + "."
		}
		if c.IdempotencyKey != "" {
			line += " key " + c.IdempotencyKey
		}
		s.Calls[heading] = append(s.Calls[heading], strings.Join(append([]string{line}, c.Commands...), " "))
		s.NotReused[c.Action]++
	}
	for _, c := range p.Reused {
		s.ReusedLines = append(s.ReusedLines, fmt.Sprintf("turn %d: %s %s%s, %s", c.Turn, c.Name, c.ID, occurrence(&c), c.Outcome))
		if c.Outcome == "failed" {
			s.FailedAgain++
		}
	}
	return s
}

var (
	pageField   = regexp.MustCompile(`(?s)<dt>(.*?)</dt><dd>(.*?)</dd>`)
	pageSection = regexp.MustCompile(`(?s)<section[^>]*><h3>(.*?)</h3>(.*?)</section>`)
	pageRow     = regexp.MustCompile(`(?s)<tr>(.*?)</tr>`)
	pageItem    = regexp.MustCompile(`(?s)<li>(.*?)</li>`)
	pageTag     = regexp.MustCompile(`<[^>]*>`)
	pageNote    = regexp.MustCompile(`<p class="note bad">`)
)

// textOf is what a person reads of a part of a page.
func textOf(markup string) string {
	text := strings.Join(strings.Fields(html.UnescapeString(pageTag.ReplaceAllString(markup, " "))), " ")
	return strings.NewReplacer(" .", ".", " ,", ",").Replace(text) // a full stop behind a tag
}

// counted are the numbers of a text in front of words; 0 for one that is not there.
func counted(t *testing.T, text, words string) int64 {
	t.Helper()
	found := regexp.MustCompile(`(\d+) ` + words).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, err := strconv.ParseInt(found[1], 10, 64)
	require.NoError(t, err)
	return n
}

// wordOf is the key of which the words are in a text.
func wordOf(t *testing.T, text string, words map[string]string) string {
	t.Helper()
	for key, word := range words {
		if strings.Contains(text, word) {
			return key
		}
	}
	require.Fail(t, "unknown words", text)
	return ""
}

// recoveryOf reads a recovery page.
func recoveryOf(t *testing.T, page string) *shownPlan {
	t.Helper()
	_, main, _ := strings.Cut(page, `<dl class="plan">`)
	fields := make(map[string]string)
	for _, m := range pageField.FindAllStringSubmatch(main, -1) {
		fields[m[1]] = textOf(m[2])
	}
	s := &shownPlan{
		Next: wordOf(t, fields["Next"], nextWords), Incomplete: pageNote.MatchString(page), Calls: make(map[string][]string), NotReused: make(map[string]int64),
		Phases: fields["Phases skipped"], Superseded: counted(t, fields["Turn"], "messages of it are superseded"),
	}
	_, err := fmt.Sscanf(fields["Goes on from"], "epoch %d, sequence %d, turn %d %s", &s.From[0], &s.From[1], &s.From[2], &s.Position)
	if s.Position != "" {
		require.NoError(t, err, fields["Goes on from"])
	}
	number, rest, _ := strings.Cut(fields["Turn"], " ")
	s.Turn = number + " " + wordOf(t, rest, turnWords)
	s.Epoch, err = strconv.ParseInt(fields["New epoch"], 10, 64)
	require.NoError(t, err)
	s.Again, _, _ = strings.Cut(fields["Phase again"], ", from its own beginning")
	s.Reused, s.FailedAgain = int(counted(t, fields["Reused"], "calls?, by recorded outcome")), counted(t, fields["Reused"], "of them failed")
	if text := fields["Not reused"]; text != "no call" {
		for part := range strings.SplitSeq(text, ", ") {
			number, action, _ := strings.Cut(part, " ")
			s.NotReused[action], err = strconv.ParseInt(number, 10, 64)
			require.NoError(t, err, text)
		}
	}
	saved := fields["Saved"]
	s.Saved = [5]int64{
		counted(t, saved, "model answers?"), counted(t, saved, "calls?"), counted(t, saved, `tokens?`), counted(t, saved, "in,"), counted(t, saved, `out\)`),
	}
	if found := regexp.MustCompile(`([^,]+) \(model ([^,]+), tools ([^)]+)\)`).FindStringSubmatch(saved); found != nil {
		s.Times = [3]string{strings.TrimSpace(found[1]), found[2], found[3]}
	}
	for _, section := range pageSection.FindAllStringSubmatch(main, -1) {
		for _, row := range pageRow.FindAllStringSubmatch(section[2], -1) {
			if !strings.Contains(row[1], `scope="col"`) {
				s.Calls[section[1]] = append(s.Calls[section[1]], textOf(row[1]))
			}
		}
	}
	_, list, _ := strings.Cut(main, `<details class="reused">`)
	list, _, _ = strings.Cut(list, "</details>")
	for _, item := range pageItem.FindAllStringSubmatch(list, -1) {
		s.ReusedLines = append(s.ReusedLines, textOf(item[1]))
	}
	require.Len(t, s.ReusedLines, int(counted(t, textOf(list), "calls? of which the recorded outcome is reused")))
	return s
}
