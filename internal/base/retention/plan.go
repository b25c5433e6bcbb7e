package retention

import (
	"fmt"
	"strings"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// Run is the input of a plan for one run.
type Run struct {
	ID     string
	Status schema.Status
	// Last is the time of the run's last event; zero if unknown.
	Last time.Time
	// Bytes known to be stored for it.
	Bytes int64
	// Pins are the names of its pinned points.
	Pins []string
	// Handoffs counts the offered or accepted ones; OpenCalls the calls whose outcome a person must decide, InDoubt
	// those that are in doubt or held; Waits its waits.
	Handoffs, OpenCalls, InDoubt, Waits int
	// Forks are the stored runs that are based on it, without removed ones.
	Forks []string
	// Unreadable: the stored data of the run does not show its state.
	Unreadable bool
}

// RunOf is the plan's input from a run's checkpoint, without its forks: some of those that it names may be removed.
func RunOf(c *schema.Checkpoint, bytes int64) Run {
	r := Run{
		ID: c.Run, Status: c.Status, Bytes: bytes, Handoffs: len(c.Handoffs), OpenCalls: len(c.HeldCalls()), Waits: len(c.Interrupts),
		Unreadable: !c.Complete(),
	}
	for i := range c.OpenCalls {
		if c.OpenCalls[i].State.InDoubt() {
			r.InDoubt++
		}
	}
	for i := range c.Marks {
		r.Pins = append(r.Pins, c.Marks[i].Name)
	}
	r.Last = schema.ParseTime(c.UpdatedAt)
	return r
}

// Pending returns what forbids the removal of a run at any age, with a description; "" for nothing. It ignores the
// forks.
func (r *Run) Pending() (why schema.Why, detail string) {
	switch {
	case r.Unreadable:
		return schema.WhyUnknown, "its stored data does not show its state"
	case r.Waits > 0 || r.Status == schema.StatusWaiting:
		return schema.WhyWaiting, inNumber(max(r.Waits, 1), "it has one open wait", "it has %d open waits")
	case r.InDoubt > 0:
		return schema.WhyInDoubt, inNumber(r.InDoubt, "a call of it is in doubt or held: settle it", "%d of its calls are in doubt or held: settle them")
	case !r.Status.Terminal():
		return schema.WhyLive, "it is " + string(r.Status)
	case r.OpenCalls > 0:
		return schema.WhyOpenCall, inNumber(r.OpenCalls, "a call of it has no outcome: settle it", "%d of its calls have no outcome: settle them")
	case r.Handoffs > 0:
		return schema.WhyHandoff, inNumber(r.Handoffs, "a hand-off of it is not closed", "%d of its hand-offs are not closed")
	case len(r.Pins) > 0:
		return schema.WhyPinned, "pinned: " + list(r.Pins)
	default:
		return "", ""
	}
}

// inNumber is a text for one, and the format of the text for more.
func inNumber(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return fmt.Sprintf(more, n)
}

// list names some of many.
func list(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// Plan is the decision about each run. now is the time that ages are counted to.
func Plan(runs []Run, policy schema.RetentionPolicy, now time.Time) []schema.CleanupItem {
	items := make([]schema.CleanupItem, len(runs))
	for i := range runs {
		r := &runs[i]
		why, detail := decide(r, &policy, now)
		items[i] = schema.CleanupItem{Run: r.ID, Status: r.Status, Remove: why == schema.WhyAge, Why: why, Detail: detail, Bytes: r.Bytes}
		if !r.Last.IsZero() {
			items[i].Last = schema.FormatTime(r.Last)
		}
	}
	return items
}

func decide(r *Run, policy *schema.RetentionPolicy, now time.Time) (schema.Why, string) {
	if why, detail := r.Pending(); why != "" {
		return why, detail
	}
	keep, age := policy.For(r.Status), now.Sub(r.Last)
	switch {
	case keep <= 0:
		return schema.WhyForEver, "the policy keeps runs that are " + string(r.Status)
	case r.Last.IsZero():
		return schema.WhyUnknown, "the time of its last event is not known"
	case age < policy.Grace():
		return schema.WhyActive, "something was added within " + policy.Grace().String()
	case age < keep:
		return schema.WhyYoung, ""
	case len(r.Forks) > 0:
		return schema.WhyBase, "it has forks: " + list(r.Forks)
	default:
		return schema.WhyAge, ""
	}
}
