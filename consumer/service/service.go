package service

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/waymarkio/waymark/consumer/internal/logkey"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/reader"
	"github.com/waymarkio/waymark/internal/base/keyring"
	"github.com/waymarkio/waymark/internal/base/pause"
	"github.com/waymarkio/waymark/internal/nats/access"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// Name is the name by which NATS tools discover the service. All replicas share it and, but for retry, its queue group.
const Name = "waymark"

// flushPatience bounds the wait for the last replies to leave.
const flushPatience = 5 * time.Second

// flushRetry is the pause before the server is asked again whether it knows the subscriptions.
const flushRetry = 100 * time.Millisecond

// refusalsLogged is how many wrong requests a second are logged; the metrics count all.
const refusalsLogged = 20

// Service answers requests about the runs of one fleet. Any replica may answer, without waiting for a fold worker.
// The exception is retry, which the replica that folds the run's shard answers.
//
//	New ──Run──▶ serving ──ctx ends──▶ draining ──all answered, or grace over──▶ stopped
//
// While it drains, clients of new requests are told to ask again.
type Service struct {
	cfg Config
	nc  *nats.Conn
	js  jetstream.JetStream
	log zerolog.Logger
	// refusals logs wrong requests at a limited rate: a client that floods the service cannot flood the log.
	refusals zerolog.Logger
	stats    *Stats
	now      func() time.Time
	reader   *reader.Reader
	// keys are those that sign and check the fleet's control events.
	keys     *keyring.Ring
	routing  *routing
	liveRuns *liveness.LiveRuns
	budget   *semaphore.Weighted
	answers  *semaphore.Weighted
	claims   *claims
	shards   *shardStatus
	ready    chan struct{}

	writer *controlWriter
	// changes holds the requests of verbs that change something, and reads all others: no read takes the place of a
	// takeover.
	changes, reads *requestQueue
}

// New returns the service of a fleet's shards, given in the order of their numbers. Call Run to start it. The caller
// closes the shards, and runs the live runs of the same shards.
func New(cfg Config, nc *nats.Conn, js jetstream.JetStream, shards []*kvstore.Shard, live *liveness.LiveRuns,
	now func() time.Time, log zerolog.Logger,
) (*Service, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if cfg.Heartbeats == nil {
		cfg.Heartbeats = liveness.NewHeartbeats(cfg.Fleet, nc, live, now, log)
	}
	log = log.With().Str(logkey.Fleet, cfg.Fleet).Logger()
	s := &Service{
		cfg: cfg, nc: nc, js: js, log: log, stats: newStats(cfg.Fleet), now: now, liveRuns: live,
		budget: semaphore.NewWeighted(stateBudget), answers: semaphore.NewWeighted(answersAtOnce), claims: newClaims(&cfg, now),
		ready: make(chan struct{}), changes: newRequestQueue(&cfg), reads: newReadQueue(&cfg),
	}
	s.refusals = log.Sample(&zerolog.BurstSampler{Burst: refusalsLogged, Period: time.Second})
	s.shards = &shardStatus{svc: s}
	keys, err := kvstore.NewKeyring(js, cfg.Fleet)
	if err != nil {
		return nil, err
	}
	s.keys = keys
	if s.routing, err = newRouting(&cfg, js, shards, keys, &s.stats.Stats, now, log); err != nil {
		return nil, err
	}
	s.reader = s.routing.reader
	s.writer = &controlWriter{
		fleet: cfg.Fleet, replica: cfg.Name, maxClaims: cfg.MaxClaims, nc: nc, js: js, keys: keys, routing: s.routing, pauses: live.Pauses, now: now, stats: s.stats, log: log,
		places: &places{
			tables: kvstore.NewPlaces(js, cfg.Fleet), liveRuns: live, routing: s.routing, maxClaims: cfg.MaxClaims, log: s.refusals,
			shares: make(map[string]*placeTable),
		},
	}
	return s, nil
}

// Stats are the service's counters.
func (s *Service) Stats() *Stats { return s.stats }

// Requests are the counters of requests received, by verb.
func (s *Service) Requests() map[string]*atomic.Int64 {
	counters := make(map[string]*atomic.Int64)
	for _, e := range s.endpoints() {
		counters[e.verb] = e.count
	}
	return counters
}

// Ready is closed once the service answers requests.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Run answers requests until ctx ends, then lets active ones finish within the grace. It returns nil after a drain,
// and an error if the service could not start or its connection was closed. It may be called once.
func (s *Service) Run(ctx context.Context) error {
	// Active requests may continue after ctx for the grace.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	var helpers, workers errgroup.Group
	for _, src := range s.routing.shards {
		helpers.Go(func() error { return src.Barrier.Run(work) })
	}
	helpers.Go(func() error {
		s.callFor(work, s.liveRuns.Became())
		return nil
	})
	helpers.Go(func() error {
		s.tellParents(work)
		return nil
	})
	helpers.Go(func() error {
		s.keepPauses(work)
		return nil
	})
	for shard := range s.routing.shards {
		helpers.Go(func() error {
			s.stopRuns(work, shard)
			return nil
		})
	}
	for _, q := range []*requestQueue{s.changes, s.reads} {
		for range q.whole.serving {
			workers.Go(func() error {
				for t := q.take(); t != nil; t = q.take() {
					s.serve(work, t)
					q.release(t)
				}
				return nil
			})
		}
	}
	stop := func() error {
		cancel(reader.ErrStopping)
		return errors.Join(workers.Wait(), helpers.Wait())
	}
	down := s.nc.StatusChanged(nats.CLOSED)
	defer s.nc.RemoveStatusListener(down)
	heard, err := s.listen()
	if err != nil {
		s.changes.close()
		s.reads.close()
		return errors.Join(err, stop())
	}
	lost := s.announceReady(ctx)
	if lost != nil {
		return errors.Join(lost, s.drain(heard, &workers, stop))
	}
	select {
	case <-ctx.Done():
	case <-down:
		lost = fmt.Errorf("service of fleet %s: %w", s.cfg.Fleet, nats.ErrConnectionClosed)
	}
	return errors.Join(lost, s.drain(heard, &workers, stop))
}

