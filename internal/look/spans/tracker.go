package spans

import (
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/schema"
)

const (
	// maxEvents bounds the events on one span; further ones are counted.
	maxEvents = 128
	// maxContent bounds an attribute with content, in bytes.
	maxContent = 64 << 10
	// maxName bounds an event's text in a span's name or attribute, in bytes.
	maxName = 256
	// maxPhases bounds the phases open at once.
	maxPhases = 64
)

// Options select optional data of spans.
type Options struct {
	// Content adds content of people and models: tasks, messages, arguments, results, error messages, names of people.
	// The zero value omits it.
	Content bool
	// Labels are the keys of the run's labels to include; none by default.
	Labels []string
}

// Tracker makes the spans of one run. It gets the records of the run's log in order, from the first.
type Tracker struct {
	fleet, run string
	opts       Options
	trace      []byte

	head    schema.Head
	order   schema.Order
	started *schema.RunStartedData

	epoch  *open
	turn   *openTurn
	calls  map[schema.CallKey]*open
	phases map[string]*open
	// doubt are the spans of calls that were open when an epoch ended.
	doubt map[schema.CallKey]*tracepb.Span
	// was is the turn that was open when the last epoch ended, until it is continued or begun again; nil for none.
	was *openTurn
	// idle is the time since when no executor works on the run; zero while one does.
	idle time.Time
	// usage is of the epoch's turns.
	usage schema.Usage
	// now is the time of the latest event that has one.
	now time.Time
	out []*tracepb.Span
}

// open is a span that has not ended.
type open struct{ span *tracepb.Span }

// openTurn is a turn and its model's call.
type openTurn struct {
	open
	number int32
	// chat is nil once it has ended.
	chat *open
	// answered is when the model's answer was first seen; zero before.
	answered time.Time
	output   []schema.Message
}

// NewTracker returns a tracker of a run before its first event.
func NewTracker(fleet, run string, opts Options) *Tracker {
	return &Tracker{
		fleet: fleet, run: run, opts: opts, trace: TraceID(fleet, run), head: schema.NewHead(fleet, run),
		calls: make(map[schema.CallKey]*open), phases: make(map[string]*open), doubt: make(map[schema.CallKey]*tracepb.Span),
	}
}

// Last is the stream sequence of the latest record.
func (t *Tracker) Last() schema.StreamSequence { return t.order.Last }

// Ended reports whether the run has ended and no span is open.
func (t *Tracker) Ended() bool { return t.epoch == nil && t.head.Status.Terminal() }

// Apply takes the next record of the run's log, verified by the fleet's keys, and returns the spans that ended with it.
// missing means that the fold found earlier records missing: then nothing was changed, and the run must be read again.
func (t *Tracker) Apply(keys *schema.Keys, rec *schema.Record) (ended []*tracepb.Span, missing bool) {
	t.order.Next(&t.head, rec)
	p := schema.Prepare(keys, rec)
	doubted := slices.Clone(t.head.OpenCalls)
	v := t.head.ApplyPrepared(&p)
	if t.opts.Content && v.Data != nil {
		v.Data = encryption.ReadableContent(v.Data)
	}
	switch {
	case v.Kind == schema.Applied, v.Kind == schema.Evidence:
	case v.Kind == schema.Rejected && (v.Reason == schema.ReasonGap || v.Reason == schema.ReasonEpochAhead):
		return nil, true
	default:
		return nil, false
	}
	if at, err := time.Parse(time.RFC3339Nano, v.Event.Time); err == nil {
		t.now = at
	}
	t.out = nil
	t.event(&v, doubted)
	return t.out, false
}

