package publisher

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// localFold is what the events of a run add up to in this process. It has no lock and does no I/O: the ledger guards it.
type localFold struct {
	run string
	// state is nil when only the head is kept; head is then the fold's own, else the state's.
	state *schema.State
	head  *schema.Head
	// open decrypts what the state keeps of an event, with the keys that are known; nil without keys.
	open func(*schema.Event, schema.Data)
}

func newFold(fleet, run string, open func(*schema.Event, schema.Data)) localFold {
	state := schema.NewState(fleet, run)
	state.Open(open)
	return localFold{run: run, state: state, head: &state.Head, open: open}
}

// keepHead drops the content, for a handle that keeps only the head.
func (f *localFold) keepHead() {
	head := f.head.Clone()
	f.state, f.head = nil, &head
}

// content is the state, or one that has a copy of the head alone.
func (f *localFold) content() *schema.State {
	if f.state == nil {
		return &schema.State{Head: f.head.Clone()}
	}
	return f.state
}

// seal makes events of drafts, behind writer, and asks the fold about them on a copy of head: what it would refuse
// is not published. next is that copy, after them.
func (f *localFold) seal(drafts []draft, head *schema.Head, writer *schema.Writer) (sealed []*item, next *schema.Head, err error) {
	next = new(schema.Head)
	*next = head.Clone()
	items := make([]*item, len(drafts))
	for i := range drafts {
		it := drafts[i].seal(writer, writer.Last+schema.Sequence(i)+1) //nolint:gosec // a small count
		if it.verdict = it.foretell(next); it.verdict.Kind == schema.Rejected {
			return nil, next, fmt.Errorf("run %s: %w", f.run, rejectedError(it))
		}
		if f.state != nil {
			it.read() // the state keeps the data
		}
		items[i] = it
	}
	if len(items) == 1 {
		items[0].base, items[0].next = head.Position, next
	}
	return items, next, nil
}

// recheck asks the fold again about events that are to stand behind what others wrote.
func (f *localFold) recheck(items []*item) error {
	next := f.head.Clone()
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		it.read()
		if it.verdict = it.foretell(&next); it.verdict.Kind == schema.Rejected {
			return fmt.Errorf("run %s: %w", f.run, rejectedError(it))
		}
	}
	return nil
}

// take folds an event of this handle that is in the log at stream. The head that was foretold holds if nothing came between.
func (f *localFold) take(it *item, stream schema.StreamSequence) schema.Verdict {
	v, next := it.verdict, it.next
	it.next = nil
	if next == nil || it.base != f.head.Position || stream <= it.base.Stream || v.Kind != schema.Applied {
		return f.applyItem(it, stream)
	}
	if f.state != nil {
		f.state.Adopt(*next, v, stream)
	} else {
		f.head.Adopt(*next, stream)
	}
	return v
}

// applyItem folds an item whose foretold head does not hold, or that has none.
func (f *localFold) applyItem(it *item, stream schema.StreamSequence) schema.Verdict {
	it.read()
	switch {
	case !it.plain:
		rec := it.record(stream)
		return f.apply(schema.ExecutorsOnly, &rec)
	case f.state != nil:
		return f.state.ApplySealed(it.event, it.content, it.data, stream)
	}
	return f.head.ApplySealed(it.event, it.content, it.data, stream)
}

func (f *localFold) apply(keys *schema.Keys, rec *schema.Record) schema.Verdict {
	if f.state != nil {
		return f.state.Apply(keys, rec)
	}
	return f.head.Apply(keys, rec)
}

// forged reports whether the fleet's keys tell that nobody took the run over although an event has a later epoch: no daemon signed the
// takeover, or it is an executor's event that no takeover stands before.
func (f *localFold) forged(keys *schema.Keys, rec *schema.Record) bool {
	if !keys.Any() {
		return false
	}
	head := f.head.Clone()
	v := head.Apply(keys, rec)
	return v.Reason == schema.ReasonUnsigned || v.Reason == schema.ReasonEpochAhead && !v.Event.IsControl()
}

// attended: the log says that an executor drives the run.
func (f *localFold) attended() bool {
	return !f.head.Status.Terminal() && !f.head.Status.Claimable() && f.head.Unattended == ""
}

type inputState int

const (
	inputUnknown inputState = iota
	inputOpen
	inputGiven
)

