package inspector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/standstill"
	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// runBar is what stands above each page of a run.
type runBar struct {
	*schema.Head
	Tab, StatusText, Class, Claims string
	Overdue                        int
	// Heard is how long ago its executor was heard, and HeardClass how that is.
	Heard, HeardClass string
	// Things that need a person.
	Things []thing
	// Path is that of the run's first page.
	Path string
}

// head reads where a run stands, and returns a view with it.
func (s *Inspector) head(ctx context.Context, r *http.Request, tab, words string) (*view, *schema.GetReply, error) {
	run := r.PathValue("run")
	reply := new(schema.GetReply)
	if err := s.Fleet.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, reply); err != nil {
		return nil, nil, err
	}
	return s.runView(reply, tab, words), reply, nil
}

func (s *Inspector) runView(reply *schema.GetReply, tab, words string) *view {
	h := &reply.Head
	v := s.view(h.Run, "run", words)
	bar := &runBar{
		Head: h, Tab: tab, StatusText: story.HeadStatus(h, reply.Quarantined), Class: stateOf(h.Status), Claims: story.ClaimsText(h, reply.Quarantined),
		Overdue: len(reply.Overdue), Path: runPath(h.Run, ""),
	}
	if reply.At == nil { // not of a point that is past
		bar.Heard, bar.HeardClass = s.heartbeat(h)
	}
	if s.NoContent {
		h.Task = ""
	}
	list := standstill.Of(h, reply.Quarantined, reply.Overdue)
	bar.Things = s.thingsOf(slices.DeleteFunc(list, func(x standstill.Reason) bool { return !x.NeedsPerson() }))
	v.Run = bar
	return v
}

// timelineBody is the page of what a run did.
type timelineBody struct {
	*story.Told
	Only, Text string
	Rows       []lineRow
	Map        []mapBar
	// Earlier and Later are the addresses of the turns before and behind; empty for none. Hidden counts the lines that the filter leaves out.
	Earlier, Later, Latest string
	Hidden                 int
	Missing                string
}

// lineRow is a line of the timeline.
type lineRow struct {
	*story.Beat
	ID, When, Took, Tone string
	// First: the turn begins with it. Width is the bar's, of a thousand.
	First bool
	Width int64
	// Gap is how long nothing happened before the line; empty for a short time.
	Gap    string
	Detail string
	Whole  string
}

// mapBar is a bar of the overview: what happened in one of its shares of the run.
type mapBar struct {
	X, Height int
	Tone      string
	Turn      int32
	Here      bool
}

const (
	// timelineRows is the most lines that a page shows, and mapBars the bars of the overview.
	timelineRows, mapBars = 250, 96
	// idle is from when on a time without anything is shown as a gap.
	idle = 30 * time.Second
	// lineCut is how much of a detail a line shows.
	lineCut = 240
)

// onlys are the filters of the timeline.
var onlys = map[string]func(*lineRow) bool{
	"failed":  func(l *lineRow) bool { return l.Tone == story.ToneBad },
	"slow":    func(l *lineRow) bool { return l.DurationMS != nil && *l.DurationMS >= 10_000 },
	"open":    func(l *lineRow) bool { return l.Open },
	"model":   func(l *lineRow) bool { return l.Kind == story.KindModel },
	"call":    func(l *lineRow) bool { return l.Kind == story.KindCall },
	"waits":   func(l *lineRow) bool { return l.Kind == story.KindWait },
	"changes": func(l *lineRow) bool { return l.Kind == story.KindTakeover || l.Kind == story.KindRun },
}