// event applies an event to the spans.
func (t *Tracker) event(v *schema.Verdict, doubted []schema.OpenCall) {
	e := v.Event
	if t.epoch == nil && e.Name() != schema.RunResumed {
		if t.head.Status.Terminal() {
			return // a hand-off or a mark after the run's end
		}
		t.openEpoch(max(t.head.Epoch, 1), t.head.Executor)
	}
	if !e.IsControl() {
		t.idle = time.Time{}
	}
	if v.Opened {
		t.openTurn(e, &schema.TurnStartedData{Turn: t.head.Turn})
	}
	for _, key := range v.Abandoned {
		if c := t.endCall(key); c != nil {
			c.add(text(attrOutcome, string(schema.OutcomeAbandoned)))
			t.end(c, t.now)
		}
	}
	if _, again := v.Data.(*schema.TurnStartedData); t.was != nil && !again && !e.IsControl() && e.Turn == t.was.number {
		t.goOn(e)
	}
	switch d := v.Data.(type) {
	case *schema.RunStartedData:
		t.runStarted(e, d)
	case *schema.RunResumedData:
		t.takeover(d)
	case *schema.RunOrphanedData, *schema.RunInterruptedData:
		t.idle = t.now
		t.note(v)
	case *schema.RunEndedData:
		t.runEnded(d)
	case *schema.TurnStartedData:
		t.openTurn(e, d)
	case *schema.TurnAnsweredData:
		t.turnAnswered(d, v.Opened)
	case *schema.TurnEndedData:
		t.turnEnded(d)
	case *schema.MessageAddedData:
		t.message(&d.Message)
	case *schema.ToolCalledData:
		if !d.Requested {
			t.called(v.Call, d)
		}
	case *schema.ToolReturnedData:
		t.unbegun(v, doubted, d.DurationMS)
		t.returned(v, d)
	case *schema.ToolFailedData:
		t.unbegun(v, doubted, d.DurationMS)
		t.failed(v, d)
	case *schema.ToolSettledData:
		t.settled(v, d, doubted)
	case *schema.PhaseStartedData:
		t.phaseStarted(e, d)
	case *schema.PhaseCompletedData:
		if p := t.phases[d.Phase]; p != nil {
			delete(t.phases, d.Phase)
			t.end(p, t.now)
		}
	default:
		t.note(v)
	}
	if v.Over && t.turn != nil {
		t.end(&t.turn.open, t.now) // with the last outcome of the answer's calls
		t.turn = nil
	}
}

// begin creates a span that has not ended.
func (t *Tracker) begin(name string, kind tracepb.Span_SpanKind, id, parent []byte, own attrs) *open {
	a := attrs{text(attrRun, t.run), integer(attrEpoch, int64(max(t.head.Epoch, 1)))}
	if t.started != nil {
		a.text(attrAgent, t.started.Agent)
		a.text(attrConversation, cut(t.started.ThreadID))
	}
	return &open{&tracepb.Span{
		TraceId: t.trace, SpanId: id, ParentSpanId: parent, Name: name, Kind: kind, Flags: sampled,
		StartTimeUnixNano: nanos(t.now), Attributes: append(a, own...),
	}}
}

// sampled is the trace flag of W3C.
const sampled = 1

// end ends a span and adds it to the result. Clocks of executors differ: no span ends before it began.
func (t *Tracker) end(o *open, at time.Time) {
	o.span.EndTimeUnixNano = max(nanos(at), o.span.StartTimeUnixNano)
	t.out = append(t.out, o.span)
}

func (o *open) add(a ...*commonpb.KeyValue) { o.span.Attributes = append(o.span.Attributes, a...) }

// fail gives a span the status of an error. The message counts as content.
func (t *Tracker) fail(o *open, kind, message string) {
	if kind == "" {
		kind = "_OTHER"
	}
	o.add(text(attrError, cut(kind)))
	o.span.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR}
	if t.opts.Content {
		o.span.Status.Message = cut(valid(message))
	}
}

func (t *Tracker) link(o *open, kind string, trace, span []byte) {
	o.span.Links = append(o.span.Links, &tracepb.Span_Link{
		TraceId: trace, SpanId: span, Flags: sampled, Attributes: []*commonpb.KeyValue{text(attrLink, kind)},
	})
}

