package events

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// counting folds the head of a run from its first event, to find the records that a rewind left behind. nil counts
// nothing.
type counting struct {
	head  schema.Head
	last  *schema.Head
	order schema.Order
}

// counting starts one for a run that is read from its first event. The ranges left behind are requested before the
// events are read, because an event does not name later ones.
func (c Cmd) counting(ctx context.Context, cl *base.Client) *counting {
	if c.Run_ == "" || !c.All {
		return nil
	}
	looking, cancel := context.WithTimeout(ctx, lookPatience)
	defer cancel()
	reply, err := cl.Get(looking, c.Run_)
	n := &counting{head: schema.NewHead(cl.Fleet, c.Run_)}
	var told *schema.ServiceError
	switch {
	case err == nil:
		n.last = &reply.Head
	case errors.As(err, &told) && (told.Code == schema.CodeNotFound || told.Code == schema.CodeErased):
		return nil
	}
	return n
}

// leftBehind reports whether a rewind left the record behind.
func (n *counting) leftBehind(rec *schema.Record, keys *schema.Keys) bool {
	if n == nil {
		return false
	}
	n.order.Next(&n.head, rec)
	v := n.head.Apply(keys, rec)
	return n.last != nil && v.Kind != schema.Skipped && n.last.LeftBehind(n.head.Records)
}

// unknown reports whether records were shown as counting although no daemon said which ones were left behind.
func (n *counting) unknown() bool { return n != nil && n.last == nil && len(n.head.Superseded) > 0 }

// behind reports whether fewer events were read than the run had when the daemon answered.
func (n *counting) behind() bool {
	return n != nil && n.last != nil && n.order.Last < n.last.Position.Stream
}