// announceReady waits until the server knows the subscriptions. It returns the refusal of one.
func (s *Service) announceReady(ctx context.Context) error {
	for ctx.Err() == nil && !s.nc.IsClosed() {
		wait, cancel := context.WithTimeout(ctx, time.Second)
		err := s.nc.FlushWithContext(wait)
		cancel()
		if refused, ok := access.RefusalIn(s.nc.LastError()); ok && err == nil && !refused.Publish {
			return fmt.Errorf("service of fleet %s: %w", s.cfg.Fleet, refused) // the server answers in order
		}
		if err == nil {
			s.log.Info().Str("version", s.cfg.Version).Msg("service answers")
			close(s.ready)
			return nil
		}
		_ = pause.For(ctx, flushRetry) // the loop ends with ctx
	}
	return nil
}

// drain stops receiving requests and lets active ones finish.
func (s *Service) drain(heard subscriptions, workers *errgroup.Group, stop func() error) error {
	err := heard.drain()
	s.changes.close()
	s.reads.close()
	grace := time.NewTimer(s.cfg.Grace)
	defer grace.Stop()
	done := make(chan struct{})
	go func() {
		_ = workers.Wait() // they return nil
		close(done)
	}()
	select {
	case <-done:
	case <-grace.C:
		s.log.Warn().Int64("requests", s.stats.Working.Load()+s.stats.Queued.Load()).Msg("requests aborted at the end of the grace")
	}
	err = errors.Join(err, stop())
	<-done
	if !s.nc.IsClosed() && s.nc.IsConnected() {
		if ferr := s.nc.FlushTimeout(flushPatience); ferr != nil && !errors.Is(ferr, nats.ErrConnectionClosed) {
			err = errors.Join(err, fmt.Errorf("flush the last replies: %w", ferr))
		}
	}
	return err
}

// accept queues a request for the workers, or refuses it. It never waits: the endpoint has one goroutine.
func (s *Service) accept(e *endpoint, m *nats.Msg) {
	e.count.Add(1)
	if m.Reply == "" {
		return // without a reply subject no client learns the result, so the request is not executed
	}
	t := &task{svc: s, endpoint: e, arrived: s.now(), reply: m.Reply, data: m.Data, size: int64(len(m.Data)) + taskOverhead}
	if !e.whole {
		t.run = m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]
	}
	if err := checkRequest(m); err != nil {
		// Do not reply: the daemon may publish to subjects that the client may not.
		s.stats.countError(schema.CodeForbidden)
		s.logRefusal(t, schema.CodeForbidden, err.Error())
		return
	}
	queue := s.reads
	if schema.Changes(e.verb) {
		queue = s.changes
	}
	if s.cfg.Proof != nil {
		var err error
		if t.proven, err = s.cfg.Proof(e.verb, m); err != nil {
			s.refuse(t, schema.Fail(schema.CodeForbidden, "Use the credentials of a role with that right: docs/security.md lists the rights.", "%s", err))
			return
		}
	}
	if full := queue.put(t); full != nil {
		s.refuse(t, full)
		return
	}
	s.stats.Queued.Add(1)
}

// errReplyAsked is returned for a reply of the daemon that arrives as a request.
var errReplyAsked = errors.New("the message is a reply of the daemon: the reply subject of its request was a verb")

// checkRequest refuses a message that must not be answered. A reply enters the client's account on the subject that
// the client chose, and an import may route it back to the daemon: the content of a run would be executed as a
// request.
func checkRequest(m *nats.Msg) error {
	if len(m.Header[schema.HeaderKind]) > 0 {
		return errReplyAsked
	}
	return schema.CheckReply(m.Reply)
}

// serve answers one request.
func (s *Service) serve(ctx context.Context, t *task) {
	s.stats.Queued.Add(-1)
	s.stats.Working.Add(1)
	defer s.stats.Working.Add(-1)
	// The time counts from the arrival: after it the client has stopped waiting, or asked again. Serving such
	// requests would delay those of clients that still wait.
	waited := s.now().Sub(t.arrived)
	if waited >= s.cfg.Timeout {
		s.refuse(t, schema.Fail(schema.CodeOverloaded, "Wait a little longer before each new try, and ask again; or start another replica.",
			"the request waited for %s, and nothing was done for it", waited.Round(time.Millisecond)))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.Timeout-max(0, waited))
	defer cancel()
	err := error(nil)
	if !t.endpoint.whole {
		if nerr := schema.CheckName("run id", t.run); nerr != nil {
			err = schema.Fail(schema.CodeBadRequest, "Use the run's id as the last token of the subject.", "%s", nerr)
		}
	}
	if err == nil {
		err = t.endpoint.serve(ctx, t)
	}
	if err == nil {
		return
	}
	s.refuse(t, s.explain(t, err))
}
