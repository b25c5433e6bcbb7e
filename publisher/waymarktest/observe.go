package waymarktest

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// ObservedSubject is the subject to which observers of the world's fleet subscribe for a run's events of a name, such
// as tool.returned; "*.*" and "*" stand for all names and all runs.
func (w *World) ObservedSubject(name, run string) string {
	return schema.ObservedSubject(w.cfg.Fleet, name, run)
}

// CheckpointSubject is the subject of the checkpoints of a run; "*" stands for all runs.
func (w *World) CheckpointSubject(run string) string {
	w.tb.Helper()
	return schema.NamesOf(w.cfg.Fleet, 0).CheckpointSubject(run)
}

// Observed receives the events of an observer's subscription. Call its methods from the test's goroutine.
type Observed struct {
	w       *World
	subject string
	sub     *nats.Subscription
}

// Observe subscribes as an observer: to the events of a name and a run, "*.*" and "*" for all. It returns when the
// server has the subscription, so that no later event is missed.
func (w *World) Observe(name, run string) *Observed {
	w.tb.Helper()
	o := &Observed{w: w, subject: w.ObservedSubject(name, run)}
	nc := w.Conn()
	var err error
	o.sub, err = nc.SubscribeSync(o.subject)
	w.must(err, "subscribe to %s", o.subject)
	w.must(nc.FlushTimeout(patience), "subscribe to %s", o.subject)
	return o
}

// Next returns the next event that wanted accepts; nil accepts any. Events before it are dropped. It ends the test after a minute.
func (o *Observed) Next(wanted func(*schema.Event) bool) *schema.Event {
	o.w.tb.Helper()
	deadline := time.Now().Add(patience)
	for {
		m, err := o.sub.NextMsg(time.Until(deadline))
		o.w.must(err, "wait for an event on %s", o.subject)
		e, err := schema.Decode(m.Header, m.Data)
		o.w.must(err, "event on %s", m.Subject)
		if wanted == nil || wanted(e) {
			return e
		}
	}
}

// None ends the test if an event comes within a time.
func (o *Observed) None(within time.Duration) {
	o.w.tb.Helper()
	if m, err := o.sub.NextMsg(within); err == nil {
		o.w.tb.Fatalf("waymarktest: an event came on %s: %s", m.Subject, m.Data)
	}
}