func (s *Inspector) timelinePage(ctx context.Context, r *http.Request) (*view, error) {
	q := r.URL.Query()
	run := r.PathValue("run")
	v, reply, err := s.head(ctx, r, "timeline", "runs show "+schema.ShellWord(run))
	if err != nil {
		return nil, err
	}
	told, missing, err := s.stories.of(ctx, s.Fleet, &reply.Head, s.Now())
	if err != nil {
		return nil, err
	}
	body := timelineBody{Told: told, Only: q.Get("only"), Text: q.Get("text")}
	if missing != nil {
		body.Missing = missing.Error()
	}
	matches, ok := onlys[body.Only]
	if body.Only != "" && !ok {
		return nil, failure.New(failure.Usage, "choose one of the list", "filter %q is not known", body.Only)
	}
	rows := s.linesOf(told)
	if body.Only != "" || body.Text != "" {
		all, text := len(rows), strings.ToLower(body.Text)
		rows = slices.DeleteFunc(rows, func(l lineRow) bool {
			return ok && !matches(&l) || text != "" && !strings.Contains(strings.ToLower(l.What+" "+l.Detail), text)
		})
		body.Hidden = all - len(rows)
	}
	// The page ends behind a line, and begins where a turn does if it can.
	last := len(rows)
	if before := number(q.Get("before")); q.Has("before") && before < last {
		last = before
	}
	first := max(last-timelineRows, 0)
	here := func(at int) string {
		q.Set("before", fmt.Sprint(at))
		return v.Run.Path + "?" + q.Encode()
	}
	if first > 0 {
		body.Earlier = here(first)
	}
	if last < len(rows) {
		body.Later = here(min(last+timelineRows, len(rows)))
		q.Del("before")
		body.Latest = v.Run.Path + "?" + q.Encode()
	}
	body.Map = overview(rows, first, last)
	body.Rows = scaled(rows[first:last])
	v.Body = &body
	return v, nil
}

// linesOf are the lines of a story.
func (s *Inspector) linesOf(t *story.Told) []lineRow {
	rows := make([]lineRow, len(t.Story))
	turn, latest := int32(0), time.Time{}
	var begun time.Time
	for i, b := range t.Story {
		l := &rows[i]
		l.Beat, l.ID, l.Tone, l.Detail = b, fmt.Sprintf("l%d", i), b.Tone(), b.Detail
		if s.NoContent {
			l.Detail = ""
		}
		if b.Turn > 0 && b.Turn != turn {
			turn, l.First = b.Turn, true
		}
		at := story.Instant(b.At)
		if begun.IsZero() {
			begun = at
		}
		if !at.IsZero() {
			l.When = "+" + story.Span(max(at.Sub(begun), 0))
			if quiet := at.Sub(latest); !latest.IsZero() && quiet >= idle {
				l.Gap = story.Span(quiet)
			}
			latest = at
		}
		if b.DurationMS != nil {
			l.Took = story.Span(time.Duration(*b.DurationMS) * time.Millisecond)
			if end := at.Add(time.Duration(*b.DurationMS) * time.Millisecond); end.After(latest) {
				latest = end
			}
		}
	}
	return rows
}

// scaled gives the lines bars, by the longest of them.
func scaled(rows []lineRow) []lineRow {
	longest := int64(1)
	for i := range rows {
		if l := &rows[i]; l.Barred() && l.DurationMS != nil {
			longest = max(longest, *l.DurationMS)
		}
	}
	for i := range rows {
		if l := &rows[i]; l.Barred() && l.DurationMS != nil {
			l.Width = max(1000**l.DurationMS/longest, 6)
		}
		if printed := output.Printable(rows[i].Detail); len(printed) > lineCut {
			rows[i].Whole, rows[i].Detail = rows[i].Detail, cut(rows[i].Detail, lineCut)
		}
	}
	return rows
}

// overview is a run in so many bars: how long its work took, and where it failed, waited or was taken over.
func overview(rows []lineRow, first, last int) []mapBar {
	if len(rows) < 2 {
		return nil
	}
	n := min(mapBars, len(rows))
	bars, work := make([]mapBar, n), make([]int64, n)
	most := int64(1)
	for i := range rows {
		at := i * n / len(rows)
		b, l := &bars[at], &rows[i]
		b.X = at
		b.Here = b.Here || i >= first && i < last
		b.Turn = max(b.Turn, l.Turn)
		if l.Barred() && l.DurationMS != nil {
			work[at] += *l.DurationMS
		}
		switch l.Tone {
		case story.ToneBad:
			b.Tone = l.Tone
		case story.ToneWait:
			if b.Tone == "" {
				b.Tone = l.Tone
			}
		}
	}
	for _, ms := range work {
		most = max(most, ms)
	}
	for i := range bars {
		bars[i].Height = int(max(work[i]*100/most, 4))
	}
	return bars
}

