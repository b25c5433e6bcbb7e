package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

type showCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Turns int    `default:"50" placeholder:"N" help:"Only the last N turns and what came behind them (default: 50); 0 shows all."`
}

// Help is the text below the flags.
func (showCmd) Help() string {
	return `Turns and calls with how long each took, takeovers, waits and errors, in the order in which they happened. A bar is as long as its work ` +
		`took, beside the longest of those shown; waits have no bar. Times are those that executors wrote. On a terminal it is in colour, unless ` +
		`NO_COLOR is set; elsewhere FORCE_COLOR asks for it.

Examples:
  waymark runs show fix-login
  waymark runs show fix-login --turns 0 --json`
}

// told is what show prints as JSON.
type told struct {
	Run    string        `json:"run"`
	Agent  string        `json:"agent,omitzero"`
	Status schema.Status `json:"status"`
	// DurationMS is from the run's start to its last event.
	DurationMS int64        `json:"duration_ms"`
	Usage      schema.Usage `json:"usage,omitzero"`
	Turns      int64        `json:"turns"`
	Calls      int64        `json:"tool_calls"`
	Takeovers  int          `json:"takeovers"`
	// Model, ModelTier and Provider as the run's start named them.
	Model     string `json:"model,omitzero"`
	ModelTier string `json:"model_tier,omitzero"`
	Provider  string `json:"provider,omitzero"`
	// Decisions about calls, compactions and artifacts are counted. Limits are those that were reached.
	Decisions   decisionCounts            `json:"decisions,omitzero"`
	Compactions int64                     `json:"compactions,omitzero"`
	Artifacts   int64                     `json:"artifacts,omitzero"`
	Limits      []schema.LimitReachedData `json:"limits,omitzero"`
	// WaitedMS is how long it waited, one wait after the other.
	WaitedMS int64 `json:"waited_ms"`
	// Signals are those that are not consumed.
	Signals []schema.OpenSignal `json:"signals,omitzero"`
	Story   []*beat             `json:"story"`
	// Omitted counts the lines that --turns left out.
	Omitted int `json:"omitted,omitzero"`
}

// Run tells the story of a run. Of one that misses events it tells what is there, and fails.
func (c showCmd) Run(ctx context.Context, a *base.App) error {
	if c.Turns < 0 {
		return failure.New(failure.Usage, "use 0 for all", "--turns %d is below 0", c.Turns)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	var s *story
	missing := cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		s = newStory(fleet.Name(), c.Run_)
		s.state.Expect(reply.Head.Superseded)
		return fleet.Events(ctx, c.Run_, func(rec schema.Record) error {
			keys, err := fleet.Keys(ctx)
			if err == nil {
				s.add(keys, &rec)
			}
			return err
		})
	})
	if missing != nil && (s == nil || len(s.beats) == 0 || !errors.Is(missing, publisher.ErrIncomplete)) {
		return missing
	}
	t := s.told(c.Turns, a.Now())
	if a.JSON {
		return errors.Join(output.Document(a.Stdout, t), missing)
	}
	if err := t.print(a, &reply.Head, reply.Quarantined); err != nil {
		return err
	}
	return errors.Join(missing, printSteps(a, &reply.Head, reply.Quarantined))
}

// told sums the story up, and keeps the last turns of it.
func (s *story) told(turns int, now time.Time) *told {
	h := &s.state.Head
	t := &told{
		Run: h.Run, Agent: h.Agent, Status: h.Status, Usage: h.Usage, Turns: h.Counts.Turns, Calls: h.Counts.ToolCalls,
		Takeovers: len(s.state.Takeovers), Signals: h.Signals, Story: s.beats,
		Decisions: decisionsOf(s.state), Compactions: h.Counts.Compactions, Artifacts: h.Counts.Artifacts, Limits: s.state.Limits,
	}
	if d := s.state.Started; d != nil {
		t.Model, t.ModelTier, t.Provider = d.Model, d.ModelTier, d.Provider
	}
	if s.handedIn() && t.Takeovers > 0 {
		t.Takeovers-- // the first is the claim of a run that no executor had
	}
	last := instant(h.UpdatedAt)
	if !h.Status.Terminal() {
		last = now
	}
	if begun := instant(h.StartedAt); !begun.IsZero() && last.After(begun) {
		t.DurationMS = last.Sub(begun).Milliseconds()
	}
	for _, b := range s.beats {
		if begun := instant(b.At); b.Open && b.Detail != callRequested && !begun.IsZero() && now.After(begun) {
			took := now.Sub(begun).Milliseconds()
			b.DurationMS = &took
		}
		if b.Kind == storyWait && b.DurationMS != nil {
			t.WaitedMS += *b.DurationMS
		}
	}
	if first := h.Turn - int32(turns) + 1; turns > 0 && first > 1 { //nolint:gosec // a number of lines
		at := slices.IndexFunc(s.beats, func(b *beat) bool { return b.Turn >= first })
		if at > 0 {
			t.Story, t.Omitted = s.beats[at:], at
		}
	}
	return t
}

const (
	// whatWidth is the widest name of a line, and barShare the share of the page that bars get.
	whatWidth = 24
	barShare  = 8
	// timeWidth is that of a duration.
	timeWidth = 9
)

