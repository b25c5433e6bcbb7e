package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

type historyCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Limit int    `default:"50" placeholder:"N" help:"Newest N points (default: 50); 0: all."`
}

// Help is the text below the flags.
func (historyCmd) Help() string {
	return `Points for --at: seq:N, seq:EPOCH.N, turn:N, result:N, checkpoint:REVISION, mark:NAME, event:ID, record:N, end ` +
		`(docs/history.md). Each boundary is one while its events are kept; one with a revision has a checkpoint. The columns show the ` +
		`state after the event of the line. A point that a rewind left behind is marked, and named by its record.`
}

// historyPoint is one boundary of a run.
type historyPoint struct {
	// Point is its shortest name; others are valid, too.
	Point    string          `json:"point"`
	Event    string          `json:"event"`
	EventID  string          `json:"event_id"`
	Position schema.Position `json:"position"`
	Epoch    schema.Epoch    `json:"epoch"`
	Sequence schema.Sequence `json:"sequence"`
	Turn     int32           `json:"turn"`
	Status   schema.Status   `json:"status"`
	Events   int64           `json:"events"`
	Digest   string          `json:"digest"`
	// Record is the number of the event among the run's records. LeftBehind: a rewind went back to before it.
	Record     int64 `json:"record"`
	LeftBehind bool  `json:"left_behind,omitzero"`

	Time string `json:"time,omitzero"`
	// Revision of the checkpoint at this point, if one is kept.
	Revision schema.Revision `json:"revision,omitzero"`
}

// runHistory is the JSON output of history.
type runHistory struct {
	schema.HistoryReply
	// Points are newest first. Omitted counts older points beyond the limit.
	Points  []historyPoint `json:"points"`
	Omitted int64          `json:"omitted"`
}

// Run lists the points of a run, newest first. For a run with missing events it lists the known ones, and fails.
func (c historyCmd) Run(ctx context.Context, a *base.App) error {
	if c.Limit < 0 {
		return failure.New(failure.Usage, "for all points use 0", "--limit %d is below 0", c.Limit)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	history := runHistory{Points: []historyPoint{}}
	if err := cl.Ask(ctx, schema.VerbHistory, c.Run_, struct{}{}, &history.HistoryReply); err != nil {
		return err
	}
	missing := cl.WithReader(ctx, func(fleet *publisher.Reader) error {
		return c.collect(ctx, fleet, &history)
	})
	if missing != nil && len(history.Points) == 0 {
		return missing
	}
	history.finish(c.Limit)
	if a.JSON {
		return errors.Join(output.Document(a.Stdout, history), missing)
	}
	return errors.Join(history.print(a), missing)
}

// collect reads the run's boundaries, and keeps the newest.
func (c historyCmd) collect(ctx context.Context, fleet *publisher.Reader, history *runHistory) error {
	return fleet.Walk(ctx, c.Run_, schema.Point{}, func(step *schema.Step) error {
		v, head := step.Verdict, step.Head
		if d, ok := v.Data.(*schema.RunResumedData); ok && d.To != nil && v.Kind == schema.Applied {
			history.rewound(head)
		}
		if !v.Boundary {
			return nil
		}
		history.Points = append(history.Points, newHistoryPoint(head, v))
		if c.Limit > 0 && len(history.Points) >= 2*c.Limit {
			history.keep(c.Limit)
		}
		return nil
	})
}

// rewound marks the points that a rewind left behind. Later turns and marks may reuse their names, but not the number
// of a record.
func (history *runHistory) rewound(h *schema.Head) {
	for i := range history.Points {
		if p := &history.Points[i]; h.LeftBehind(p.Record) {
			p.LeftBehind = true
			p.Point = schema.Point{Kind: schema.PointRecord, Number: uint64(p.Record)}.String() //nolint:gosec // a count
		}
	}
}

// keep drops all but the newest points, which are last.
func (history *runHistory) keep(n int) {
	drop := len(history.Points) - n
	if drop <= 0 {
		return
	}
	history.Points = slices.Delete(history.Points, 0, drop)
	history.Omitted += int64(drop)
}

func newHistoryPoint(h *schema.Head, v schema.Verdict) historyPoint {
	e := v.Event
	p := historyPoint{
		Event: e.Name(), EventID: e.ID, Position: h.Position, Epoch: h.Epoch, Sequence: h.Sequence, Turn: h.Turn, Status: h.Status,
		Events: h.Counts.Events, Digest: h.Digest, Time: e.Time, Record: h.Records,
	}
	name := schema.Point{Kind: schema.PointEvent, Name: e.ID}
	marked, mark := v.Data.(*schema.CheckpointMarkedData)
	switch {
	case v.Over:
		name = schema.Point{Kind: schema.PointTurn, Number: uint64(h.Turn)} //nolint:gosec // turns are from 1
	case mark && !marked.Fork:
		name = schema.Point{Kind: schema.PointMark, Name: marked.Name}
	case e.Sequence != 0 && v.Kind == schema.Applied:
		name = schema.Point{Kind: schema.PointSequence, Epoch: h.Epoch, Number: uint64(e.Sequence)}
	}
	p.Point = name.String()
	return p
}

// finish sorts the points and marks those with a checkpoint. A moved mark names only its latest point.
func (history *runHistory) finish(limit int) {
	if limit > 0 {
		history.keep(limit)
	}
	revisions := make(map[schema.Position]schema.Revision, len(history.Checkpoints))
	for _, c := range history.Checkpoints {
		revisions[c.Position] = max(revisions[c.Position], c.Revision)
	}
	slices.Reverse(history.Points)
	marks := map[string]bool{}
	for i := range history.Points {
		p := &history.Points[i]
		p.Revision = revisions[p.Position]
		if p.Event != schema.CheckpointMarked || p.LeftBehind {
			continue
		}
		if marks[p.Point] {
			p.Point = schema.Point{Kind: schema.PointEvent, Name: p.EventID}.String()
		}
		marks[p.Point] = true
	}
}

func (history *runHistory) print(a *base.App) error {
	rows := make([][]string, len(history.Points))
	for i, p := range history.Points {
		revision := ""
		if p.Revision != 0 {
			revision = output.Number(p.Revision)
		}
		status := string(p.Status)
		if p.LeftBehind {
			status = "left behind"
		}
		rows[i] = []string{
			p.Point, p.Event, output.Number(p.Turn), status, output.Number(p.Events), revision, fmt.Sprintf("%.16s", p.Digest), output.Ago(p.Time, a.Now()),
		}
	}
	if err := output.Table(a.Stdout, []output.Column{
		{Title: "point"}, // pasted after --at, so not cut
		{Title: "event"},
		{Title: "turn", Right: true, Drop: 4},
		{Title: "status"},
		{Title: "events", Right: true, Drop: 2},
		{Title: "revision", Right: true, Drop: 5},
		{Title: "digest", Drop: 1},
		{Title: "time", Drop: 3},
	}, rows); err != nil {
		return err
	}
	if history.Omitted > 0 && !a.Quiet {
		_, err := fmt.Fprintf(a.Stderr, "%s: --limit 0 lists all\n", output.Plural(history.Omitted, "older point"))
		return err
	}
	return nil
}