// openEpoch begins the span of an epoch.
func (t *Tracker) openEpoch(epoch schema.Epoch, executor string) {
	name := "invoke_agent"
	if t.head.Agent != "" {
		name += " " + t.head.Agent
	}
	var parent []byte
	if epoch > 1 {
		parent = epochSpan(t.fleet, t.run, 1)
	}
	a := attrs{text(attrOperation, "invoke_agent")}
	if t.started != nil {
		a.text(attrProvider, cut(t.started.Provider))
		a.text(attrModel, cut(t.started.Model))
	}
	a.text(attrExecutor, cut(executor))
	t.epoch = t.begin(name, tracepb.Span_SPAN_KIND_INTERNAL, epochSpan(t.fleet, t.run, epoch), parent, a)
	t.usage = schema.Usage{}
	if epoch > 1 {
		t.link(t.epoch, "takeover", t.trace, epochSpan(t.fleet, t.run, epoch-1))
	}
}

// runStarted adds the run's data to the root, and links the root to the run's origin.
func (t *Tracker) runStarted(e *schema.Event, d *schema.RunStartedData) {
	t.started = d
	s := t.epoch
	s.span.Name = "invoke_agent " + d.Agent
	a := attrs{text(attrAgent, d.Agent)}
	a.text(attrConversation, cut(d.ThreadID))
	a.text(attrProvider, cut(d.Provider))
	a.text(attrModel, cut(d.Model))
	for _, key := range t.opts.Labels {
		a.text(attrLabel+key, d.Labels[key])
	}
	if t.opts.Content {
		a.content("waymark.task", d.Task)
	}
	s.add(a...)
	if p := d.Parent; p != nil {
		span := epochSpan(t.fleet, p.Run, 1)
		if p.ToolCallID != "" {
			span = callSpan(t.fleet, p.Run, p.CallKey())
		}
		t.link(s, "parent", TraceID(t.fleet, p.Run), span)
	}
	switch {
	case d.Base != nil:
		t.link(s, "fork", TraceID(t.fleet, d.Base.Run), epochSpan(t.fleet, d.Base.Run, 1))
	case d.Handoff != nil:
		t.link(s, "handoff", TraceID(t.fleet, d.Handoff.Run), epochSpan(t.fleet, d.Handoff.Run, 1))
	case d.ResumedFrom != "":
		t.link(s, "continues", TraceID(t.fleet, d.ResumedFrom), epochSpan(t.fleet, d.ResumedFrom, 1))
	}
	if trace, span, ok := parseTraceParent(e.TraceParent); ok {
		t.link(s, "caller", trace, span)
	}
}

// takeover ends the epoch and all its open spans, and begins the next epoch.
func (t *Tracker) takeover(d *schema.RunResumedData) {
	at := t.now
	if !t.idle.IsZero() {
		at = t.idle
	}
	if t.turn != nil {
		t.was = t.turn
	}
	t.endAll(at, outcomeInDoubt)
	if t.epoch != nil {
		t.epoch.add(text(attrStatus, "taken_over"))
		t.endEpoch(at)
	}
	t.idle = time.Time{}
	t.openEpoch(t.head.Epoch, d.Executor)
	t.epoch.add(text(attrTakeover, d.Reason))
}

// endAll ends everything below the epoch.
func (t *Tracker) endAll(at time.Time, outcome string) {
	for _, key := range slices.SortedFunc(maps.Keys(t.calls), byKey) {
		c := t.calls[key]
		c.add(text(attrOutcome, outcome))
		if outcome == outcomeInDoubt {
			t.fail(c, outcomeInDoubt, "the executor was replaced before an outcome was recorded")
			t.doubt[key] = c.span
		}
		t.end(c, at)
	}
	clear(t.calls)
	t.endTurn(at, outcome)
	for _, phase := range slices.Sorted(maps.Keys(t.phases)) {
		t.phases[phase].add(text(attrOutcome, outcome))
		t.end(t.phases[phase], at)
	}
	clear(t.phases)
}

