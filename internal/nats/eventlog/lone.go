package eventlog

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/waymarkio/waymark/internal/nats/jsapi"
	"github.com/waymarkio/waymark/schema"
)

// Lone is the answer of a shard's leader about its log, and whether it has the only replica.
type Lone struct {
	// Only is true if the answering server has the only replica: it accepts writes without any other server, so an
	// event that was acknowledged before the request is in its store, or no server has it.
	Only bool
	// Last is the last stream sequence of the log in the answer, 0 for none.
	Last schema.StreamSequence
	// Holds is true if the log has an event of the requested run.
	Holds bool
	// Now is the server's time.
	Now time.Time
}

// loneAnswer is the used part of STREAM.INFO's answer.
type loneAnswer struct {
	Config struct {
		Replicas int `json:"num_replicas"`
	} `json:"config"`
	Cluster struct {
		// Group is the Raft group of the replicas. It is empty for a stream with one replica that is not moving to
		// another server or number.
		Group    string     `json:"raft_group"`
		Replicas []struct{} `json:"replicas"`
		Desired  *struct{}  `json:"desired"`
	} `json:"cluster"`
	State struct {
		Last     uint64           `json:"last_seq"`
		Subjects map[string]int64 `json:"subjects"`
	} `json:"state"`
	Now time.Time `json:"ts"`
}

// AskLone asks the leader of a shard's log whether it has the only replica. With a run it also asks whether the log
// has an event of it; the whole answer comes from one server. A log with one replica needs no barrier: a server that
// believes it is the only one would also acknowledge the barrier alone, so it would prove no more than this answer.
func AskLone(ctx context.Context, js jetstream.JetStream, names schema.Names, run string) (Lone, error) {
	var body any
	if run != "" {
		body = map[string]string{"subjects_filter": names.EventSubject(run)}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	answer, err := jsapi.Request[loneAnswer](ctx, js, "STREAM.INFO."+names.EventStream(), body)
	if err != nil {
		return Lone{}, fmt.Errorf("asking the leader of stream %s: %w", names.EventStream(), sentinel(err))
	}
	return Lone{
		Only: answer.Config.Replicas == 1 && answer.Cluster.Group == "" && len(answer.Cluster.Replicas) == 0 && answer.Cluster.Desired == nil,
		Last: schema.StreamSequence(answer.State.Last), Holds: len(answer.State.Subjects) > 0, Now: answer.Now,
	}, nil
}
