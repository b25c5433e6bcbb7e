package serve

import (
	"context"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/waymarkio/waymark/consumer"
	"github.com/waymarkio/waymark/consumer/activity"
	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/cli/base"
	"github.com/waymarkio/waymark/internal/look/firing"
	"github.com/waymarkio/waymark/internal/look/webhook"
	"github.com/waymarkio/waymark/internal/nats/natsd"
)

// newRegistry returns a registry with metrics of the process and the build.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "waymark_build_info",
		Help:        "1, with the version of this binary and the commit that it was built from.",
		ConstLabels: prometheus.Labels{"version": base.Versions().Waymark, "revision": base.Versions().Revision, "nats_server": base.Versions().NATSServer, "go": base.Versions().Go},
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
	registry.MustRegister(newFleetMetrics(fleet, d.Service()), d.Service().Stats().Recovery)
	registerHeartbeats(registry, fleet, d.Heartbeats(), d.Settings())
	if d.Activity() != nil {
		registry.MustRegister(d.Activity())
	}
}

// registerWebhook adds the counters of posts.
func registerWebhook(registry prometheus.Registerer, fleet string, w *webhook.Watch) {
	labels, s := prometheus.Labels{"fleet": fleet}, w.Stats()
	registry.MustRegister(
		counterOf("waymark_webhook_taken_total", "Posts that the receiver accepted.", labels, &s.Taken),
		counterOf("waymark_webhook_given_up_total", "Ends of runs that the receiver refused while it accepted others.", labels, &s.GivenUp),
		counterOf("waymark_webhook_failed_total", "Posts that were refused or not delivered; each try counts.", labels, &s.Failed),
		counterOf("waymark_webhook_unread_total", "Reads of runs for the webhook that failed; each is repeated.", labels, &s.Unread),
		gaugeOf("waymark_webhook_pending", "Inbox entries that the receiver has not accepted.", labels, func() float64 { return float64(s.Pending.Load()) }),
	)
}

// registerFirings adds the metrics of schedules.
func registerFirings(registry prometheus.Registerer, fleet string, f *firing.Firings) {
	labels := prometheus.Labels{"fleet": fleet}
	registry.MustRegister(
		counterOf("waymark_schedule_runs_total", "Runs of schedules that this daemon submitted.", labels, &f.Submitted),
		counterOf("waymark_schedule_failed_total", "Tries to submit a run of a schedule that failed; each is repeated.", labels, &f.Failed),
		labelled{prometheus.NewDesc("waymark_schedule_failing", "1 while this daemon cannot submit the run that is due, by schedule.", []string{"schedule"}, labels), f.Failing},
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
		{"events_applied", "Events accepted into the state of their run.", &s.Applied},
		{"dead_letters", "Events rejected and kept with the reason.", &s.DeadLetters},
		{"dead_letters_dropped", "Events rejected and not kept: their run has too many dead letters.", &s.DeadLettersDropped},
		{"checkpoints", "Checkpoints put.", &s.Checkpoints},
		{"segment_bytes", "Bytes of sealed segments, as stored.", &s.SegmentBytes},
		{"purged_bytes", "Bytes of purged events, headers and data.", &s.Purge.Bytes},
		{"proofs_failed", "Purges refused: the events were not proven to be sealed.", &s.Purge.ProofsFailed},
		{"orphaned", "Runs orphaned: their executor was gone.", &s.Sweep.Orphaned},
		{"quarantined", "Times that a run was quarantined.", &s.Quarantined},
		{"regressions", "Times that the log regressed.", &s.Regressions},
	} {
		registry.MustRegister(counterOf("waymark_fold_"+c.name+"_total", c.help, labels, c.n))
	}
	registry.MustRegister(
		gaugeOf("waymark_fold_leading", "1 while this process folds the shard.", labels,
			func() float64 {
				if f.Leads() {
					return 1
				}
				return 0
			}),
	)
}

// labelled is a gauge with a series for each value of a label.
type labelled struct {
	desc   *prometheus.Desc
	values func() map[string]float64
}

// Describe names the metric.
func (l labelled) Describe(out chan<- *prometheus.Desc) { out <- l.desc }

// Collect shows it.
func (l labelled) Collect(out chan<- prometheus.Metric) {
	for name, n := range l.values() {
		out <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, n, name)
	}
}

