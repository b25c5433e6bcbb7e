package publisher

import (
	"fmt"
	"slices"
	"time"

	"github.com/waymarkio/waymark/schema"
)

// localFold is the state of a run, folded from its events in this process. It has no lock and does no I/O: the ledger
// guards it.
type localFold struct {
	run   string
	state *schema.State
	// head is the state's.
	head *schema.Head
	// open decrypts the content of an event with the known keys; nil without keys.
	open func(*schema.Event, schema.Data)
}

func newFold(fleet, run string, open func(*schema.Event, schema.Data)) localFold {
	state := schema.NewState(fleet, run)
	state.Settle() // a rewind is a takeover, which fences this handle
	state.Open(open)
	return localFold{run: run, state: state, head: &state.Head, open: open}
}

// seal makes events of drafts after writer, and folds them on a copy of head: an event that the fold refuses is not
// published. next is that copy, after the events.
func (f *localFold) seal(drafts []draft, head *schema.Head, writer *schema.Writer) (sealed []*item, next *schema.Head, err error) {
	next = new(schema.Head)
	*next = head.Clone()
	items := make([]*item, len(drafts))
	for i := range drafts {
		it := drafts[i].seal(writer, writer.Last+schema.Sequence(i)+1) //nolint:gosec // a small count
		if it.verdict = next.ApplyPrepared(&it.prepared); it.verdict.Kind == schema.Rejected {
			return nil, next, fmt.Errorf("run %s: %w", f.run, rejectedError(it))
		}
		items[i] = it
	}
	if len(items) == 1 {
		items[0].base, items[0].next = head.Position, next
	}
	return items, next, nil
}

// recheck folds events again that now follow events of other writers.
func (f *localFold) recheck(items []*item) error {
	next := f.head.Clone()
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		if it.verdict = next.ApplyPrepared(&it.prepared); it.verdict.Kind == schema.Rejected {
			return fmt.Errorf("run %s: %w", f.run, rejectedError(it))
		}
	}
	return nil
}

// take folds an event of this handle that is in the log at stream. The predicted head is used if no other event came
// between.
func (f *localFold) take(it *item, stream schema.StreamSequence) schema.Verdict {
	v, next := it.verdict, it.next
	it.next = nil
	if next == nil || it.base != f.head.Position || stream <= it.base.Stream || v.Kind != schema.Applied {
		header, body := it.event.Encode()
		return f.state.Apply(schema.ExecutorsOnly, &schema.Record{Stream: stream, Header: header, Body: body})
	}
	f.state.Adopt(*next, v, stream)
	return v
}

// forged reports whether an event with a later epoch is forged according to the fleet's keys: no daemon signed the
// takeover, or an executor's event has no takeover before it.
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

// input looks up a question and its answer.
func (f *localFold) input(id string) (schema.RunInputData, inputState) {
	if slices.ContainsFunc(f.head.Interrupts, func(o schema.OpenInterrupt) bool { return o.InterruptID == id }) {
		return schema.RunInputData{}, inputOpen
	}
	for i := range slices.Backward(f.state.Waits) {
		if w := &f.state.Waits[i]; w.InterruptID == id && w.Input != nil {
			return *w.Input, inputGiven
		}
	}
	return schema.RunInputData{}, inputUnknown
}

func (f *localFold) inDoubt(key schema.CallKey) bool {
	c := openCall(f.head, key)
	return c != nil && c.State.InDoubt() && c.State != schema.CallLate
}

// openCall returns a call without an outcome; nil if it has one or was not recorded.
func openCall(head *schema.Head, key schema.CallKey) *schema.OpenCall {
	if i := slices.IndexFunc(head.OpenCalls, func(c schema.OpenCall) bool { return c.CallKey == key }); i >= 0 {
		return &head.OpenCalls[i]
	}
	return nil
}

