package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// Run is the handle of one run in one epoch. It may be used from several goroutines: events are published one
// after another, in the order in which their calls came.
//
// What it returned without error is durable (in pipelined mode after Flush).
type Run struct {
	fleet     *Fleet
	names     schema.Names
	id        string
	subject   string
	onControl func(*schema.Event, schema.Data)

	// turnstile is held while an event is published (in pipelined mode, queued); those who wait for it go
	// through in order.
	turnstile chan struct{}

	mu sync.Mutex
	// state is nil when only the head is kept; head is then the handle's own, else the state's.
	state *schema.State
	head  *schema.Head
	// writer is after the last durable event; last and lastID are the run's last message, of whomever.
	writer schema.Writer
	last   schema.StreamSequence
	lastID string
	// stood is when the try was sent by which the server acknowledged the latest event as a new one: the epoch was this
	// handle's then. Zero if it is not known of the latest event.
	stood time.Time
	// connections that had been opened when the log was last seen to have that message; see steady.
	connections uint64
	// shorter is since when a replicated stream says that the log is shorter than it was; only for who delivers.
	shorter time.Time
	// starting: run.started is not durable yet.
	starting bool
	// pending are the events of a call that did not come to its end; unknown says that one of them may be stored.
	pending []*item
	unknown bool
	// dead is the error that ended the handle; gone says that it was its own executor's doing.
	dead error
	gone bool
	pipe *pipeline
	// untold: a request to cancel was folded, and no call has said so yet.
	untold bool
	// inHand: the handle is in the fleet's hand.
	inHand bool
	// changed is closed when something of the run changed that somebody may wait for; nil when nobody does.
	changed chan struct{}
	// driver drives the run; nil when no executor does.
	driver *drive
	// looking: a notice is being followed up; again says that another came, noticed is the furthest place named.
	looking, again bool
	noticed        schema.StreamSequence

	// halt ends, with the reason as its cause, when work on the run should end.
	halt     context.Context //nolint:containedctx // the life of the handle itself
	haltWith context.CancelCauseFunc

	calls *callBook
}

func newRun(f *Fleet, names schema.Names, id string) *Run {
	r := &Run{
		fleet: f, names: names, id: id, subject: names.EventSubject(id), turnstile: make(chan struct{}, 1),
		state:  schema.NewState(f.cfg.Fleet, id),
		writer: schema.Writer{Fleet: f.cfg.Fleet, Run: id, Executor: f.cfg.Executor},

		connections: f.nc.Stats().Reconnects, calls: newCallBook(),
	}
	r.head = &r.state.Head
	r.halt, r.haltWith = context.WithCancelCause(context.Background())
	return r
}

// ID of the run.
func (r *Run) ID() string { return r.id }

// Epoch that the handle holds.
func (r *Run) Epoch() schema.Epoch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writer.Epoch
}

// Head returns the run's compact state after the last durable event.
func (r *Run) Head() schema.Head {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.head.Clone()
}

// State returns a snapshot of the run after the last durable event; large fields are references, see
// [Fleet.Hydrate]. On a handle that keeps only the head the content is missing. The cost grows with the run: for a
// look at one thing use [Run.View].
func (r *Run) State() *schema.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state == nil {
		return &schema.State{Head: r.head.Clone()}
	}
	return snapshot(r.state)
}

// View calls look with the run's state, which look must neither keep nor change; nor may it call the run. On a
// handle that keeps only the head the content is missing.
func (r *Run) View(look func(*schema.State)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.state
	if s == nil {
		s = &schema.State{Head: r.head.Clone()}
	}
	look(s)
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

// CancelRequested reports whether an operator's request to cancel the run was seen. It is seen when the daemon's
// notice comes, and at the latest when the run publishes or calls [Run.Sync].
func (r *Run) CancelRequested() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.head.CancelRequested {
		r.untold = false
	}
	return r.head.CancelRequested
}

// Err returns the error that ended the handle, or [ErrUnresolved], or nil.
func (r *Run) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.errLocked()
}

func (r *Run) errLocked() error {
	switch {
	case r.dead != nil:
		return r.dead
	case r.unknown:
		return r.unresolved()
	case r.pipe != nil && r.pipe.err != nil:
		return r.pipe.err
	}
	return nil
}

