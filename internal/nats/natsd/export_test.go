package natsd

import "github.com/nats-io/nats-server/v2/server"

// JetStreamConfig is the running server's JetStream configuration.
func JetStreamConfig(s *Server) *server.JetStreamConfig { return s.nats.JetStreamConfig() }
