package archive

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// renamed is a run under another name: its events, as they would have been recorded if it had had that name from the start.
type renamed struct {
	fromFleet, toFleet string
	from, to           string
	// fromKeys and toKeys are those of the fleets. What the one accepts by its signature is signed for the other.
	fromKeys, toKeys *schema.Keys
	sign             func(e *schema.Event, digest string) error
	// base is what the run's start is to name instead of the base that it names; nil leaves it.
	base *schema.Base
	// old and head are the run before and now.
	old, head schema.Head
	n         schema.StreamSequence
	// offers are the content hashes of offers, before and now.
	offers map[string]string
	// rewinds are the records that the run goes on behind later, by their numbers; nil as long as they have not come.
	rewinds map[int64]*rewindTo
}

// rewindTo is a run at a record that it goes on behind later, and what came since.
type rewindTo struct {
	head  schema.Head
	later *schema.Later
}

// rekeyed says by which keys a run was folded, by which it will be, and how its control events are signed for these.
type rekeyed struct {
	from, to *schema.Keys
	sign     func(e *schema.Event, digest string) error
}

func newRenamed(keys rekeyed, fromFleet, toFleet, from, to string, base *schema.Base, rewinds []int64) *renamed {
	r := &renamed{
		fromKeys: keys.from, toKeys: keys.to.Now(), sign: keys.sign, fromFleet: fromFleet, toFleet: toFleet, from: from, to: to, base: base,
		old: schema.NewHead("", from), head: schema.NewHead("", to), offers: map[string]string{},
		rewinds: make(map[int64]*rewindTo, len(rewinds)),
	}
	for _, n := range rewinds {
		r.rewinds[n] = nil
	}
	return r
}

// same reports whether nothing changes.
func (r *renamed) same() bool { return r.fromFleet == r.toFleet && r.from == r.to && r.base == nil }

// next returns the record under the other name. A record that the fold refused before is refused now, for the same reason.
func (r *renamed) next(rec *schema.Record) (schema.Record, error) {
	r.n++
	was, is := *rec, *rec
	was.Stream = r.n
	if !r.same() {
		is = r.rename(rec)
	}
	is.Stream = r.n
	if err := r.signAnew(&was, &is); err != nil {
		return is, fmt.Errorf("message %d of run %s: %w", r.n, r.from, err)
	}
	before := r.old.Apply(r.fromKeys, &was)
	now := r.head.Apply(r.toKeys, &is)
	if before.Kind != now.Kind || before.Reason != now.Reason {
		return is, fmt.Errorf("message %d of run %s: under the name %s the fold says %d %s of it, and said %d %s", r.n, r.from, r.to, now.Kind, now.Reason,
			before.Kind, before.Reason)
	}
	for _, w := range r.rewinds {
		if w != nil {
			w.later.Behind(&r.head, now)
		}
	}
	if w, wanted := r.rewinds[r.head.Records]; wanted && w == nil {
		r.rewinds[r.head.Records] = &rewindTo{r.head.Clone(), schema.NewLater(&r.head)}
	}
	if before.Event != nil && before.Event.Name() == schema.HandoffOffered {
		old, next := before.Event.ContentHash(), now.Event.ContentHash()
		r.offers[hex.EncodeToString(old[:])] = hex.EncodeToString(next[:])
	}
	return is, nil
}

// unsigned reports whether the fold refused an event for its signature.
func unsigned(v *schema.Verdict) bool {
	return v.Reason == schema.ReasonUnsigned || v.Reason == schema.ReasonMisplaced
}

// signAnew signs an event that was accepted where the run comes from and would be refused where it goes to, for want of a signature there:
// who imports a run vouches for what its archive says was accepted.
func (r *renamed) signAnew(was, is *schema.Record) error {
	if !r.toKeys.Concern(is) {
		return nil
	}
	old, next := r.old.Clone(), r.head.Clone()
	before, now := old.Apply(r.fromKeys, was), next.Apply(r.toKeys, is)
	if !unsigned(&now) || unsigned(&before) {
		return nil
	}
	e, err := schema.Decode(is.Header, is.Body)
	if err != nil {
		return err
	}
	e.Unsign()
	if err := r.sign(e, r.head.Digest); err != nil {
		return err
	}
	header, body := e.Encode()
	*is = schema.Record{Stream: is.Stream, Stored: is.Stored, Header: header, Body: slices.Clone(body)}
	return nil
}

