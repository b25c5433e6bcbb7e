package service

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// executors answers which executors the fleet has.
func (s *Service) executors(_ context.Context, t *task) error {
	var req schema.ExecutorsRequest
	if err := t.decode(&req); err != nil {
		return err
	}
	if req.Executor != "" {
		if err := schema.CheckName("executor", req.Executor); err != nil {
			return badField("/executor", err)
		}
	}
	settings := s.cfg.Settings()
	reply := schema.ExecutorsReply{Fleet: s.cfg.Fleet, Replica: s.cfg.Name, At: schema.FormatTime(s.now()), SilenceMS: settings.Silence().Milliseconds()}
	s.cfg.Heartbeats.Fill(&reply, req.Executor, settings.Silence())
	return t.whole(&reply)
}
