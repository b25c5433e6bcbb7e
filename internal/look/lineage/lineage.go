package lineage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

const (
	// Most bounds the runs of a tree.
	Most = 1000
	// treeReaders is the number of runs that are read at the same time.
	treeReaders = 8
)

// Asker asks the daemon of a fleet.
type Asker interface {
	Ask(ctx context.Context, verb, run string, request, reply any) error
}

// The relations of a run to the run above it.
const (
	TieHandoff = "handoff"
	TieResumed = "resumed_from"
	TieParent  = "parent"
)

// Node is one run of a tree.
type Node struct {
	Run      string        `json:"run"`
	Agent    string        `json:"agent,omitzero"`
	Executor string        `json:"executor,omitzero"`
	Status   schema.Status `json:"status,omitzero"`
	Epoch    schema.Epoch  `json:"epoch,omitzero"`
	Turn     int32         `json:"turn,omitzero"`
	Waits    int           `json:"waits,omitzero"`
	InDoubt  int           `json:"in_doubt,omitzero"`
	// Depth counts from 0, the root of the tree.
	Depth int `json:"depth"`
	// Below is the run above this one, and Tie their relation: parent, resumed_from or handoff.
	Below string `json:"below,omitzero"`
	Tie   string `json:"tie,omitzero"`
	// Parent, ResumedFrom and Handoff are the relations that the run itself names.
	Parent      *schema.Parent        `json:"parent,omitzero"`
	ResumedFrom string                `json:"resumed_from,omitzero"`
	Handoff     *schema.HandoffSource `json:"handoff,omitzero"`
	// Handoffs are the open hand-offs of the run.
	Handoffs []schema.OpenHandoff `json:"handoffs,omitzero"`
	// Missing: other runs name this one, and the fleet has no event of it.
	Missing bool `json:"missing,omitzero"`

	// Text is its status in words.
	Text string `json:"-"`
}

// Tree are the runs in the order of the tree.
type Tree struct {
	Run  string `json:"run"`
	Root string `json:"root"`
	Runs []Node `json:"runs"`
	// Cut: the fleet has more related runs.
	Cut bool `json:"cut,omitzero"`
}

// Of returns the tree around a run of a fleet: its ancestors up to the root, and levels of descendants below each of them.
func Of(ctx context.Context, client Asker, fleet, run string, depth int) (Tree, error) {
	t := &gatherer{client: client, fleet: fleet, limit: Most, nodes: map[string]*Node{}}
	if err := t.gather(ctx, run, depth); err != nil {
		return Tree{}, err
	}
	return t.arrange(run), nil
}

// gatherer gathers the runs around one run.
type gatherer struct {
	client Asker
	fleet  string
	// limit bounds the runs.
	limit int
	nodes map[string]*Node
	// found has the runs in the order in which they were found; from has, for each, the run that led to it.
	found []string
	from  map[string]string
	cut   bool
}

// gather reads the ancestors, and then the descendants of each of them, level by level.
func (t *gatherer) gather(ctx context.Context, run string, depth int) error {
	t.from = map[string]string{}
	for at := run; at != "" && t.nodes[at] == nil && len(t.found) < t.limit; {
		n, err := t.read(ctx, at)
		if err != nil {
			return err
		}
		if n.Missing && at == run {
			return &schema.ServiceError{Code: schema.CodeNotFound, Message: fmt.Sprintf("fleet %s has no run %s", t.fleet, run)}
		}
		t.add(n, "")
		at = ""
		if ties := n.ties(); len(ties) > 0 {
			at = ties[0][0]
		}
	}
	level := slices.Clone(t.found)
	for range depth {
		next, err := t.below(ctx, level)
		if err != nil || len(next) == 0 || t.cut {
			return err
		}
		level = next
	}
	// Reading one level more tells whether any runs are left out.
	more, err := t.children(ctx, level)
	t.cut = len(more) > 0
	return err
}

func (t *gatherer) add(n *Node, from string) {
	t.nodes[n.Run], t.from[n.Run] = n, from
	t.found = append(t.found, n.Run)
}

// ties returns the runs that the run names, the closest relation first.
func (n *Node) ties() (list [][2]string) {
	if n.Handoff != nil {
		list = append(list, [2]string{n.Handoff.Run, TieHandoff})
	}
	if n.ResumedFrom != "" {
		list = append(list, [2]string{n.ResumedFrom, TieResumed})
	}
	if n.Parent != nil {
		list = append(list, [2]string{n.Parent.Run, TieParent})
	}
	return list
}

// read reads the head of a run. A run without an event in the fleet, or with an invalid id, is missing.
func (t *gatherer) read(ctx context.Context, run string) (*Node, error) {
	n := &Node{Run: run}
	if schema.CheckName("run id", run) != nil && len(t.found) > 0 {
		n.Missing = true
		return n, nil
	}
	reply := new(schema.GetReply)
	err := t.client.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead}, reply)
	if service, ok := errors.AsType[*schema.ServiceError](err); ok && service.Code == schema.CodeNotFound {
		n.Missing = true
		return n, nil
	}
	if err != nil {
		return nil, err
	}
	h := &reply.Head
	n.Agent, n.Executor, n.Status, n.Epoch, n.Turn = h.Agent, h.Executor, h.Status, h.Epoch, h.Turn
	n.Waits, n.InDoubt, n.Handoffs = len(h.Interrupts), len(h.InDoubt()), h.Handoffs
	n.Parent, n.ResumedFrom, n.Handoff = h.Parent, h.ResumedFrom, h.Handoff
	n.Text = story.HeadStatus(h, reply.Quarantined)
	return n, nil
}

