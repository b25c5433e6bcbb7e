package eventlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Scan calls yield for the messages of a shard's log, or of one run, to the end of the log as one server shows it, and
// returns where the next scan begins. It is for clients that may read and may not create consumers: a [Follower] is
// quicker and cheaper for a long read. An error of yield ends the scan and is returned unchanged.
func Scan(ctx context.Context, js jetstream.JetStream, names schema.Names, from FollowFrom, yield func(Arrived) error) (next FollowFrom, err error) {
	request := jsapi.GetRequest{Seq: uint64(from.Stream)}
	switch {
	case from.Stream != 0:
	case !from.Since.IsZero():
		request.Start = from.Since
	case from.New:
		stream, err := js.Stream(ctx, names.EventStream())
		if err != nil {
			return from, fmt.Errorf("read stream %s: %w", names.EventStream(), err)
		}
		request.Seq = stream.CachedInfo().State.LastSeq + 1
	default:
		request.Seq = 1
	}
	line, err := dial(js, names, 2*batchMessages)
	if err != nil {
		return from, fmt.Errorf("%w: %s: %w", ErrBroken, names.EventStream(), err)
	}
	defer line.Close()
	err = line.scan(ctx, names, cmp.Or(from.Run, "*"), &request, yield)
	if request.Seq > 0 {
		from = FollowFrom{Run: from.Run, Stream: schema.StreamSequence(request.Seq)}
	}
	stopped, own := errors.AsType[*yieldError](err)
	switch {
	case own:
		err = stopped.err
	case err == nil, ctx.Err() != nil:
	case errors.Is(err, ErrNoStream):
		err = fmt.Errorf("read stream %s: %w", names.EventStream(), err)
	default:
		err = fmt.Errorf("%w: %s: %w", ErrBroken, names.EventStream(), err)
	}
	return from, err
}
