package runs

import (
	"context"
	"fmt"
	"strings"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/lineage"
)

// TreeCmd is waymark tree.
type TreeCmd struct {
	Run_  string `arg:"" name:"run" help:"Run id."`
	Depth int    `default:"8" placeholder:"N" help:"Levels below each run (default: 8); 0: only the way up."`
}

// Help is the text below the flags.
func (TreeCmd) Help() string {
	return `The tree comes from checkpoints and may be a moment old. At most 1,000 runs are shown.`
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
	reply, err := lineage.Of(ctx, cl, cl.Fleet, c.Run_, c.Depth)
	if err != nil {
		return err
	}
	if a.JSON {
		return output.Document(a.Stdout, reply)
	}
	if err := printTree(a, &reply); err != nil || !reply.Cut || a.Quiet {
		return err
	}
	_, err = fmt.Fprintf(a.Stderr, "there are more runs below: use a larger --depth, or start from a run further down (at most %d runs are shown)\n", lineage.Most)
	return err
}

// printTree draws the tree, one run per line, open hand-offs below the offering run.
func printTree(a *base.App, reply *lineage.Tree) error {
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
		offers := n.Unstarted(reply.Runs)
		name := branch(reply.Runs, i) + n.Run
		if n.Run == reply.Run {
			name += " ◀"
		}
		status := n.Text
		if n.Missing {
			status = "not in this fleet"
		}
		rows = append(rows, []string{name, n.Agent, status, output.Number(n.Turn), reply.TieText(n)})
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

// branch is the prefix of a run's line: a vertical line for each run above with more runs below it, and the run's own
// corner.
func branch(runs []lineage.Node, i int) string {
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
func trunk(runs []lineage.Node, i int) string {
	own := "   "
	if i+1 < len(runs) && runs[i+1].Depth > runs[i].Depth {
		own = "│  "
	}
	return lines(runs, i, runs[i].Depth+1) + own
}

func lines(runs []lineage.Node, i, depth int) string {
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
func follows(runs []lineage.Node, i, depth int) bool {
	for _, r := range runs[i+1:] {
		if r.Depth <= depth {
			return r.Depth == depth
		}
	}
	return false
}