// below reads the runs below those of a level, up to the limit of the tree.
func (t *gatherer) below(ctx context.Context, level []string) ([]string, error) {
	children, err := t.children(ctx, level)
	if err != nil {
		return nil, err
	}
	if room := t.limit - len(t.found); len(children) > room {
		children, t.cut = children[:room], true
	}
	nodes := make([]*Node, len(children))
	group, reading := errgroup.WithContext(ctx)
	group.SetLimit(treeReaders)
	for i, child := range children {
		group.Go(func() (err error) {
			nodes[i], err = t.read(reading, child[0])
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	next := make([]string, len(nodes))
	for i, n := range nodes {
		t.add(n, children[i][1])
		next[i] = n.Run
	}
	return next, nil
}

// children finds the runs that name a run of a level and are not in the tree yet, each with the run that led to it.
func (t *gatherer) children(ctx context.Context, level []string) ([][2]string, error) {
	found := make([][]string, len(level))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(treeReaders)
	for i, run := range level {
		if schema.CheckName("run id", run) != nil {
			continue // an invalid id has no runs below it
		}
		group.Go(func() (err error) {
			found[i], err = t.related(asking, run)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, run := range level {
		for _, o := range t.nodes[run].Handoffs {
			if o.ChildRun != "" {
				found[i] = append(found[i], o.ChildRun)
			}
		}
	}
	var list [][2]string
	seen := map[string]bool{}
	for i, runs := range found {
		for _, run := range runs {
			if t.nodes[run] == nil && !seen[run] {
				seen[run] = true
				list = append(list, [2]string{run, level[i]})
			}
		}
	}
	return list, nil
}

// related lists the runs that name this one, up to the limit of a tree.
func (t *gatherer) related(ctx context.Context, run string) (list []string, err error) {
	request := schema.ListRequest{Related: run, Limit: schema.MaxList}
	for {
		var page schema.ListReply
		if err := t.client.Ask(ctx, schema.VerbList, "", request, &page); err != nil {
			return nil, err
		}
		for i := range page.Runs {
			list = append(list, page.Runs[i].Run)
		}
		if request.After = page.Next; request.After == "" || len(list) > t.limit {
			return list, nil
		}
	}
}

// arrange puts each run below one other, so that each is in the tree once, even if runs name several others or each other.
func (t *gatherer) arrange(run string) Tree {
	below := map[string][]string{}
	for _, id := range t.found {
		n := t.nodes[id]
		ties := n.ties()
		if from := t.from[id]; from != "" {
			ties = append(ties, [2]string{from, TieHandoff}) // an accepted hand-off names its child before the child exists
		}
		for _, tie := range ties {
			if t.nodes[tie[0]] != nil && !t.under(tie[0], id) {
				n.Below, n.Tie = tie[0], tie[1]
				below[n.Below] = append(below[n.Below], id)
				break
			}
		}
	}
	root := t.top(run)
	for _, id := range t.found {
		// Runs that name each other in a circle have no root.
		if n := t.nodes[id]; n.Below == "" && id != root {
			n.Below = root
			below[root] = append(below[root], id)
		}
	}
	reply := Tree{Run: run, Root: root, Runs: []Node{}, Cut: t.cut}
	var walk func(id string, depth int)
	walk = func(id string, depth int) {
		n := t.nodes[id]
		n.Depth = depth
		reply.Runs = append(reply.Runs, *n)
		slices.Sort(below[id])
		for _, child := range below[id] {
			walk(child, depth+1)
		}
	}
	walk(root, 0)
	return reply
}

// under reports whether run is the other or below it, in the tree so far.
func (t *gatherer) under(run, other string) bool {
	for ; run != ""; run = t.nodes[run].Below {
		if run == other {
			return true
		}
	}
	return false
}

// top returns the root above this run.
func (t *gatherer) top(run string) string {
	for t.nodes[run].Below != "" {
		run = t.nodes[run].Below
	}
	return run
}

// Unstarted returns the open hand-offs of a run that no run of the tree carries out.
func (n *Node) Unstarted(runs []Node) []schema.OpenHandoff {
	return slices.DeleteFunc(slices.Clone(n.Handoffs), func(o schema.OpenHandoff) bool {
		return o.ChildRun != "" && slices.ContainsFunc(runs, func(r Node) bool { return r.Run == o.ChildRun })
	})
}

// TieText describes the relation of a run to the one above it, and the state of the hand-off that it carries out.
func (t *Tree) TieText(n *Node) string {
	switch n.Tie {
	case TieHandoff:
		if n.Handoff == nil {
			return "hand-off"
		}
		return "hand-off " + n.Handoff.HandoffID + ", " + t.handoffStatus(n)
	case TieResumed:
		return "continues it"
	case TieParent:
		if n.Parent.ToolCallID == "" {
			return "child"
		}
		return n.Parent.CallKey().Text()
	}
	return ""
}

// handoffStatus is the state of the hand-off that a run carries out. If it is no longer open, it was closed, or declined
// before the run took it.
func (t *Tree) handoffStatus(n *Node) string {
	for i := range t.Runs {
		offering := &t.Runs[i]
		if offering.Run != n.Handoff.Run {
			continue
		}
		for _, o := range offering.Handoffs {
			switch {
			case o.HandoffID != n.Handoff.HandoffID:
			case o.ChildRun != "" && o.ChildRun != n.Run:
				return o.Status + " by run " + o.ChildRun
			default:
				return o.Status
			}
		}
		if offering.Missing {
			return "unknown"
		}
	}
	return "over"
}
