package testhook

import (
	"context"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/eventlog"
)

// Hooks change an executor. The zero value changes nothing.
type Hooks struct {
	// NoOutwait begins a call at once behind a takeover: the test knows that the executor before is gone.
	NoOutwait bool
	// Append stands between the executor and the log: append stores the messages, events of one run. Nil calls it.
	Append func(ctx context.Context, msgs []*nats.Msg, append func() eventlog.Appended) eventlog.Appended
}

type key struct{}

// With returns a context that hands the hooks to publisher.Connect.
func With(ctx context.Context, h Hooks) context.Context { return context.WithValue(ctx, key{}, h) }

// Of returns the hooks of a context, the zero value for none.
func Of(ctx context.Context) Hooks {
	h, _ := ctx.Value(key{}).(Hooks)
	return h
}
