package inspector

import (
	"context"
	"net/http"

	"github.com/waymarkio/waymark/internal/look/lineage"
	"github.com/waymarkio/waymark/schema"
)

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
}

func (s *Inspector) lineagePage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	v, _, err := s.head(ctx, r, "lineage", schema.Command("tree", "", run))
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