func (t *Tracker) endEpoch(at time.Time) {
	a := attrs{}
	a.usage(&t.usage)
	t.epoch.add(a...)
	t.end(t.epoch, at)
	t.epoch = nil
}

func (t *Tracker) runEnded(d *schema.RunEndedData) {
	t.endAll(t.now, outcomeOpen)
	clear(t.doubt)
	t.was = nil
	t.epoch.add(text(attrStatus, d.Status))
	if d.Usage != nil && t.usage.IsZero() && t.head.Epoch <= 1 {
		t.usage = *d.Usage
	}
	if t.opts.Content {
		a := attrs{}
		a.content("waymark.summary", d.Summary)
		a.content("waymark.output", string(d.Output))
		t.epoch.add(a...)
	}
	switch {
	case d.Error != nil:
		t.fail(t.epoch, d.Error.Type, d.Error.Message)
	case d.Status == string(schema.StatusFailed):
		t.fail(t.epoch, "", "")
	}
	t.endEpoch(t.now)
}

// phaseStarted begins a phase, again if it is open.
func (t *Tracker) phaseStarted(e *schema.Event, d *schema.PhaseStartedData) {
	if p := t.phases[d.Phase]; p != nil {
		p.add(text(attrOutcome, outcomeRepeated))
		t.end(p, t.now)
		delete(t.phases, d.Phase)
	}
	if len(t.phases) >= maxPhases {
		return
	}
	t.phases[d.Phase] = t.begin("phase "+cut(d.Phase), tracepb.Span_SPAN_KIND_INTERNAL,
		spanID(t.fleet, t.run, "phase", e.ID), t.epoch.span.SpanId, attrs{text(attrPhase, cut(d.Phase))})
}

// parent is the parent span of calls.
func (t *Tracker) parent(turn int32) []byte {
	if t.turn != nil && (turn == 0 || t.turn.number == turn) {
		return t.turn.span.SpanId
	}
	return t.epoch.span.SpanId
}

// encode encodes content as JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return "" // it was decoded from JSON
	}
	return string(b)
}

func nanos(at time.Time) uint64 {
	if n := at.UnixNano(); !at.IsZero() && n > 0 {
		return uint64(n)
	}
	return 0
}

// cut bounds an event's text in names and attributes.
func cut(s string) string {
	if len(s) <= maxName {
		return s
	}
	return valid(s[:maxName]) + "…"
}

// valid makes text valid for protobuf.
func valid(s string) string { return strings.ToValidUTF8(s, "") }

func (a *attrs) usage(u *schema.Usage) {
	a.number(attrInputTokens, u.InputTokens)
	a.number(attrOutputTokens, u.OutputTokens)
	a.number(attrCacheRead, u.CacheReadInputTokens)
	a.number(attrCacheWrite, u.CacheCreationInputTokens)
	a.number(attrReasoning, u.ReasoningOutputTokens)
}

func addUsage(to, u *schema.Usage) {
	to.InputTokens += u.InputTokens
	to.OutputTokens += u.OutputTokens
	to.CacheReadInputTokens += u.CacheReadInputTokens
	to.CacheCreationInputTokens += u.CacheCreationInputTokens
	to.ReasoningOutputTokens += u.ReasoningOutputTokens
}

func byKey(a, b schema.CallKey) int {
	return strings.Compare(a.IdempotencyKey(""), b.IdempotencyKey(""))
}

// parseTraceParent reads a W3C trace context.
func parseTraceParent(s string) (trace, span []byte, ok bool) {
	parts := strings.Split(s, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[1]) != 32 || len(parts[2]) != 16 {
		return nil, nil, false
	}
	trace, span = unhex(parts[1]), unhex(parts[2])
	return trace, span, trace != nil && span != nil
}

// unhex returns nil for invalid hex, or zeros only.
func unhex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil || !slices.ContainsFunc(b, func(c byte) bool { return c != 0 }) {
		return nil
	}
	return b
}
