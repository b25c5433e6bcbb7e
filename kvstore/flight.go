package kvstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Bounds on the puts in flight of a batch.
const (
	// flightMessages is the number of puts not yet acknowledged.
	flightMessages = 512
	// flightBytes is their size.
	flightBytes = 8 << 20
	// flightPatience is how long to wait without any acknowledgement: then the others are lost, too.
	flightPatience = 5 * time.Second
)

// ackInbox receives the acknowledgements of one flight after another. A bucket keeps one between them: for each
// subscription, the server goes through its cache of subjects twice.
type ackInbox struct {
	prefix string
	sub    *nats.Subscription
	// acks has room for all expected answers.
	acks   chan *nats.Msg
	closed chan nats.Status
	// next is the number of the next put. No number comes twice, so a second answer is not taken for that of another put.
	next int
}

func newAckInbox(nc *nats.Conn) (*ackInbox, error) {
	// Not SubscribeSync: that allocates half a megabyte each time.
	in := &ackInbox{prefix: nc.NewInbox() + ".", acks: make(chan *nats.Msg, 2*flightMessages)}
	var err error
	if in.sub, err = nc.ChanSubscribe(in.prefix+"*", in.acks); err != nil {
		return nil, err
	}
	in.closed = nc.StatusChanged(nats.CLOSED)
	return in, nil
}

// flight is a set of published messages without an acknowledgement yet, of one call. nats.go's asynchronous publisher
// would do the same with a goroutine and a table that outlive the call; here only the inbox does.
type flight struct {
	*ackInbox
	bucket  *bucket
	results []Result
	// first is the number of the first put.
	first int
	// sizes of the puts in flight, by item; their number and sum.
	sizes   map[int]int
	bytes   int
	silence error
}

// fly publishes n messages without waiting between them; the number and bytes in flight are bounded. It returns when each
// was answered, or ctx is done, or the server is silent. The results are in the order of the messages.
func (b *bucket) fly(ctx context.Context, n int, message func(i int) (*nats.Msg, error)) []Result {
	results := make([]Result, n)
	if n == 0 {
		return results
	}
	var in *ackInbox
	var err error
	select {
	case in = <-b.inboxes:
	default:
		in, err = newAckInbox(b.js.Conn())
	}
	if err != nil {
		for i := range results {
			results[i].Err = translate(err)
		}
		return results
	}
	f := &flight{ackInbox: in, bucket: b, results: results, first: in.next, sizes: make(map[int]int, min(n, flightMessages))}
	in.next += n
	defer f.land()
	for i := range results {
		msg, err := message(i)
		if err != nil {
			results[i].Err = err
			continue
		}
		results[i].Bytes = eventlog.StoredBytes(msg)
		f.publish(ctx, i, msg)
	}
	for len(f.sizes) > 0 {
		f.receive(ctx)
	}
	return results
}

// land keeps the inbox for the next flight, unless answers were missing or another one is kept.
func (f *flight) land() {
	if f.silence == nil {
		select {
		case f.bucket.inboxes <- f.ackInbox:
			return
		default:
		}
	}
	f.bucket.js.Conn().RemoveStatusListener(f.closed)
	_ = f.sub.Unsubscribe() // fails only on a closed connection
}

// publish sends the put of an item once there is room for it.
func (f *flight) publish(ctx context.Context, item int, msg *nats.Msg) {
	for len(f.sizes) > 0 && (len(f.sizes) >= flightMessages || f.bytes+len(msg.Data) > flightBytes) {
		f.receive(ctx)
	}
	if f.silence != nil {
		f.results[item].Err = f.silence
		return
	}
	msg.Reply = f.prefix + strconv.Itoa(f.first+item)
	if err := f.bucket.js.Conn().PublishMsg(msg); err != nil {
		f.results[item].Err = translate(err)
		return
	}
	f.sizes[item] = len(msg.Data)
	f.bytes += len(msg.Data)
}

// receive waits for one acknowledgement. If none comes, all puts in flight are abandoned.
func (f *flight) receive(ctx context.Context) {
	select {
	case msg := <-f.acks:
		f.answered(ctx, msg)
		return
	default:
	}
	patience := time.NewTimer(flightPatience)
	defer patience.Stop()
	select {
	case msg := <-f.acks:
		f.answered(ctx, msg)
	case <-ctx.Done():
		f.giveUp(fmt.Errorf("%w: %w", ErrUnavailable, context.Cause(ctx)))
	case <-f.closed:
		f.giveUp(fmt.Errorf("%w: %w", ErrUnavailable, nats.ErrConnectionClosed))
	case <-patience.C:
		f.giveUp(fmt.Errorf("%w: no answer within %s", ErrUnavailable, flightPatience))
	}
}

// answered handles the answer to one put.
func (f *flight) answered(ctx context.Context, msg *nats.Msg) {
	item, err := strconv.Atoi(strings.TrimPrefix(msg.Subject, f.prefix))
	item -= f.first
	size, ours := f.sizes[item]
	if err != nil || !ours {
		return // a second answer
	}
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		f.giveUp(f.bucket.explain(ctx, nats.ErrNoResponders))
		return
	}
	delete(f.sizes, item)
	f.bytes -= size
	ack, err := jsapi.DecodeAck(msg)
	if err != nil {
		f.results[item].Err = translate(err)
		return
	}
	f.results[item].Revision = schema.Revision(ack.Sequence)
}

func (f *flight) giveUp(err error) {
	f.silence = err
	for item := range f.sizes {
		f.results[item].Err = err
	}
	clear(f.sizes)
	f.bytes = 0
}
