package kvstore

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

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
	sub     *nats.Subscription
	// acks has room for all expected answers.
	acks   chan *nats.Msg
	closed chan nats.Status
	inbox  string
	// sizes of the puts in flight, by item; their number and sum.
	sizes   map[int]int
	bytes   int
	silence error
}

// newFlight returns a flight that writes the outcomes of its puts into results. Call its end after use.
func (b *bucket) newFlight(results []Result) (*flight, error) {
	inbox := b.js.Conn().NewInbox()
	// Not SubscribeSync: that allocates half a megabyte each time.
	room := min(len(results), flightMessages)
	acks := make(chan *nats.Msg, 2*room)
	sub, err := b.js.Conn().ChanSubscribe(inbox+".*", acks)
	if err != nil {
		return nil, translate(err)
	}
	return &flight{
		bucket: b, results: results, sub: sub, acks: acks, closed: b.js.Conn().StatusChanged(nats.CLOSED),
		inbox: inbox + ".", sizes: make(map[int]int, room),
	}, nil
}

func (f *flight) end() {
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
	msg.Reply = f.inbox + strconv.Itoa(item)
	if err := f.bucket.js.Conn().PublishMsg(msg); err != nil {
		f.results[item].Err = translate(err)
		return
	}
	f.sizes[item] = len(msg.Data)
	f.bytes += len(msg.Data)
}

// land waits until each put was answered, or abandoned.
func (f *flight) land(ctx context.Context) {
	for len(f.sizes) > 0 {
		f.receive(ctx)
	}
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
	f.results[item] = outcome(msg)
}

func (f *flight) giveUp(err error) {
	f.silence = err
	for item := range f.sizes {
		f.results[item].Err = err
	}
	clear(f.sizes)
	f.bytes = 0
}

// outcome reads the answer to a publish.
func outcome(msg *nats.Msg) Result {
	ack, err := jsapi.DecodeAck(msg)
	if err != nil {
		return Result{Err: translate(err)}
	}
	return Result{Revision: schema.Revision(ack.Sequence)}
}
