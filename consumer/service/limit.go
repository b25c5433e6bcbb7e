package service

import (
	"context"
	"errors"
	"time"

	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// limit sets a limit in the fleet's settings, or ends one.
func (s *Service) limit(ctx context.Context, t *task, req *schema.LimitRequest) (*schema.LimitReply, error) {
	who, err := t.sender(req.By)
	if err != nil {
		return nil, err
	}
	l := schema.Limit{
		Scope: req.Scope, Each: req.Each, AtWork: req.AtWork, DayTokens: req.DayTokens,
		By: who.by, Claimed: who.claimed, Since: schema.FormatTime(s.now().Truncate(time.Second)),
	}
	switch {
	case req.Run != "":
		return nil, badField("/run", errors.New("a limit is of many runs; a run has limits of its own (RunSpec.MaxTurns and MaxTokens)"))
	case !req.End && req.AtWork == 0 && req.DayTokens == 0:
		return nil, badField("/at_work", errors.New("or day_tokens is required: a limit bounds something"))
	}
	reply, fleets := new(schema.LimitReply), kvstore.NewFleets(s.js)
	if req.End {
		var ended bool
		reply.Limit, ended, err = fleets.EndLimit(ctx, s.cfg.Fleet, l)
		reply.Already = !ended
	} else {
		if err := s.readable(&req.Scope, req.Each); err != nil {
			return nil, err
		}
		if reply.Limit, reply.Already, err = fleets.SetLimit(ctx, s.cfg.Fleet, l); errors.Is(err, kvstore.ErrSettings) {
			return nil, schema.Fail(schema.CodeConflict, "See the limits: waymark limit ls", "%s", err)
		}
	}
	if err != nil {
		return nil, err
	}
	return reply, s.settingsChanged(ctx)
}

// limitStates are the limits of the fleet with what is used of them.
func (s *Service) limitStates(limits []schema.Limit) (list []schema.LimitState) {
	for i := range limits {
		list = append(list, schema.LimitState{Limit: limits[i], Shares: s.liveRuns.Shares(&limits[i])})
	}
	return list
}
