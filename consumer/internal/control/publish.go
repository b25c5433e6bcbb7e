package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// controlPatience bounds one try to publish a control event; the next is the same message.
	controlPatience = 2 * time.Second
	// minBackoff and maxBackoff bound the pauses between two tries.
	minBackoff, maxBackoff = 5 * time.Millisecond, 100 * time.Millisecond
	// maxLifts is how often the limit of a full stream is raised for a control event before pauses begin, and the
	// largest multiple of its size.
	maxLifts = 8
)

// ErrRefused says that the compare-and-set of a control event found another last event. Read the run, and decide
// again.
var ErrRefused = errors.New("another event came first")

// Publish stores a control event after the run's last event, given by its stream sequence. A try without an answer is
// repeated as the same message until ctx ends: then the outcome is unknown. It returns ErrRefused if another event
// came first, or if an earlier try had succeeded and its answer was lost: read the run to find out. The limit of a
// full stream is raised by the event's size, within the fleet's reserve.
func Publish(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, e *schema.Event,
	last schema.StreamSequence,
) (schema.StreamSequence, error) {
	msg := eventlog.Message(shard.Names, e)
	backoff, lifts := minBackoff, int64(0)
	for {
		a := appendOnce(ctx, js, msg, last)
		api, ok := errors.AsType[*jetstream.APIError](a.Err)
		switch {
		case a.Outcome == eventlog.Stored:
			return a.Stream, nil
		case a.Outcome == eventlog.Outdated, a.Outcome == eventlog.Contended:
			return 0, fmt.Errorf("%s: %w: %w", e.ID, ErrRefused, a.Err)
		case jsapi.StreamFull(a.Err):
			// Executors that wait for room use it too: the event is published at once, and each time that they came
			// first, the limit is raised for more of them.
			lifts++
			if _, err := shard.LiftQuota(ctx, min(lifts, maxLifts)*int64(eventlog.StoredBytes(msg))); err != nil {
				return 0, fmt.Errorf("%s: full stream: %w", e.ID, err)
			}
			if lifts <= maxLifts {
				continue
			}
		case a.Outcome == eventlog.Refused, a.Outcome == eventlog.Oversized, ok && a.Outcome == eventlog.Full && api.Code < 500:
			return 0, fmt.Errorf("publish %s: %w", e.ID, a.Err)
		}
		if err := pause.For(ctx, backoff); err != nil {
			return 0, fmt.Errorf("publish %s: %w: %w", e.ID, err, a.Err)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func appendOnce(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, last schema.StreamSequence) eventlog.Appended {
	ctx, cancel := context.WithTimeout(ctx, controlPatience)
	defer cancel()
	return eventlog.Append(ctx, js.Conn().RequestMsgWithContext, msg, last)
}