// input looks for a question and its answer.
func (f *localFold) input(id string) (schema.RunInputData, inputState) {
	if slices.ContainsFunc(f.head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == id }) {
		return schema.RunInputData{}, inputOpen
	}
	if f.state != nil {
		for i := range slices.Backward(f.state.Waits) {
			if w := &f.state.Waits[i]; w.InterruptID == id && w.Input != nil {
				return *w.Input, inputGiven
			}
		}
	}
	return schema.RunInputData{}, inputUnknown
}

func (f *localFold) inDoubt(key schema.CallKey) bool {
	c := openCall(f.head, key)
	return c != nil && c.InDoubt
}

// openCall is a call without an outcome, nil when it has one or was not recorded.
func openCall(head *schema.Head, key schema.CallKey) *schema.OpenCall {
	if i := slices.IndexFunc(head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key }); i >= 0 {
		return &head.OpenCalls[i]
	}
	return nil
}

// draft is an event to be: its data, its turn, and its time or zero.
type draft struct {
	data schema.Data
	turn int32
	at   time.Time
	// opens: turn.started goes before it if nothing has opened its turn.
	opens bool
	// unless says which signals of the run keep it from being published.
	unless signalGuard
	// own: the SDK decided or settled, behind what the record and the policy say; see callPolicy.
	own bool
	// invented: the call has a name that the model made up, which is content.
	invented bool

	body    []byte
	dataref string
}

// item is a sealed event.
type item struct {
	event *schema.Event
	// header is the event's, and from the first try on the message's: those of NATS are no part of the event. It is
	// not changed any more once the first try has begun.
	header  map[string][]string
	tried   bool
	content schema.Hash // of the event
	// data is the event's, as the caller gave it: nothing may look into it once the call has returned, unless it is
	// own, which is read back from the event.
	data schema.Data
	own  bool
	// plain: the fold of the event is that of its data, see schema.Head.ApplySealed.
	plain bool
	// unless as in draft.
	unless signalGuard
	// verdict of the fold before it was published.
	verdict schema.Verdict
	size    int
	// stream sequence, once durable.
	stream schema.StreamSequence
	// base and next are the heads' positions and the head after the event, when it was sealed alone: what the fold said
	// then holds as long as nothing came between.
	base schema.Position
	next *schema.Head
	// sent: a try had no answer, so it may be stored.
	sent bool
}

// message returns the item as a message. Each try has a message of its own; the first lends it the item's header.
func (it *item) message(subject string) *nats.Msg {
	header := nats.Header(it.header)
	if it.tried {
		header = make(nats.Header, len(it.header))
		maps.Copy(header, it.header)
		delete(header, nats.ExpectedLastSubjSeqHdr)
	}
	it.tried = true
	header[nats.MsgIdHdr] = []string{it.event.ID}
	return &nats.Msg{Subject: subject, Header: header, Data: it.event.Data}
}

// record is the item as the log has it.
func (it *item) record(stream schema.StreamSequence) schema.Record {
	return schema.NewRecord(stream, it.header, it.event.Data)
}

// foretell asks the fold about the item on head, which takes it in.
func (it *item) foretell(head *schema.Head) schema.Verdict {
	if it.plain {
		return head.ApplySealed(it.event, it.content, it.data, 0)
	}
	rec := it.record(0)
	return head.Apply(schema.ExecutorsOnly, &rec)
}

// read makes the data of a plain item its own.
func (it *item) read() {
	if it.own || !it.plain {
		return
	}
	if data, err := schema.ParseData(it.event); err == nil {
		it.data, it.verdict.Data, it.own = data, data, true
	} else {
		it.plain = false // then the fold says the same when it reads it
	}
}

// plainData reports whether data is of the kinds that most of a run's events are. They are folded as they are given;
// the others are read back first, as everybody else reads them.
func plainData(data schema.Data) bool {
	switch data.(type) {
	case *schema.TurnStartedData, *schema.TurnAnsweredData, *schema.TurnEndedData, *schema.MessageAddedData, *schema.ToolCalledData, *schema.ToolReturnedData,
		*schema.ToolFailedData:
		return true
	}
	return false
}

func verdicts(items []*item) []schema.Verdict {
	list := make([]schema.Verdict, len(items))
	for i, it := range items {
		list[i] = it.verdict
	}
	return list
}

