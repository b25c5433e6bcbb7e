package publisher

import (
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

// SignalSpec is a message into a run.
type SignalSpec struct {
	// ID of the signal in the run. The same signal sent again under its id is one signal, whichever executor sends it: in a tool use
	// [Invocation].IdempotencyKey. Empty means a new one; then only the tries within one call are one signal.
	ID string
	// Name tells the agent what the signal is about. Required.
	Name string
	// Payload is any JSON of at most schema.MaxSignalPayload bytes.
	Payload json.RawMessage
	// By whom; empty means this executor.
	By string
}

// Signal sends a message into a run that has not ended, whatever it does: its executor hears of it at once, and a run without one can be
// claimed. The signals of a run are in order, and each is consumed once: a [Loop] shows it to its model with the next turn. When Signal
// returns nil the signal is in the run's log.
//
// It returns [ErrRunEnded], [ErrRunNotFound], [ErrRunErased], [ErrSignalsFull], [ErrPayloadTooLarge], [ErrConflict] for the id of another
// signal and for a run that the daemon does not fold, [ErrConfig], [ErrUnavailable] and [ErrNoService].
func (f *Fleet) Signal(ctx context.Context, run string, s SignalSpec) error {
	if err := checkRun(run); err != nil {
		return err
	}
	if s.Name == "" {
		return configError("SignalSpec.Name", `""`, "say what the signal is about")
	}
	if s.ID == "" {
		s.ID = cryptorand.Text()
	}
	if s.By == "" {
		s.By = f.cfg.Executor
	}
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
		data, _ = redacted.(*schema.SignalSentData) // it has the type of what was redacted
	}
	if n := len(data.Payload); n > schema.MaxSignalPayload && f.secrets != nil {
		return fmt.Errorf("signal %.80q to run %s: %w: its payload has %d bytes, at most %d are taken", s.ID, run, ErrPayloadTooLarge, n, schema.MaxSignalPayload)
	}
	_, err = askOne[schema.ControlReply](ctx, f.Reader, schema.VerbSignal, run,
		&schema.SignalRequest{SignalID: data.SignalID, Name: data.Name, Payload: data.Payload, By: s.By})
	return err
}

// Signal is a message in a run that is not consumed.
type Signal struct {
	ID, Name string
	Payload  json.RawMessage
	// By is the sender as the NATS server proved it, and Claimed the name that the sender gave. Where the server proves no senders By is
	// that name.
	By, Claimed string
	// Sent is when the daemon took it, by the daemon's clock.
	Sent time.Time
	// Turn that was started with the signal and has no answer; 0 for none. Whoever starts it again names the signal again.
	Turn int32
}

// From is the name that the sender gave, or its proven key where it gave none.
func (s Signal) From() string {
	if s.Claimed != "" {
		return s.Claimed
	}
	return s.By
}

// Message is the signal as a [Loop] shows it to its model: a message of the role user.
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

// Signals returns the signals of the run that are not consumed, in the order in which they were sent. It reads no log: a signal is there
// as soon as the daemon's notice has come, and at the latest when the run publishes or calls [Run.Sync]. RunSpec.OnControl hears of each.
//
// Who tells a model of signals names them in [TurnSpec]. Who acts on them otherwise calls [Run.ConsumeSignals]. It returns [ErrNoContent] on a
// handle that keeps only the head, [ErrIncomplete] if the event of a signal is missing, [ErrBlob] and [ErrEncrypted].
func (r *Run) Signals(ctx context.Context) ([]Signal, error) {
	if r.ledger.headOnly() {
		return nil, fmt.Errorf("signals of run %s: %w", r.id, ErrNoContent)
	}
	own := new(schema.State)
	var turns []int32
	missing := ""
	r.View(func(s *schema.State) {
		r.ledger.unheard = false // View has the lock
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
		sent, _ := time.Parse(time.RFC3339Nano, c.Time) // the zero time for one that says none
		list[i] = Signal{ID: c.SignalID, Name: c.Name, Payload: []byte(c.Payload), By: c.By, Claimed: c.Claimed, Sent: sent, Turn: turns[i]}
	}
	return list, nil
}

// AwaitSignal waits until the run has a signal that no turn was started with, and returns [Run.Signals]. A tool that does no more lets the
// model of a [Loop] wait for messages, which it is shown behind the tool's result; see [Invocation.Run]. It waits under an [Executor] with
// WaitDetached, too. Its errors are those of [Run.Signals], [ErrCancelRequested] when the run's end is asked for meanwhile, and what ended
// the handle.
func (r *Run) AwaitSignal(ctx context.Context) ([]Signal, error) {
	if r.ledger.headOnly() {
		return nil, fmt.Errorf("signals of run %s: %w", r.id, ErrNoContent)
	}
	if err := r.Sync(ctx); err != nil && !transient(err) {
		return nil, err
	}
	if err := r.await(ctx, "a signal", false, func(fold *localFold) (bool, error) { return fold.signalled(), nil }); err != nil {
		return nil, err
	}
	return r.Signals(ctx)
}

// ConsumeSignals publishes signal.consumed: the executor has acted on these signals. Act first: who takes the run over before this is durable
// finds the signals again.
func (r *Run) ConsumeSignals(ctx context.Context, ids ...string) error {
	_, err := r.publish(ctx, draft{data: &schema.SignalConsumedData{SignalIDs: ids}})
	return err
}

// signalled reports whether the run has a signal that no turn was started with.
func (f *localFold) signalled() bool {
	return slices.ContainsFunc(f.head.Signals, func(s schema.OpenSignal) bool { return s.Turn == 0 })
}

// signalGuard says which signals keep an event from being published: they are looked for in what is known of the run, and in what the
// publish meets.
type signalGuard int

const (
	// unlessOpen: any that is not consumed.
	unlessOpen signalGuard = iota + 1
	// unlessUnheard: one that came since the work last looked for signals.
	unlessUnheard
)

// guarded reports whether a signal keeps the first of items from being published. Under mu.
func (l *ledger) guarded(items []*item) bool {
	if len(items) == 0 || items[0].stream != 0 {
		return false
	}
	switch items[0].unless {
	case unlessOpen:
		return len(l.fold.head.Signals) > 0
	case unlessUnheard:
		return l.unheard
	}
	return false
}

func (l *ledger) signalledError() error { return fmt.Errorf("run %s: %w", l.run, ErrSignalled) }

// heard says that the work looks at the run's signals now.
func (l *ledger) heard() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unheard = false
}

// Errors of signals.
var (
	// ErrSignalsFull is returned for a signal to a run that has schema.MaxSignals signals which are not consumed. Send it again later, under
	// its id.
	ErrSignalsFull = errors.New("run has too many signals that are not consumed")
	// ErrSignalled is returned by End with RunEnd.NoSignals for a run that has a signal which is not consumed. Nothing was published: act on
	// the signal, then end the run.
	ErrSignalled = errors.New("run has a signal that is not consumed")
)
