package send

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

// Hooks are what a test of an agent changes in its executor. They are handed to publisher.Connect with the context, so that no field of the
// public configuration is a test's. The zero value changes nothing.
type Hooks struct {
	// NoOutwait begins a call at once behind a takeover: the test knows that the executor before is gone.
	NoOutwait bool
	// Append stands between the executor and the log: append stores the messages, events of one run. Nil calls it.
	Append func(ctx context.Context, msgs []*nats.Msg, append func() eventlog.Appended) eventlog.Appended
	// Tool answers a call in place of its tool, which does not run. Nil runs it.
	Tool func(key schema.CallKey, name string, arguments []byte) (schema.ToolReturnedData, error)
}

type hooksKey struct{}

// WithHooks returns a context that hands the hooks to publisher.Connect.
func WithHooks(ctx context.Context, h Hooks) context.Context {
	return context.WithValue(ctx, hooksKey{}, h)
}

// HooksOf returns the hooks of a context, the zero value for none.
func HooksOf(ctx context.Context) Hooks {
	h, _ := ctx.Value(hooksKey{}).(Hooks)
	return h
}