// draft is an event to be published: its data, its turn, and its time once it is prepared.
type draft struct {
	data schema.Data
	turn int32
	at   time.Time
	// opens: turn.started is published before it if its turn is not open yet.
	opens bool
	// unless names the signals that prevent its publication.
	unless signalGuard
	// own: the SDK made this decision or settlement, based on the record and the policy; see callPolicy.
	own bool
	// invented: the model made up the name of the call, so the name is content.
	invented bool

	body []byte
	// exact: body was made of data as it is.
	exact   bool
	dataref string
	// put is when a large field of it began to be put; zero if it has none.
	put time.Time
}

// item is a sealed event.
type item struct {
	event *schema.Event
	// prepared is the event in the form that the fold applies.
	prepared schema.Prepared
	// unless as in draft.
	unless signalGuard
	// verdict of the fold before publication.
	verdict schema.Verdict
	// stream sequence, once durable.
	stream schema.StreamSequence
	// base and next are the head's position and the head after the event, if it was sealed alone. The fold's verdict
	// then holds as long as no other event came between.
	base schema.Position
	next *schema.Head
	// sent: a try had no answer, so the event may be stored.
	sent bool
	// put as in draft, of the latest call.
	put time.Time
}

// is reports whether an event of the log, nil for none, is this one. Any writer can use its id for other content, which the
// fold refuses.
func (it *item) is(e *schema.Event) bool {
	return e != nil && e.ID == it.event.ID && e.ContentHash() == it.event.ContentHash()
}

func verdicts(items []*item) []schema.Verdict {
	list := make([]schema.Verdict, len(items))
	for i, it := range items {
		list[i] = it.verdict
	}
	return list
}

// opened puts turn.started before the drafts that need it.
func (l *ledger) opened(drafts []draft) ([]draft, error) {
	first := &drafts[0]
	if !first.opens || l.fold.head.Turn >= first.turn {
		return drafts, nil
	}
	start := draft{data: &schema.TurnStartedData{Turn: first.turn, Version: l.newVersion()}, turn: first.turn, at: first.at}
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
	var exact schema.Data
	if d.exact {
		exact = d.data
	}
	return &item{event: e, prepared: schema.PrepareSealed(e, e.Seal(), exact), unless: d.unless, put: d.put}
}

func rejectedError(it *item) error {
	return &RejectedError{Event: it.event.Name(), Reason: it.verdict.Reason, Detail: it.verdict.Detail}
}

// beginsWork reports whether an event that is not in the log yet begins new work.
func beginsWork(items []*item) bool {
	for _, it := range items {
		if it.stream != 0 {
			continue
		}
		switch d := it.verdict.Data.(type) {
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

// beginsEffect reports whether an event that is not in the log yet begins a call or a phase, or a turn that no other
// event of it follows: what a model answered before the pause is recorded.
func beginsEffect(items []*item) bool {
	return slices.ContainsFunc(items, func(it *item) bool {
		switch d := it.verdict.Data.(type) {
		case *schema.PhaseStartedData:
			return it.stream == 0
		case *schema.TurnStartedData:
			return it.stream == 0 && len(items) == 1
		case *schema.ToolCalledData:
			return it.stream == 0 && !d.Requested
		case *schema.ToolSettledData:
			return it.stream == 0 && d.How == schema.SettledRerun
		case *schema.ToolDecidedData:
			return it.stream == 0 && d.Policy == schema.BeginPolicy
		}
		return false
	})
}

// outdates reports whether evidence that arrived first makes one of the items invalid: a call whose result is known now
// must not run again.
func outdates(v schema.Verdict, items []*item) bool {
	if v.Kind != schema.Evidence || v.Call.ToolCallID == "" {
		return false
	}
	for _, it := range items {
		d, ok := it.verdict.Data.(*schema.ToolSettledData)
		if ok && it.stream == 0 && d.How == schema.SettledRerun && it.verdict.Call == v.Call {
			return true
		}
	}
	return false
}

// holder returns the executor of a higher epoch, from its event or its takeover.
func holder(e *schema.Event) string {
	if data, err := schema.ParseData(e); err == nil {
		if resumed, ok := data.(*schema.RunResumedData); ok {
			return resumed.Executor
		}
	}
	if _, executor, ok := schema.ParseSource(e.Source); ok {
		return executor
	}
	return "another executor"
}
