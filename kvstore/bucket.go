package kvstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Headers and values of the NATS KV protocol.
const (
	headerOperation = "KV-Operation"
	operationDelete = "DEL"
	operationPurge  = "PURGE"
	headerRollup    = jetstream.MsgRollup
	rollupSubject   = jetstream.MsgRollupSubject
)

// requestTimeout bounds a request whose context has no deadline.
const requestTimeout = 5 * time.Second

// bucket is a key-value bucket, accessed by its subjects: the stock client neither sends headers with a value nor
// pipelines, and asks the leader only if direct gets are off.
type bucket struct {
	js     jetstream.JetStream
	name   string
	stream string
	prefix string
	// inboxes has the inbox of the last flight.
	inboxes chan *ackInbox
}

// entry is one stored value of a key.
type entry struct {
	key     string
	value   []byte
	header  nats.Header
	rev     schema.Revision
	stored  time.Time
	deleted bool
}

func newBucket(js jetstream.JetStream, name string) bucket {
	return bucket{js: js, name: name, stream: bucketPrefix + name, prefix: "$KV." + name + ".", inboxes: make(chan *ackInbox, 1)}
}

// withDeadline gives a context a deadline if it has none.
func withDeadline(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestTimeout)
}

// oneRead bounds a single read, whatever deadline its caller has: a lost answer (the stream was deleted at that
// moment, the connection broke) never comes.
func oneRead(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, requestTimeout)
}

// streamInfo asks for the state and the configuration of a stream. It returns [ErrStreamMissing].
func streamInfo(ctx context.Context, js jetstream.JetStream, stream string) (*jetstream.StreamInfo, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("stream %s: %w", stream, translate(err))
	}
	return s.CachedInfo(), nil
}

// get reads the last value of a key from any replica; it can be stale.
func (b *bucket) get(ctx context.Context, key string) (entry, error) {
	ctx, cancel := oneRead(ctx)
	defer cancel()
	msg, err := jsapi.LastOf(ctx, b.js, b.stream, b.prefix+key)
	if errors.Is(err, nats.ErrNoResponders) {
		// Direct gets are off, or the stream is missing: the leader's answer decides.
		return b.getFresh(ctx, key)
	}
	if err != nil {
		return entry{}, translate(err)
	}
	e, err := b.entryOfDirect(msg)
	if err != nil {
		return e, err
	}
	return e.check()
}

// getFresh reads the last value of a key from the stream's leader.
func (b *bucket) getFresh(ctx context.Context, key string) (entry, error) {
	e, err := lastFresh(ctx, b.js, b.stream, b.prefix+key)
	if err != nil {
		return entry{}, err
	}
	e.key = key
	return e.check()
}

// check turns a delete marker into ErrNotFound; the entry keeps its revision.
func (e entry) check() (entry, error) {
	if e.deleted {
		return e, fmt.Errorf("%w: deleted at revision %d", ErrNotFound, e.rev)
	}
	return e, nil
}

func deletion(h nats.Header) bool {
	op := h.Get(headerOperation)
	// Markers written by the server have a reason instead of an operation.
	return op == operationDelete || op == operationPurge || h.Get("Nats-Marker-Reason") != ""
}

// entryOfDirect reads a message of the answer to a direct get.
func (b *bucket) entryOfDirect(msg *nats.Msg) (entry, error) {
	seq, err := strconv.ParseUint(jsapi.Last(msg.Header, jsapi.HeaderSequence), 10, 64)
	if err != nil {
		return entry{}, fmt.Errorf("stream %s: answer without a sequence: %w", b.stream, err)
	}
	stored, err := time.Parse(time.RFC3339Nano, jsapi.Last(msg.Header, jsapi.HeaderTime))
	if err != nil {
		return entry{}, fmt.Errorf("stream %s: answer without a time: %w", b.stream, err)
	}
	return entry{
		key:     strings.TrimPrefix(jsapi.Last(msg.Header, jsapi.HeaderSubject), b.prefix),
		value:   msg.Data,
		header:  msg.Header,
		rev:     schema.Revision(seq),
		stored:  stored,
		deleted: deletion(msg.Header),
	}, nil
}

