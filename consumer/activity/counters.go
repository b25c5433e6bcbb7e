package activity

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"sync"
)

// Bounds of labels.
const (
	// MaxAgents bounds the pairs of agent and tier that have series of their own, and MaxTools the tools.
	MaxAgents = 128
	MaxTools  = 128
	// MaxLabel bounds a label's value, in bytes.
	MaxLabel = 128
)

const (
	// Other is the label of names without their own series.
	Other = "other"
	// None is the label of an unknown name.
	None = "none"
)

// longest is the maximum for observed durations: clocks of executors are not trusted.
const longest = 7 * 24 * 3600.0

// name is the owner of a count: an agent and its tier, a tool, or none.
type name struct {
	by    Owner
	first string
	tier  string
}

// label returns a name as a label, and [Other] for an invalid name: a label must be a name, and no text of a person
// or a model.
func label(s string) string {
	if s == "" {
		return None
	}
	if len(s) > MaxLabel {
		return Other
	}
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case i > 0 && strings.IndexByte("_-.:/", c) >= 0:
		default:
			return Other
		}
	}
	return s
}

// row is the counts of one name.
type row struct {
	// counts by metric and place of the value.
	counts [len(descriptions)][]uint64
	// observed by metric and place of the value.
	observed [len(descriptions)][]histogram
}

func newRow(by Owner) *row {
	r := new(row)
	for m := range descriptions {
		d := &descriptions[m]
		n := max(1, len(d.Values))
		switch {
		case d.By != by:
		case d.Buckets == nil:
			r.counts[m] = make([]uint64, n)
		default:
			r.observed[m] = make([]histogram, n)
			for i := range r.observed[m] {
				r.observed[m][i].buckets = make([]uint64, len(d.Buckets))
			}
		}
	}
	return r
}

// histogram counts durations. Its buckets are not cumulative.
type histogram struct {
	count   uint64
	sum     float64
	buckets []uint64
}

func (h *histogram) observe(bounds []float64, seconds float64) {
	seconds = min(max(seconds, 0), longest)
	h.count++
	h.sum += seconds
	if i, _ := slices.BinarySearch(bounds, seconds); i < len(bounds) {
		h.buckets[i]++
	}
}

// Counters of a daemon. They begin at 0 with the process.
type Counters struct {
	mu    sync.Mutex
	rows  map[name]*row
	named [2]int
}

// New returns counters at 0. Series without a name, and those of [Other], exist from the beginning.
func New() *Counters {
	return &Counters{rows: map[name]*row{
		{by: ByFleet}:  newRow(ByFleet),
		other(ByAgent): newRow(ByAgent),
		other(ByTool):  newRow(ByTool),
	}}
}

func other(by Owner) name {
	n := name{by: by, first: Other}
	if by == ByAgent {
		n.tier = Other
	}
	return n
}

// row returns the counts of a name. A tool's name has its own series only once a tool has run under it: models invent
// names.
func (c *Counters) row(n name, known bool) *row {
	if r := c.rows[n]; r != nil {
		return r
	}
	if !known {
		return c.rows[other(n.by)]
	}
	most, kind := MaxAgents, leftOutAgent
	if n.by == ByTool {
		most, kind = MaxTools, leftOutTool
	}
	given := name{n.by, label(n.first), n.tier}
	if n.by == ByAgent {
		given.tier = label(n.tier)
	}
	r := c.rows[given]
	switch {
	case r != nil && given != other(n.by):
		return r // an empty name
	case given.first == Other && n.first != Other, given.tier == Other && n.tier != Other, c.named[n.by] >= most:
		c.rows[name{by: ByFleet}].counts[NamesLeftOut][kind]++
		return c.rows[other(n.by)]
	}
	c.named[n.by]++
	given.first, given.tier = strings.Clone(given.first), strings.Clone(given.tier) // they share memory with messages
	r = newRow(n.by)
	c.rows[given] = r
	return r
}

// Add adds a batch to the counters, and empties it.
func (c *Counters) Add(b *Batch) {
	if len(b.steps) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range b.steps {
		s := &b.steps[i]
		r := c.row(s.name(), s.known)
		if d := &descriptions[s.metric]; d.Buckets != nil {
			r.observed[s.metric][s.value].observe(d.Buckets, math.Float64frombits(s.n))
		} else {
			n := &r.counts[s.metric][s.value]
			*n = min(*n+s.n, math.MaxInt64) // both were below the maximum, and their sum fits
		}
	}
	if cap(b.steps) > keptSteps {
		b.steps = nil
		return
	}
	clear(b.steps) // they share memory with messages
	b.steps = b.steps[:0]
}

// Series is the current value of one series.
type Series struct {
	Metric Metric
	// Labels are those of the owner and of the metric, in the order of Labels in the description.
	Labels []string
	// N of a counter.
	N uint64
	// Count, Sum and Within of a histogram: Within is how many took at most each bound in seconds.
	Count  uint64
	Sum    float64
	Within map[float64]uint64
}

// Series returns all series, ordered.
func (c *Counters) Series() []Series {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []Series
	for n, r := range c.rows {
		for m := range descriptions {
			d := &descriptions[m]
			for i := range max(len(r.counts[m]), len(r.observed[m])) {
				s := Series{Metric: Metric(m)}
				switch n.by {
				case ByAgent:
					s.Labels = append(s.Labels, n.first, n.tier)
				case ByTool:
					s.Labels = append(s.Labels, n.first)
				default:
				}
				if len(d.Values) > 0 {
					s.Labels = append(s.Labels, d.Values[i]...)
				}
				if d.Buckets == nil {
					s.N = r.counts[m][i]
				} else {
					s.Count, s.Sum, s.Within = r.observed[m][i].cumulated(d.Buckets)
				}
				all = append(all, s)
			}
		}
	}
	slices.SortFunc(all, func(a, b Series) int {
		return cmp.Or(cmp.Compare(a.Metric, b.Metric), slices.Compare(a.Labels, b.Labels))
	})
	return all
}

func (h *histogram) cumulated(bounds []float64) (count uint64, sum float64, within map[float64]uint64) {
	within = make(map[float64]uint64, len(bounds))
	below := uint64(0)
	for i, bound := range bounds {
		below += h.buckets[i]
		within[bound] = below
	}
	return h.count, h.sum, within
}
