//go:build waymark_failpoints

package chaos_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/harness/checker"
	"github.com/waymarkio/waymark/schema"
)

// adversary publishes into runs, without the SDK and without compare-and-set, events that must change nothing. It has
// the credentials of an executor, so that an event at the next place of a run would be valid; it never publishes that
// one.
type adversary struct {
	w     *world
	count int
	mu    sync.Mutex
	taken map[string]bool
}

// tookOver reports whether a takeover of the run was forged.
func (a *adversary) tookOver(run string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.taken[run]
}

// forgeries are possible in every fleet. In one with keys there is also "control": a cancel request in the daemon's
// name.
var forgeries = []string{"duplicate", "fork", "old epoch", "takeover", "garbage", "another fleet", "another run", "wrong id", "plain"}

func (a *adversary) act(what, run string, pick uint64) {
	a.count++
	op := a.w.fault("adversary: %s in %s", what, run)
	a.w.over(op, a.forge(what, run, pick))
}

var errNothingToForge = errors.New("there is nothing to forge yet")

func (a *adversary) forge(what, run string, pick uint64) error {
	w := a.w
	subject := w.subject(run)
	stream, err := w.js.Stream(w.ctx, w.names[w.shardOf(run)].EventStream())
	if err != nil {
		return err
	}
	var last *jetstream.RawStreamMsg
	if last, err = stream.GetLastMsgForSubject(w.ctx, subject); err != nil {
		return err
	}
	if what == "garbage" {
		return a.publish(run, nil, []byte("no event at all "+fmt.Sprint(a.count)))
	}
	if what == "duplicate" {
		at := 1 + pick%last.Sequence
		m, err := stream.GetMsg(w.ctx, at)
		if err != nil {
			return err
		}
		if m.Subject != subject {
			m = last
		}
		return a.publish(run, m.Header, m.Data)
	}
	rec := schema.NewRecord(schema.StreamSequence(last.Sequence), last.Header, last.Data)
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		return err
	}
	epoch, sequence := max(e.Epoch, 1), e.Sequence
	if what == "plain" {
		return a.plain(run)
	}
	if what == "control" {
		forged, err := schema.NewControl(fleetName, "daemon-1", run, epoch, fmt.Sprintf("forged%d", a.count), &schema.RunCancelRequestedData{By: "alice"}, time.Now())
		if err != nil {
			return err
		}
		return a.send(run, forged)
	}
	if what == "takeover" {
		a.mu.Lock()
		a.taken[run] = true
		a.mu.Unlock()
		forged, err := schema.NewControl(fleetName, "mallory", run, epoch+1, fmt.Sprintf("forged%d", a.count), &schema.RunResumedData{
			Executor: "mallory", Reason: schema.TakeoverRequest, RequestID: fmt.Sprintf("forged-%d", a.count),
			From: schema.From{Epoch: epoch, Sequence: 1, Digest: strings.Repeat("0", 64)},
		}, time.Now())
		if err != nil {
			return err
		}
		return a.send(run, forged)
	}
	fleet := fleetName
	switch what {
	case "old epoch":
		// After a forged takeover the run's epoch is not the last message's, and this could be an event ahead of the
		// run's next, which flags it as gapped: one may have been lost.
		if epoch < 2 || a.tookOver(run) {
			return errNothingToForge
		}
		epoch, sequence = epoch-1, schema.Sequence(1+pick%8)
	case "fork", "wrong id":
		if sequence < 2 {
			return errNothingToForge
		}
		sequence = schema.Sequence(1 + pick%uint64(sequence-1))
	case "another fleet":
		fleet = "other"
	}
	forger := schema.Writer{Fleet: fleet, Run: run, Executor: "mallory", Epoch: epoch, Last: sequence - 1}
	if what == "another run" {
		forger.Run = "elsewhere"
	}
	data := &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(fmt.Sprintf("forged %d", a.count))}}}
	forged, err := forger.Event(data, 0, time.Now(), 0)
	if err != nil {
		return err
	}
	if what == "wrong id" {
		forged.ID = strings.TrimSuffix(forged.ID, forged.ID[len(forged.ID)-8:]) + "deadbeef"
	}
	return a.send(run, forged)
}

// plain publishes an event like an executor without the SDK, without epoch and sequence, and then again. It counts
// once until an executor takes the run over.
func (a *adversary) plain(run string) error {
	token := checker.Token("plain", a.count)
	data, err := schema.MarshalData(&schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(token)}}})
	if err != nil {
		return err
	}
	e := &schema.Event{
		ID: fmt.Sprintf("plain-%d", a.count), Source: "/another", Type: schema.TypeOf(schema.MessageAdded), Subject: run,
		Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: data,
	}
	op := a.w.rec.Begin(checker.Op{Actor: "plain", Kind: checker.Publish, Run: run, Detail: "message.added", Token: token, Event: e.ID})
	err = a.send(run, e)
	again := a.send(run, e)
	// Without compare-and-set its acceptance is unknown.
	a.w.rec.End(op, func(op *checker.Op) { op.Outcome = checker.Unknown })
	return errors.Join(err, again)
}

func (a *adversary) send(run string, e *schema.Event) error {
	header, body := e.Encode()
	return a.publish(run, header, body)
}

func (a *adversary) publish(run string, header nats.Header, body []byte) error {
	kept := nats.Header{}
	for name, values := range header {
		if !strings.HasPrefix(strings.ToLower(name), "nats-") {
			kept[name] = values
		}
	}
	_, err := a.w.js.PublishMsg(a.w.ctx, &nats.Msg{Subject: a.w.subject(run), Header: kept, Data: body}, jetstream.WithRetryAttempts(0))
	return err
}
