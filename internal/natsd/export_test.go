package natsd

import "github.com/nats-io/nats-server/v2/server"

// JetStreamConfig is what the running server says its JetStream was configured with.
func JetStreamConfig(s *Server) *server.JetStreamConfig { return s.nats.JetStreamConfig() }