// print writes the story, each line within the page.
func (t *told) print(a *base.App, h *schema.Head, quarantined bool) error {
	var counts []string
	for _, n := range []struct {
		count     int64
		one, more string
	}{{t.Turns, "turn", "turns"}, {t.Calls, "call", "calls"}, {int64(t.Takeovers), "takeover", "takeovers"}} {
		if n.count > 0 {
			counts = append(counts, output.Plural(n.count, n.one, n.more))
		}
	}
	waited := ""
	if t.WaitedMS > 0 {
		waited = "waited " + span(time.Duration(t.WaitedMS)*time.Millisecond)
	}
	if err := output.Fields(a.Stdout,
		"run", t.Run, "agent", t.Agent, "model", t.model(), "task", h.Task, "status", headStatus(h, quarantined),
		"took", output.Words(append([]string{span(time.Duration(t.DurationMS) * time.Millisecond), waited}, counts...)...), "tokens", tokensText(t.Usage),
		"calls decided", t.Decisions.text(), "made", madeText(h.Counts), "signals", signalsText(h),
	); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(a.Stdout); err != nil {
		return err
	}
	if t.Omitted > 0 {
		if _, err := fmt.Fprintf(a.Stdout, "… %s before: --turns 0 shows all\n", output.Plural(t.Omitted, "line")); err != nil {
			return err
		}
	}
	page := storyPage{width: output.WidthOf(a.Stdout), most: output.MostOf(a.Stdout), colours: output.Coloured(a.Stdout, a.Getenv), begun: instant(h.StartedAt)}
	for _, b := range t.Story {
		page.what = max(page.what, min(text.StringWidthWithoutEscSequences(output.Printable(b.What)), whatWidth))
		if b.DurationMS != nil && b.barred() {
			page.longest = max(page.longest, *b.DurationMS)
		}
	}
	for _, b := range t.Story {
		if _, err := fmt.Fprintln(a.Stdout, page.line(b)); err != nil {
			return err
		}
	}
	return nil
}

// barred reports whether the line has a bar: work has, waiting not.
func (b *beat) barred() bool { return b.Kind == storyModel || b.Kind == storyCall }

// storyPage writes lines.
type storyPage struct {
	width, most int
	// what is the width of the names, longest the longest duration with a bar, in milliseconds.
	what    int
	longest int64
	colours bool
	begun   time.Time
	turn    int32
}

// line is: when, turn, what, bar, duration, detail.
func (p *storyPage) line(b *beat) string {
	when := ""
	if at := instant(b.At); !at.IsZero() && !p.begun.IsZero() {
		when = "+" + span(max(at.Sub(p.begun), 0))
	}
	turn := ""
	if b.Turn != p.turn && b.Turn > 0 {
		turn = fmt.Sprint(b.Turn)
		p.turn = b.Turn
	}
	width := max(p.width/barShare, 10)
	bar, took := "", ""
	if b.DurationMS != nil {
		took = span(time.Duration(*b.DurationMS) * time.Millisecond)
		if b.barred() && p.longest > 0 {
			bar = barOf(*b.DurationMS, p.longest, width)
		}
	}
	if b.Open {
		took += "…"
	}
	what := text.Snip(output.Printable(b.What), p.what, "…")
	head := fmt.Sprintf("%*s  %*s  %s  ", timeWidth, when, 4, turn, text.Pad(what, p.what, ' '))
	if b.barred() && b.DurationMS != nil {
		padded := bar + strings.Repeat(" ", width-text.StringWidthWithoutEscSequences(bar))
		return head + p.painted(b, padded) + "  " + p.detail(b, text.Pad(took, timeWidth, ' ')+"  ", text.StringWidthWithoutEscSequences(head)+width+2)
	}
	if took != "" {
		took += "  "
	}
	return head + p.detail(b, took, text.StringWidthWithoutEscSequences(head))
}

// detail is the end of a line that has so many columns already.
func (p *storyPage) detail(b *beat, took string, columns int) string {
	detail := strings.TrimRight(took+output.Printable(b.Detail), " ")
	if room := max(p.most-columns, 0); room < text.StringWidthWithoutEscSequences(detail) {
		detail = text.Snip(detail, room, "…")
	}
	return p.painted(b, detail)
}

func (p *storyPage) painted(b *beat, part string) string {
	if !p.colours {
		return part
	}
	return output.Painted(part, b.colour())
}

// eighths are the parts of a cell.
var eighths = []rune("▏▎▍▌▋▊▉█")

// barOf is a bar of so many cells at most, to an eighth of a cell; what took any time has one.
func barOf(took, longest int64, width int) string {
	parts := max(int(took*int64(width*len(eighths))/longest), 1)
	bar := strings.Repeat("█", parts/len(eighths))
	if rest := parts % len(eighths); rest > 0 {
		bar += string(eighths[rest-1])
	}
	return bar
}

// colour of a line, by what it is.
func (b *beat) colour() text.Colors {
	switch {
	case b.Kind == storyError || strings.HasPrefix(b.Detail, "failed: "):
		return text.Colors{text.FgRed}
	case b.Kind == storyWait, b.Kind == storyTakeover, b.Open, b.barred() && b.DurationMS == nil:
		return text.Colors{text.FgYellow}
	case b.Kind == storyModel:
		return text.Colors{text.FgCyan}
	case b.Kind == storyCall:
		return text.Colors{text.FgGreen}
	}
	return nil
}
