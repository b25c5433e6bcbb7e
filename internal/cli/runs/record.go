package runs

import (
	"slices"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/story"
	"github.com/waymarkio/waymark/schema"
)

// madeText counts a run's artifacts and compactions.
func madeText(c schema.Counts) string {
	var list []string
	for _, n := range []struct {
		count int64
		noun  string
	}{{c.Artifacts, "artifact"}, {c.Compactions, "compaction"}} {
		if n.count > 0 {
			list = append(list, output.Plural(n.count, n.noun))
		}
	}
	return output.Words(list...)
}

// printRecord lists the rest of a run's record besides messages and calls: decisions, limits, compactions, artifacts.
func printRecord(a *base.App, s *schema.State) error {
	decisions := make([][]string, len(s.Decisions))
	for i := range s.Decisions {
		d := &s.Decisions[i]
		decision := d.Decision
		if d.Mode == schema.ModeObserve {
			decision += " (observed)"
		}
		decisions[i] = []string{
			decision, output.Number(d.Turn), d.ToolCallID, output.Number(max(d.Occurrence, 1)), d.Policy, encryption.ReadableField(d.Reason, d.Refs, "/reason"), d.By,
		}
	}
	if err := printBelow(a, []output.Column{
		{Title: "decision"},
		{Title: "turn", Right: true},
		{Title: "call"},
		{Title: "occ.", Right: true, Drop: 1},
		{Title: "policy", Shrinks: true},
		{Title: "why", Shrinks: true},
		{Title: "by", Drop: 2, Shrinks: true},
	}, decisions); err != nil {
		return err
	}
	limits := make([][]string, len(s.Limits))
	for i := range s.Limits {
		limits[i] = []string{s.Limits[i].Limit, string(s.Limits[i].Value), string(s.Limits[i].Maximum)}
	}
	if err := printBelow(a, []output.Column{{Title: "limit reached"}, {Title: "value", Shrinks: true}, {Title: "maximum", Shrinks: true}}, limits); err != nil {
		return err
	}
	compactions := make([][]string, len(s.Compactions))
	for i := range s.Compactions {
		c := &s.Compactions[i]
		compactions[i] = []string{output.Number(c.ThroughTurn), tokenCount(c.TokensBefore), tokenCount(c.TokensAfter), summaryText(c), output.Ago(c.Time, a.Now())}
	}
	if err := printBelow(a, []output.Column{
		{Title: "compacted through turn", Right: true},
		{Title: "tokens before", Right: true},
		{Title: "after", Right: true},
		{Title: "summary", Shrinks: true, Wraps: true},
		{Title: "when", Drop: 1},
	}, compactions); err != nil {
		return err
	}
	artifacts := make([]*story.Artifact, len(s.Artifacts))
	for i := range s.Artifacts {
		artifacts[i] = story.ArtifactOf(&s.Artifacts[i])
	}
	return printBelow(a, artifactColumns(), artifactRows(artifacts))
}

func tokenCount(n int64) string {
	if n == 0 {
		return ""
	}
	return output.Number(n)
}

// summaryText is the summary of a compaction, or its location.
func summaryText(c *schema.StateCompaction) string {
	i := slices.IndexFunc(c.Refs, func(r schema.Ref) bool { return r.Path == "/summary" })
	if i >= 0 && c.Refs[i].KeyID == "" && c.Summary == "" {
		return "(in the object store, " + output.Bytes(c.Refs[i].Size) + ")"
	}
	return encryption.ReadableField(c.Summary, c.Refs, "/summary")
}
