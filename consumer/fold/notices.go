package fold

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/schema"
)

// notice is a message to an executor after the batch is stored.
type notice struct {
	executor string
	schema.Notice
}

// observe tells a run's executor of an accepted control event. had is the run's executor before the event: after a
// takeover, both the old and the new executor get a notice.
func (b *batch) observe(r *run, had string, v *schema.Verdict) {
	e := v.Event
	if v.Kind != schema.Applied || !e.IsControl() {
		return
	}
	said := schema.Notice{Run: r.id, Name: e.Name(), Position: r.head.Position}
	if had != "" {
		b.notices = append(b.notices, notice{had, said})
	}
	if e.Name() == schema.RunResumed && r.head.Executor != had {
		// The executor may not know: a replica may have read a request on wake-up that the executor has given up long
		// ago.
		b.notices = append(b.notices, notice{r.head.Executor, said})
	}
}

// refusal is a notice to the sender of a refused event: its source, or the run's executor if the event cannot be read.
func refusal(a *message, executor string, reason schema.Reason, detail string) notice {
	if e := a.prepared.Event; e != nil {
		if _, name, ok := schema.ParseSource(e.Source); ok {
			executor = name
		}
	}
	return notice{executor, schema.Notice{
		Run: a.run, Name: schema.EventRefused, Position: a.prepared.Position(), Reason: reason, Detail: strings.ToValidUTF8(detail[:min(len(detail), 1024)], ""),
	}}
}

// announcer publishes folded events to others, never before they are stored. Core NATS may lose them, and a log that
// is folded again is announced again, with the same ids.
type announcer struct {
	nc            *nats.Conn
	fleet, holder string
	maxClaims     int
	stats         *Stats
	now           func() time.Time
	log           zerolog.Logger
}

// notify sends notices to executors about writes of others into their runs, and about their own refused events, which
// observers get, too. They are hints, which may be lost or repeated: the executor reads the log.
func (x *announcer) notify(notices []notice) {
	for i := range notices {
		n := &notices[i]
		body, err := json.Marshal(&n.Notice)
		if err == nil && schema.ValidName(n.executor) {
			err = x.nc.Publish(schema.NoticeSubject(x.fleet, n.executor), body)
			x.stats.Notices.Add(1)
		}
		if err != nil {
			x.log.Debug().Err(err).Str(logkey.Run, n.Run).Msg("executor not told")
			return
		}
		if n.Name == schema.EventRefused && schema.ValidName(n.Run) && !x.derived(n.Run, n.Name, &schema.Event{
			ID: n.Run + ".refused." + strconv.FormatUint(uint64(n.Position.Stream), 10), Source: schema.Source(x.fleet, x.holder),
			Type: schema.TypeOf(n.Name), Subject: n.Run, Time: schema.FormatTime(x.now()), DataContentType: schema.ContentTypeJSON, Data: body,
		}) {
			return
		}
	}
}

// quarantined is the data of run.quarantined.
type quarantined struct {
	// Claims in a row without progress.
	Claims int `json:"claims_without_progress"`
	// Status of the run, and the turn it is at.
	Status    schema.Status `json:"status"`
	Turn      int32         `json:"turn"`
	OpenCalls int           `json:"open_calls,omitzero"`
	LastError *schema.Error `json:"last_error,omitzero"`
}

// quarantine announces quarantined runs, which cannot be claimed automatically: once each time that a run becomes
// claimable after too many claims without progress. It is not in the log; the head shows the same.
func (x *announcer) quarantine(touched map[string]*run) {
	for _, r := range touched {
		was := r.quarantined
		r.quarantined = r.head.Quarantined(x.maxClaims)
		if !r.quarantined || was {
			continue
		}
		h := &r.head
		x.log.Warn().Str(logkey.Run, r.id).Int("claims", h.Stalled).Int32("turn", h.Turn).Str("hint", "waymark runs show "+r.id).Msg("run quarantined")
		body, err := json.Marshal(&quarantined{
			Claims: h.Stalled, Status: h.Status, Turn: h.Turn, OpenCalls: len(h.OpenCalls), LastError: h.LastError,
		})
		if err == nil {
			x.derived(r.id, schema.RunQuarantined, &schema.Event{
				ID: r.id + "." + strconv.FormatUint(uint64(h.Epoch), 10) + ".quarantined." +
					strconv.FormatUint(uint64(h.Position.Stream), 10),
				Source: schema.Source(x.fleet, x.holder), Type: schema.TypeOf(schema.RunQuarantined), Subject: r.id,
				Time: schema.FormatTime(x.now()), Epoch: h.Epoch, DataContentType: schema.ContentTypeJSON, Data: body,
			})
		} else {
			x.log.Error().Err(err).Str(logkey.Run, r.id).Msg("notice of a quarantined run cannot be written")
		}
		x.stats.Quarantined.Add(1)
	}
}