// stories are the latest that were read. One is read again once its run has more events.
type stories struct {
	mu   sync.Mutex
	list []*readStory
}

type readStory struct {
	mu      sync.Mutex
	run     string
	records int64
	epoch   schema.Epoch
	story   *story.Story
	missing error
}

// storiesKept bounds the stories that are kept.
const storiesKept = 4

// of tells what a run did. missing says what of it is not there.
func (k *stories) of(ctx context.Context, fleet Fleet, head *schema.Head, now time.Time) (told *story.Told, missing, err error) {
	k.mu.Lock()
	i := slices.IndexFunc(k.list, func(r *readStory) bool { return r.run == head.Run })
	var r *readStory
	if i < 0 {
		r = &readStory{run: head.Run}
	} else {
		r = k.list[i]
		k.list = slices.Delete(k.list, i, i+1)
	}
	k.list = append(k.list, r)
	k.list = k.list[max(len(k.list)-storiesKept, 0):]
	k.mu.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.story == nil || r.records != head.Records || r.epoch != head.Epoch {
		read, err := story.Read(ctx, fleet, head)
		if err != nil && (read.Empty() || ctx.Err() != nil) {
			return nil, nil, err
		}
		if err != nil && !errors.Is(err, publisher.ErrIncomplete) {
			return read.Tell(0, now), err, nil // it may pass: the next look reads again
		}
		r.story, r.records, r.epoch, r.missing = read, head.Records, head.Epoch, err
	}
	return r.story.Tell(0, now), r.missing, nil
}

// recoveryBody is the page of what a takeover would do.
type recoveryBody struct {
	*schema.Plan
	At, NextText, TurnText, ReusedText, NotReusedText, SavedText string
	Again, Asked, Held                                           []schema.PlanCall
	JSON, Missing                                                string
}

func (s *Inspector) recoveryPage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	v, _, err := s.head(ctx, r, "recovery", "plan "+schema.ShellWord(run))
	if err != nil {
		return nil, err
	}
	plan, missing, err := s.plan(ctx, run)
	if err != nil {
		return nil, err
	}
	body := recoveryBody{
		Plan: plan, At: s.Now().Format(time.TimeOnly), NextText: schema.NextText(plan.Next), TurnText: schema.TurnText(plan.Turn.Action),
		ReusedText: story.ReusedText(plan), NotReusedText: story.NotReusedText(plan), SavedText: story.SavedText(&plan.Saved), JSON: runPath(run, "/recovery.json"),
	}
	if plan.Quarantined {
		body.NextText = schema.QuarantinedText
	}
	if missing != nil {
		body.Missing = missing.Error()
	}
	for _, c := range plan.Calls {
		switch c.Action {
		case schema.CallVerify, schema.CallAdopt:
			body.Asked = append(body.Asked, c)
		case schema.CallHold, schema.CallWait, schema.CallDeny:
			body.Held = append(body.Held, c)
		default:
			body.Again = append(body.Again, c)
		}
	}
	v.Body = &body
	return v, nil
}

// plan is that of a run's next executor. missing says what of the run is not there.
func (s *Inspector) plan(ctx context.Context, run string) (plan *schema.Plan, missing, err error) {
	state, missing, err := s.stateOf(ctx, run, "")
	if err != nil {
		return nil, nil, err
	}
	p := schema.PlanOf(state)
	return &p, missing, nil
}

// planJSON is what waymark plan --json prints.
func (s *Inspector) planJSON(w http.ResponseWriter, r *http.Request) {
	plan, _, err := s.plan(r.Context(), r.PathValue("run"))
	if err != nil {
		s.trouble(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = output.Document(w, plan) // the viewer may be gone
}
