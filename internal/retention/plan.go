package retention

import (
	"cmp"
	"fmt"
	"slices"
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

// RunOf is the plan's input from a run's checkpoint. The caller must find the forks.
func RunOf(c *schema.Checkpoint, bytes int64, forks []string) Run {
	r := Run{
		ID: c.Run, Status: c.Status, Bytes: bytes, Handoffs: len(c.Handoffs), OpenCalls: len(c.HeldCalls()), Waits: len(c.Interrupts),
		Forks: forks, Unreadable: !c.Complete(),
	}
	for i := range c.OpenCalls {
		if call := &c.OpenCalls[i]; call.InDoubt || call.Held {
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
		return schema.WhyWaiting, inNumber(max(r.Waits, 1), "it waits for one thing", "it waits for %d things")
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

// Plan is the decision about each run.
type Plan struct {
	Policy schema.RetentionPolicy
	// Now is the time that ages were counted from.
	Now time.Time
	// Items in the order of the given runs, with those to be removed after the others: first forks, then their bases.
	Items []schema.CleanupItem
	// Bases are runs to be removed that are bases of others to be removed.
	Bases map[string]bool
}

// New makes a plan. now is the time that ages are counted to. The runs need not be all of a fleet: a run that is not
// among them is kept.
func New(runs []Run, policy schema.RetentionPolicy, now time.Time) Plan {
	p := planner{policy: policy, now: now, byID: make(map[string]*Run, len(runs)), judged: make(map[string]*judgement, len(runs))}
	for i := range runs {
		p.byID[runs[i].ID] = &runs[i]
	}
	type ordered struct {
		item  schema.CleanupItem
		depth int
	}
	items := make([]ordered, 0, len(runs))
	for i := range runs {
		r := &runs[i]
		j := p.judge(r)
		item := schema.CleanupItem{Run: r.ID, Status: r.Status, Remove: j.why == schema.WhyAge, Why: j.why, Detail: j.detail, Bytes: r.Bytes}
		if !r.Last.IsZero() {
			item.Last = schema.FormatTime(r.Last)
		}
		depth := 0
		if item.Remove {
			depth = j.depth
		}
		items = append(items, ordered{item, depth})
	}
	slices.SortStableFunc(items, func(a, b ordered) int { return cmp.Compare(a.depth, b.depth) })
	plan := Plan{Policy: policy, Now: now, Items: make([]schema.CleanupItem, len(items)), Bases: make(map[string]bool)}
	for i := range items {
		plan.Items[i] = items[i].item
		if items[i].depth > 1 {
			plan.Bases[items[i].item.Run] = true
		}
	}
	return plan
}

// judgement of a run. depth is greater than that of each of its forks; 0 while the run is being judged.
type judgement struct {
	why    schema.Why
	detail string
	depth  int
}

type planner struct {
	policy schema.RetentionPolicy
	now    time.Time
	byID   map[string]*Run
	judged map[string]*judgement
}

// judge decides about a run, and before that about its forks.
func (p *planner) judge(r *Run) *judgement {
	if j, ok := p.judged[r.ID]; ok {
		if j.depth == 0 {
			// A run that is its own base, over any number of forks, is not valid. No run of such a ring is removed.
			return &judgement{why: schema.WhyBase, detail: "its forks are based on each other", depth: 1}
		}
		return j
	}
	j := &judgement{}
	p.judged[r.ID] = j
	why, detail, depth := p.decide(r)
	*j = judgement{why: why, detail: detail, depth: depth}
	return j
}

func (p *planner) decide(r *Run) (why schema.Why, detail string, depth int) {
	why, detail = p.alone(r)
	if why != schema.WhyAge {
		return why, detail, 1
	}
	depth = 1
	var kept []string
	for _, id := range r.Forks {
		fork, ok := p.byID[id]
		if !ok {
			kept = append(kept, id)
			continue
		}
		j := p.judge(fork)
		if j.why != schema.WhyAge {
			kept = append(kept, id)
		}
		depth = max(depth, j.depth+1)
	}
	if len(kept) > 0 {
		return schema.WhyBase, "kept forks stand on it: " + list(kept), 1
	}
	return schema.WhyAge, detail, depth
}

// alone decides about a run without regard to its forks.
func (p *planner) alone(r *Run) (schema.Why, string) {
	if why, detail := r.Pending(); why != "" {
		return why, detail
	}
	keep := p.policy.For(r.Status)
	switch {
	case keep <= 0:
		return schema.WhyForEver, "the policy keeps runs that are " + string(r.Status)
	case r.Last.IsZero():
		return schema.WhyUnknown, "the time of its last event is not known"
	}
	age := p.now.Sub(r.Last)
	switch {
	case age < p.policy.Grace():
		return schema.WhyActive, "something was added within " + p.policy.Grace().String()
	case age < keep:
		return schema.WhyYoung, ""
	default:
		return schema.WhyAge, ""
	}
}
