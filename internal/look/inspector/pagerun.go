package inspector

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// runBar is the header of each page of a run.
type runBar struct {
	*schema.Head
	Tab, StatusText, Class, Claims string
	Overdue                        int
	// Heard is the age of the latest heartbeat of the executor, and HeardClass its CSS class.
	Heard, HeardClass string
	// Things that need a person, and the other reasons why the run stands still.
	Things, Stuck []thing
	// Error of a failed run. Claiming says whether an executor is alive that could take the run, and Unserved that none is.
	Error, Claiming string
	Unserved        bool
	// Path is the address of the run's first page.
	Path string
}

// head reads the head of a run, and returns a view with it.
func (s *Inspector) head(ctx context.Context, r *http.Request, tab, words string) (*view, *schema.GetReply, error) {
	reply, err := s.headAt(ctx, r.PathValue("run"), "")
	if err != nil {
		return nil, nil, err
	}
	v, err := s.runView(ctx, reply, tab, words)
	return v, reply, err
}

func (s *Inspector) runView(ctx context.Context, reply *schema.GetReply, tab, words string) (*view, error) {
	h := &reply.Head
	if !s.NoContent {
		if err := story.OpenHead(ctx, s.Fleet, h); err != nil {
			return nil, err
		}
	}
	v := s.view(h.Run, "run", words)
	bar := &runBar{
		Head: h, Tab: tab, StatusText: story.HeadStatus(h, reply.Quarantined, reply.Pauses...), Class: stateOf(h.Status), Claims: story.ClaimsText(h, reply.Quarantined),
		Overdue: len(reply.Overdue), Path: runPath(h.Run, ""),
	}
	if len(reply.Pauses) > 0 {
		bar.StatusText += " · paused " + story.PausesText(s.Prompt, reply.Pauses)
		bar.Class = stateOf(schema.StatusPaused)
	}
	if reply.At == nil { // not of a point that is past
		bar.Heard, bar.HeardClass = s.heartbeat(h)
	}
	if s.NoContent {
		h.Task = ""
	}
	bar.Error = s.errorOf(h)
	for _, t := range s.thingsOf(standstill.Of(h, reply.Quarantined, len(reply.Pauses) > 0, reply.Overdue, reply.Full...)) {
		if t.NeedsPerson() {
			bar.Things = append(bar.Things, t)
		} else {
			bar.Stuck = append(bar.Stuck, t)
		}
	}
	if h.Status.Claimable() && len(reply.Pauses) == 0 {
		bar.Claiming, bar.Unserved = story.ClaimingText(s.claiming(ctx, h.Agent), h.Agent)
	}
	if len(bar.Things) > 0 && bar.Class == "live" {
		bar.Class = "wait" // as in the list of runs
	}
	v.Run = bar
	return v, nil
}

// timelineBody is the timeline of a run.
type timelineBody struct {
	*story.Told
	Rows []lineRow
	// Earlier and Later are the addresses of the neighbouring pages; empty for none.
	Earlier, Later, Latest string
	Missing                string
	// Here is the record in the address, and HereID its line.
	Here   int64
	HereID string
}

// lineRow is a line of the timeline.
type lineRow struct {
	*story.Beat
	ID, When, Took, Tone string
	// First: the line begins a turn. Width of the bar is in thousandths.
	First bool
	Width int64
	// Gap is the idle time before the line; empty for a short time.
	Gap    string
	Detail string
	Whole  string
}

const (
	// windowRecords bounds the records of a page of the timeline, and timelineRows its lines.
	windowRecords, timelineRows = 400, 250
	// idle is the shortest idle time that is shown.
	idle = 30 * time.Second
	// lineCut bounds the detail of a line.
	lineCut = 240
)

func (s *Inspector) timelinePage(ctx context.Context, r *http.Request) (*view, error) {
	q := r.URL.Query()
	v, reply, err := s.head(ctx, r, "timeline", schema.Command("runs show", "", r.PathValue("run")))
	if err != nil {
		return nil, err
	}
	h := &reply.Head
	told := &story.Told{Turns: h.Counts.Turns, Calls: h.Counts.ToolCalls, Takeovers: int(h.Counts.Resumes), ModelTier: h.ModelTier, DurationMS: story.DurationMS(h, s.Now())}
	body := timelineBody{Told: told}
	if err := s.window(ctx, v, q, h, &body); err != nil {
		return nil, err
	}
	v.Body = &body
	return v, nil
}

