package tested

import (
	"context"

	"github.com/waymarkio/waymark/publisher"
)

// snippet: agent

// Outbox sends mail. It keeps no keys: what is sent twice arrives twice.
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