// removed announces removed runs, so that observers drop what they kept of them. It is a hint, like every observed
// event.
func (x *announcer) removed(removals []*schema.Removal) {
	for _, r := range removals {
		if e, err := schema.NewErased(x.holder, r, "observed", x.now()); err != nil || !x.derived(r.Run, schema.RunErased, e) {
			return
		}
	}
}

// announce publishes accepted events on the observed subjects, each followed by its changes of turns, in order. A
// program that must not miss any event consumes the event stream. Each call is announced once as tool.called: calls
// of an answer after it, whether or not an event of their own begins them.
func (x *announcer) announce(events []accepted) {
	for i := range events {
		a := &events[i]
		name := a.e.Name()
		if schema.NewData(name) == nil {
			continue
		}
		if !a.begun {
			// Unchanged, except for the instructions to the server.
			msg := &nats.Msg{Subject: schema.ObservedSubject(x.fleet, name, a.run), Header: a.rec.Header, Data: a.rec.Body}
			if err := x.nc.PublishMsg(msg); err != nil {
				x.log.Debug().Err(err).Str(logkey.Run, a.run).Msg("event not announced")
				return
			}
			if !x.derived(a.run, schema.ToolCalled, requested(a)...) {
				return
			}
		}
		for j := range a.turns {
			e, err := turnEvent(a, &a.turns[j])
			if err != nil {
				x.log.Error().Err(err).Str(logkey.Run, a.run).Msg("notice of a turn cannot be written")
				continue
			}
			if !x.derived(a.run, a.turns[j].Name, e) {
				return
			}
		}
	}
}

// derived announces events of the daemon's own, which are not in the log. It is false if the connection accepts no more.
func (x *announcer) derived(run, name string, events ...*schema.Event) bool {
	for _, e := range events {
		header, body := e.Encode()
		if err := x.nc.PublishMsg(&nats.Msg{Subject: schema.ObservedSubject(x.fleet, name, run), Header: header, Data: body}); err != nil {
			x.log.Debug().Err(err).Str(logkey.Run, run).Str("name", name).Msg("derived event not announced")
			return false
		}
	}
	return true
}

// turnEvent is the event for a notice of a turn. All of it comes from the event that changed the turn, so each fold
// makes the same.
func turnEvent(a *accepted, n *schema.TurnNotice) (*schema.Event, error) {
	body, err := json.Marshal(&n.Data) // it has no maps
	if err != nil {
		return nil, fmt.Errorf("%s: %w", n.Name, err)
	}
	return &schema.Event{
		ID: schema.TurnNoticeID(a.e.ID, n.Name, n.Data.Turn), Source: a.e.Source, Type: schema.TypeOf(n.Name), Subject: a.run, Time: a.e.Time,
		Epoch: n.Data.Epoch, Turn: n.Data.Turn, TraceParent: a.e.TraceParent, DataContentType: schema.ContentTypeJSON, Data: body,
	}, nil
}

// requested are the executable calls of an answer, each as an event tool.called. Their ids are the answer's, a slash
// and the index in it, from 1.
func requested(a *accepted) []*schema.Event {
	e, d := a.e, a.answer
	if d == nil {
		return nil
	}
	events := make([]*schema.Event, 0, len(d.Calls))
	for i := range d.Calls {
		if d.Calls[i].Error != nil {
			continue
		}
		called, dataref := d.Called(i), ""
		called.Occurrence = a.calls[i].Occurrence
		for _, ref := range called.Refs {
			dataref = cmp.Or(dataref, ref.DataRef)
		}
		body, err := json.Marshal(called, json.Deterministic(true))
		if err != nil {
			continue // it was read from JSON
		}
		events = append(events, &schema.Event{
			ID: schema.DerivedID(e.ID, strconv.Itoa(i+1)), Source: e.Source, Type: schema.TypeOf(schema.ToolCalled), Subject: e.Subject, Time: e.Time,
			Epoch: e.Epoch, Turn: d.Turn, TraceParent: e.TraceParent, DataRef: dataref, DataContentType: schema.ContentTypeJSON, Data: body,
		})
	}
	return events
}
