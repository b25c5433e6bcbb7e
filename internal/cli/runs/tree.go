package runs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/cli/failure"
	"github.com/waymarkio/waymark/internal/cli/output"
	"github.com/waymarkio/waymark/internal/story"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxTree bounds the runs of a tree.
	maxTree = 1000
	// treeReaders is the number of runs that are read concurrently.
	treeReaders = 8
)

// TreeCmd is waymark tree.
type TreeCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Depth int    `default:"8" placeholder:"N" help:"Levels shown below the run and below each run above it (default: 8); 0 shows only the way up."`
}

// Help is the text below the flags.
func (TreeCmd) Help() string {
	return `The path up to the root, and for each run on it: children started by a call, runs that continue it, ` +
		`hand-offs with their status. A run is shown once, below the run whose work it continues, or else below its ` +
		`parent. The requested run is marked with an arrow. The runs of the tree come from checkpoints, which may be a ` +
		`moment old; their states are read from the log. At most 1,000 runs are shown, the nearest first.

Example:
  waymark tree fix-login-2026-01-31`
}

// How a run is related to the run above it.
const (
	tieHandoff = "handoff"
	tieResumed = "resumed_from"
	tieParent  = "parent"
)

// treeNode is one run of a tree.
type treeNode struct {
	Run      string        `json:"run"`
	Agent    string        `json:"agent,omitzero"`
	Executor string        `json:"executor,omitzero"`
	Status   schema.Status `json:"status,omitzero"`
	Epoch    schema.Epoch  `json:"epoch,omitzero"`
	Turn     int32         `json:"turn,omitzero"`
	Waits    int           `json:"waits,omitzero"`
	InDoubt  int           `json:"in_doubt,omitzero"`
	// Depth is the distance from the root of the tree.
	Depth int `json:"depth"`
	// Below is the run above this one, and Tie their relation: parent, resumed_from or handoff.
	Below string `json:"below,omitzero"`
	Tie   string `json:"tie,omitzero"`
	// Parent, ResumedFrom and Handoff are all relations that the run itself names.
	Parent      *schema.Parent        `json:"parent,omitzero"`
	ResumedFrom string                `json:"resumed_from,omitzero"`
	Handoff     *schema.HandoffSource `json:"handoff,omitzero"`
	// Handoffs of the run that are open.
	Handoffs []schema.OpenHandoff `json:"handoffs,omitzero"`
	// Missing: other runs name the run, but the fleet has no event of it.
	Missing bool `json:"missing,omitzero"`

	status string
}

// treeReply is the JSON output of tree: the runs in tree order.
type treeReply struct {
	Run  string     `json:"run"`
	Root string     `json:"root"`
	Runs []treeNode `json:"runs"`
	// Cut: there are more runs than shown.
	Cut bool `json:"cut,omitzero"`
}

// Run shows the relations of a run.
func (c TreeCmd) Run(ctx context.Context, a *base.App) error {
	if c.Depth < 0 {
		return failure.New(failure.Usage, "for the path up only, use 0", "--depth %d is below 0", c.Depth)
	}
	cl, err := a.Connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	t := &tree{client: cl, limit: maxTree, nodes: map[string]*treeNode{}}
	if err := t.gather(ctx, c.Run_, c.Depth); err != nil {
		return err
	}
	reply := t.arrange(c.Run_)
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	if err := printTree(a, &reply); err != nil || !reply.Cut || a.Quiet {
		return err
	}
	_, err = fmt.Fprintf(a.Stderr, "there are more runs below: use a larger --depth, or start from a run further down (at most %d runs are shown)\n", maxTree)
	return err
}

// tree gathers the runs around one run.
type tree struct {
	client *base.Client
	// limit bounds the runs.
	limit int
	nodes map[string]*treeNode
	// found is the order in which the runs were found, and from the run from which each was found.
	found []string
	from  map[string]string
	cut   bool
}

