package serve

import (
	"strconv"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/webhook"
)

// newRegistry returns a registry with metrics of the process and the build.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "waymark_build_info",
		Help:        "1, with the version of this binary.",
		ConstLabels: prometheus.Labels{"version": base.Versions().Waymark, "nats_server": base.Versions().NATSServer, "go": base.Versions().Go},
	})
	info.Set(1)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), info)
	return registry
}

// counterOf makes a metric from another package's counter.
func counterOf(name, help string, labels prometheus.Labels, n *atomic.Int64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
		func() float64 { return float64(n.Load()) })
}

func gaugeOf(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// registerDaemon adds the metrics that all shards share.
func registerDaemon(registry prometheus.Registerer, fleet string, d *consumer.Daemon) {
	registerLiveRuns(registry, fleet, d.LiveRuns())
	registerSettings(registry, fleet, d.Settings())
	registerService(registry, fleet, d.Service())
	registry.MustRegister(newFleetMetrics(fleet, d.Service().State), d.Service().Stats().Recovery.Took)
	registerHeartbeats(registry, fleet, d.Heartbeats(), d.Settings())
	if d.Activity() != nil {
		registry.MustRegister(d.Activity())
	}
	if d.Share() != nil {
		registerShare(registry, fleet, d.Share())
	}
}

// registerWebhook adds the counters of posts.
func registerWebhook(registry prometheus.Registerer, fleet string, w *webhook.Watch) {
	labels, s := prometheus.Labels{"fleet": fleet}, w.Stats()
	registry.MustRegister(
		counterOf("waymark_webhook_taken_total", "Posts of inbox entries that the receiver accepted.", labels, &s.Taken),
		counterOf("waymark_webhook_failed_total", "Posts that were refused or not delivered; each try counts.", labels, &s.Failed),
		counterOf("waymark_webhook_unread_total", "Reads of runs for the webhook that failed; each is repeated.", labels, &s.Unread),
		gaugeOf("waymark_webhook_pending", "Inbox entries that the receiver has not accepted.", labels, func() float64 { return float64(s.Pending.Load()) }),
	)
}

// registerWorker adds a fold worker's counters, labelled with fleet and shard.
func registerWorker(registry prometheus.Registerer, fleet string, shard int, f *fold.Worker) {
	s := f.Stats()
	labels := prometheus.Labels{"fleet": fleet, "shard": strconv.Itoa(shard)}
	for _, c := range []struct {
		name, help string
		n          *atomic.Int64
	}{
		{"events", "Events folded, accepted or not.", &s.Events},
		{"events_replayed", "Events folded again after a restart or a lost race.", &s.Replayed},
		{"events_applied", "Events accepted into the state of their run.", &s.Applied},
		{"events_duplicate", "Duplicates of stored events.", &s.Duplicates},
		{"dead_letters", "Events rejected and kept with the reason.", &s.DeadLetters},
		{"dead_letters_dropped", "Events rejected and not kept: their run has too many dead letters.", &s.DeadLettersDropped},
		{"boundaries", "Boundaries accepted.", &s.Boundaries},
		{"boundaries_checkpointed", "Boundaries covered by a checkpoint.", &s.Covered},
		{"checkpoints", "Checkpoints put.", &s.Checkpoints},
		{"segments", "Segments sealed.", &s.Segments},
		{"segment_bytes", "Bytes of sealed segments, as stored.", &s.SegmentBytes},
		{"checkpoints_unstored", "Checkpoints that fit no message and were not put: a defect (a recovery has all events).", &s.Unstored},
		{"seals_refused", "Seals deferred by a full or failing bucket.", &s.SealsRefused},
		{"purges", "Purges of sealed events of a run.", &s.Purge.Purges},
		{"purged_events", "Sealed events purged from the log.", &s.Purge.Events},
		{"purged_bytes", "Bytes of purged events, headers and data.", &s.Purge.Bytes},
		{"proofs_failed", "Purges refused: the events were not proven to be sealed.", &s.Purge.ProofsFailed},
		{"purges_put_off", "Failed purges that were retried.", &s.Purge.PutOff},
		{"relieved", "Immediate purges of a nearly full log.", &s.Purge.Relieved},
		{"live_puts", "Entries put into the live index.", &s.LivePuts},
		{"live_mended", "Entries of the live index that were wrong.", &s.LiveMended},
		{"live_conflicts", "Entries rewritten before they were erased.", &s.LiveConflicts},
		{"orphaned", "Runs orphaned: their executor was gone.", &s.Sweep.Orphaned},
		{"expired", "Waits of runs that expired.", &s.Sweep.Expired},
		{"races_lost", "Runs not orphaned, or waits not expired, because of a newer event.", &s.Sweep.RacesLost},
		{"sweeps", "Completed passes over the live runs, once a second.", &s.Sweep.Sweeps},
		{"notices", "Notices sent to executors.", &s.Notices},
		{"quarantined", "Times that a run was quarantined.", &s.Quarantined},
		{"handed_over", "Times that the shard went to another replica.", &s.HandedOver},
		{"batches", "Batches committed.", &s.Batches},
		{"conflicts", "Lost races against another fold worker.", &s.Conflicts},
		{"regressions", "Times that the log regressed.", &s.Regressions},
		{"rebuilds", "Runs folded again from the log.", &s.Rebuilds},
	} {
		registry.MustRegister(counterOf("waymark_fold_"+c.name+"_total", c.help, labels, c.n))
	}
	registry.MustRegister(
		gaugeOf("waymark_fold_position", "Stream sequence up to which the shard is folded.", labels,
			func() float64 { return float64(s.Position.Load()) }),
		gaugeOf("waymark_fold_leading", "1 while this process folds the shard.", labels,
			func() float64 {
				if f.Leads() {
					return 1
				}
				return 0
			}),
	)
}

// registerLiveRuns adds metrics of the fleet's live runs.
func registerLiveRuns(registry prometheus.Registerer, fleet string, r *liveness.LiveRuns) {
	labels := prometheus.Labels{"fleet": fleet}
	for _, g := range []struct {
		name, help string
		of         func(liveness.Counts) int
	}{
		{"live", "Runs that have not ended, have an open hand-off, or have a call that a person must settle.", func(c liveness.Counts) int { return c.Live }},
		{"claimable", "Runs that an executor can claim.", func(c liveness.Counts) int { return c.Claimable }},
		{"quarantined", "Quarantined runs (not claimable automatically).", func(c liveness.Counts) int { return c.Quarantined }},
		{"unreadable", "Unreadable entries of the live index.", func(c liveness.Counts) int { return c.Unreadable }},
	} {
		registry.MustRegister(gaugeOf("waymark_runs_"+g.name, g.help, labels, func() float64 { return float64(g.of(r.Counts())) }))
	}
	registry.MustRegister(gaugeOf("waymark_live_runs_synced", "1 while the live index is followed.", labels, func() float64 {
		if r.Synced() {
			return 1
		}
		return 0
	}))
}

// registerSettings adds metrics of the fleet's shards.
func registerSettings(registry prometheus.Registerer, fleet string, s *consumer.Settings) {
	labels := prometheus.Labels{"fleet": fleet}
	registry.MustRegister(
		gaugeOf("waymark_shards", "Shards of the fleet.", labels, func() float64 {
			current := s.Current()
			return float64(current.Shards)
		}),
	)
}

// registerShare adds metrics of the daemon's replicas.
func registerShare(registry prometheus.Registerer, fleet string, r *fold.Share) {
	registry.MustRegister(gaugeOf("waymark_replicas", "Replicas that hold a shard of the fleet, and this one.",
		prometheus.Labels{"fleet": fleet}, func() float64 { return float64(r.Replicas()) }))
}

// registerHeartbeats adds metrics of executors.
func registerHeartbeats(registry prometheus.Registerer, fleet string, h *liveness.Heartbeats, settings *consumer.Settings) {
	labels := prometheus.Labels{"fleet": fleet}
	s := h.Stats()
	registry.MustRegister(
		gaugeOf("waymark_executors_alive", "Executors that are alive.", labels, func() float64 {
			current := settings.Current()
			return float64(h.Alive(current.Silence()))
		}),
		gaugeOf("waymark_runs_overdue", "Runs with an overdue model request or tool call.", labels,
			func() float64 { return float64(h.OverdueRuns()) }),
		counterOf("waymark_heartbeats_received_total", "Heartbeats heard.", labels, &s.Received),
		counterOf("waymark_heartbeats_refused_total", "Invalid heartbeats.", labels, &s.Refused),
		counterOf("waymark_heartbeats_lost_total", "Heartbeats dropped because they arrived faster than they were read.", labels, &s.Lost),
	)
}

// registerService adds a service's counters, labelled with the fleet.
func registerService(registry prometheus.Registerer, fleet string, svc *service.Service) {
	s := svc.Stats()
	labels := prometheus.Labels{"fleet": fleet}
	for verb, n := range svc.Requests() {
		registry.MustRegister(counterOf("waymark_service_requests_total", "Requests received, by verb.",
			prometheus.Labels{"fleet": fleet, "verb": verb}, n))
	}
	for _, c := range []struct {
		name, help string
		n          *atomic.Int64
	}{
		{"replies", "Replies sent.", &s.Replies},
		{"reply_bytes", "Bytes of replies.", &s.ReplyBytes},
		{"takeovers", "Epochs opened.", &s.Takeovers},
		{"takeovers_continued", "Repeated requests that continued the epoch they had opened.", &s.Continued},
		{"claims_given", "Claims answered with a run.", &s.ClaimsGiven},
		{"claims_repeated", "Claims answered with the run of an earlier try.", &s.ClaimsRepeated},
		{"claims_empty", "Claims that found no run.", &s.ClaimsEmpty},
		{"claims_limited", "Claims over the rate limit.", &s.ClaimsLimited},
		{"claims_yielded", "Claims that left runs to executors with fewer active ones.", &s.ClaimsYielded},
		{"claims_lost", "Runs already taken or unreadable when claimed.", &s.ClaimsLost},
		{"refused", "Control events refused by compare-and-set.", &s.Refused},
		{"barriers", "Barriers published.", &s.Barriers},
		{"stale_answers", "Answers older than a barrier, requested again.", &s.StaleAnswers},
		{"folds_from_scratch", "Reads without a checkpoint.", &s.FoldsFromScratch},
		{"corrupt_checkpoints", "Corrupt checkpoints found.", &s.CorruptCheckpoints},
		{"corrupt_segments", "Corrupt segments found.", &s.CorruptSegments},
		{"holes", "Missing events confirmed by the leader.", &s.Holes},
		{"regressions", "Times that the log was behind a checkpoint.", &s.Regressions},
		{"points", "Answers with a run at a point of its history.", &s.Points},
		{"clients_gone", "Clients that did not read their replies.", &s.ClientsGone},
	} {
		registry.MustRegister(counterOf("waymark_service_"+c.name+"_total", c.help, labels, c.n))
	}
	for name, n := range map[string]*atomic.Int64{"working": &s.Working, "queued": &s.Queued, "streaming": &s.Streaming} {
		registry.MustRegister(gaugeOf("waymark_service_"+name, "Requests "+name+" now.", labels,
			func() float64 { return float64(n.Load()) }))
	}
	for code := range s.Errors() {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "waymark_service_errors_total", Help: "Error replies, by code.",
			ConstLabels: prometheus.Labels{"fleet": fleet, "code": string(code)},
		}, func() float64 { return float64(s.Errors()[code]) }))
	}
}

// registerConnection adds the state of a NATS connection.
func registerConnection(registry prometheus.Registerer, role string, nc *nats.Conn) {
	labels := prometheus.Labels{"role": role}
	registry.MustRegister(
		gaugeOf("waymark_nats_connected", "1 while the connection is up.", labels, func() float64 {
			if nc.IsConnected() {
				return 1
			}
			return 0
		}),
		gaugeOf("waymark_nats_reconnects", "Reconnects.", labels,
			func() float64 { return float64(nc.Stats().Reconnects) }),
		gaugeOf("waymark_nats_in_bytes", "Bytes received.", labels, func() float64 { return float64(nc.Stats().InBytes) }),
		gaugeOf("waymark_nats_out_bytes", "Bytes sent.", labels, func() float64 { return float64(nc.Stats().OutBytes) }),
	)
}
