package service

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/waymarkio/waymark/internal/base/due"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// schedule sets a schedule in the fleet's settings, or removes one.
func (s *Service) schedule(ctx context.Context, t *task, req *schema.ScheduleRequest) (*schema.ScheduleReply, error) {
	who, err := t.sender(req.By)
	if err != nil {
		return nil, err
	}
	reply, fleets := new(schema.ScheduleReply), kvstore.NewFleets(s.js)
	if req.End {
		var removed bool
		if reply.Schedule, removed, err = fleets.RemoveSchedule(ctx, s.cfg.Fleet, req.Name); err != nil {
			return nil, err
		}
		reply.Already = !removed
		return reply, s.settingsChanged(ctx)
	}
	if req.Agent == "" {
		return nil, badField("/agent", errors.New("is required"))
	}
	times, err := due.Parse(req.Cron, req.TimeZone)
	if err != nil {
		return nil, badField("/cron", err)
	}
	// The server's clock: the schedule fires by it, too.
	now, err := fleets.ServerTime(ctx)
	if err != nil {
		return nil, err
	}
	next, ok := times.Next(now)
	if !ok {
		return nil, badField("/cron", fmt.Errorf("%q has no due time in the next five years", req.Cron))
	}
	is := schema.Schedule{Name: req.Name, ScheduleSpec: req.ScheduleSpec, By: who.by, Claimed: who.claimed, Since: schema.FormatTime(now.Truncate(time.Second))}
	if is.Missed == "" {
		is.Missed = schema.MissedOne
	}
	body, err := json.Marshal(&is)
	if err != nil {
		return nil, fmt.Errorf("encoding schedule %s: %w", is.Name, err)
	}
	if len(body) > schema.MaxScheduleBytes {
		return nil, badField("/task", fmt.Errorf("the schedule has %d bytes as JSON, at most %d are allowed: put the task into a file that the agent can read, and name the file",
			len(body), schema.MaxScheduleBytes))
	}
	if reply.Schedule, reply.Already, err = fleets.SetSchedule(ctx, s.cfg.Fleet, is); errors.Is(err, kvstore.ErrSettings) {
		return nil, schema.Fail(schema.CodeConflict, "See the schedules: waymark schedule ls", "%s", err)
	} else if err != nil {
		return nil, err
	}
	reply.Next = next.UTC().Format(time.RFC3339)
	return reply, s.settingsChanged(ctx)
}
