package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Sizes that JetStream's file store adds to a message, and to one with headers.
const (
	storedOverhead       = 30
	storedHeaderOverhead = 4
)

// Ledger adds up every message that was ever put into streams, as JetStream counts bytes, also those that are gone by
// the time of a read: a bucket keeps only the latest of a key.
type Ledger struct {
	mu     sync.Mutex
	bytes  float64
	seen   uint64
	missed uint64
	last   map[string]uint64
	bad    error
	w      *World
}

// KeepLedger reads the checkpoint buckets of all shards from now on: checkpoints, the live index and the watermark.
func (w *World) KeepLedger(ctx context.Context) (*Ledger, error) {
	l := &Ledger{last: make(map[string]uint64), w: w}
	nc, err := w.Connect("ledger")
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	for _, shard := range w.shards {
		name := "KV_" + shard.Names.CheckpointBucket()
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return nil, err
		}
		from := stream.CachedInfo().State.LastSeq
		l.last[name] = from
		consumer, err := js.OrderedConsumer(ctx, name, jetstream.OrderedConsumerConfig{
			DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from + 1,
		})
		if err != nil {
			return nil, fmt.Errorf("ledger of %s: %w", name, err)
		}
		running, err := consumer.Consume(func(m jetstream.Msg) { l.saw(name, m) })
		if err != nil {
			return nil, fmt.Errorf("ledger of %s: %w", name, err)
		}
		w.Defer(func(context.Context) error {
			running.Stop()
			<-running.Closed()
			return nil
		})
	}
	return l, nil
}

func (l *Ledger) saw(stream string, m jetstream.Msg) {
	meta, err := m.Metadata()
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.bad = err
		return
	}
	at := meta.Sequence.Stream
	if at <= l.last[stream] {
		return
	}
	l.missed += at - l.last[stream] - 1
	l.last[stream] = at
	l.seen++
	l.bytes += float64(storedSize(m))
}

// storedSize is what JetStream's file store counts for a message.
func storedSize(m jetstream.Msg) int {
	n := storedOverhead + len(m.Subject()) + len(m.Data())
	if len(m.Headers()) > 0 {
		n += storedHeaderOverhead + headerSize(m.Headers())
	}
	return n
}

// Bytes waits until everything that was put is counted, and returns the sum and the share of messages that were gone
// before they could be read; those count as the others do on average.
func (l *Ledger) Bytes(ctx context.Context) (bytes, missed float64, err error) {
	for _, shard := range l.w.shards {
		name := "KV_" + shard.Names.CheckpointBucket()
		stream, err := l.w.JS.Stream(ctx, name)
		if err != nil {
			return 0, 0, err
		}
		end := stream.CachedInfo().State.LastSeq
		err = l.w.Await(ctx, time.Minute, "the ledger of "+name, func() (bool, error) {
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.last[name] >= end, l.bad
		})
		if err != nil {
			return 0, 0, err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == 0 {
		return 0, 0, nil
	}
	all := float64(l.seen + l.missed)
	return l.bytes / float64(l.seen) * all, float64(l.missed) / all, nil
}
