package service

import (
	"cmp"
	"context"
	"errors"
	"slices"
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

// limitStates are the limits of the fleet with what is used of them. used are the tokens of the day.
func (s *Service) limitStates(limits []schema.Limit, used []kvstore.SpentShare) (list []schema.LimitState) {
	for i := range limits {
		list = append(list, schema.LimitState{Limit: limits[i], Shares: s.liveRuns.Shares(&limits[i])})
	}
	addDayTokens(list, used)
	return list
}

// addDayTokens adds the tokens of the day, and keeps the fullest shares of each budget.
func addDayTokens(list []schema.LimitState, used []kvstore.SpentShare) {
	for i := range list {
		l := &list[i]
		if l.DayTokens == 0 {
			continue
		}
		for j := range used {
			if share := &used[j]; l.HasShare(&share.Scope) {
				shareOf(l, share.Labels[l.Each]).DayTokens = share.Tokens
			}
		}
		fullness := func(s schema.LimitShare) (full float64) {
			if l.AtWork > 0 {
				full = float64(s.AtWork) / float64(l.AtWork)
			}
			return max(full, float64(s.DayTokens)/float64(l.DayTokens))
		}
		slices.SortStableFunc(l.Shares, func(a, b schema.LimitShare) int { return cmp.Compare(fullness(b), fullness(a)) })
		l.Shares = l.Shares[:min(len(l.Shares), schema.MaxLimitShares)]
	}
}

// shareOf returns the share of a limit with a value of its label, and adds it.
func shareOf(l *schema.LimitState, value string) *schema.LimitShare {
	i := slices.IndexFunc(l.Shares, func(s schema.LimitShare) bool { return s.Value == value })
	if i < 0 {
		i = len(l.Shares)
		l.Shares = append(l.Shares, schema.LimitShare{Value: value})
	}
	return &l.Shares[i]
}
