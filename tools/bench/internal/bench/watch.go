package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/schema"
)

// watchWait bounds the wait for a checkpoint; a republished one can be lost, and then never comes.
const watchWait = 30 * time.Second

// FoldWatch sees each checkpoint as it is put, by the server's republished copy, and says how long after its
// acknowledgement an event was in one. Its methods may be called from any goroutine.
type FoldWatch struct {
	mu      sync.Mutex
	runs    map[string]*watchedRun
	lags    []time.Duration
	changed chan struct{} // closed and replaced with each checkpoint that a caller may wait for
	bad     error
}

// watchedRun is what is known of a run: up to where it is checkpointed, and what was acknowledged beyond.
type watchedRun struct {
	done    schema.Sequence
	waiting []ackedAt
}

type ackedAt struct {
	sequence schema.Sequence
	at       time.Time
}

// checkpointHead is what the watch reads of a checkpoint.
type checkpointHead struct {
	Run      string          `json:"run"`
	Sequence schema.Sequence `json:"sequence"`
}

// WatchFold begins to watch all shards.
func (w *World) WatchFold() (*FoldWatch, error) {
	nc, err := w.Connect("watch")
	if err != nil {
		return nil, err
	}
	f := &FoldWatch{runs: make(map[string]*watchedRun), changed: make(chan struct{})}
	for _, shard := range w.shards {
		sub, err := nc.Subscribe(shard.Names.CheckpointSubject("*"), func(m *nats.Msg) { f.saw(m.Data, time.Now()) })
		if err != nil {
			return nil, fmt.Errorf("watching checkpoints: %w", err)
		}
		if err := sub.SetPendingLimits(-1, -1); err != nil {
			return nil, err
		}
	}
	return f, nc.Flush()
}

// saw takes in a checkpoint.
func (f *FoldWatch) saw(data []byte, now time.Time) {
	var h checkpointHead
	err := json.Unmarshal(data, &h)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.bad = fmt.Errorf("a checkpoint does not parse: %w", err)
		return
	}
	r := f.run(h.Run)
	r.done = max(r.done, h.Sequence)
	n := 0
	for n < len(r.waiting) && r.waiting[n].sequence <= r.done {
		f.lags = append(f.lags, now.Sub(r.waiting[n].at))
		n++
	}
	r.waiting = r.waiting[n:]
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *FoldWatch) run(id string) *watchedRun {
	r := f.runs[id]
	if r == nil {
		r = new(watchedRun)
		f.runs[id] = r
	}
	return r
}

// Acked notes that the run's event with this sequence was acknowledged now. Events of a run come in order.
func (f *FoldWatch) Acked(run string, sequence schema.Sequence, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.run(run)
	if sequence <= r.done { // the checkpoint was seen before the acknowledgement
		f.lags = append(f.lags, 0)
		return
	}
	r.waiting = append(r.waiting, ackedAt{sequence, now})
}

// Await waits until the run is checkpointed up to a sequence.
func (f *FoldWatch) Await(ctx context.Context, run string, sequence schema.Sequence) error {
	return f.await(ctx, "the checkpoint of run "+run, func() bool { return f.run(run).done >= sequence })
}

// AwaitAll waits until everything that was acknowledged is checkpointed, and returns the lags since the last call.
func (f *FoldWatch) AwaitAll(ctx context.Context) ([]time.Duration, error) {
	err := f.await(ctx, "the last checkpoints", func() bool {
		for _, r := range f.runs {
			if len(r.waiting) > 0 {
				return false
			}
		}
		return true
	})
	f.mu.Lock()
	defer f.mu.Unlock()
	lags := f.lags
	f.lags = nil
	return lags, err
}

func (f *FoldWatch) await(ctx context.Context, what string, holds func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, watchWait, fmt.Errorf("waited %s for %s: its republished copy may be lost", watchWait, what))
	defer cancel()
	for {
		f.mu.Lock()
		ok, changed, bad := holds(), f.changed, f.bad
		f.mu.Unlock()
		if ok || bad != nil {
			return bad
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
