//go:build waymark_failpoints

package publisher

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// renamed is the item made anew, as who forgets what it sent before would: failpoint.RetryNewID.
func (r *Run) renamed(it *item) *nats.Msg {
	e := *it.event
	e.Time = schema.FormatTime(time.Now())
	content := e.ContentHash()
	e.ID = schema.EventID(r.id, e.Epoch, e.Sequence, content)
	e.Chain = r.writer.Chain.Next(content).String()
	header, body := e.Encode()
	m := &nats.Msg{Subject: r.subject, Header: header, Data: body}
	m.Header.Set(nats.MsgIdHdr, e.ID)
	return m
}
