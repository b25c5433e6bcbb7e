package webhook

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/schema"
)

const (
	// endType is the type of posts about ends.
	endType = "run.finished"
	// mostRefusals is how often the receiver may refuse an end while it accepts another.
	mostRefusals = 10
)

// Page are ends of a shard's runs, in the order of the log. Accepted records that the receiver has accepted them.
type Page struct {
	Ends     []schema.RunSummary
	Accepted func(ctx context.Context) error
}

// end is an end of a page that is not recorded yet.
type end struct {
	*schema.RunSummary
	retry
	// taken or abandoned: it is not posted any more.
	taken, abandoned bool
	// refused is the error of its post in this round, and refusals are those while the receiver accepted another end.
	refused  error
	refusals int
	failing  *Failing
}

// ends posts the ends of a shard's runs. It loses no end by a restart: a page that was not recorded is posted again, with
// the same ids.
type ends struct {
	*Watch
	shard int
	// page are the ends of the current page, by id.
	page map[string]*end
}

// follow posts the ends, while the daemon folds the shard. It reads the page before each round, so later ends join
// refused ones.
func (s *ends) follow(ctx context.Context) {
	for pause.For(ctx, every) == nil {
		page, err := s.deps.Ends(ctx, s.shard)
		if err == nil && s.round(ctx, page.Ends) && len(page.Ends) > 0 {
			err = page.Accepted(ctx)
		}
		if err != nil && ctx.Err() == nil {
			s.deps.Log.Warn().Err(err).Int("shard", s.shard).Msg("ends of runs not posted, trying again")
		}
	}
}

// round posts the due ends of a page once, those of one run in order. It is true if none is left.
func (s *ends) round(ctx context.Context, list []schema.RunSummary) bool {
	before := s.page
	s.page = make(map[string]*end, len(list))
	order, of := make([]*end, len(list)), make(map[string][]*end)
	for i := range list {
		id := schema.FinishedID(&list[i])
		if s.page[id] = before[id]; s.page[id] == nil {
			s.page[id] = new(end)
		}
		e := s.page[id]
		e.RunSummary, e.refused = &list[i], nil
		order[i], of[e.Run] = e, append(of[e.Run], e)
	}
	var group errgroup.Group
	group.SetLimit(postsAtOnce)
	for _, run := range of {
		group.Go(func() error {
			for _, e := range run {
				if !e.taken && !e.abandoned && !s.try(ctx, e) {
					break
				}
			}
			return nil
		})
	}
	_ = group.Wait() // it has no errors
	return ctx.Err() == nil && s.judge(ctx, order)
}

// try posts an end, if it is due. It is true if the receiver accepts it.
func (s *ends) try(ctx context.Context, e *end) bool {
	if e.next.After(s.deps.Now()) {
		return false
	}
	if e.refused = s.postEnd(ctx, e.RunSummary); e.refused != nil {
		return false
	}
	e.taken = true
	s.accepted.Store(e.RunSummary)
	s.stats.Taken.Add(1)
	s.deps.Log.Info().Str("run", e.Run).Str("id", schema.FinishedID(e.RunSummary)).Msg("webhook accepted")
	return true
}

// judge sets the next tries of the ends that were refused in a round. Their refusals only count if the receiver accepts an
// accepted end once more: it is not away. It is true if no end is left.
func (s *ends) judge(ctx context.Context, list []*end) bool {
	refused := slices.ContainsFunc(list, func(e *end) bool { return e.refused != nil })
	accepted := s.accepted.Load()
	there := refused && accepted != nil && s.postEnd(ctx, accepted) == nil
	over, now := true, s.deps.Now()
	var oldest *Failing
	for _, e := range list {
		if e.refused != nil {
			s.refuse(e, now, there)
		}
		if !e.taken && !e.abandoned {
			over, oldest = false, Older(oldest, e.failing)
		}
	}
	s.stats.EndsFailing[s.shard].Store(oldest)
	return over
}

// refuse records a refusal, by a receiver that is there or not.
func (s *ends) refuse(e *end, now time.Time, there bool) {
	log := s.deps.Log.With().Str("run", e.Run).Str("id", schema.FinishedID(e.RunSummary)).Logger()
	s.stats.Failed.Add(1)
	e.failing = failed(e.failing, now, e.refused)
	if there {
		if e.refusals++; e.refusals == 1 {
			e.retry = retry{}
		}
	}
	if e.abandoned = e.refusals == mostRefusals; e.abandoned {
		s.stats.GivenUp.Add(1)
		log.Error().Err(e.refused).Msg("webhook given up")
		return
	}
	log.Warn().Err(e.refused).Dur("again_in", e.failed(now)).Msg("webhook not accepted")
}

// postEnd posts an end.
func (w *Watch) postEnd(ctx context.Context, e *schema.RunSummary) error {
	id := schema.FinishedID(e)
	body, err := w.event(id, endType, e.Run, e.UpdatedAt, struct {
		Fleet string `json:"fleet"`
		*schema.RunSummary
	}{w.cfg.Fleet, e})
	if err != nil {
		return err
	}
	return w.post(ctx, id, body)
}