// window shows the lines of one page of records, and reads only those.
func (s *Inspector) window(ctx context.Context, v *view, q url.Values, head *schema.Head, body *timelineBody) error {
	from, to := int64(number(q.Get("from"))), int64(number(q.Get("through")))
	if at := q.Get("at"); at != "" && from == 0 && to == 0 {
		p, err := schema.ParsePoint(at)
		if err != nil {
			return failure.New(failure.Usage, "write a point as commands take it, such as record:12 or turn:3", "%v", err)
		}
		there, err := s.headAt(ctx, head.Run, p.String())
		if err != nil {
			return err
		}
		if there.At != nil {
			body.Here = there.At.Records
			from = max(body.Here-windowRecords/2, 1)
		}
	}
	w, err := story.ReadWindow(ctx, s.Fleet, head, from, to, windowRecords)
	if err != nil {
		return err
	}
	if w.Incomplete {
		body.Missing = "Events of this run are missing: waymark verify " + head.Run + " says which."
	}
	for i, b := range w.Beats {
		w.Beats[i] = b.Until(s.Now())
	}
	// The lines of one record stay together, even beyond the bound.
	beats, first, through := w.Beats, w.From, w.Through
	if n := len(beats) - timelineRows; n > 0 && from == 0 {
		for n < len(beats)-1 && beats[n].Record == beats[n-1].Record {
			n++
		}
		beats = beats[n:]
		first = beats[0].Record
	} else if n > 0 {
		end := timelineRows
		for end > 1 && beats[end].Record == beats[end-1].Record {
			end--
		}
		if end > 1 {
			through = beats[end].Record - 1
			beats = beats[:end]
		}
	}
	if first > 1 {
		body.Earlier = fmt.Sprintf("%s?through=%d", v.Run.Path, first-1)
	}
	if through < w.Total {
		body.Later, body.Latest = fmt.Sprintf("%s?from=%d", v.Run.Path, through+1), v.Run.Path
	}
	body.Rows = scaled(s.linesOf(beats, head, schema.ParseTime(w.Before.UpdatedAt)))
	for i := range body.Rows {
		if body.Here > 0 && body.Rows[i].Record <= body.Here {
			body.HereID = body.Rows[i].ID
		}
	}
	return nil
}

// linesOf formats lines of a run; latest is the time of the event before them.
func (s *Inspector) linesOf(beats []*story.Beat, head *schema.Head, latest time.Time) []lineRow {
	rows := make([]lineRow, len(beats))
	turn, begun := int32(0), schema.ParseTime(head.StartedAt)
	of, same := int64(0), 0
	for i, b := range beats {
		if same++; b.Record != of {
			of, same = b.Record, 0
		}
		l := &rows[i]
		l.Beat, l.ID, l.Tone, l.Detail = b, fmt.Sprintf("r%d.%d", b.Record, same), b.Tone(), b.Detail
		if s.NoContent {
			l.Detail = ""
		}
		if b.Turn > 0 && b.Turn != turn {
			turn, l.First = b.Turn, true
		}
		at := schema.ParseTime(b.At)
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

// scaled adds bars to the lines, relative to the longest one.
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

// recoveryBody is the page of the effects of a takeover.
type recoveryBody struct {
	*schema.Plan
	At, NextText, TurnText, ReusedText, NotReusedText string
	Again, Asked, Held, Closed                        []schema.PlanCall
	Missing                                           string
}

func (s *Inspector) recoveryPage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	v, _, err := s.head(ctx, r, "recovery", schema.Command("plan", "", run))
	if err != nil {
		return nil, err
	}
	state, missing, err := s.stateOf(ctx, run, "")
	if err != nil {
		return nil, err
	}
	plan, err := s.Fleet.PlanOf(ctx, state)
	missing = errors.Join(missing, err)
	body := recoveryBody{
		Plan: plan, At: s.Now().Format(time.TimeOnly), NextText: plan.NextText(), TurnText: schema.TurnText(plan.Turn.Action),
		ReusedText: story.ReusedText(plan), NotReusedText: story.NotReusedText(plan),
	}
	if missing != nil {
		body.Missing = missing.Error()
	}
	for _, c := range plan.Calls {
		switch c.Action {
		case schema.CallVerify:
			body.Asked = append(body.Asked, c)
		case schema.CallHold, schema.CallWait:
			body.Held = append(body.Held, c)
		case schema.CallAdopt, schema.CallDeny:
			body.Closed = append(body.Closed, c)
		default:
			body.Again = append(body.Again, c)
		}
	}
	v.Body = &body
	return v, nil
}
