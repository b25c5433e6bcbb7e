package publisher

import (
	"cmp"
	"context"
	cryptorand "crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// SignalSpec is a message to a run.
type SignalSpec struct {
	// ID of the signal in the run. A signal sent again under the same id is the same signal, whichever executor sends
	// it: in a tool use [Invocation].IdempotencyKey. Empty means a new id; then only the retries within one call are
	// one signal.
	ID string
	// Name is the subject of the signal for the agent. Required.
	Name string
	// Payload is any JSON of at most schema.MaxSignalPayload bytes.
	Payload json.RawMessage
	// By is the sender; empty means this executor.
	By string
}

// Signal sends a message to a run that has not ended, in whatever state it is. Its executor is notified at once, and a
// run without an executor becomes claimable. The signals of a run are ordered, and each is consumed once: a [Loop]
// shows it to its model with the next turn. When Signal returns nil, the signal is in the run's log.
//
// It returns [ErrRunEnded], [ErrRunNotFound], [ErrRunErased], [ErrSignalsFull], [ErrPayloadTooLarge], [ErrConflict] for
// the id of another signal and for a run that the daemon does not fold, [ErrConfig], [ErrUnavailable] and
// [ErrNoService].
func (f *Fleet) Signal(ctx context.Context, run string, s SignalSpec) error {
	if s.Name == "" {
		return configError("SignalSpec.Name", `""`, "name the subject of the signal")
	}
	s.ID, s.By = cmp.Or(s.ID, cryptorand.Text()), cmp.Or(s.By, f.cfg.Executor)
	data := &schema.SignalSentData{SignalID: s.ID, Name: s.Name}
	if len(s.Payload) > 0 {
		data.Payload = []byte(s.Payload)
	}
	body, err := schema.MarshalData(data)
	if err != nil {
		return fmt.Errorf("%w: SignalSpec: %w", ErrConfig, err)
	}
	if f.redactor != nil {
		redacted, _, err := f.redact(data, body)
		if err != nil {
			return fmt.Errorf("signal %.80q to run %s: %w", s.ID, run, err)
		}
		data, _ = redacted.(*schema.SignalSentData) // redaction keeps the type
	}
	if n := len(data.Payload); n > schema.MaxSignalPayload && f.secrets != nil {
		return fmt.Errorf("signal %.80q to run %s: %w: its payload has %d bytes, the limit is %d", s.ID, run, ErrPayloadTooLarge, n, schema.MaxSignalPayload)
	}
	return f.control(ctx, schema.VerbSignal, run, &schema.SignalRequest{SignalID: data.SignalID, Name: data.Name, Payload: data.Payload, By: s.By})
}

// Signal is a message in a run that is not consumed yet.
type Signal struct {
	ID, Name string
	Payload  json.RawMessage
	// By is the sender as proven by the NATS server, and Claimed the name that the sender gave. If the server does not
	// prove senders, By is that name.
	By, Claimed string
	// Sent is when the daemon recorded it, by the daemon's clock.
	Sent time.Time
	// Turn that was started with the signal and has no answer yet; 0 for none. To start it again, name the signal
	// again.
	Turn int32
}

// From returns the name that the sender gave, or its proven key if it gave none.
func (s Signal) From() string {
	if s.Claimed != "" {
		return s.Claimed
	}
	return s.By
}

// Message returns the signal as a [Loop] shows it to its model: a message of the role user.
func (s Signal) Message() schema.Message {
	text := fmt.Sprintf("Message %q from %s", s.Name, s.From())
	payload := jsontext.Value(s.Payload)
	var plain string
	switch {
	case len(payload) == 0:
		text += "."
	case payload.Kind() == '"' && json.Unmarshal(payload, &plain) == nil:
		text += ":\n" + plain
	default:
		text += ":\n" + string(payload)
	}
	return schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
}

// Signals returns the signals of the run that are not consumed, in the order in which they were sent. It does not read
// the log: a signal is returned once the daemon's notice has arrived, and at the latest after the run publishes or
// calls [Run.Sync].
//
// To show signals to a model, name them in [TurnSpec]. After acting on them in another way, call [Run.ConsumeSignals].
// Signals returns [ErrIncomplete] if the event of a signal is missing, [ErrBlob] and [ErrEncrypted].
func (r *Run) Signals(ctx context.Context) ([]Signal, error) {
	own := new(schema.State)
	var turns []int32
	missing := ""
	r.ledger.do(func(l *ledger) {
		l.signalUnseen = false
		s := l.fold.state
		for i := range s.Head.Signals {
			o := &s.Head.Signals[i]
			at := slices.IndexFunc(s.Signals, func(c schema.StateSignal) bool { return c.EventID == o.Position.ID })
			if at < 0 {
				missing = o.SignalID
				return
			}
			own.Signals = append(own.Signals, s.Signals[at])
			turns = append(turns, o.Turn)
		}
	})
	if missing != "" {
		return nil, fmt.Errorf("signals of run %s: %w: the event of signal %.80q is missing", r.id, ErrIncomplete, missing)
	}
	if err := r.fleet.load(ctx, own); err != nil {
		return nil, fmt.Errorf("signals of run %s: %w", r.id, err)
	}
	list := make([]Signal, len(own.Signals))
	for i := range own.Signals {
		c := &own.Signals[i]
		list[i] = Signal{ID: c.SignalID, Name: c.Name, Payload: []byte(c.Payload), By: c.By, Claimed: c.Claimed, Sent: schema.ParseTime(c.Time), Turn: turns[i]}
	}
	return list, nil
}

// AwaitSignal waits until the run has a signal with which no turn was started, and returns [Run.Signals]. A tool that
// only calls AwaitSignal lets the model of a [Loop] wait for messages: the model gets them after the tool's result; see
// [Invocation.Run]. Under an [Executor] with WaitDetached it releases the run, as [Run.Ask] does, until a signal is sent
// or the deadline of the tool is over. Its errors are those of [Run.Signals] and [Run.Ask].
func (r *Run) AwaitSignal(ctx context.Context) ([]Signal, error) {
	return r.awaitSignal(ctx, r.derivedID("signal.", cmp.Or(callName(ctx, r), "work")), r.toolEnds(ctx, false))
}

// toolEnds is the deadline of the tool that waits, if the run is released while it waits.
func (r *Run) toolEnds(ctx context.Context, always bool) (until time.Time) {
	if ends, ok := ctx.Deadline(); ok && InvocationOf(ctx).run == r && r.detached(always) {
		until = r.fleet.cfg.Now().Add(time.Until(ends))
	}
	return until
}

// AwaitSignalUntil is [Run.AwaitSignal] with a deadline by the server's clock. id names the wait, as an interrupt id of
// [Run.Ask]: it must be the same each time the work runs, and the first call with an id decides the deadline. If no
// signal comes in time, it returns [ErrInputExpired], which is a [context.DeadlineExceeded], too.
func (r *Run) AwaitSignalUntil(ctx context.Context, id string, until time.Time) ([]Signal, error) {
	if id == "" {
		return nil, fmt.Errorf("run %s: %w", r.id, configError("id", `""`, "use an id that is the same each time the work waits for this"))
	}
	if err := checkInterruptID(r.id, id); err != nil {
		return nil, err
	}
	if err := r.checkUntil(until); err != nil {
		return nil, err
	}
	return r.awaitSignal(ctx, id, until)
}

// awaitSignal waits for any signal under an interrupt id.
func (r *Run) awaitSignal(ctx context.Context, id string, until time.Time) ([]Signal, error) {
	signalled, err := r.awaitHeard(ctx, id, "a signal", until, false, func(s *schema.State) bool { return s.Head.Signalled() })
	if err != nil {
		return nil, err
	}
	if !signalled {
		last := "none was sent before"
		r.View(func(s *schema.State) {
			if n := len(s.Signals); n > 0 {
				last = fmt.Sprintf("the last one, %.80q, is of %s", s.Signals[n-1].Name, s.Signals[n-1].Time)
			}
		})
		return nil, fmt.Errorf("run %s: no signal came in time (%s): %w: %w", r.id, last, context.DeadlineExceeded, ErrInputExpired)
	}
	return r.Signals(ctx)
}

// awaitHeard waits for a signal under an interrupt id; heard is false if none came in time. It publishes that the run
// waits, once, if other processes must know. always releases the run, also without WaitDetached.
func (r *Run) awaitHeard(ctx context.Context, id, what string, until time.Time, always bool, is func(*schema.State) bool) (heard bool, err error) {
	if err := r.Sync(ctx); err != nil && !unavailable(err) {
		return false, err
	}
	if err := errors.Join(r.mayWait(ctx, always), r.ledger.ended()); err != nil {
		return false, err
	}
	var state inputState
	done := func(fold *localFold) (bool, error) {
		_, state = fold.input(id)
		heard = is(fold.state)
		return heard || state == inputGiven, nil
	}
	if over, _, _ := r.ledger.check(done); !over && state == inputUnknown && (r.detached(always) || !until.IsZero()) {
		wait := schema.RunWaitingData{InterruptID: id, Reason: schema.WaitSignal}
		if !until.IsZero() {
			wait.ExpiresAt = schema.FormatTime(until)
		}
		_, err := r.publish(ctx, draft{data: &wait, own: true})
		if rejected, ok := errors.AsType[*RejectedError](err); err != nil && (!ok || rejected.Reason != schema.ReasonSignal) { // else it arrived at this moment
			return false, err
		}
	}
	err = r.await(ctx, what, r.detached(always), done)
	return heard, err
}

// ConsumeSignals publishes signal.consumed: the executor has acted on these signals. Act first: if another executor
// takes the run over before this event is durable, it gets the signals again.
func (r *Run) ConsumeSignals(ctx context.Context, ids ...string) error {
	return r.Publish(ctx, &schema.SignalConsumedData{SignalIDs: ids}, 0)
}

// signalGuard names the signals that prevent an event's publication. They are looked for in the known state of the run,
// and in the events that the publish finds.
type signalGuard int

const (
	// unlessOpen: any signal that is not consumed.
	unlessOpen signalGuard = iota + 1
	// unlessUnseen: a signal that arrived since the work last looked for signals.
	unlessUnseen
)
