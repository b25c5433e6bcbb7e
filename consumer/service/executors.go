package service

import (
	"context"

	"github.com/waymarkio/waymark/schema"
)

// executors answers which executors the fleet has.
func (s *Service) executors(_ context.Context, _ *task, req *schema.ExecutorsRequest) (*schema.ExecutorsReply, error) {
	settings := s.cfg.Settings()
	reply := &schema.ExecutorsReply{Fleet: s.cfg.Fleet, Replica: s.cfg.Name, At: schema.FormatTime(s.now()), SilenceMS: settings.Silence().Milliseconds()}
	s.cfg.Heartbeats.Fill(reply, req, settings.Silence())
	return reply, nil
}
