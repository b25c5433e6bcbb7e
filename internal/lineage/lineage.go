package lineage

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/story"
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

// How a run is tied to the run that it is shown below.
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
	// Below is the run that this one is shown below, and Tie how they are tied: parent, resumed_from or handoff.
	Below string `json:"below,omitzero"`
	Tie   string `json:"tie,omitzero"`
	// Parent, ResumedFrom and Handoff are all ties that the run itself names.
	Parent      *schema.Parent        `json:"parent,omitzero"`
	ResumedFrom string                `json:"resumed_from,omitzero"`
	Handoff     *schema.HandoffSource `json:"handoff,omitzero"`
	// Handoffs of the run that are open.
	Handoffs []schema.OpenHandoff `json:"handoffs,omitzero"`
	// Missing: the run is named by others, and the fleet has no event of it.
	Missing bool `json:"missing,omitzero"`

	// Text is its status in words.
	Text string `json:"-"`
}

// Tree are the runs in the order of the tree.
type Tree struct {
	Run  string `json:"run"`
	Root string `json:"root"`
	Runs []Node `json:"runs"`
	// Cut: there are more runs than are shown.
	Cut bool `json:"cut,omitzero"`
}

// Of gathers the runs around one run of a fleet: the way up to the root, and so many levels below each run on it.
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
	// found is the order in which the runs were found, and from the run that each was found by.
	found []string
	from  map[string]string
	cut   bool
}

// gather reads the way up, and then level by level what is below each run on it.
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
		at = n.above()
	}
	level := slices.Clone(t.found)
	for range depth {
		next, err := t.below(ctx, level)
		if err != nil || len(next) == 0 || t.cut {
			return err
		}
		level = next
	}
	// One look further tells whether anything is left out.
	more, err := t.children(ctx, level)
	t.cut = len(more) > 0
	return err
}

func (t *gatherer) add(n *Node, from string) {
	t.nodes[n.Run], t.from[n.Run] = n, from
	t.found = append(t.found, n.Run)
}

// above is the run below which this one is shown.
func (n *Node) above() string {
	switch {
	case n.Handoff != nil:
		return n.Handoff.Run
	case n.ResumedFrom != "":
		return n.ResumedFrom
	case n.Parent != nil:
		return n.Parent.Run
	}
	return ""
}

// ties are the runs that the run names, the closest first.
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

// read reads where a run stands. One that the fleet has no event of, or whose name cannot be a run's, is missing.
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

// below reads the runs that belong below those of a level, as many as the tree has room for.
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

// children finds the runs that are tied to those of a level and not in the tree yet, each with the run it was found by.
func (t *gatherer) children(ctx context.Context, level []string) ([][2]string, error) {
	found := make([][]string, len(level))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(treeReaders)
	for i, run := range level {
		if schema.CheckName("run id", run) != nil {
			continue // what is no name of a run has nothing below it
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

// related lists the runs that name this one, no more than a tree can show.
func (t *gatherer) related(ctx context.Context, run string) (list []string, err error) {
	err = t.list(ctx, schema.ListRequest{Related: run}, func(r *schema.RunSummary) bool {
		list = append(list, r.Run)
		return len(list) <= t.limit
	})
	return list, err
}

// list calls yield for every run that the request asks for, until it returns false.
func (t *gatherer) list(ctx context.Context, request schema.ListRequest, yield func(*schema.RunSummary) bool) error {
	request.Limit = schema.MaxList
	for {
		var page schema.ListReply
		if err := t.client.Ask(ctx, schema.VerbList, "", request, &page); err != nil {
			return err
		}
		for i := range page.Runs {
			if !yield(&page.Runs[i]) {
				return nil
			}
		}
		if page.Next == "" {
			return nil
		}
		request.After = page.Next
	}
}

// arrange puts every run below one other, so that each is there once, whatever the runs say of each other.
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
		// Runs that say that each continues the other hang on nothing.
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

// under reports whether run is at or below the other, as arranged so far.
func (t *gatherer) under(run, other string) bool {
	for ; run != ""; run = t.nodes[run].Below {
		if run == other {
			return true
		}
	}
	return false
}

// top is the run at the top of this one's way up.
func (t *gatherer) top(run string) string {
	for t.nodes[run].Below != "" {
		run = t.nodes[run].Below
	}
	return run
}

// Unstarted are the open hand-offs of a run that no run of the tree carries out.
func (n *Node) Unstarted(runs []Node) []schema.OpenHandoff {
	return slices.DeleteFunc(slices.Clone(n.Handoffs), func(o schema.OpenHandoff) bool {
		return o.ChildRun != "" && slices.ContainsFunc(runs, func(r Node) bool { return r.Run == o.ChildRun })
	})
}

// TieText says how a run came about, and what became of the hand-off that it carries out.
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
		return fmt.Sprintf("call %s of turn %d", n.Parent.ToolCallID, n.Parent.Turn)
	}
	return ""
}

// handoffStatus is what became of the hand-off that a run carries out. One that is open no more was closed, or else
// declined before the run could have it.
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
