package events

import (
	"context"
	"errors"

	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/schema"
)

// counting folds the head of a run that is read from its first event, to know which records a rewind left behind. nil counts nothing.
type counting struct {
	head   schema.Head
	last   *schema.Head
	before schema.StreamSequence
}

// counting begins one, for a run that is read from its first event. Which ranges were left behind is asked before the events are read: an
// event does not say what comes behind it.
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
	if rec.Stream <= n.before {
		n.head.Position = schema.Position{} // sequences that damage freed were used again
	}
	n.before = rec.Stream
	v := n.head.Apply(keys, rec)
	return n.last != nil && v.Kind != schema.Skipped && n.last.LeftBehind(n.head.Records)
}

// unknown reports whether records were shown as if they counted, because no daemon says which were left behind.
func (n *counting) unknown() bool { return n != nil && n.last == nil && len(n.head.Superseded) > 0 }
