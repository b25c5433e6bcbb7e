package serve

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/firing"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// submitter is the executor that submits the runs of schedules, the same in each daemon: so each can release a run that
// another one started and could not release.
const submitter = "waymark-schedule"

// fire returns the firings of the fleet's schedules. Without heartbeats: the daemon keeps no run. A full log is not waited
// for: the firings try again.
func fire(ctx context.Context, a *base.App, d *consumer.Daemon, js jetstream.JetStream, log zerolog.Logger) (*firing.Firings, error) {
	fleet, err := publisher.Connect(ctx, publisher.Config{Conn: js.Conn(), Fleet: a.Fleet, Executor: submitter, Heartbeat: -1, FullPatience: -1, Logger: &log})
	if err != nil {
		return nil, err
	}
	clock := liveness.NewServerClock(js, &kvstore.Shard{Names: schema.NamesOf(a.Fleet, 0)}, a.Now)
	return firing.New(fleet, d.Settings().Current, clock.Now, log), nil
}

// schedules returns the state of the fleet's schedules.
func (d *daemon) schedules() []schema.ScheduleState {
	if d.firings == nil {
		return nil
	}
	return d.firings.States()
}
