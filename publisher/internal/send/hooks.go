package send

import (
	"context"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Hooks change an executor for tests of agents. They are passed to publisher.Connect in the context, so that the public
// configuration has no fields for tests. The zero value changes nothing.
type Hooks struct {
	// NoOutwait begins a call at once after a takeover: the test knows that the previous executor is gone.
	NoOutwait bool
	// Append is called instead of an append to the log: append stores the event. Nil just calls append.
	Append func(append func() eventlog.Appended) eventlog.Appended
	// Tool answers a call in place of its tool, which does not run. Nil runs it.
	Tool func(key schema.CallKey, name string, arguments []byte) (schema.ToolReturnedData, error)
}

type hooksKey struct{}

// WithHooks returns a context that passes the hooks to publisher.Connect.
func WithHooks(ctx context.Context, h Hooks) context.Context {
	return context.WithValue(ctx, hooksKey{}, h)
}

// HooksOf returns the hooks of a context, the zero value for none.
func HooksOf(ctx context.Context) Hooks {
	h, _ := ctx.Value(hooksKey{}).(Hooks)
	return h
}
