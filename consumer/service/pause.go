package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// stopAgain is the pause before a failed stop is tried again, and stopsAtOnce bounds the concurrent stops of a shard.
	stopAgain   = 5 * time.Second
	stopsAtOnce = 128
	// pauseWithin is how long a request waits until all runs are stopped, and liveChunk bounds one read of the live index.
	pauseWithin = 8 * time.Second
	liveChunk   = 512
)

// pause stores a pause in the fleet's settings, or removes one. The answer to a pause comes once all runs that began
// before are stopped, or after pauseWithin.
func (s *Service) pause(ctx context.Context, t *task, req *schema.PauseRequest) (*schema.PauseReply, error) {
	who, err := t.sender(req.By)
	if err != nil {
		return nil, err
	}
	if !req.End && req.Reason == "" {
		return nil, badField("/reason", errors.New("is required: people ask why their runs stand still"))
	}
	if !req.End && req.Until != "" && !schema.ParseTime(req.Until).After(s.now()) {
		return nil, badField("/until", fmt.Errorf("is %s: use a time to come", req.Until))
	}
	there := func() (err error) { // a mistyped id would pause nothing
		if t.run = req.Run; t.run != "" {
			_, err = s.routing.proven(ctx, t.run, reader.Head)
		}
		return err
	}
	reply, fleets := new(schema.PauseReply), kvstore.NewFleets(s.js)
	s.liveRuns.Each(func(_ int, l *schema.Live, _ time.Time) {
		if !l.Status.Terminal() && req.Selects(l) {
			reply.Runs++
		}
	})
	switch {
	case req.End:
		var ended bool
		if reply.Pause, ended, err = fleets.Unpause(ctx, s.cfg.Fleet, req.Scope); err == nil && !ended {
			if p := &reply.Pause; p.Limit != "" {
				return nil, schema.Fail(schema.CodeConflict, "Raise the budget: waymark "+p.EndsWith(),
					"the pause of %s is of a budget, and no person's: %s; it ends at %s", p.Flags(), p.Reason, p.Until)
			}
			reply.Already, err = true, there()
		}
	default:
		if err := s.readable(&req.Scope, ""); err != nil {
			return nil, err
		}
		if err := there(); err != nil {
			return nil, err
		}
		is := schema.Pause{Scope: req.Scope, Reason: req.Reason, By: who.by, Claimed: who.claimed, Since: schema.FormatTime(s.now().Truncate(time.Second)), Until: req.Until}
		if reply.Pause, reply.Already, err = fleets.Pause(ctx, s.cfg.Fleet, is, func(p *schema.Pause) bool { return s.pauseOver(ctx, p) }); errors.Is(err, kvstore.ErrSettings) {
			return nil, schema.Fail(schema.CodeConflict, "See the pauses: waymark pause ls", "%s", err)
		}
	}
	if err != nil {
		return nil, err
	}
	s.log.Info().Str("scope", req.Flags()).Bool("ended", req.End).Str("by", who.by).Str(logkey.Reason, req.Reason).Msg("pauses changed")
	if err := s.settingsChanged(ctx); err != nil || req.End {
		return reply, err
	}
	reply.Runs = 0
	ctx, cancel := context.WithTimeout(ctx, pauseWithin)
	defer cancel()
	var mu sync.Mutex
	var group errgroup.Group
	for _, src := range s.routing.shards {
		group.Go(func() error {
			runs, going, err := s.stopShard(ctx, src, &reply.Pause)
			mu.Lock()
			defer mu.Unlock()
			reply.Runs, reply.Going = reply.Runs+runs, reply.Going+going
			if err != nil {
				reply.Unproven++
				s.log.Warn().Err(err).Int(logkey.Shard, src.Store.Names.Shard).Msg("pause not proven in shard")
			}
			return nil
		})
	}
	_ = group.Wait() // each shard has its own error
	return reply, nil
}

// readable refuses a scope that selects by a label that is encrypted in runs. each is another label, or empty.
func (s *Service) readable(scope *schema.Scope, each string) error {
	encrypted := 0
	s.liveRuns.Each(func(_ int, l *schema.Live, _ time.Time) {
		unreadable := l.Labels[each] == schema.EncryptedText
		for key := range scope.Labels {
			unreadable = unreadable || l.Labels[key] == schema.EncryptedText
		}
		if unreadable {
			encrypted++
		}
	})
	if encrypted == 0 {
		return nil
	}
	return badField("/labels", fmt.Errorf("select by a label that is encrypted in %d runs: select runs otherwise, or name it in Encryption.ReadableLabels for new ones", encrypted))
}

// settingsChanged announces that the fleet's settings were changed, and applies them here.
func (s *Service) settingsChanged(ctx context.Context) error {
	if err := s.nc.Publish(schema.SettingsSubject(s.cfg.Fleet), nil); err != nil {
		return fmt.Errorf("announce the settings of fleet %s: %w", s.cfg.Fleet, err)
	}
	return s.cfg.Refresh(ctx)
}

// pauseOver reports whether a pause selects one run, and that has ended.
func (s *Service) pauseOver(ctx context.Context, p *schema.Pause) bool {
	if p.Run == "" {
		return false
	}
	r, removed, err := s.routing.standing(ctx, p.Run)
	return errors.Is(err, reader.ErrNoRun) || removed != nil || err == nil && r.Head.Status.Terminal()
}

