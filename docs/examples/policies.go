package examples

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// snippet: pure

// ReadFile has no effect, so it may run again.
func ReadFile(ctx context.Context, turn *publisher.Turn, id, path string, read func(string) (string, error)) (publisher.ToolResult, error) {
	arguments, err := json.Marshal(map[string]string{"path": path})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	call := publisher.ToolCall{ID: id, Name: "read_file", Arguments: arguments, Replay: schema.ReplayPure}
	return turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		text, err := read(path)
		if err != nil {
			return publisher.ToolResult{}, err // recorded as tool.failed
		}
		return publisher.Result(text)
	})
}

// end of pure

// snippet: idempotent

// Payments is a service that accepts an idempotency key, as most payment services do.
type Payments interface {
	Charge(ctx context.Context, key string, cents int64) (receipt string, err error)
}

// Charge may run again: the key is the same each time, so the money moves once.
func Charge(ctx context.Context, turn *publisher.Turn, id string, cents int64, payments Payments) (publisher.ToolResult, error) {
	arguments, err := json.Marshal(map[string]int64{"cents": cents})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	call := publisher.ToolCall{ID: id, Name: "charge", Arguments: arguments, Replay: schema.ReplayIdempotent}
	return turn.Tool(ctx, call, func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		receipt, err := payments.Charge(ctx, inv.IdempotencyKey, cents)
		if err != nil {
			return publisher.ToolResult{}, err
		}
		return publisher.Result(receipt)
	})
}

// end of idempotent

// snippet: verify-tool

// Bookings books seats and can verify its calls. It stands for a database table: a section under mu here is a
// transaction there.
type Bookings struct {
	mu   sync.Mutex
	rows map[string]row // by idempotency key
}

type row struct {
	seat string // empty: not booked
	// least is the oldest epoch that may still book: an executor was told that nothing had been booked.
	least schema.Epoch
}

// ErrTooLate is returned to an executor that counted as dead.
var ErrTooLate = errors.New("the booking was reported as not done, and must not be made any more")

// Book has its effect once for each key.
func (b *Bookings) Book(inv publisher.Invocation, seat string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rows[inv.IdempotencyKey]
	switch {
	case inv.Epoch < r.least:
		return "", ErrTooLate
	case r.seat == "":
		r.seat = seat
		if b.rows == nil {
			b.rows = make(map[string]row)
		}
		b.rows[inv.IdempotencyKey] = r
	}
	return r.seat, nil
}

// Verify answers whether a call had its effect. "Not done" is a promise: from now on, the call of an older executor is
// refused.
func (b *Bookings) Verify(_ context.Context, request schema.VerifyRequest) (schema.VerifyReply, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.rows[request.IdempotencyKey]
	if r.seat != "" {
		result, err := json.Marshal(r.seat)
		return schema.VerifyReply{Outcome: schema.VerifyDone, Result: result}, err
	}
	r.least = max(r.least, request.Epoch)
	if b.rows == nil {
		b.rows = make(map[string]row)
	}
	b.rows[request.IdempotencyKey] = r
	return schema.VerifyReply{Outcome: schema.VerifyNotDone}, nil
}

// ServeBookings answers questions about bookings. Run it with the tool, as long as the tool runs.
func ServeBookings(nc *nats.Conn, b *Bookings) (stop func() error, err error) {
	return publisher.ServeVerify(nc, "bookings.verify", "bookings", b.Verify)
}

// end of verify-tool

// snippet: verify

// Book calls a tool that can be verified.
func Book(ctx context.Context, turn *publisher.Turn, id, seat string, bookings *Bookings) (publisher.ToolResult, error) {
	arguments, err := json.Marshal(map[string]string{"seat": seat})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	call := publisher.ToolCall{
		ID: id, Name: "book", Arguments: arguments, Replay: schema.ReplayVerify, VerifySubject: "bookings.verify",
	}
	return turn.Tool(ctx, call, func(_ context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
		booked, err := bookings.Book(inv, seat)
		if err != nil {
			return publisher.ToolResult{}, err
		}
		return publisher.Result(booked)
	})
}

// end of verify

// snippet: hold

// Mail can neither be verified nor repeated: if it is in doubt, a person decides.
func Mail(ctx context.Context, turn *publisher.Turn, id, to string, send func(to string) error) (publisher.ToolResult, error) {
	arguments, err := json.Marshal(map[string]string{"to": to})
	if err != nil {
		return publisher.ToolResult{}, err
	}
	call := publisher.ToolCall{ID: id, Name: "mail", Arguments: arguments, Replay: schema.ReplayHold, SideEffect: "sends a letter to " + to}
	return turn.Tool(ctx, call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		if err := send(to); err != nil {
			return publisher.ToolResult{}, err
		}
		return publisher.Result("sent")
	})
}

// end of hold
