package fold

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// chunkMessages and chunkBytes end a chunk. It is small enough for the preparers to share evenly, and large
	// enough that passing it on costs little compared to the work.
	chunkMessages = 32
	chunkBytes    = 256 << 10
	// chunksAhead is the number of chunks that are prepared while a batch is folded and committed: about one batch,
	// below 8 MiB plus one last message each.
	chunksAhead = 32
	// mostPreparers bounds the goroutines that prepare a shard's chunks.
	mostPreparers = 4
)

// message is a message of the log, prepared as far as possible before it is folded.
type message struct {
	eventlog.Arrived
	// run in its subject.
	run      string
	size     int
	prepared schema.Prepared
}

// chunk is a few messages in log order, prepared together.
type chunk struct {
	messages []message
	bytes    int
	// ready is closed when all are prepared.
	ready chan struct{}
}

// prefetcher delivers the log's messages in order, chunk by chunk: one goroutine reads, some prepare, and the fold
// worker waits for each chunk in turn. A chunk is the messages that have arrived, so a single message does not wait.
type prefetcher struct {
	reader *eventlog.Follower
	names  schema.Names
	most   int
	// keys returns the keys that check control events. It waits for them.
	keys   func(context.Context) (*schema.Keys, error)
	chunks chan *chunk
	work   chan *chunk
}

func newPrefetcher(reader *eventlog.Follower, names schema.Names, batchEvents int, keys func(context.Context) (*schema.Keys, error)) *prefetcher {
	return &prefetcher{
		reader: reader, names: names, keys: keys, most: min(chunkMessages, batchEvents),
		chunks: make(chan *chunk, chunksAhead), work: make(chan *chunk, chunksAhead),
	}
}

// run reads and prepares until ctx ends, which is no error, or the reader breaks. It closes chunks.
func (in *prefetcher) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), mostPreparers) {
		group.Go(func() error {
			return in.prepare(ctx)
		})
	}
	group.Go(func() error {
		defer close(in.chunks)
		err := in.read(ctx)
		if ctx.Err() != nil {
			return nil // it was told to stop
		}
		return err
	})
	return group.Wait()
}

func (in *prefetcher) read(ctx context.Context) error {
	defer close(in.work)
	for {
		a, err := in.reader.Next(ctx)
		if err != nil {
			return err
		}
		l := &chunk{ready: make(chan struct{})}
		for there := true; there; {
			l.add(in.names, a)
			if len(l.messages) >= in.most || l.bytes >= chunkBytes {
				break
			}
			if a, there, err = in.reader.NextIfThere(); err != nil {
				return err // messages read and not passed on are read again
			}
		}
		for _, to := range []chan *chunk{in.chunks, in.work} {
			select {
			case to <- l:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (l *chunk) add(names schema.Names, a eventlog.Arrived) {
	size := a.Record.Size()
	l.messages = append(l.messages, message{Arrived: a, run: names.RunOfSubject(a.Subject), size: size})
	l.bytes += size
}

func (in *prefetcher) prepare(ctx context.Context) error {
	for {
		select {
		case l, ok := <-in.work:
			if !ok {
				return nil
			}
			keys, err := in.keys(ctx)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // it was told to stop
			}
			if err != nil {
				return err
			}
			for i := range l.messages {
				if a := &l.messages[i]; a.run != schema.BarrierRun {
					a.prepared = schema.Prepare(keys, &a.Record)
				}
			}
			close(l.ready)
		case <-ctx.Done():
			return nil
		}
	}
}