// claimableByAgent counts the claimable runs. The first [activity.MaxAgents] names that it meets have series of their own,
// and keep them.
func claimableByAgent(runs *liveness.LiveRuns) func() map[string]float64 {
	var mu sync.Mutex
	named := map[string]bool{activity.Other: true}
	return func() map[string]float64 {
		mu.Lock()
		defer mu.Unlock()
		counts := make(map[string]float64)
		for agent, n := range runs.ClaimableByAgent() {
			name := activity.Label(agent)
			if !named[name] && len(named) > activity.MaxAgents {
				name = activity.Other
			}
			named[strings.Clone(name)] = true // it shares memory with a message
			counts[name] += float64(n)
		}
		for name := range named {
			counts[name] += 0
		}
		return counts
	}
}

// registerLiveRuns adds metrics of the fleet's live runs.
func registerLiveRuns(registry prometheus.Registerer, fleet string, r *liveness.LiveRuns) {
	labels := prometheus.Labels{"fleet": fleet}
	registry.MustRegister(labelled{
		prometheus.NewDesc("waymark_runs_claimable", "Runs that an executor can claim, by agent.", []string{"agent"}, labels), claimableByAgent(r),
	})
	registry.MustRegister(liveCounts{r, labels})
}

// liveCounts are gauges of one count of the live runs.
type liveCounts struct {
	runs   *liveness.LiveRuns
	labels prometheus.Labels
}

// Describe implements [prometheus.Collector].
func (l liveCounts) Describe(to chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, to) }

// Collect implements [prometheus.Collector].
func (l liveCounts) Collect(to chan<- prometheus.Metric) {
	c := l.runs.Counts()
	for _, g := range []struct {
		name, help string
		n          int
	}{
		{"live", "Runs that have not ended, have an open hand-off, or have a call that a person must settle.", c.Live},
		{"paused", "Runs that wait for the end of a pause.", c.Paused},
		{"waiting_for_place", "Runs that wait for a place in a limit; they are not claimable.", c.Waiting},
		{"quarantined", "Quarantined runs (not claimable automatically).", c.Quarantined},
		{"sleeping", "Runs that wait for a time, without an executor.", c.Sleeping},
		{"retrying", "Runs that wait before another try, because a model's provider or a tool has failed.", c.Retrying},
	} {
		to <- prometheus.MustNewConstMetric(prometheus.NewDesc("waymark_runs_"+g.name, g.help, nil, l.labels), prometheus.GaugeValue, float64(g.n))
	}
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
		{"claims_given", "Claims answered with a run.", &s.ClaimsGiven},
		{"claims_limited", "Claims over the rate limit.", &s.ClaimsLimited},
		{"corrupt_checkpoints", "Corrupt checkpoints found.", &s.CorruptCheckpoints},
		{"corrupt_segments", "Corrupt segments found.", &s.CorruptSegments},
		{"holes", "Missing events confirmed by the leader.", &s.Holes},
		{"regressions", "Times that the log was behind a checkpoint.", &s.Regressions},
	} {
		registry.MustRegister(counterOf("waymark_service_"+c.name+"_total", c.help, labels, c.n))
	}
	for name, n := range map[string]*atomic.Int64{"working": &s.Working, "queued": &s.Queued} {
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

// registerReady adds what /readyz answers, and the disk of the daemon's own server.
func registerReady(registry prometheus.Registerer, d *daemon, now func() time.Time) {
	desc := prometheus.NewDesc("waymark_ready", "Part all: 1 while /readyz answers ok. 0 for each part that it names.", []string{"part"}, nil)
	registry.MustRegister(labelled{desc, func() map[string]float64 {
		ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
		defer cancel()
		parts := map[string]float64{"all": 1}
		for _, t := range d.readiness(ctx, now(), proofScraped) {
			if part, _, _ := strings.Cut(t.Check, " of "); t.Result == base.Failed { // without the number of a shard
				parts["all"], parts[part] = 0, 0
			}
		}
		return parts
	}})
	if d.server == nil {
		return
	}
	for i, name := range []string{"free", "size"} {
		registry.MustRegister(gaugeOf("waymark_disk_"+name+"_bytes", "The disk of the embedded NATS server: "+name+".", nil, func() float64 {
			free, size, err := natsd.DiskRoom(d.server.StateDir())
			if err != nil {
				return math.NaN()
			}
			return float64([]int64{free, size}[i])
		}))
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
	)
}
