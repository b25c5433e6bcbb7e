package activity

import (
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
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

// Bounds of what one event can add: numbers and clocks of executors are not trusted.
const (
	most    = 1 << 40
	longest = 7 * 24 * 3600.0
)

// name is the owner of a count: an agent and its tier, a tool, or none.
type name struct {
	by    Owner
	first string
	tier  string
}

// Label returns a name as a label, and [Other] for an invalid name: a label must be a name, and no text of a person
// or a model.
func Label(s string) string {
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

// labels of a name, in the order of [Owner.Labels].
func (n name) labels() []string {
	return []string{n.first, n.tier}[:len(n.by.Labels())]
}

// Counters of a daemon. They begin at 0 with the process, and are a Prometheus collector.
type Counters struct {
	mu sync.Mutex
	// counters and histograms have the metrics of their kind, by their numbers.
	counters   map[Metric]*prometheus.CounterVec
	histograms map[Metric]*prometheus.HistogramVec
	// shown has the names with series of their own, as their labels show them; named counts them by their owner.
	shown map[name]name
	named [2]int
}

// New returns the counters of a fleet at 0. Series without a name, and those of [Other], exist from the beginning.
func New(fleet string) *Counters {
	c := &Counters{
		counters: make(map[Metric]*prometheus.CounterVec), histograms: make(map[Metric]*prometheus.HistogramVec), shown: make(map[name]name),
	}
	for m := range Metric(len(descriptions)) {
		d := &descriptions[m]
		labels, full, constant := slices.Concat(d.By.Labels(), d.Labels), "waymark_agent_"+d.Name, prometheus.Labels{"fleet": fleet}
		if d.Buckets == nil {
			c.counters[m] = prometheus.NewCounterVec(prometheus.CounterOpts{Name: full, Help: d.Help, ConstLabels: constant}, labels)
		} else {
			c.histograms[m] = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: full, Help: d.Help, ConstLabels: constant, Buckets: d.Buckets}, labels)
		}
	}
	for _, n := range []name{{by: ByFleet}, other(ByAgent), other(ByTool)} {
		c.show(n)
	}
	return c
}

// Describe names the metrics.
func (c *Counters) Describe(out chan<- *prometheus.Desc) {
	for _, v := range c.counters {
		v.Describe(out)
	}
	for _, v := range c.histograms {
		v.Describe(out)
	}
}

// Collect shows them.
func (c *Counters) Collect(out chan<- prometheus.Metric) {
	for _, v := range c.counters {
		v.Collect(out)
	}
	for _, v := range c.histograms {
		v.Collect(out)
	}
}

func other(by Owner) name {
	n := name{by: by, first: Other}
	if by == ByAgent {
		n.tier = Other
	}
	return n
}

// show gives a name its series, all at 0.
func (c *Counters) show(n name) {
	c.shown[n] = n
	for m := range Metric(len(descriptions)) {
		d := &descriptions[m]
		for value := range max(1, len(d.Values)) {
			if labels := m.labels(n, value); d.By == n.by && d.Buckets == nil {
				c.counters[m].WithLabelValues(labels...)
			} else if d.By == n.by {
				c.histograms[m].WithLabelValues(labels...)
			}
		}
	}
}

// labels of a series: of the name, and of the value with this place in the description.
func (m Metric) labels(n name, value int) []string {
	labels := n.labels()
	if d := &descriptions[m]; len(d.Values) > 0 {
		labels = append(labels, d.Values[value]...)
	}
	return labels
}

// showing returns a name as labels show it. A tool's name has its own series only once a tool has run under it: models
// invent names.
func (c *Counters) showing(n name, known bool) name {
	if shown, ok := c.shown[n]; ok {
		return shown
	}
	if !known {
		return other(n.by)
	}
	bound, kind := MaxAgents, "agent"
	if n.by == ByTool {
		bound, kind = MaxTools, "tool"
	}
	given := name{by: n.by, first: Label(n.first)}
	if n.by == ByAgent {
		given.tier = Label(n.tier)
	}
	_, there := c.shown[given]
	switch {
	case there && given != other(n.by):
		return given // an empty name
	case given.first == Other && n.first != Other, given.tier == Other && n.tier != Other, c.named[n.by] >= bound:
		c.counters[NamesLeftOut].WithLabelValues(kind).Inc()
		return other(n.by)
	}
	c.named[n.by]++
	given.first, given.tier = strings.Clone(given.first), strings.Clone(given.tier) // they share memory with messages
	c.show(given)
	return given
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
		m := Metric(s.metric)
		labels := m.labels(c.showing(s.name(), s.known), int(s.value))
		if descriptions[m].Buckets != nil {
			c.histograms[m].WithLabelValues(labels...).Observe(min(max(s.n, 0), longest))
		} else {
			c.counters[m].WithLabelValues(labels...).Add(min(s.n, most))
		}
	}
	if cap(b.steps) > keptSteps {
		b.steps = nil
		return
	}
	clear(b.steps) // they share memory with messages
	b.steps = b.steps[:0]
}
