package consumer

import (
	"context"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/schema"
)

const (
	// lotMessages and lotBytes end a lot. It is as small as the workers can share evenly, and large enough that handing
	// it on costs little beside the work.
	lotMessages = 32
	lotBytes    = 256 << 10
	// lotsAhead is the number of lots that are prepared while a batch is folded and committed: about one batch, below
	// 8 MiB beside a last message each.
	lotsAhead = 32
	// mostPreparers bounds the goroutines that prepare a shard's lots.
	mostPreparers = 4
)

// arrival is a message of the log, and what could be made of it before its turn to be folded.
type arrival struct {
	eventlog.Arrived
	// run that its subject names.
	run      string
	size     int
	prepared schema.Prepared
}

// lot is a few messages in the order of the log, prepared together.
type lot struct {
	arrivals []arrival
	bytes    int
	// ready is closed when all are prepared.
	ready chan struct{}
}

// intake brings the log's messages in order, lot by lot: one goroutine reads, some prepare, and whoever folds waits for
// each lot in turn. A lot is what has arrived, so that a lone message waits for nothing.
type intake struct {
	reader *eventlog.Follower
	names  schema.Names
	most   int
	// keys returns those that control events are checked by. It waits for them.
	keys func(context.Context) (*schema.Keys, error)
	lots chan *lot
	work chan *lot
}

func newIntake(reader *eventlog.Follower, names schema.Names, batchEvents int, keys func(context.Context) (*schema.Keys, error)) *intake {
	return &intake{
		reader: reader, names: names, keys: keys, most: min(lotMessages, batchEvents),
		lots: make(chan *lot, lotsAhead), work: make(chan *lot, lotsAhead),
	}
}

// run reads and prepares until ctx ends, which is no error, or the reader breaks. It closes lots.
func (in *intake) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), mostPreparers) {
		group.Go(func() error {
			return in.prepare(ctx)
		})
	}
	group.Go(func() error {
		defer close(in.lots)
		err := in.read(ctx)
		if ctx.Err() != nil {
			return nil // it was told to stop
		}
		return err
	})
	return group.Wait()
}

func (in *intake) read(ctx context.Context) error {
	defer close(in.work)
	for {
		a, err := in.reader.Next(ctx)
		if err != nil {
			return err
		}
		l := &lot{ready: make(chan struct{})}
		for there := true; there; {
			l.add(in.names, a)
			if len(l.arrivals) >= in.most || l.bytes >= lotBytes {
				break
			}
			if a, there, err = in.reader.NextIfThere(); err != nil {
				return err // what was read and not handed on is read again
			}
		}
		for _, to := range []chan *lot{in.lots, in.work} {
			select {
			case to <- l:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

func (l *lot) add(names schema.Names, a eventlog.Arrived) {
	size := a.Record.Size()
	l.arrivals = append(l.arrivals, arrival{Arrived: a, run: names.RunOfSubject(a.Subject), size: size})
	l.bytes += size
}

func (in *intake) prepare(ctx context.Context) error {
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
			for i := range l.arrivals {
				if a := &l.arrivals[i]; a.run != schema.BarrierRun {
					a.prepared = schema.Prepare(keys, &a.Record)
				}
			}
			close(l.ready)
		case <-ctx.Done():
			return nil
		}
	}
}
