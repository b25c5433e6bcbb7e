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

// ClaimingText says whether an executor lives that claims runs of an agent, and whether surely none does. It is empty if
// the daemon does not know, or was not asked about the agent.
func ClaimingText(e *schema.ExecutorsReply, agent string) (text string, none bool) {
	switch n, known := e.Claiming[agent]; {
	case !known:
		return "", false
	case n > 0:
		return output.Plural(n, "executor") + " of " + agent + " alive", false
	case e.Unsaid > 0:
		return "unknown whether an executor of " + agent + " is alive: " + output.Plural(e.Unsaid, "executor") +
			output.InNumber(e.Unsaid, " does not say which agents it claims", " do not say which agents they claim"), false
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
