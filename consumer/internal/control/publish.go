package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/internal/jsapi"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// controlPatience bounds one try to publish a control event; the next is the same message.
	controlPatience = 2 * time.Second
	// minBackoff and maxBackoff bound the pauses between two tries.
	minBackoff, maxBackoff = 5 * time.Millisecond, 100 * time.Millisecond
	// maxLifts is how often a full stream is lifted for a control event before there are pauses, and by how many times its size at most.
	maxLifts = 8
)

// ErrRefused says that the compare-and-set of a control event found another last event. Read the run, and decide again.
var ErrRefused = errors.New("another event came first")

// Publish stores a control event behind the run's last event, given by its stream sequence. A try without an
// answer is repeated as the same message until ctx ends: then the outcome is unknown. It returns ErrRefused when
// another event came first, or when an earlier try had succeeded without our hearing of it: read the run to tell.
// A full stream is lifted by what the event needs, within the fleet's reserve.
func Publish(ctx context.Context, js jetstream.JetStream, shard *kvstore.Shard, e *schema.Event,
	last schema.StreamSequence,
) (schema.StreamSequence, error) {
	header, body := e.Encode()
	msg := &nats.Msg{Subject: shard.Names.EventSubject(e.Subject), Header: header, Data: body}
	backoff, lifts := minBackoff, int64(0)
	for {
		seq, err := publishOnce(ctx, js, msg, e.ID, last)
		var api *jetstream.APIError
		switch {
		case err == nil:
			return seq, nil
		case errors.As(err, &api) && (api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence ||
			api.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant):
			return 0, fmt.Errorf("%s: %w: %w", e.ID, ErrRefused, err)
		case jsapi.StreamFull(err):
			// Executors that wait for room publish into the same: the event follows at once, and each time that they came first
			// there is room for more of them.
			lifts++
			if _, lerr := shard.LiftQuota(ctx, min(lifts, maxLifts)*int64(eventlog.StoredBytes(msg))); lerr != nil {
				return 0, fmt.Errorf("%s: full stream: %w", e.ID, lerr)
			}
			if lifts <= maxLifts {
				continue
			}
		case errors.As(err, &api) && api.ErrorCode != jetstream.JSErrCodeStreamWrongLastSequenceConstant && api.ErrorCode != jsapi.CodeDuplicateInFlight && api.Code < 500:
			return 0, fmt.Errorf("publish %s: %w", e.ID, err)
		}
		if perr := pause.For(ctx, backoff); perr != nil {
			return 0, fmt.Errorf("publish %s: %w: %w", e.ID, perr, err)
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func publishOnce(ctx context.Context, js jetstream.JetStream, msg *nats.Msg, id string, last schema.StreamSequence) (schema.StreamSequence, error) {
	ctx, cancel := context.WithTimeout(ctx, controlPatience)
	defer cancel()
	ack, err := js.PublishMsg(ctx, msg, jetstream.WithMsgID(id), jetstream.WithRetryAttempts(0),
		jetstream.WithExpectLastSequencePerSubject(uint64(last)))
	if err != nil {
		return 0, err
	}
	return schema.StreamSequence(ack.Sequence), nil
}
