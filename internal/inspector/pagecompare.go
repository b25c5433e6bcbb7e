package inspector

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/history"
	"github.com/waymarkio/waymark/internal/lineage"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// compareBody is the page that compares two runs, or two points.
type compareBody struct {
	A, B string
	// Compared is nil until both runs are named.
	Compared *history.Comparison
	// First describes the first step that differs; empty for none.
	First      string
	Sides      []sideRow
	Incomplete string
	NoContent  bool
}

// sideRow is a step on one side of the first difference.
type sideRow struct {
	// Side is the run with its point, Path the address of its page.
	Side, Path string
	// Step is nil if the run has no such step.
	Step              *history.Step
	Arguments, Result *partRow
}

func (s *Inspector) comparePage(ctx context.Context, r *http.Request) (*view, error) {
	q := r.URL.Query()
	body := compareBody{A: strings.TrimSpace(q.Get("a")), B: strings.TrimSpace(q.Get("b")), NoContent: s.NoContent}
	v := s.view("Compare", "compare", "help diff")
	v.Body = &body
	if body.A == "" || body.B == "" {
		return v, nil
	}
	var sides [2]struct {
		run   string
		point schema.Point
		steps []history.Step
		err   error
	}
	group, asking := errgroup.WithContext(ctx)
	for i, text := range []string{body.A, body.B} {
		run, at, _ := strings.Cut(text, "@")
		if err := schema.CheckName("run id", run); err != nil {
			return nil, failure.New(failure.Usage, "write RUN, or RUN@POINT such as fix-login@turn:3", "%v", err)
		}
		point, err := schema.ParsePoint(at)
		if err != nil {
			return nil, failure.New(failure.Usage, "write RUN, or RUN@POINT such as fix-login@turn:3", "%v", err)
		}
		sides[i].run, sides[i].point = run, point
		group.Go(func() error {
			state, err := s.Fleet.GetAt(asking, run, point)
			if err != nil && (state == nil || !errors.Is(err, publisher.ErrIncomplete)) {
				return err
			}
			sides[i].err, sides[i].steps = err, history.Steps(state)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := errors.Join(sides[0].err, sides[1].err); err != nil {
		body.Incomplete = err.Error()
	}
	compared := history.Compare(sides[0].steps, sides[1].steps)
	body.Compared = &compared
	v.Command = s.commandOf("diff " + schema.ShellWord(body.A) + " " + schema.ShellWord(body.B))
	if d := compared.Divergence; d != nil {
		body.First = d.String()
		for i, step := range []*history.Step{d.Left, d.Right} {
			row := sideRow{Side: [2]string{body.A, body.B}[i], Path: runPath(sides[i].run, ""), Step: step}
			if step != nil && !s.NoContent {
				row.Arguments, row.Result = shownValue(step.Arguments, step.ArgumentsHash), shownValue(step.Result, step.ResultHash)
			}
			body.Sides = append(body.Sides, row)
		}
	}
	return v, nil
}

// shownValue is a value, cut for the page, or the hash of a value in the blob store.
func shownValue(v jsontext.Value, hash string) *partRow {
	if hash != "" {
		return &partRow{Text: "sha256 " + hash}
	}
	if len(v) == 0 {
		return nil
	}
	text := cut(readable(v), fieldCut)
	return &partRow{Text: text, Lines: diffOf(text)}
}

// lineageDepth bounds the levels of descendants below each ancestor.
const lineageDepth = 8

// lineageBody is the page of related runs.
type lineageBody struct {
	*lineage.Tree
	Root *branch
}

// branch is a run of the tree, with the runs below it.
type branch struct {
	*lineage.Node
	Class, Tie, Path string
	Here             bool
	Offers           []schema.OpenHandoff
	Below            []*branch
	// Compare is the address of the comparison with the run above; empty for none.
	Compare string
}

func (s *Inspector) lineagePage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	v, _, err := s.head(ctx, r, "lineage", "tree "+schema.ShellWord(run))
	if err != nil {
		return nil, err
	}
	tree, err := lineage.Of(ctx, s.Fleet, s.Fleet.Name(), run, lineageDepth)
	if err != nil {
		return nil, err
	}
	body := lineageBody{Tree: &tree}
	var path []*branch
	for i := range tree.Runs {
		n := &tree.Runs[i]
		b := &branch{Node: n, Class: stateOf(n.Status), Tie: tree.TieText(n), Path: runPath(n.Run, ""), Here: n.Run == run, Offers: n.Unstarted(tree.Runs)}
		if n.Tie == lineage.TieResumed && !n.Missing {
			b.Compare = "/compare?" + url.Values{"a": {n.Below}, "b": {n.Run}}.Encode()
		}
		path = append(path[:min(n.Depth, len(path))], b)
		if n.Depth == 0 {
			body.Root = b
		} else {
			above := path[n.Depth-1]
			above.Below = append(above.Below, b)
		}
	}
	v.Body = &body
	return v, nil
}
