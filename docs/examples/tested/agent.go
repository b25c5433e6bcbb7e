package tested

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
)

// snippet: agent

// Outbox sends mail. It has no idempotency keys: a mail sent twice arrives twice.
type Outbox interface {
	Send(ctx context.Context, to, text string) error
}

// Clerk answers mail.
func Clerk(model publisher.Model, outbox Outbox) publisher.Loop {
	type mail struct {
		To   string `json:"to"`
		Text string `json:"text"`
	}
	send := publisher.NewTool("send_mail", "Sends a mail.", publisher.Hold, func(ctx context.Context, m mail) (string, error) {
		return "sent", outbox.Send(ctx, m.To, m.Text)
	})
	return publisher.Loop{System: "You answer mail.", Model: model, Tools: []publisher.Tool{send}}
}

// end of agent

// snippet: payer

// Bank pays. A payment with the key of an earlier one is not repeated.
type Bank interface {
	Pay(ctx context.Context, key string, cents int) error
}

// Payer pays bills.
func Payer(model publisher.Model, bank Bank) publisher.Loop {
	type bill struct {
		Cents int `json:"cents"`
	}
	pay := publisher.NewTool("pay", "Pays a bill.", publisher.Idempotent, func(ctx context.Context, b bill) (string, error) {
		return "paid", bank.Pay(ctx, publisher.InvocationOf(ctx).IdempotencyKey, b.Cents)
	})
	return publisher.Loop{Model: model, Tools: []publisher.Tool{pay}}
}

// end of payer