// stopShard writes a pause into the logs of all runs of a shard that it selects and an executor may go on with. It counts
// the runs that it selects, and those that it could not stop. Without an error those are all: every executor was given
// its run before the log's end at the begin of the call, or learns of the pause with the run (see stillPaused), and the live
// index has all events up to there.
func (s *Service) stopShard(ctx context.Context, src *reader.Source, p *schema.Pause) (selected, going int, err error) {
	mark, err := s.routing.awaitEnd(ctx, src)
	if err != nil {
		return 0, 0, err
	}
	runs, err := readUpTo(ctx, mark, src.Store.Checkpoints.LiveRuns)
	if err != nil {
		return 0, 0, err
	}
	var failed atomic.Int64
	var group errgroup.Group
	group.SetLimit(stopsAtOnce)
	defer func() {
		_ = group.Wait() // failed counts
		going = int(failed.Load())
	}()
	for chunk := range slices.Chunk(runs, liveChunk) {
		entries, err := readUpTo(ctx, mark, func(ctx context.Context) ([]kvstore.LiveEntry, schema.Revision, error) {
			return src.Store.Checkpoints.Live(ctx, chunk...)
		})
		if err != nil {
			return selected, going, err
		}
		for i := range entries {
			switch e := &entries[i]; {
			case e.Live == nil:
				return selected, going, e.Err
			case e.Live.Status.Terminal() || !p.Selects(e.Live):
				continue
			case e.Live.Driven:
				group.Go(func() error {
					if !s.stopRun(ctx, s.refusals, e.Run) {
						failed.Add(1)
					}
					return nil
				})
			}
			selected++
		}
	}
	return selected, going, nil
}

// readUpTo reads until the answer is at least as new as a revision. A replica that lags behind, and a leader that was just
// replaced, answer with less, or with nothing.
func readUpTo[T any](ctx context.Context, mark schema.Revision, read func(context.Context) (T, schema.Revision, error)) (T, error) {
	for {
		got, upTo, err := read(ctx)
		if err == nil && upTo < mark {
			if err = pause.For(ctx, foldLook); err == nil {
				continue
			}
		}
		return got, err
	}
}

// stopRuns writes the pauses into the logs of the runs of a shard that an executor may go on with, while this process folds
// the shard, until ctx ends. An executor's next compare-and-set then fails, and it learns of the pause before it begins
// anything.
func (s *Service) stopRuns(ctx context.Context, shard int) {
	log := s.log.Sample(&zerolog.BurstSampler{Burst: 1, Period: stopAgain})
	(&repeater[string]{
		list: func() []string {
			if !s.leads(shard) {
				return nil
			}
			return s.liveRuns.Unstopped(shard)
		},
		do:  func(within context.Context, run string) { s.stopRun(within, log, run) },
		now: time.Now, first: stopAgain, most: stopAgain, atOnce: stopsAtOnce,
	}).run(ctx)
}

// stopRun writes a pause into the log of a run, if stop finds one, and reports whether it could.
func (s *Service) stopRun(ctx context.Context, log zerolog.Logger, run string) bool {
	_, err := s.writer.write(ctx, run, change{decide: s.stop})
	if err != nil && !errors.Is(ctx.Err(), context.Canceled) {
		log.Warn().Err(err).Str(logkey.Run, run).Msg("pause not written into the run, trying again")
	}
	return err == nil
}

// leads reports whether this process folds a shard.
func (s *Service) leads(shard int) bool {
	if s.cfg.Worker == nil {
		return false
	}
	w := s.cfg.Worker(shard)
	return w != nil && w.Leads()
}

// stop decides, by the log, whether a run needs a pause in it: one of the present ones, because an operator may have ended
// another in the meantime.
func (s *Service) stop(_ context.Context, r *reader.Snapshot) (d decision, err error) {
	if of := r.Head.PausedBy(s.liveRuns.Pauses()); len(of) > 0 && schema.LiveOf(&r.Head).Driven {
		d.data = &schema.RunPausedData{By: of[0].By, Claimed: of[0].Claimed, Reason: of[0].Reason}
	}
	return d, nil
}

// pausesOf are those that select a run, none if it has ended.
func (s *Service) pausesOf(h *schema.Head) []schema.Pause {
	if h.Status.Terminal() {
		return nil
	}
	return h.PausedBy(s.liveRuns.Pauses())
}

// stillPaused refuses a run to the executor that has just taken it over, if a pause selects it by the fleet's settings as
// they are now. So a takeover that was judged before a pause is stored before the pause, and stopShard sees it, or its
// executor is not given the run. A run that has the pause in its log can be given: its executor gives it back.
// A run that had ended is open again: its takeover is stored.
func (s *Service) stillPaused(ctx context.Context, h *schema.Head, reason string) error {
	settings, _, err := kvstore.NewFleets(s.js).Get(ctx, s.cfg.Fleet)
	if err != nil || h.Paused {
		return err
	}
	if pauses := h.PausedBy(settings.Pauses); len(pauses) > 0 {
		err := errPaused(h.Run, &pauses[0])
		if reason == schema.TakeoverReopen || reason == schema.TakeoverRewind {
			err.Message += "; the run is open again, and goes on at the unpause"
		}
		return err
	}
	return nil
}

// errPaused refuses to give a run to an executor while a pause selects it.
func errPaused(run string, p *schema.Pause) *schema.ServiceError {
	return schema.Fail(schema.CodePaused, "To let its runs go on: waymark "+p.EndsWith(),
		"run %s is paused %s by %s: %s", run, p.When(), nameOf(p.By, p.Claimed), p.Reason)
}
