package fold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/internal/eventlog"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// parkedFirst and parkedMost are the shortest and the longest wait before a parked run is folded again.
	parkedFirst = 30 * time.Second
	parkedMost  = time.Hour
	// parkedShare bounds the time for such tries: after one that took a second, the worker rests for so many.
	parkedShare = 50
	// parkedReason bounds the stored reason of a parked run, in bytes.
	parkedReason = 256
)

// ownFault reports whether an error comes from one run's stored state: its checkpoint exceeds a message, or this
// version cannot read or write it. All other errors, including unknown ones, stop the shard.
func ownFault(err error) bool {
	if errors.Is(err, errSuperseded) || errors.Is(err, errRegressed) || errors.Is(err, context.Canceled) {
		return false
	}
	return errors.Is(err, kvstore.ErrTooLarge) || errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, schema.ErrFormat)
}

// parking has the parked runs of a shard, which the fold worker does not fold further.
//
//	folding ──fails by its own state──▶ parked ──due, or a tombstone──▶ trying ──stored──▶ folding
//	                                      ▲                               │
//	                                      └─────fails again, longer wait───┘
//
// The watermark names them and moves on without them. No event is lost: the purger only purges what a stored checkpoint
// counts, a recovery reads the log after it, and the next try folds everything up to the current position. Only the
// folding goroutine changes it; others read.
type parking struct {
	mu   sync.RWMutex
	runs map[string]*parkedRun
	// changed: the stored watermark names other parked runs.
	changed bool
	// retries are the runs that an operator wants folded at once.
	retries chan retryOrder
}

// retryOrder asks for a try of a parked run. done gets its parking afterwards, nil if it is not parked, and never
// blocks.
type retryOrder struct {
	run  string
	done chan<- *schema.ParkedRun
}

// parkedRun is a run and the time of its next try.
type parkedRun struct {
	schema.ParkedRun
	next   time.Time
	trying bool
	began  time.Time
}

// begin takes over the runs of the watermark.
func (p *parking) begin(now time.Time, list []schema.ParkedRun) {
	p.runs, p.retries = make(map[string]*parkedRun), make(chan retryOrder)
	for _, r := range list {
		p.runs[r.Run] = &parkedRun{ParkedRun: r, next: now.Add(parkedWait(r.Tries))}
	}
}

// parkedWait is the wait after a number of tries.
func parkedWait(tries int) time.Duration {
	return min(parkedFirst<<min(max(tries-1, 0), 10), parkedMost)
}

// has reports whether a run is parked and not being tried.
func (p *parking) has(run string) bool {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok := p.runs[run]
	return ok && !r.trying
}

// add parks a run, or records that a try has failed. It reports whether the run is new, and false if there are too
// many.
func (p *parking) add(run, why string, now time.Time) (fresh, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.runs[run]
	if !known {
		if len(p.runs) >= schema.MaxParked {
			return true, false
		}
		r = &parkedRun{ParkedRun: schema.ParkedRun{Run: run, Since: schema.FormatTime(now)}}
		p.runs[run] = r
	}
	if len(why) > parkedReason {
		why = why[:parkedReason]
	}
	r.Why = strings.ToValidUTF8(why, "")
	r.Tries++
	wait := parkedWait(r.Tries)
	if r.trying {
		wait = max(wait, parkedShare*now.Sub(r.began))
	}
	r.next, r.trying = now.Add(wait), false
	p.changed = true
	return !known, true
}

// as returns the parking of a run; nil if it is not parked.
func (p *parking) as(run string) *schema.ParkedRun {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok := p.runs[run]
	if !ok {
		return nil
	}
	return new(r.ParkedRun)
}

// try makes a run due.
func (p *parking) try(run string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.runs[run]; ok {
		r.trying, r.began = true, now
	}
}

// folded ends the parking of a run that was tried without an error, and reports whether there is such a run.
func (p *parking) folded(run string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.runs[run]
	if !ok || !r.trying {
		return false
	}
	delete(p.runs, run)
	p.changed = true
	return true
}

