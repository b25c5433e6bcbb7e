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

// flight is a set of published messages without an acknowledgement yet, of one call. nats.go's asynchronous publisher
// would do the same with a goroutine and a table that outlive the call; here everything ends with it.
type flight struct {
	bucket  *bucket
	results []Result
	// acks has room for all expected answers.
	acks   chan *nats.Msg
	closed chan nats.Status
	inbox  string
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
	inbox := b.js.Conn().NewInbox()
	// Not SubscribeSync: that allocates half a megabyte each time.
	room := min(n, flightMessages)
	acks := make(chan *nats.Msg, 2*room)
	sub, err := b.js.Conn().ChanSubscribe(inbox+".*", acks)
	if err != nil {
		for i := range results {
			results[i].Err = translate(err)
		}
		return results
	}
	f := &flight{
		bucket: b, results: results, acks: acks, closed: b.js.Conn().StatusChanged(nats.CLOSED), inbox: inbox + ".", sizes: make(map[int]int, room),
	}
	defer func() {
		b.js.Conn().RemoveStatusListener(f.closed)
		_ = sub.Unsubscribe() // fails only on a closed connection
	}()
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

// publish sends the put of an item once there is room for it.
func (f *flight) publish(ctx context.Context, item int, msg *nats.Msg) {
	for len(f.sizes) > 0 && (len(f.sizes) >= flightMessages || f.bytes+len(msg.Data) > flightBytes) {
		f.receive(ctx)
	}
	if f.silence != nil {
		f.results[item].Err = f.silence
		return
	}
	msg.Reply = f.inbox + strconv.Itoa(item)
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
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		f.giveUp(f.bucket.explain(ctx, nats.ErrNoResponders))
		return
	}
	item, err := strconv.Atoi(strings.TrimPrefix(msg.Subject, f.inbox))
	size, ours := f.sizes[item]
	if err != nil || !ours {
		return // a second answer
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
