package serve

import (
	"strconv"
	"sync/atomic"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/assign"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/webhook"
)

// newRegistry returns a registry with what describes the process and the build.
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

// counterOf makes a metric of a counter that another package keeps.
func counterOf(name, help string, labels prometheus.Labels, n *atomic.Int64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
		func() float64 { return float64(n.Load()) })
}

func gaugeOf(name, help string, labels prometheus.Labels, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value)
}

// registerDaemon adds what all shards share.
func registerDaemon(registry prometheus.Registerer, fleet string, d *consumer.Daemon) {
	registerLiveRuns(registry, fleet, d.LiveRuns())
	registerSettings(registry, fleet, d.Settings())
	registerService(registry, fleet, d.Service())
	registerFleet(registry, fleet, d.Service())
	if d.Heartbeats() != nil {
		registerHeartbeats(registry, fleet, d.Heartbeats(), d.Overdue(), d.Settings())
	}
	if d.Activity() != nil {
		registry.MustRegister(newAgentMetrics(fleet, d.Activity()))
	}
	if d.Assigner() != nil {
		registerAssigner(registry, fleet, d.Assigner())
	}
}

// registerWebhook adds the counters of posts.
func registerWebhook(registry prometheus.Registerer, fleet string, w *webhook.Watch) {
	labels, s := prometheus.Labels{"fleet": fleet}, w.Stats()
	registry.MustRegister(
		counterOf("waymark_webhook_taken_total", "Posts of what needs a person that the receiver took.", labels, &s.Taken),
		counterOf("waymark_webhook_failed_total", "Posts that were refused or not delivered; each try counts.", labels, &s.Failed),
		counterOf("waymark_webhook_unread_total", "Reads of runs for the webhook that failed; each is repeated.", labels, &s.Unread),
		gaugeOf("waymark_webhook_pending", "Things that need a person and that the receiver has not taken.", labels, func() float64 { return float64(s.Pending.Load()) }),
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
		{"events_replayed", "Events seen once more after a restart or a lost race.", &s.Replayed},
		{"events_applied", "Events accepted into the state of their run.", &s.Applied},
		{"events_duplicate", "Events that were there already.", &s.Duplicates},
		{"dead_letters", "Events rejected and kept with the reason.", &s.DeadLetters},
		{"dead_letters_dropped", "Events rejected and not kept as dead letters: their run has too many.", &s.DeadLettersDropped},
		{"boundaries", "Boundaries accepted.", &s.Boundaries},
		{"boundaries_checkpointed", "Boundaries that a checkpoint was put behind.", &s.Covered},
		{"checkpoints", "Checkpoints put.", &s.Checkpoints},
		{"segments", "Segments sealed.", &s.Segments},
		{"segment_bytes", "Bytes of sealed segments, as stored.", &s.SegmentBytes},
		{"runs_parked", "Times that a run was parked.", &s.Parked},
		{"seals_refused", "Sealings that a full or failing bucket put off.", &s.SealsRefused},
		{"purges", "Times that sealed events of a run were purged from the log.", &s.Purge.Purges},
		{"purged_events", "Sealed events purged from the log.", &s.Purge.Events},
		{"purged_bytes", "Bytes of purged events, headers and data.", &s.Purge.Bytes},
		{"proofs_failed", "Times that events were not purged because they were not proven to be sealed.", &s.Purge.ProofsFailed},
		{"purges_put_off", "Purges that could not be done and were tried again.", &s.Purge.PutOff},
		{"relieved", "Times that the log was nearly full and was purged without waiting.", &s.Purge.Relieved},
		{"live_puts", "Entries put into the live index.", &s.LivePuts},
		{"live_mended", "Entries of the live index that were wrong.", &s.LiveMended},
		{"live_conflicts", "Entries that were put again before they were erased.", &s.LiveConflicts},
		{"orphaned", "Runs orphaned: their executor was gone.", &s.Sweep.Orphaned},
		{"expired", "Waits of runs that expired.", &s.Sweep.Expired},
		{"races_lost", "Runs left alone, as another event came before they were orphaned or their wait expired.", &s.Sweep.RacesLost},
		{"sweeps", "Completed passes over the live runs, once a second.", &s.Sweep.Sweeps},
		{"fresh_graces", "Number of times that the silence timers reset.", &s.Sweep.FreshGraces},
		{"notices", "Notices sent to executors.", &s.Notices},
		{"quarantined", "Times that a run was quarantined.", &s.Quarantined},
		{"handed_over", "Times that the shard was given up to another replica.", &s.HandedOver},
		{"batches", "Batches committed.", &s.Batches},
		{"conflicts", "Times that another fold worker won.", &s.Conflicts},
		{"regressions", "Times that the log went back.", &s.Regressions},
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

// registerLiveRuns adds what is known of the fleet's live runs.
func registerLiveRuns(registry prometheus.Registerer, fleet string, r *liveness.LiveRuns) {
	labels := prometheus.Labels{"fleet": fleet}
	for _, g := range []struct {
		name, help string
		of         func(liveness.Counts) int
	}{
		{"live", "Runs that have not ended, have a hand-off on offer, or a call that a person must settle.", func(c liveness.Counts) int { return c.Live }},
		{"claimable", "Runs that an executor can be given.", func(c liveness.Counts) int { return c.Claimable }},
		{"quarantined", "Quarantined runs: no executor can claim them until a person releases them.", func(c liveness.Counts) int { return c.Quarantined }},
		{"in_two_shards", "Runs that were begun in two shards, which must not be: see the log.", func(c liveness.Counts) int { return c.Twice }},
		{"unreadable", "Entries of the live index that cannot be read and are being mended.", func(c liveness.Counts) int { return c.Unreadable }},
	} {
		registry.MustRegister(gaugeOf("waymark_runs_"+g.name, g.help, labels, func() float64 { return float64(g.of(r.Counts())) }))
	}
	registry.MustRegister(gaugeOf("waymark_roster_synced", "1 while the live index is followed.", labels, func() float64 {
		if r.Synced() {
			return 1
		}
		return 0
	}))
}

// registerSettings adds what is known of the fleet's shards.
func registerSettings(registry prometheus.Registerer, fleet string, s *consumer.Settings) {
	labels := prometheus.Labels{"fleet": fleet}
	registry.MustRegister(
		gaugeOf("waymark_shards", "Shards of the fleet, those included that no run begins in any more.", labels, func() float64 {
			current := s.Current()
			return float64(current.Shards())
		}),
	)
}

// registerAssigner adds what is known of the daemon's replicas.
func registerAssigner(registry prometheus.Registerer, fleet string, r *assign.Assigner) {
	registry.MustRegister(gaugeOf("waymark_replicas", "Replicas that share the shards of the fleet, this one included.",
		prometheus.Labels{"fleet": fleet}, func() float64 { return float64(r.Replicas()) }))
}

// registerHeartbeats adds what is heard of executors.
func registerHeartbeats(registry prometheus.Registerer, fleet string, h *liveness.Heartbeats, overdue *liveness.OverdueRuns, settings *consumer.Settings) {
	labels := prometheus.Labels{"fleet": fleet}
	s := h.Stats()
	registry.MustRegister(
		gaugeOf("waymark_executors_alive", "Executors that are alive.", labels, func() float64 {
			current := settings.Current()
			return float64(h.Alive(current.Silence()))
		}),
		gaugeOf("waymark_runs_overdue", "Runs with a request to a model or a call of a tool that takes longer than it may.", labels,
			func() float64 { return float64(overdue.Count()) }),
		counterOf("waymark_heartbeats_received_total", "Heartbeats heard.", labels, &s.Received),
		counterOf("waymark_heartbeats_refused_total", "Heartbeats that were none.", labels, &s.Refused),
		counterOf("waymark_heartbeats_lost_total", "Heartbeats that came faster than they were read.", labels, &s.Lost),
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
		{"claims_repeated", "Claims answered with the run that an earlier try was given.", &s.ClaimsRepeated},
		{"claims_empty", "Claims that found no run.", &s.ClaimsEmpty},
		{"claims_limited", "Claims that came when the rate was used up.", &s.ClaimsLimited},
		{"claims_yielded", "Claims that left runs to executors with fewer in hand.", &s.ClaimsYielded},
		{"claims_lost", "Runs that a claim found taken, or could not read.", &s.ClaimsLost},
		{"refused", "Control events whose compare-and-set found another event.", &s.Refused},
		{"barriers", "Barriers published.", &s.Barriers},
		{"stale_answers", "Answers older than a barrier, asked for again.", &s.StaleAnswers},
		{"folds_from_scratch", "Reads without a checkpoint.", &s.FoldsFromScratch},
		{"corrupt_checkpoints", "Corrupt checkpoints met.", &s.CorruptCheckpoints},
		{"corrupt_segments", "Corrupt segments met.", &s.CorruptSegments},
		{"holes", "Missing events confirmed by the leader.", &s.Holes},
		{"regressions", "Times that the log was behind what was checkpointed.", &s.Regressions},
		{"restarted", "Answers that took back segments sent before the run was found to be damaged.", &s.Restarted},
		{"points", "Answers with a run as it was at a point of its history.", &s.Points},
		{"clients_gone", "Clients that did not take their replies.", &s.ClientsGone},
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

// registerFleet adds what is known of the fleet as a whole, and of its recoveries.
func registerFleet(registry prometheus.Registerer, fleet string, s *service.Service) {
	registry.MustRegister(newFleetMetrics(fleet, s.State), newRecoveryMetrics(fleet, &s.Stats().Recovery))
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
		gaugeOf("waymark_nats_reconnects", "Times the connection came back.", labels,
			func() float64 { return float64(nc.Stats().Reconnects) }),
		gaugeOf("waymark_nats_in_bytes", "Bytes received.", labels, func() float64 { return float64(nc.Stats().InBytes) }),
		gaugeOf("waymark_nats_out_bytes", "Bytes sent.", labels, func() float64 { return float64(nc.Stats().OutBytes) }),
	)
}