// due is the run whose wait ended first, "" if all wait.
func (p *parking) due(now time.Time) string {
	p.mu.RLock()
	defer p.mu.RUnlock()
	first := (*parkedRun)(nil)
	for _, r := range p.runs {
		if !r.trying && !r.next.After(now) && (first == nil || r.next.Before(first.next)) {
			first = r
		}
	}
	if first == nil {
		return ""
	}
	return first.Run
}

// list is the list for the watermark, by run.
func (p *parking) list() []schema.ParkedRun {
	p.mu.RLock()
	defer p.mu.RUnlock()
	var list []schema.ParkedRun
	for _, r := range p.runs {
		list = append(list, r.ParkedRun)
	}
	slices.SortFunc(list, func(a, b schema.ParkedRun) int { return strings.Compare(a.Run, b.Run) })
	return list
}

// spare parks a run that failed because of its own state, and reports that; other errors are returned.
func (s *term) spare(id string, err error) (parked bool, _ error) {
	if err == nil || !ownFault(err) {
		return false, err
	}
	fresh, ok := s.parked.add(id, err.Error(), s.now())
	if !ok {
		// So many are not the runs' own fault any more, and a watermark must fit into a message.
		return false, fmt.Errorf("%d runs of the shard are parked already: %s", schema.MaxParked, err) //nolint:errorlint // it must not be taken for this run's fault
	}
	s.cache.drop(id)
	event := s.log.Debug()
	if fresh {
		s.stats.Parked.Add(1)
		event = s.log.Error()
	}
	event.Err(err).Str(logkey.Run, id).Str("hint", "its events are kept and can be recovered; run: waymark doctor").
		Msg("run parked: its checkpoint cannot be stored")
	return true, nil
}

// spareOf runs do for many runs at once or, if it fails because of one, for each. It returns those that are not
// parked.
func (s *term) spareOf(ctx context.Context, runs []*run, do func(context.Context, []*run) error) ([]*run, error) {
	err := do(ctx, runs)
	if err == nil || !ownFault(err) {
		return runs, err
	}
	var left []*run
	for _, r := range runs {
		parked, err := s.spare(r.id, do(ctx, []*run{r}))
		if err != nil {
			return nil, err
		}
		if !parked {
			left = append(left, r)
		}
	}
	return left, nil
}

// keepParked puts the watermark if its list of parked runs has changed between two batches.
func (s *term) keepParked(ctx context.Context) error {
	if !s.parked.changed {
		return nil
	}
	return s.putMark(ctx, s.mark.Position)
}

// retryParked folds one parked run that is due.
func (s *term) retryParked(ctx context.Context) error {
	id := s.parked.due(s.now())
	if id == "" {
		return nil
	}
	return s.retryRun(ctx, id)
}

// retryRun folds a parked run from its segments and the log, up to the shard's position.
func (s *term) retryRun(ctx context.Context, id string) error {
	s.parked.try(id, s.now())
	at := max(s.passed, s.mark.Position.Stream) + 1
	r, err := s.load(ctx, id, &eventlog.Arrived{Record: schema.Record{Stream: at}})
	if err == nil {
		err = s.store(ctx, map[string]*run{id: r})
	}
	_, err = s.spare(id, err)
	return err
}

// retryOrdered folds a run that is still parked. The order is answered once the watermark has the result.
func (s *term) retryOrdered(ctx context.Context, order retryOrder) error {
	if s.parked.has(order.run) {
		if err := s.retryRun(ctx, order.run); err != nil {
			return err
		}
		if err := s.keepParked(ctx); err != nil {
			return err
		}
	}
	order.done <- s.parked.as(order.run)
	return nil
}

// unpark records that a tried run is folded normally again.
func (s *term) unpark(id string) {
	if s.parked.folded(id) {
		s.log.Info().Str(logkey.Run, id).Msg("parked run is folded again")
	}
}