// opened puts turn.started before the drafts if they need it behind a head.
func opened(drafts []draft, head *schema.Head) ([]draft, error) {
	first := &drafts[0]
	if !first.opens || head.Turn >= first.turn {
		return drafts, nil
	}
	start := draft{data: &schema.TurnStartedData{Turn: first.turn}, turn: first.turn, at: first.at}
	var err error
	if start.body, err = schema.MarshalData(start.data); err != nil {
		return nil, err
	}
	return append([]draft{start}, drafts...), nil
}

func sameEvents(items []*item, drafts []draft) bool {
	return slices.EqualFunc(items, drafts, func(it *item, d draft) bool {
		return it.event.Type == schema.TypeOf(d.data.EventName()) && it.event.Turn == d.turn && string(it.event.Data) == string(d.body)
	})
}

// seal makes an event of the draft, with that sequence.
func (d *draft) seal(writer *schema.Writer, sequence schema.Sequence) *item {
	e := &schema.Event{
		Source:          schema.Source(writer.Fleet, writer.Executor),
		Type:            schema.TypeOf(d.data.EventName()),
		Subject:         writer.Run,
		Time:            schema.FormatTime(d.at),
		Epoch:           writer.Epoch,
		Sequence:        sequence,
		Turn:            d.turn,
		DataRef:         d.dataref,
		DataContentType: schema.ContentTypeJSON,
		Data:            d.body,
	}
	it := &item{event: e, data: d.data, content: e.Seal(), unless: d.unless}
	it.header, _ = e.Encode()
	rec := schema.Record{Header: it.header, Body: e.Data}
	it.size = rec.Size()
	// A year of five digits is nothing that a reader takes for a time.
	it.plain = d.dataref == "" && d.at.UTC().Year() < 10000 && d.at.UTC().Year() > 0 && plainData(d.data)
	return it
}

func rejectedError(it *item) error {
	return &RejectedError{Event: it.event.Name(), Reason: it.verdict.Reason, Detail: it.verdict.Detail}
}

// beginsWork reports whether an event that is not in the log yet begins something new.
func beginsWork(items []*item) bool {
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		switch d := it.data.(type) {
		case *schema.TurnAnsweredData, *schema.ToolCalledData, *schema.PhaseStartedData:
			return true
		case *schema.TurnStartedData:
			if d.Purpose != schema.PurposeRecovery {
				return true
			}
		case *schema.ToolSettledData:
			if d.How == schema.SettledRerun {
				return true
			}
		}
	}
	return false
}

// outdates reports whether evidence that arrived before items are published takes the ground from one of them: a call
// whose result is known now must not be run again.
func outdates(v schema.Verdict, items []*item) bool {
	if v.Kind != schema.Evidence || v.Call.ToolCallID == "" {
		return false
	}
	for _, it := range items {
		d, ok := it.data.(*schema.ToolSettledData)
		if ok && it.stream == 0 && d.How == schema.SettledRerun && it.verdict.Call == v.Call {
			return true
		}
	}
	return false
}

// holder names the executor of a higher epoch by what it or its takeover says.
func holder(e *schema.Event) string {
	if data, err := schema.ParseData(e); err == nil {
		if resumed, ok := data.(*schema.RunResumedData); ok {
			return resumed.Executor
		}
	}
	if _, executor, ok := schema.ParseSource(e.Source); ok {
		return executor
	}
	return "somebody"
}

// snapshot copies what later events change in place. What elements point to never changes.
func snapshot(s *schema.State) *schema.State {
	c := *s
	c.Head = s.Head.Clone()
	c.Messages = slices.Clone(s.Messages)
	c.Turns = slices.Clone(s.Turns)
	c.Calls = slices.Clone(s.Calls)
	for i := range c.Calls {
		c.Calls[i].Refs = slices.Clone(c.Calls[i].Refs)
		c.Calls[i].Settlements = slices.Clone(c.Calls[i].Settlements)
	}
	c.Phases = slices.Clone(s.Phases)
	c.Compactions = slices.Clone(s.Compactions)
	c.Waits = slices.Clone(s.Waits)
	c.Handoffs = slices.Clone(s.Handoffs)
	c.Artifacts = slices.Clone(s.Artifacts)
	c.Errors = slices.Clone(s.Errors)
	c.Limits = slices.Clone(s.Limits)
	c.Decisions = slices.Clone(s.Decisions)
	c.Takeovers = slices.Clone(s.Takeovers)
	c.Unknown = slices.Clone(s.Unknown)
	c.Values = slices.Clone(s.Values)
	c.Signals = slices.Clone(s.Signals)
	return &c
}
