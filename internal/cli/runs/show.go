package runs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

type showCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Turns int    `default:"50" placeholder:"N" help:"Last N turns (default: 50); 0: all."`
}

// Help is the text below the flags.
func (showCmd) Help() string {
	return `A bar is as long as the duration, relative to the longest one. Times come from executors.`
}

// Run prints the story of a run. For a run with missing events it prints the known part, and fails.
func (c showCmd) Run(ctx context.Context, a *base.App) error {
	if c.Turns < 0 {
		return failure.New(failure.Usage, "for all turns use 0", "--turns %d is below 0", c.Turns)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	reply, err := cl.Get(ctx, c.Run_)
	if err != nil {
		return err
	}
	if err := story.OpenHead(ctx, cl, &reply.Head); err != nil {
		return err
	}
	var s *story.Story
	missing := cl.WithReader(ctx, func(fleet *publisher.Reader) (err error) {
		s, err = story.Read(ctx, fleet, &reply.Head)
		return err
	})
	if missing != nil && (s == nil || s.Empty() || !errors.Is(missing, publisher.ErrIncomplete)) {
		return missing
	}
	t := s.Tell(c.Turns, a.Now())
	if a.JSON {
		return errors.Join(output.Document(a.Stdout, t), missing)
	}
	if err := c.print(a, t, reply); err != nil {
		return err
	}
	return errors.Join(missing, printSteps(a, &reply.Head, reply.Quarantined))
}

const (
	// whatWidth is the maximum width of a line's name, and barShare the share of the page for bars.
	whatWidth = 24
	barShare  = 8
	// timeWidth is the width of a duration.
	timeWidth = 9
)

// print writes the story, each line within the page unless it tells a failure.
func (showCmd) print(a *base.App, t *story.Told, reply *schema.GetReply) error {
	h := &reply.Head
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
		waited = "waited " + story.Span(time.Duration(t.WaitedMS)*time.Millisecond)
	}
	if err := output.Fields(a.Stdout,
		"run", t.Run, "agent", t.Agent, "model", t.ModelText(), "build", t.Build, "task", h.Task, "status", story.HeadStatus(h, reply.Quarantined, reply.Pauses...),
		"paused", story.PausesText(a.Prompt, reply.Pauses),
		"took", output.Words(append([]string{story.Span(time.Duration(t.DurationMS) * time.Millisecond), waited}, counts...)...), "tokens", story.TokensText(t.Usage),
		"calls decided", t.Decisions.Text(), "made", madeText(h.Counts), "signals", signalsText(h),
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
	page := storyPage{width: output.WidthOf(a.Stdout), most: output.MostOf(a.Stdout), colours: output.Coloured(a.Stdout, a.Getenv), begun: schema.ParseTime(h.StartedAt)}
	for _, b := range t.Story {
		page.what = max(page.what, min(text.StringWidthWithoutEscSequences(output.Printable(b.What)), whatWidth))
		if b.DurationMS != nil && b.Barred() {
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

// line formats a line: when, turn, what, bar, duration, detail.
func (p *storyPage) line(b *story.Beat) string {
	when := ""
	if at := schema.ParseTime(b.At); !at.IsZero() && !p.begun.IsZero() {
		when = "+" + story.Span(max(at.Sub(p.begun), 0))
	}
	turn := ""
	if b.Turn != p.turn && b.Turn > 0 {
		turn = fmt.Sprint(b.Turn)
		p.turn = b.Turn
	}
	width := max(p.width/barShare, 10)
	bar, took := "", ""
	if b.DurationMS != nil {
		took = story.Span(time.Duration(*b.DurationMS) * time.Millisecond)
		if b.Barred() && p.longest > 0 {
			bar = barOf(*b.DurationMS, p.longest, width)
		}
	}
	if b.Open {
		took += "…"
	}
	what := text.Snip(output.Printable(b.What), p.what, "…")
	head := fmt.Sprintf("%*s  %*s  %s  ", timeWidth, when, 4, turn, text.Pad(what, p.what, ' '))
	if b.Barred() && b.DurationMS != nil {
		padded := bar + strings.Repeat(" ", width-text.StringWidthWithoutEscSequences(bar))
		return head + p.painted(b, padded) + "  " + p.detail(b, text.Pad(took, timeWidth, ' ')+"  ", text.StringWidthWithoutEscSequences(head)+width+2)
	}
	if took != "" {
		took += "  "
	}
	return head + p.detail(b, took, text.StringWidthWithoutEscSequences(head))
}

// detail is the rest of a line that already has so many columns. A failure is whole.
func (p *storyPage) detail(b *story.Beat, took string, columns int) string {
	detail := strings.TrimRight(took+output.Printable(b.Detail), " ")
	if room := max(p.most-columns, 0); b.Tone() != story.ToneBad && room < text.StringWidthWithoutEscSequences(detail) {
		detail = text.Snip(detail, room, "…")
	}
	return p.painted(b, detail)
}

func (p *storyPage) painted(b *story.Beat, part string) string {
	if !p.colours {
		return part
	}
	colour, ok := tones[b.Tone()]
	if !ok {
		return part
	}
	return output.Painted(part, colour)
}

// eighths are the parts of a cell.
var eighths = []rune("▏▎▍▌▋▊▉█")

// barOf is a bar of at most so many cells, to an eighth of a cell; any duration above 0 has a bar.
func barOf(took, longest int64, width int) string {
	parts := max(int(took*int64(width*len(eighths))/longest), 1)
	bar := strings.Repeat("█", parts/len(eighths))
	if rest := parts % len(eighths); rest > 0 {
		bar += string(eighths[rest-1])
	}
	return bar
}

// tones are the colours of lines.
var tones = map[string]text.Colors{
	story.ToneBad:   {text.FgRed},
	story.ToneWait:  {text.FgYellow},
	story.ToneModel: {text.FgCyan},
	story.ToneCall:  {text.FgGreen},
}
