package story

import (
	"time"

	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/schema"
)

// HeardText says when an executor was last heard.
func HeardText(e *schema.ExecutorState) string {
	switch {
	case e.SeenMS == nil:
		return "never"
	case e.Leaving:
		return "left " + Age(*e.SeenMS) + " ago"
	case e.Silent:
		return "silent for " + Age(*e.SeenMS)
	}
	return Age(*e.SeenMS) + " ago"
}

// OrphanedText says when the runs of an executor are orphaned if nothing more is heard; empty for one that works on none.
func OrphanedText(e *schema.ExecutorState) string {
	switch {
	case e.InHand == 0:
		return ""
	case e.OrphanedInMS == nil:
		return "not counted"
	case *e.OrphanedInMS == 0:
		return "now"
	}
	return "in " + Age(*e.OrphanedInMS)
}

// ClaimingText says whether an executor lives that claims runs of an agent, and whether surely none does; empty if that
// is not known. The request of the reply named the agent.
func ClaimingText(e *schema.ExecutorsReply, agent string) (text string, none bool) {
	switch n := e.Claiming[agent]; {
	case n > 0:
		return output.Plural(n, "executor") + " of " + agent + " alive", false
	case e.Claiming == nil:
		return "", false
	case e.Unsaid > 0:
		return "no executor of " + agent + " is known to be alive; " + output.Plural(e.Unsaid, "executor") + " did not say which agents it claims", true
	}
	return "no executor of " + agent + " is alive", true
}

// Age is a short duration for people, with tenths of seconds where they count.
func Age(ms int64) string {
	d := (time.Duration(ms) * time.Millisecond).Round(100 * time.Millisecond)
	if d >= time.Minute {
		return Span(d)
	}
	return d.String()
}
