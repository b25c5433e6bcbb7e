package conform

import (
	"fmt"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/schema"
)

// beats are the heartbeats of one executor.
type beats struct {
	// instances in its heartbeats; empty counts as one, too.
	instances map[string]bool
	told      map[string]bool
}

// maxInstances bounds the instances remembered of one executor.
const maxInstances = 256

// Heartbeat checks a message on a heartbeat subject.
func (c *Checker) Heartbeat(m Message) {
	c.heard = true
	executor := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	f := Finding{Event: "heartbeat on " + m.Subject, File: m.File, Line: m.Line}
	var beat schema.Heartbeat
	if err := json.Unmarshal(m.Record.Body, &beat); err != nil {
		c.found(ruleBeatForm, &f, "/", "a heartbeat", err.Error())
		return
	}
	switch {
	case beat.Executor != executor:
		c.found(ruleBeatForm, &f, "/executor", executor+", as in the subject", beat.Executor)
		return
	case beat.Instance != "" && !schema.ValidName(beat.Instance):
		c.found(ruleBeatForm, &f, "/instance", "a name: 1 to 64 of A-Z a-z 0-9 _ -", beat.Instance)
		return
	case beat.IntervalMS < 0:
		c.found(ruleBeatForm, &f, "/interval_ms", "a number of milliseconds", fmt.Sprint(beat.IntervalMS))
		return
	}
	b := c.executors[executor]
	if b == nil {
		if len(c.executors) >= maxRuns {
			return
		}
		b = &beats{instances: map[string]bool{}, told: map[string]bool{}}
		c.executors[executor] = b
	}
	if len(b.instances) < maxInstances {
		b.instances[beat.Instance] = true
	}
}

// beatsOf compares an event with its executor's heartbeats: if its run names an instance and the heartbeats only name
// others, the executor will count as dead.
func (c *Checker) beatsOf(r *run, a *moment) {
	b := c.executors[r.head.Executor]
	if b == nil || a.name == schema.RunStarted || r.head.Instance == "" || b.instances[r.head.Instance] || b.told[r.head.Instance] {
		return
	}
	if _, executor, ok := schema.ParseSource(a.e.Source); !ok || executor != r.head.Executor || len(b.instances) >= maxInstances {
		return
	}
	b.told[r.head.Instance] = true
	others := make([]string, 0, len(b.instances))
	for name := range b.instances {
		if name == "" {
			name = "none"
		}
		others = append(others, name)
	}
	r.found(ruleBeatInstance, a, "instance", r.head.Instance+" in a heartbeat of "+r.head.Executor, "heartbeats of "+strings.Join(others[:min(len(others), 3)], ", "))
}

// Wire checks the headers with which a message was published. Add checks the part that the log keeps.
func (c *Checker) Wire(m Message) {
	e, err := schema.Decode(m.Record.Header, m.Record.Body)
	if err != nil || e.IsControl() || e.Subject == schema.BarrierRun {
		return
	}
	if schema.ErasedMark(e) {
		return
	}
	c.wire = true
	f := at(&m, e.Subject, e)
	header := func(name string) (string, bool) {
		for key, values := range m.Record.Header {
			if strings.EqualFold(key, name) && len(values) > 0 {
				return values[0], true
			}
		}
		return "", false
	}
	if id, ok := header(headerMsgID); id != e.ID {
		if !ok {
			id = "no such header"
		}
		c.found(ruleMsgID, &f, headerMsgID, e.ID, id)
	}
	_, expects := header(headerExpectedLast)
	_, batched := header(headerBatch)
	n, _ := header(headerBatchAt)
	if e.Sequence != 0 && !expects && (!batched || n == "1") {
		c.found(ruleExpectLast, &f, headerExpectedLast, "the stream sequence of the run's last message", "no such header")
	}
}