// rename makes the event of a record that of the other run. What is no CloudEvent stays as it is.
func (r *renamed) rename(rec *schema.Record) schema.Record {
	e, err := schema.Decode(rec.Header, rec.Body)
	if err != nil {
		return *rec // it is refused under any name
	}
	was := *e
	content := was.ContentHash()
	if e.Subject == r.from {
		e.Subject = r.to
	}
	if fleet, executor, ok := schema.ParseSource(e.Source); ok && fleet == r.fromFleet {
		e.Source = schema.Source(r.toFleet, executor)
	}
	if run, sum, err := schema.ParseDataRef(e.DataRef); err == nil && run == r.from {
		e.DataRef = schema.DataRef(r.to, sum)
	}
	// Data that cannot be read is refused under any name.
	if data, err := renameRefs(e.Data, r.from, r.to); err == nil {
		e.Data = data
	}
	for _, member := range derived(e.Name()) {
		if data, err := replaceMember(e.Data, member, func(old jsontext.Value) ([]byte, error) { return r.follow(member, old) }); err == nil {
			e.Data = data
		}
	}
	next := e.ContentHash()
	switch {
	case was.Sequence != 0 && was.ID == schema.EventID(was.Subject, was.Epoch, was.Sequence, content):
		e.ID = schema.EventID(e.Subject, e.Epoch, e.Sequence, next)
	case was.IsControl():
		prefix := schema.ControlID(was.Subject, was.Epoch, "")
		e.ID = schema.ControlID(e.Subject, e.Epoch, strings.TrimPrefix(was.ID, prefix))
	}
	header, body := e.Encode()
	return schema.Record{Stream: rec.Stream, Stored: rec.Stored, Header: header, Body: slices.Clone(body)}
}

// follow is the value of a member that follows from ids and digests, for the run as it is now.
func (r *renamed) follow(member string, old jsontext.Value) ([]byte, error) {
	switch member {
	case memberFrom:
		var from schema.From
		if err := json.Unmarshal(old, &from); err != nil {
			return nil, err
		}
		if from == (schema.From{Epoch: r.old.Epoch, Sequence: r.old.Sequence, Digest: r.old.Digest}) {
			from = schema.From{Epoch: r.head.Epoch, Sequence: r.head.Sequence, Digest: r.head.Digest}
		}
		return json.Marshal(from, json.Deterministic(true))
	case memberBase:
		if r.base == nil {
			return old, nil
		}
		var was schema.Base
		if err := json.Unmarshal(old, &was); err != nil {
			return nil, err
		}
		base := *r.base
		base.Begun = was.Begun // what the other run began behind the point is not in the archive
		return json.Marshal(base, json.Deterministic(true))
	case memberTo:
		var was schema.Base
		if err := json.Unmarshal(old, &was); err != nil {
			return nil, err
		}
		w := r.rewinds[was.Records]
		if w == nil {
			return old, nil // it is refused under any name
		}
		// What cannot be worked out stays as it is: the fold refused it, and refuses it under any name.
		point, err := schema.ParsePoint(was.Point)
		if err != nil {
			return nil, err
		}
		to, err := schema.RewindTo(point, &w.head, w.later)
		if err != nil {
			return nil, err
		}
		unplaced(to)
		return json.Marshal(to, json.Deterministic(true))
	case memberOffer:
		var hash string
		if err := json.Unmarshal(old, &hash); err != nil {
			return nil, err
		}
		if next, ok := r.offers[hash]; ok {
			hash = next
		}
		return json.Marshal(hash)
	}
	return old, nil
}

// unplaced takes the places in the log out of a base: where the fleet's log will have its events is not known yet. They are found by their
// ids.
func unplaced(b *schema.Base) {
	b.Position.Stream, b.Head.Position.Stream = 0, 0
	for i := range b.Head.Interrupts {
		b.Head.Interrupts[i].Position.Stream = 0
	}
	for i := range b.Head.Signals {
		b.Head.Signals[i].Position.Stream = 0
	}
}