func (r *Run) unresolved() error {
	return fmt.Errorf("%w: event %s of run %s; repeat the call, call Resolve, or resume the run", ErrUnresolved, r.pending[0].event.ID, r.id)
}

// draft is an event to be: its data, its turn, and its time or zero.
type draft struct {
	data schema.Data
	turn int32
	at   time.Time
	// opens: turn.started goes before it if nothing has opened its turn.
	opens bool

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
func (r *Run) message(it *item) *nats.Msg {
	header := nats.Header(it.header)
	if it.tried {
		header = make(nats.Header, len(it.header))
		maps.Copy(header, it.header)
		delete(header, nats.ExpectedLastSubjSeqHdr)
	}
	it.tried = true
	header[nats.MsgIdHdr] = []string{it.event.ID}
	return &nats.Msg{Subject: r.subject, Header: header, Data: it.event.Data}
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

type timeKey struct{}

// WithTime returns a context under which events have the given time instead of now: for importers, and tests that
// compare bytes. A time in a spec goes before it.
func WithTime(ctx context.Context, t time.Time) context.Context {
	return context.WithValue(ctx, timeKey{}, t)
}

func (f *Fleet) timeOf(ctx context.Context, at time.Time) time.Time {
	if !at.IsZero() {
		return at
	}
	if t, ok := ctx.Value(timeKey{}).(time.Time); ok && !t.IsZero() {
		return t
	}
	return f.cfg.Now()
}

// Publish publishes any event of an executor, for what has no method of its own here; turn is 0 outside turns.
func (r *Run) Publish(ctx context.Context, data schema.Data, turn int32) error {
	_, err := r.publish(ctx, draft{data: data, turn: turn})
	return err
}

// publish makes the drafts durable, in order, or in pipelined mode queues them. It returns what the fold makes of
// each.
func (r *Run) publish(ctx context.Context, drafts ...draft) ([]schema.Verdict, error) {
	return r.publishAnd(ctx, nil, drafts...)
}

// publishAnd is publish that ends the handle with last, unless that is nil, before anything else can be published.
func (r *Run) publishAnd(ctx context.Context, last error, drafts ...draft) ([]schema.Verdict, error) {
	for i := range drafts {
		d := &drafts[i]
		var err error
		d.at = r.fleet.timeOf(ctx, d.at)
		if d.body, d.dataref, err = r.fleet.prepare(ctx, r.id, d.data); err != nil {
			return nil, fmt.Errorf("run %s: %w", r.id, err)
		}
	}
	if err := r.enter(ctx); err != nil {
		return nil, err
	}
	defer r.leave()
	switch {
	case r.pipe != nil && last != nil:
		return nil, fmt.Errorf("run %s: %w: its work has begun the pipelined mode again", r.id, errPipeline)
	case r.pipe != nil:
		return r.enqueue(ctx, drafts)
	}
	items, err := r.resumeOrSeal(drafts)
	if err == nil {
		err = r.deliver(ctx, items)
	}
	if err == nil && last != nil {
		r.letGo(last)
	}
	if errors.Is(err, ErrFenced) || r.wentAway() {
		err = r.late(ctx, drafts, err)
	}
	if err != nil {
		return nil, err
	}
	return verdicts(items[len(items)-len(drafts):]), nil
}

func verdicts(items []*item) []schema.Verdict {
	list := make([]schema.Verdict, len(items))
	for i, it := range items {
		list[i] = it.verdict
	}
	return list
}

// enter passes the turnstile.
func (r *Run) enter(ctx context.Context) error {
	select {
	case r.turnstile <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("run %s: %w: waiting for earlier events: %w", r.id, ErrUnavailable, context.Cause(ctx))
	}
	if r.fleet.isStopped() {
		r.leave()
		return fmt.Errorf("run %s: %w", r.id, ErrStopped)
	}
	return nil
}

func (r *Run) leave() { <-r.turnstile }

// resumeOrSeal returns the pending events if the drafts are the same, else newly sealed ones.
func (r *Run) resumeOrSeal(drafts []draft) ([]*item, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.dead != nil {
		return nil, r.dead
	}
	drafts, err := opened(drafts, r.head)
	if err != nil {
		return nil, err
	}
	if r.pending != nil {
		unsure := slices.DeleteFunc(slices.Clone(r.pending), func(it *item) bool { return it.stream != 0 })
		if sameEvents(r.pending, drafts) || sameEvents(unsure, drafts) {
			return r.pending, nil
		}
		if r.unknown {
			return nil, r.unresolved()
		}
		r.pending = nil
	}
	items, _, err := r.seal(drafts, r.head, &r.writer)
	if err == nil && r.untold && r.head.CancelRequested && beginsWork(items) {
		// It was folded between two publishes. Work must not begin behind it before the executor knows.
		r.untold = false
		return nil, fmt.Errorf("%w: %s was not published", r.cancelError(), items[0].event.Name())
	}
	return items, err
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
	it := &item{event: e, data: d.data, content: e.Seal()}
	it.header, _ = e.Encode()
	rec := schema.Record{Header: it.header, Body: e.Data}
	it.size = rec.Size()
	// A year of five digits is nothing that a reader takes for a time.
	it.plain = d.dataref == "" && d.at.UTC().Year() < 10000 && d.at.UTC().Year() > 0 && plainData(d.data)
	return it
}

// seal makes events of drafts, behind writer, and asks the fold about them on a copy of head: what it would refuse
// is not published. next is that copy, after them. Under r.mu.
func (r *Run) seal(drafts []draft, head *schema.Head, writer *schema.Writer) (sealed []*item, next *schema.Head, err error) {
	next = new(schema.Head)
	*next = head.Clone()
	items := make([]*item, len(drafts))
	for i := range drafts {
		it := drafts[i].seal(writer, writer.Last+schema.Sequence(i)+1) //nolint:gosec // a small count
		if it.verdict = it.foretell(next); it.verdict.Kind == schema.Rejected {
			return nil, next, fmt.Errorf("run %s: %w", r.id, rejectedError(it))
		}
		if r.state != nil {
			it.read() // the state keeps the data
		}
		items[i] = it
	}
	if len(items) == 1 {
		items[0].base, items[0].next = head.Position, next
	}
	return items, next, nil
}

func rejectedError(it *item) error {
	return &RejectedError{Event: it.event.Name(), Reason: it.verdict.Reason, Detail: it.verdict.Detail}
}

// durable folds an event that is in the log at stream. That it is there does not prove the epoch: an acknowledgement of a new
// event does, and sets stood again. Under r.mu.
func (r *Run) durable(it *item, stream schema.StreamSequence) {
	it.stream, r.stood = stream, time.Time{}
	v := it.verdict
	switch {
	case it.next != nil && it.base == r.head.Position && stream > it.base.Stream && v.Kind == schema.Applied:
		r.adopt(*it.next, v, stream)
	default:
		v = r.applyItem(it, stream)
	}
	it.next = nil
	if err := r.writer.Commit(it.event); err != nil {
		// Items are sealed behind the writer and committed in order: this cannot come.
		_ = r.ended(fmt.Errorf("run %s: %w: %w", r.id, ErrForked, err))
	}
	it.verdict = v
	r.last, r.lastID = max(r.last, stream), it.event.ID
	r.starting = false
	r.calls.note(v, false)
	r.keep()
	r.wake()
}

func (r *Run) adopt(next schema.Head, v schema.Verdict, stream schema.StreamSequence) {
	if r.state != nil {
		r.state.Adopt(next, v, stream)
		return
	}
	r.head.Adopt(next, stream)
}

// applyItem folds an item whose foretold head does not hold, or that has none.
func (r *Run) applyItem(it *item, stream schema.StreamSequence) schema.Verdict {
	it.read()
	switch {
	case !it.plain:
		rec := it.record(stream)
		return r.apply(schema.ExecutorsOnly, &rec)
	case r.state != nil:
		return r.state.ApplySealed(it.event, it.content, it.data, stream)
	}
	return r.head.ApplySealed(it.event, it.content, it.data, stream)
}

func (r *Run) apply(keys *schema.Keys, rec *schema.Record) schema.Verdict {
	if r.state != nil {
		return r.state.Apply(keys, rec)
	}
	return r.head.Apply(keys, rec)
}

// keepHead drops the content, for a handle that keeps only the head.
func (r *Run) keepHead() {
	head := r.head.Clone()
	r.state, r.head = nil, &head
}
