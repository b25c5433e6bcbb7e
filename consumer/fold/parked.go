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
	// parkedFirst and parkedMost are the least and the longest wait before a parked run is folded again.
	parkedFirst = 30 * time.Second
	parkedMost  = time.Hour
	// parkedShare bounds the time that goes into such tries: one that took a second is followed by a rest of so many.
	parkedShare = 50
	// parkedReason bounds the stored words why a run is parked, in bytes.
	parkedReason = 256
)

// ownFault reports whether an error is caused by one run's stored state: its checkpoint exceeds a message, or this version cannot read or
// write it. All other errors, unknown ones included, stop the shard.
func ownFault(err error) bool {
	if errors.Is(err, errSuperseded) || errors.Is(err, errRegressed) || errors.Is(err, context.Canceled) {
		return false
	}
	return errors.Is(err, kvstore.ErrTooLarge) || errors.Is(err, kvstore.ErrCorrupt) || errors.Is(err, schema.ErrFormat)
}

// parking has the runs of a shard that the fold leaves where they stand.
//
//	folding ──fails by its own state──▶ parked ──due, an erasure's mark──▶ trying ──stored──▶ folding
//	                                      ▲                                  │
//	                                      └──────fails again, longer wait────┘
//
// The watermark names them and goes on without them. Nothing of them is lost: the purger purges only what a stored checkpoint counts, a
// recovery reads the log behind it, and the next try folds everything up to where the fold is by then. The goroutine that folds
// changes it; others look.
type parking struct {
	mu   sync.RWMutex
	runs map[string]*parkedRun
	// changed: the watermark does not name them as they are.
	changed bool
	// retries are the runs that an operator wants folded at once.
	retries chan retryOrder
}

// retryOrder asks for the try of a parked run. done is sent how it is parked afterwards, nil when it is not, and never blocks.
type retryOrder struct {
	run  string
	done chan<- *schema.ParkedRun
}

// parkedRun is a run and when it is tried again.
type parkedRun struct {
	schema.ParkedRun
	next   time.Time
	trying bool
	began  time.Time
}

// begin takes over the runs of watermarks. Of a run in several lists the last one counts.
func (p *parking) begin(now time.Time, lists ...[]schema.ParkedRun) {
	p.runs, p.retries = make(map[string]*parkedRun), make(chan retryOrder)
	for _, list := range lists {
		for _, r := range list {
			p.runs[r.Run] = &parkedRun{ParkedRun: r, next: now.Add(parkedWait(r.Tries))}
		}
	}
}

// parkedWait is how long a run waits that was tried so often.
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

// add parks a run, or says that a try has failed. It reports whether the run is new, and false for one too many.
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

// as is how a run is parked; nil when it is not.
func (p *parking) as(run string) *schema.ParkedRun {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r, ok := p.runs[run]
	if !ok {
		return nil
	}
	return new(r.ParkedRun)
}

// try takes a run out of its rest.
func (p *parking) try(run string, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r, ok := p.runs[run]; ok {
		r.trying, r.began = true, now
	}
}

// folded ends the parking of a run that was tried and did not fail, and reports whether there is such a run.
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

// due is the run whose rest ended first, "" when all rest.
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

// list is what the watermark names, by run.
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
		// So many are nobody's own fault any more, and a watermark must fit a message.
		return false, fmt.Errorf("%d runs of the shard are parked already: %s", schema.MaxParked, err) //nolint:errorlint // it must not be taken for this run's fault
	}
	s.cache.drop(id)
	event := s.log.Debug()
	if fresh {
		s.stats.Parked.Add(1)
		event = s.log.Error()
	}
	event.Err(err).Str(logkey.Run, id).Str("hint", "its events are kept, and recovered as ever; look at: waymark doctor").
		Msg("run parked: its checkpoint cannot be stored")
	return true, nil
}

// spareOf runs do for many runs at once, or, when it fails for the sake of one, for each. It returns those that are not parked.
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

// keepParked puts the watermark when what it says of parked runs has changed between two batches.
func (s *term) keepParked(ctx context.Context) error {
	if !s.parked.changed {
		return nil
	}
	return s.putMark(ctx, s.mark.Position)
}

// retryParked folds one parked run whose rest is over.
func (s *term) retryParked(ctx context.Context) error {
	id := s.parked.due(s.now())
	if id == "" {
		return nil
	}
	return s.retryRun(ctx, id)
}

// retryRun folds a parked run: up to where the shard is folded, from its segments and the log.
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

// retryOrdered folds a run that is still parked. The order is answered once the watermark says what came of it.
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

// unpark says that a run which was tried is folded as others are.
func (s *term) unpark(id string) {
	if s.parked.folded(id) {
		s.log.Info().Str(logkey.Run, id).Msg("parked run is folded again")
	}
}