// decodeFormat reads a stored value of a format version. Errors are [ErrCorrupt] and schema.ErrFormat.
func decodeFormat[T any](value []byte, format int) (v T, err error) {
	var probe struct {
		Format int `json:"format"`
	}
	if err = json.Unmarshal(value, &probe); err == nil && probe.Format != format {
		return v, fmt.Errorf("format %d, this binary knows %d: %w", probe.Format, format, schema.ErrFormat)
	}
	if err == nil {
		err = json.Unmarshal(value, &v)
	}
	if err != nil {
		return v, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return v, nil
}

// lastRaw asks a stream's leader for the last message of a subject.
func lastRaw(ctx context.Context, js jetstream.JetStream, stream, subject string) (*jsapi.Message, error) {
	ctx, cancel := oneRead(ctx)
	defer cancel()
	m, err := jsapi.Get(ctx, js, stream, jsapi.GetRequest{LastFor: subject})
	return m, translate(err)
}

// lastFresh is lastRaw with its headers read.
func lastFresh(ctx context.Context, js jetstream.JetStream, stream, subject string) (entry, error) {
	m, err := lastRaw(ctx, js, stream, subject)
	if err != nil {
		return entry{}, err
	}
	return entryOfGet(stream, m)
}

// nextFresh asks the stream's leader for the first message of a filter from a revision on.
func (b *bucket) nextFresh(ctx context.Context, filter string, from schema.Revision) (entry, error) {
	ctx, cancel := oneRead(ctx)
	defer cancel()
	m, err := jsapi.Get(ctx, b.js, b.stream, jsapi.GetRequest{Seq: uint64(from), NextFor: filter})
	if err != nil {
		return entry{}, translate(err)
	}
	e, err := entryOfGet(b.stream, m)
	e.key = strings.TrimPrefix(m.Subject, b.prefix)
	return e, err
}

// entryOfGet reads a message of a stream's leader; the entry has no key.
func entryOfGet(stream string, m *jsapi.Message) (entry, error) {
	e := entry{value: m.Data, rev: schema.Revision(m.Sequence), stored: m.Time}
	var err error
	if e.header, err = m.Header(); err != nil {
		return entry{}, fmt.Errorf("stream %s: headers of message %d: %w", stream, e.rev, err)
	}
	e.deleted = deletion(e.header)
	return e, nil
}

// message builds the put of a value. With cas the key must be at revision rev; 0 is a key that was never written.
func (b *bucket) message(key string, value []byte, header nats.Header, cas bool, rev schema.Revision) *nats.Msg {
	if header == nil {
		header = nats.Header{}
	}
	if cas {
		header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(uint64(rev), 10)}
	}
	return &nats.Msg{Subject: b.prefix + key, Header: header, Data: value}
}

// put writes a value by compare-and-set. Revision 0 creates, also over a delete marker.
func (b *bucket) put(ctx context.Context, key string, value []byte, rev schema.Revision) (schema.Revision, error) {
	return b.publishCAS(ctx, b.message(key, value, nil, true, rev), key, rev)
}

func (b *bucket) publishCAS(ctx context.Context, msg *nats.Msg, key string, rev schema.Revision) (schema.Revision, error) {
	next, err := b.publish(ctx, msg)
	if rev != 0 || !errors.Is(err, ErrConflict) {
		return next, err
	}
	marker, ok, merr := b.marker(ctx, key)
	if merr != nil {
		return 0, merr
	}
	if !ok {
		return 0, err
	}
	msg.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(uint64(marker), 10)}
	return b.publish(ctx, msg)
}

// marker returns the revision of the delete marker that is the last message of the key, if there is one.
func (b *bucket) marker(ctx context.Context, key string) (schema.Revision, bool, error) {
	e, err := b.getFresh(ctx, key)
	switch {
	case err == nil:
		return 0, false, nil
	case errors.Is(err, ErrNotFound):
		return e.rev, e.rev != 0, nil
	default:
		return 0, false, err
	}
}

// publish sends one message and awaits its acknowledgement.
func (b *bucket) publish(ctx context.Context, msg *nats.Msg) (schema.Revision, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	ack, err := b.js.PublishMsg(ctx, msg)
	if err != nil {
		return 0, b.explain(ctx, err)
	}
	return schema.Revision(ack.Sequence), nil
}

// explain translates the error of a write. If no answer came, it checks whether the stream exists: a publish into a
// missing stream looks like one into a stream without a leader.
func (b *bucket) explain(ctx context.Context, err error) error {
	if errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders) {
		if _, serr := b.js.Stream(ctx, b.stream); errors.Is(serr, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("%w: %s: %w", ErrStreamMissing, b.stream, err)
		}
	}
	return translate(err)
}

// remove deletes a key and its history. A delete marker stays, so that a server crash cannot bring values back.
func (b *bucket) remove(ctx context.Context, key string) error {
	header := nats.Header{headerOperation: {operationPurge}, headerRollup: {rollupSubject}}
	_, err := b.publish(ctx, b.message(key, nil, header, false, 0))
	return err
}

// purge removes a key's messages up to a revision from the stream, without a marker. After kill -9 of a single server
// they can come back, so use it only where that is harmless.
func (b *bucket) purge(ctx context.Context, key string, upTo schema.Revision) error {
	_, err := purge(ctx, b.js, b.stream, jsapi.PurgeRequest{Filter: b.prefix + key, Below: uint64(upTo) + 1})
	if err != nil {
		return b.explain(ctx, err)
	}
	return nil
}

// purge removes messages of one subject from a stream, and returns their number.
func purge(ctx context.Context, js jetstream.JetStream, stream string, what jsapi.PurgeRequest) (uint64, error) {
	ctx, cancel := withDeadline(ctx)
	defer cancel()
	n, err := jsapi.Purge(ctx, js, stream, what)
	return n, translate(err)
}
