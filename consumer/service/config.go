package service

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/schema"
)

// DefaultClaimRate and DefaultClaimBurst are how many claims a replica answers with a run: per second, and at once.
const (
	DefaultClaimRate  = 50
	DefaultClaimBurst = 20
)

// stateBudget bounds the payload folded for view state concurrently, in bytes.
const stateBudget = 64 << 20

// Config sets how a fleet's service answers. Every field but the names has a default for its zero value.
type Config struct {
	// Fleet that is served. Required.
	Fleet string
	// Name of this replica: the source of the control events it publishes. Required; the grammar of names.
	Name string
	// Version of the daemon, semantic. Default 0.0.0.
	Version string
	// Proof returns the sender of a request, as schema.ProvenBy. Its error refuses a request of a verb that changes something. Nil if the
	// NATS server proves no senders: By of control events is then the name in the request, and all senders together have the place of one.
	Proof func(verb string, m *nats.Msg) (by string, err error)
	// Worker returns the fold worker of a shard in this process, nil for none. Nil means a replica that does not
	// fold.
	Worker func(shard int) Worker
	// Heartbeats are those of the fleet's executors. Nil means a replica that hears none.
	Heartbeats *liveness.Heartbeats
	// Settings returns the fleet's present settings. Nil means the defaults, which keep all runs.
	Settings func() schema.FleetSettings
	// Refresh reads the settings again, so that Settings and the pauses of the live runs are those that are stored now. Nil
	// means settings that never change.
	Refresh func(context.Context) error
	// Webhook returns the state of this replica's posts, nil if it posts nothing. Nil means a replica that posts
	// nothing.
	Webhook func() *schema.FleetWebhook
	// Schedules returns the fleet's schedules with what this replica knows of their firings. Nil means a replica that
	// submits no runs.
	Schedules func() []schema.ScheduleState
	// Workers is the number of requests answered concurrently. Default 64.
	//
	// One half of them, and of Queue and QueueBytes, is for verbs that change something, such as takeovers, the other for reads. A proven
	// sender has at most half of a half.
	Workers int
	// Queue and QueueBytes bound the requests that wait for a worker, and the size of all unanswered requests; more
	// are refused as overloaded. Defaults 1,024 and 16 MiB.
	Queue      int
	QueueBytes int64
	// Timeout is how long a request may take from its arrival until its last reply. A request that waits that long
	// for a worker is refused as overloaded, and not executed. Default 10 s.
	Timeout time.Duration
	// ClaimRate is the number of takeovers per second that this replica begins for claims, and ClaimBurst how many at
	// once after a pause. Beyond it, clients are told when to ask again. Defaults DefaultClaimRate and
	// DefaultClaimBurst.
	ClaimRate  float64
	ClaimBurst int
	// MaxClaims is the number of claims in a row without progress after which a run is quarantined: it is not given
	// to a claim again, only to a request for this run. Default schema.DefaultMaxClaims; negative means never.
	MaxClaims int
	// Grace is how long active requests may take when the service stops. Default 10 s.
	Grace time.Duration
}

// Worker is what a service needs of the fold worker of a shard in its own process.
type Worker interface {
	// LeaseRenewal is how long the last renewal of the shard's lease took; 0 before the first.
	LeaseRenewal() time.Duration
	// Leads reports whether it folds the shard now.
	Leads() bool
}

// withDefaults returns the configuration with every default filled in.
func (c Config) withDefaults() Config {
	c.Version = cmp.Or(c.Version, "0.0.0")
	c.Workers = cmp.Or(c.Workers, 64)
	c.Queue = cmp.Or(c.Queue, 1024)
	c.QueueBytes = cmp.Or(c.QueueBytes, 16<<20)
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	if c.Settings == nil {
		c.Settings = func() schema.FleetSettings { return schema.FleetSettings{} }
	}
	if c.Refresh == nil {
		c.Refresh = func(context.Context) error { return nil }
	}
	c.ClaimRate = cmp.Or(c.ClaimRate, DefaultClaimRate)
	c.ClaimBurst = cmp.Or(c.ClaimBurst, DefaultClaimBurst)
	c.MaxClaims = cmp.Or(c.MaxClaims, schema.DefaultMaxClaims)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	return c
}

// Validate names the first invalid field, with its value. The error matches [ErrConfig].
func (c Config) Validate() error {
	c = c.withDefaults()
	if err := schema.CheckName("fleet", c.Fleet); err != nil {
		return fmt.Errorf("%w: Fleet: %w", ErrConfig, err)
	}
	if err := schema.CheckName("replica", c.Name); err != nil {
		return fmt.Errorf("%w: Name: %w", ErrConfig, err)
	}
	if c.Grace < time.Millisecond || c.Grace > time.Hour {
		return fmt.Errorf("%w: Grace is %s, use 1ms to 1h", ErrConfig, c.Grace)
	}
	return nil
}
