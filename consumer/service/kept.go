package service

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// While clients look at a run, its states at some records are cached: the state at another record is folded from the nearest earlier one.
const (
	// smallPage is the largest answer whose states are cached. A cached state holds only the newest pageContent bytes of content.
	smallPage, pageContent = 128 << 10, 256 << 10
	// statesOfRun is how many states of a run are cached. When there are more, every other one is dropped.
	statesOfRun = 64
	// keptIdle is how long unused states and profiles are cached. They are checked every keptSweep.
	keptIdle, keptSweep = 10 * time.Minute, 15 * time.Second
)

// keptStates caches states of runs, room bytes at most. The least recently used run is dropped first.
type keptStates struct {
	room int64

	mu    sync.Mutex
	lines []*keptLine
	bytes int64
}

// keptLine are states of a run, in the order of its records. They have no records that rewinds left behind.
type keptLine struct {
	run        string
	superseded []schema.Superseded
	used       time.Time
	// every is the least number of segments between two states.
	every  int
	states []keptState
	bytes  int64
}

type keptState struct {
	sink *reader.StateSink
	size int64
}

// before returns a copy of the latest state at or before a record; nil for none.
func (k *keptStates) before(keys *schema.Keys, run string, superseded []schema.Superseded, record int64, now time.Time) *reader.StateSink {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.line(run, superseded)
	if l == nil {
		return nil
	}
	l.used = now
	for _, s := range slices.Backward(l.states) {
		if s.sink.State.Head.Records <= record {
			return s.sink.Clone(keys)
		}
	}
	return nil
}

func (k *keptStates) line(run string, superseded []schema.Superseded) *keptLine {
	i := slices.IndexFunc(k.lines, func(l *keptLine) bool { return l.run == run && slices.Equal(l.superseded, superseded) })
	if i < 0 {
		return nil
	}
	return k.lines[i]
}

// keep caches a copy of a state at the end of a segment, unless a cached one is close to it.
func (k *keptStates) keep(keys *schema.Keys, run string, superseded []schema.Superseded, sink *reader.StateSink, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.line(run, superseded)
	if l == nil {
		l = &keptLine{run: run, superseded: slices.Clone(superseded), every: 1}
		k.lines = append(k.lines, l)
	}
	l.used = now
	n := sink.Segments()
	if n%l.every != 0 {
		return
	}
	i, there := slices.BinarySearchFunc(l.states, n, func(s keptState, n int) int { return s.sink.Segments() - n })
	if there {
		return
	}
	size := sink.Size()
	l.states = slices.Insert(l.states, i, keptState{sink.Clone(keys), size})
	l.bytes += size
	k.bytes += size
	for len(l.states) > statesOfRun || l.bytes > k.room/2 && len(l.states) > 1 {
		l.every *= 2
		was := l.bytes
		l.states = slices.DeleteFunc(l.states, func(s keptState) bool {
			goes := s.sink.Segments()%l.every != 0
			if goes {
				l.bytes -= s.size
			}
			return goes
		})
		k.bytes -= was - l.bytes
	}
	for k.bytes > k.room && len(k.lines) > 0 {
		k.drop(slices.MinFunc(k.lines, func(a, b *keptLine) int { return a.used.Compare(b.used) }))
	}
}

func (k *keptStates) drop(l *keptLine) {
	k.lines = slices.DeleteFunc(k.lines, func(o *keptLine) bool { return o == l })
	k.bytes -= l.bytes
}

// forget drops all states of a run.
func (k *keptStates) forget(run string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range slices.Clone(k.lines) {
		if l.run == run {
			k.drop(l)
		}
	}
}

// runs drops the states that were not used since a time, and returns the runs of the others.
func (k *keptStates) runs(since time.Time) (list []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range slices.Clone(k.lines) {
		if l.used.Before(since) {
			k.drop(l)
		} else if !slices.Contains(list, l.run) {
			list = append(list, l.run)
		}
	}
	return list
}

// Bytes is the memory in use, roughly.
func (k *keptStates) Bytes() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.bytes
}

// forgetRun drops the cached states and profile of a run.
func (s *Service) forgetRun(run string) {
	s.states.forget(run)
	s.profiles.forget(run)
}

// sweepKept drops the cached states and profiles of removed runs, also of those that another replica removes, and the unused ones.
func (s *Service) sweepKept(ctx context.Context) {
	since := s.now().Add(-keptIdle)
	runs := append(s.states.runs(since), s.profiles.runs(since)...)
	slices.Sort(runs)
	for _, run := range slices.Compact(runs) {
		switch _, _, err := s.routing.erasure(ctx, run); {
		case err == nil:
			s.forgetRun(run)
		case !errors.Is(err, kvstore.ErrNotFound) && ctx.Err() == nil:
			s.log.Warn().Err(err).Str(logkey.Run, run).Msg("whether a run was removed is not known, its states are not kept")
			s.forgetRun(run)
		}
	}
}

// tendKept calls sweepKept regularly until ctx ends.
func (s *Service) tendKept(ctx context.Context) error {
	for pause.For(ctx, keptSweep) == nil {
		s.sweepKept(ctx)
	}
	return nil
}

// small reports whether states are cached for the view. It depends on the request and the run alone, so that equal requests for pages of a run
// have the same content left out.
func (v *view) small(to *schema.Head) bool {
	return v.view == schema.ViewState && v.maxBytes > 0 && v.maxBytes <= smallPage && to.Base == nil
}

// foldKept folds the state of a run up to one of its heads, from the latest cached state. It reports false if the digest does not match: the
// caller then folds from the first record.
func (v *view) foldKept(ctx context.Context, r *reader.Snapshot, to *schema.Head) (bool, error) {
	s := v.svc
	keys, err := s.keys.Keys(ctx)
	if err != nil {
		return false, err
	}
	kept := s.states.before(keys, r.Run, to.Superseded, to.Records, s.now())
	if v.state != nil {
		v.state.Release()
	}
	if kept != nil {
		v.state = kept
	} else if err := v.fold(ctx, r.Run, to); err != nil {
		return false, err
	}
	err = s.reader.FoldTo(ctx, r, v.state, to.Records, func(sink *reader.StateSink) {
		s.states.keep(keys, r.Run, to.Superseded, sink, s.now())
	})
	if err == nil && v.state.State.Head.Digest == to.Digest && !v.state.State.Stale {
		return true, nil
	}
	v.state.Release()
	s.states.forget(r.Run)
	if errors.Is(err, reader.ErrBusy) || errors.Is(err, reader.ErrTooLarge) || ctx.Err() != nil {
		return false, errors.Join(err, ctx.Err())
	}
	return false, nil
}