// gather reads the path up, and then level by level the runs below it.
func (t *tree) gather(ctx context.Context, run string, depth int) error {
	t.from = map[string]string{}
	for at := run; at != "" && t.nodes[at] == nil && len(t.found) < t.limit; {
		n, err := t.read(ctx, at)
		if err != nil {
			return err
		}
		if n.Missing && at == run {
			return &schema.ServiceError{Code: schema.CodeNotFound, Message: fmt.Sprintf("fleet %s has no run %s", t.client.Fleet, run)}
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
	// One more look tells whether runs are left out.
	more, err := t.children(ctx, level)
	t.cut = len(more) > 0
	return err
}

func (t *tree) add(n *treeNode, from string) {
	t.nodes[n.Run], t.from[n.Run] = n, from
	t.found = append(t.found, n.Run)
}

// above is the run above this one.
func (n *treeNode) above() string {
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

// ties are the relations that the run names, the closest first.
func (n *treeNode) ties() (list [][2]string) {
	if n.Handoff != nil {
		list = append(list, [2]string{n.Handoff.Run, tieHandoff})
	}
	if n.ResumedFrom != "" {
		list = append(list, [2]string{n.ResumedFrom, tieResumed})
	}
	if n.Parent != nil {
		list = append(list, [2]string{n.Parent.Run, tieParent})
	}
	return list
}

// read reads the state of a run. A run without events in the fleet, or with an invalid id, is missing.
func (t *tree) read(ctx context.Context, run string) (*treeNode, error) {
	n := &treeNode{Run: run}
	if schema.CheckName("run id", run) != nil && len(t.found) > 0 {
		n.Missing = true
		return n, nil
	}
	reply, err := t.client.Get(ctx, run)
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
	n.status = story.HeadStatus(h, reply.Quarantined)
	return n, nil
}

// below reads the runs below those of a level, up to the tree's limit.
func (t *tree) below(ctx context.Context, level []string) ([]string, error) {
	children, err := t.children(ctx, level)
	if err != nil {
		return nil, err
	}
	if room := t.limit - len(t.found); len(children) > room {
		children, t.cut = children[:room], true
	}
	nodes := make([]*treeNode, len(children))
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

// children finds the runs that are related to those of a level and not in the tree yet, each with the run from which it
// was found.
func (t *tree) children(ctx context.Context, level []string) ([][2]string, error) {
	found := make([][]string, len(level))
	group, asking := errgroup.WithContext(ctx)
	group.SetLimit(treeReaders)
	for i, run := range level {
		if schema.CheckName("run id", run) != nil {
			continue // an invalid run id has no children
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

// related lists the runs that name this one, up to the tree's limit.
func (t *tree) related(ctx context.Context, run string) (list []string, err error) {
	err = t.list(ctx, schema.ListRequest{Related: run}, func(r *schema.RunSummary) bool {
		list = append(list, r.Run)
		return len(list) <= t.limit
	})
	return list, err
}

// list calls yield for every run of the request, until it returns false.
func (t *tree) list(ctx context.Context, request schema.ListRequest, yield func(*schema.RunSummary) bool) error {
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

// arrange puts every run below exactly one other, so that each appears once, even if runs contradict each other.
func (t *tree) arrange(run string) treeReply {
	below := map[string][]string{}
	for _, id := range t.found {
		n := t.nodes[id]
		ties := n.ties()
		if from := t.from[id]; from != "" {
			ties = append(ties, [2]string{from, tieHandoff}) // an accepted hand-off names its child before the child exists
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
		// Two runs that claim to continue each other have no root.
		if n := t.nodes[id]; n.Below == "" && id != root {
			n.Below = root
			below[root] = append(below[root], id)
		}
	}
	reply := treeReply{Run: run, Root: root, Runs: []treeNode{}, Cut: t.cut}
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

// under reports whether run is at or below other, as arranged so far.
func (t *tree) under(run, other string) bool {
	for ; run != ""; run = t.nodes[run].Below {
		if run == other {
			return true
		}
	}
	return false
}

// top is the run at the top of the path.
func (t *tree) top(run string) string {
	for t.nodes[run].Below != "" {
		run = t.nodes[run].Below
	}
	return run
}

// printTree draws the tree, one run per line, open hand-offs below the offering run.
func printTree(a *base.App, reply *treeReply) error {
	columns := []output.Column{
		{Title: "run"},
		{Title: "agent", Drop: 1},
		{Title: "status"},
		{Title: "turn", Right: true, Drop: 2},
		{Title: "by", Shrinks: true},
	}
	var rows [][]string
	for i := range reply.Runs {
		n := &reply.Runs[i]
		offers := n.unstarted(reply.Runs)
		name := branch(reply.Runs, i) + n.Run
		if n.Run == reply.Run {
			name += " ◀"
		}
		status := n.status
		if n.Missing {
			status = "not in this fleet"
		}
		rows = append(rows, []string{name, n.Agent, status, output.Number(n.Turn), reply.tieText(n)})
		for _, o := range offers {
			to := o.NextAgent
			if to == "" {
				to = n.Agent
			}
			rows = append(rows, []string{
				trunk(reply.Runs, i) + "· hand-off " + o.HandoffID, to, o.Status, "", output.Words(o.Kind, output.Ago(o.Since, a.Now())),
			})
		}
	}
	return output.Table(a.Stdout, columns, rows)
}

// unstarted are the open hand-offs of a run that no run of the tree carries out.
func (n *treeNode) unstarted(runs []treeNode) []schema.OpenHandoff {
	return slices.DeleteFunc(slices.Clone(n.Handoffs), func(o schema.OpenHandoff) bool {
		return o.ChildRun != "" && slices.ContainsFunc(runs, func(r treeNode) bool { return r.Run == o.ChildRun })
	})
}

// tieText says how a run was created, and the status of the hand-off that it carries out.
func (t *treeReply) tieText(n *treeNode) string {
	switch n.Tie {
	case tieHandoff:
		if n.Handoff == nil {
			return "hand-off"
		}
		return "hand-off " + n.Handoff.HandoffID + ", " + t.handoffStatus(n)
	case tieResumed:
		return "continues it"
	case tieParent:
		if n.Parent.ToolCallID == "" {
			return "child"
		}
		return fmt.Sprintf("call %s of turn %d", n.Parent.ToolCallID, n.Parent.Turn)
	}
	return ""
}

// handoffStatus is the status of the hand-off that a run carries out. If it is no longer open, it was closed, or
// declined before the run could get it.
func (t *treeReply) handoffStatus(n *treeNode) string {
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

// branch is the prefix of a run's line: a vertical line for each run above with more runs below it, and the run's own
// corner.
func branch(runs []treeNode, i int) string {
	if runs[i].Depth == 0 {
		return ""
	}
	corner := "└─ "
	if follows(runs, i, runs[i].Depth) {
		corner = "├─ "
	}
	return lines(runs, i, runs[i].Depth) + corner
}

// trunk is the prefix of a line that belongs to a run.
func trunk(runs []treeNode, i int) string {
	own := "   "
	if i+1 < len(runs) && runs[i+1].Depth > runs[i].Depth {
		own = "│  "
	}
	return lines(runs, i, runs[i].Depth+1) + own
}

func lines(runs []treeNode, i, depth int) string {
	var b strings.Builder
	for d := 1; d < depth; d++ {
		if follows(runs, i, d) {
			b.WriteString("│  ")
		} else {
			b.WriteString("   ")
		}
	}
	return b.String()
}

// follows reports whether another run of that depth follows below the same run.
func follows(runs []treeNode, i, depth int) bool {
	for _, r := range runs[i+1:] {
		if r.Depth <= depth {
			return r.Depth == depth
		}
	}
	return false
}
