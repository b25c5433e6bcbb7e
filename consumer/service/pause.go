package service

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

const (
	// stopEvery is how often the live runs are searched for runs that a pause selects and an executor may go on with, and
	// stopsAtOnce bounds the concurrent writes.
	stopEvery   = 250 * time.Millisecond
	stopsAtOnce = 128
	// applyWithin is how long a request waits until this daemon has read the pauses, pauseWithin until all runs are
	// stopped, and pauseLook is the interval of its looks.
	applyWithin = 3 * time.Second
	pauseWithin = 8 * time.Second
	pauseLook   = 25 * time.Millisecond // it walks all live runs
)

// pause stores a pause in the fleet's settings, or removes one. The answer to a pause comes once it is in the logs of
// all runs, or after pauseWithin.
func (s *Service) pause(ctx context.Context, t *task, req *schema.PauseRequest) (*schema.PauseReply, error) {
	who, err := t.sender(req.By)
	if err != nil {
		return nil, err
	}
	if !req.End && req.Reason == "" {
		return nil, badField("/reason", errors.New("is required: people ask why their runs stand still"))
	}
	reply, fleets := new(schema.PauseReply), kvstore.NewFleets(s.js)
	there := func() (err error) { // a mistyped id would pause nothing
		if req.Run != "" {
			_, err = s.routing.proven(ctx, req.Run, reader.Head)
		}
		return err
	}
	if req.End {
		if reply.Pause, err = fleets.Unpause(ctx, s.cfg.Fleet, req.Scope); errors.Is(err, kvstore.ErrNotFound) {
			if err := there(); err != nil {
				return nil, err
			}
			return nil, schema.Fail(schema.CodeConflict, "See the pauses, and end one by its own scope: waymark pause ls",
				"fleet %s has no pause of %s", s.cfg.Fleet, req.Flags())
		}
	} else {
		if err := there(); err != nil {
			return nil, err
		}
		is := schema.Pause{Scope: req.Scope, Reason: req.Reason, By: who.by, Claimed: who.claimed, Since: schema.FormatTime(s.now())}
		if reply.Pause, reply.Already, err = fleets.Pause(ctx, s.cfg.Fleet, is); errors.Is(err, kvstore.ErrSettings) {
			return nil, schema.Fail(schema.CodeConflict, "See the pauses: waymark pause ls", "%s", err)
		}
	}
	if err != nil {
		return nil, err
	}
	if err := s.nc.Publish(schema.SettingsSubject(s.cfg.Fleet), nil); err != nil {
		return nil, fmt.Errorf("announce the pauses of fleet %s: %w", s.cfg.Fleet, err)
	}
	s.log.Info().Str("scope", req.Flags()).Bool("ended", req.End).Str("by", who.by).Str(logkey.Reason, req.Reason).Msg("pauses changed")
	for began := s.now(); ; {
		holds := slices.ContainsFunc(s.liveRuns.Pauses(), func(p schema.Pause) bool { return p.Same(&req.Scope) })
		reply.Runs, reply.Going = s.liveRuns.Selected(&req.Scope)
		if req.End {
			reply.Going = 0
		}
		waited := s.now().Sub(began)
		switch {
		case holds != req.End && (reply.Going == 0 || waited > pauseWithin):
			return reply, nil
		case holds == req.End && waited > applyWithin:
			return nil, fmt.Errorf("pauses of fleet %s: %w: this daemon could not read them, and may be stopping", s.cfg.Fleet, kvstore.ErrUnavailable)
		}
		if err := pause.For(ctx, pauseLook); err != nil {
			return nil, fmt.Errorf("pauses of fleet %s: %w", s.cfg.Fleet, err)
		}
	}
}

// stopRuns writes the pauses into the logs of the runs that an executor may go on with, in the shards that this process
// folds, until ctx ends. An executor's next compare-and-set then fails, and it learns of the pause before it begins
// anything.
func (s *Service) stopRuns(ctx context.Context) {
	tick := time.NewTicker(stopEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-s.liveRuns.Repaused():
		}
		var group errgroup.Group
		group.SetLimit(stopsAtOnce)
		for _, run := range s.liveRuns.Unstopped(s.leads) {
			group.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, claimPatience)
				defer cancel()
				if _, err := s.writer.write(ctx, run, change{decide: s.stop, again: true}); err != nil && ctx.Err() == nil {
					s.log.Warn().Err(err).Str(logkey.Run, run).Msg("pause not written into the run, trying again")
				}
				return nil
			})
		}
		_ = group.Wait() // each run has its own error
	}
}

// leads reports whether this process folds a shard.
func (s *Service) leads(shard int) bool {
	if s.cfg.Worker == nil {
		return false
	}
	w := s.cfg.Worker(shard)
	return w != nil && w.Leads()
}

// stop decides, by the log, whether a run needs a pause in it.
func (s *Service) stop(_ context.Context, r *reader.Snapshot) (d decision, err error) {
	live := schema.LiveOf(&r.Head)
	if pauses := s.pausesOf(&r.Head); len(pauses) > 0 && live.Driven {
		d.data = &schema.RunPausedData{By: pauses[0].By, Claimed: pauses[0].Claimed, Reason: pauses[0].Reason}
	}
	return d, nil
}

// pausesOf are those that select a run; none if it has ended.
func (s *Service) pausesOf(h *schema.Head) []schema.Pause {
	if h.Status.Terminal() {
		return nil
	}
	return schema.PausesOf(s.liveRuns.Pauses(), h.Run, h.Agent, h.ModelTier, h.Labels)
}

// errPaused refuses to give a run to an executor while a pause selects it.
func errPaused(run string, p *schema.Pause) *schema.ServiceError {
	return schema.Fail(schema.CodePaused, "To let its runs go on: waymark unpause "+p.Flags(),
		"run %s is paused since %s by %s: %s", run, p.Since, nameOf(p.By, p.Claimed), p.Reason)
}
