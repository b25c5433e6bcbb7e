package service_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// serviceWorld is a fleet with a service and, unless a test starts one, no fold worker.
type serviceWorld struct {
	*foldtest.World
	svc      *service.Service
	liveRuns *liveness.LiveRuns
	shards   []*kvstore.Shard
	// watched are the live runs that follow the live index; see feed.
	watched map[*liveness.LiveRuns]bool
	client  *nats.Conn
	stop    func()
}

// testTimeout is a service's timeout, as long as the tests' own, which may share a slow machine with many others.
const testTimeout = time.Minute

// writer publishes the events of one run.
type writer struct{ *foldtest.Writer }

func (w *serviceWorld) writer(run string) *writer { return &writer{w.Writer(run)} }

// setup changes the fleet and the service before they are made.
type setup func(*kvstore.FleetConfig, *service.Config)

func newServiceWorld(tb testing.TB, changes ...setup) *serviceWorld {
	tb.Helper()
	return newServiceWorldOn(tb, natstest.Start(tb), changes...)
}

func newServiceWorldOn(tb testing.TB, server *natstest.Server, changes ...setup) *serviceWorld {
	tb.Helper()
	w := &serviceWorld{watched: make(map[*liveness.LiveRuns]bool), World: &foldtest.World{
		TB: tb, Server: server, NC: server.Conn(tb), Fleet: kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20},
		Names: schema.NamesOf("default", 0),
	}}
	w.JS = foldtest.JetStream(tb, w.NC)
	cfg := service.Config{}
	for _, change := range changes {
		change(&w.Fleet, &cfg)
	}
	w.Provision()
	settings, _, err := kvstore.NewFleets(w.JS).Get(tb.Context(), "default")
	require.NoError(tb, err)
	w.Shard = w.Open("tester")
	w.client = server.Conn(tb)
	w.svc, w.stop = w.serve(settings, cfg)
	return w
}

// serve starts a replica of the service, and returns it and a function that stops it and waits for its end.
func (w *serviceWorld) serve(settings schema.FleetSettings, cfg service.Config) (*service.Service, func()) {
	w.TB.Helper()
	nc := w.Server.Conn(w.TB)
	js := foldtest.JetStream(w.TB, nc)
	var shards []*kvstore.Shard
	for i := range settings.Shards {
		shard, err := kvstore.OpenShard(js, settings, i, "service-1")
		require.NoError(w.TB, err)
		shards = append(shards, shard)
	}
	w.shards = shards
	cfg.Fleet = "default"
	cfg.Timeout = cmp.Or(cfg.Timeout, testTimeout)
	if cfg.Name == "" {
		cfg.Name = "service-1"
	}
	log := foldtest.Logger(w.TB)
	w.liveRuns = liveness.NewLiveRuns(shards, 0, time.Now, log)
	svc, err := service.New(cfg, nc, js, shards, w.liveRuns, time.Now, log)
	require.NoError(w.TB, err)
	return svc, w.start(svc)
}

// newService makes a service whose live runs stay empty.
func newService(tb testing.TB, cfg serviceConfig, js jetstream.JetStream, shards []*kvstore.Shard, now func() time.Time) (*service.Service, error) {
	tb.Helper()
	log := natstest.Logger(tb)
	cfg.Timeout = cmp.Or(cfg.Timeout, testTimeout)
	return service.New(cfg, js.Conn(), js, shards, liveness.NewLiveRuns(shards, 0, now, log), now, log)
}

// start runs a service, and returns a function that stops it and waits for its end.
func (w *serviceWorld) start(svc *service.Service) func() {
	w.TB.Helper()
	ctx, cancel := context.WithCancel(w.TB.Context())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	select {
	case <-svc.Ready():
	case err := <-done:
		require.NoError(w.TB, err)
	}
	stopped := false
	stop := func() {
		if !stopped {
			stopped = true
			cancel()
			require.NoError(w.TB, <-done)
		}
	}
	w.TB.Cleanup(stop)
	return stop
}

// answer is the whole answer to a request.
type answer struct {
	// first is the answer, parts are those that came before it.
	first    []byte
	parts    int
	kinds    []string
	segments [][]byte
	frames   [][]byte
	bytes    int
}

// records are the events of the answer, in order.
func (a *answer) records(tb testing.TB) []schema.Record {
	tb.Helper()
	var all []schema.Record
	keep := func(r schema.Record) bool {
		all = append(all, r)
		return true
	}
	segments, frames := a.segments, a.frames
	for _, kind := range a.kinds {
		switch kind {
		case schema.KindSegment:
			_, raw, err := schema.DecodeSegment(segments[0])
			require.NoError(tb, err)
			require.NoError(tb, schema.ReadFrames(raw, keep))
			segments = segments[1:]
		case schema.KindFrames:
			require.NoError(tb, schema.ReadFrames(frames[0], keep))
			frames = frames[1:]
		}
	}
	return all
}

// fold is the state that a client folds from the answer's events.
func (a *answer) fold(tb testing.TB, run string) *schema.State {
	tb.Helper()
	s := schema.NewState("default", run)
	for _, r := range a.records(tb) {
		s.Apply(schema.NoKeys, &r)
	}
	s.Settle()
	return s
}

// errNoAnswer says that a request was not answered in time.
var errNoAnswer = errors.New("no answer")

// ask sends a request and receives the whole answer. An answer and a settlement that
// name no event and no attempt are about the present ones.
func (w *serviceWorld) ask(verb, run string, req any) (*answer, error) {
	w.TB.Helper()
	switch r := req.(type) {
	case schema.InputRequest:
		r.EventID = cmp.Or(r.EventID, w.asked(run, r.InterruptID), "unasked")
		req = r
	case schema.SettleRequest:
		r.CallEpoch = cmp.Or(r.CallEpoch, w.attempt(run, r.CallKey))
		req = r
	case schema.ListRequest:
		w.follow(w.liveRuns) // a list has the live runs from memory
		w.caughtUp()
	}
	return w.askPlain(verb, run, req)
}

// badly is the error with which a request must be answered that is sent as it is.
func (w *serviceWorld) badly(verb, run string, req any) *schema.ServiceError {
	w.TB.Helper()
	body, err := json.Marshal(req)
	require.NoError(w.TB, err)
	return w.refused(verb, run, body)
}

// head is the run's head, empty for no run.
func (w *serviceWorld) head(run string) *schema.Head {
	w.TB.Helper()
	a, err := w.askPlain(schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead})
	if err != nil {
		return new(schema.Head)
	}
	return &decodeAs[schema.GetReply](w.TB, a.first).Head
}

// caughtUp waits until the service's live runs have the entries of the live index, as far as they can be read.
func (w *serviceWorld) caughtUp() {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		for _, shard := range w.shards {
			entries, _, _ := shard.Checkpoints.Live(w.TB.Context())
			for i := range entries {
				known, ok := w.liveRuns.Get(entries[i].Run)
				if l := entries[i].Live; l != nil && (!ok || !known.Same(l)) {
					return false
				}
			}
		}
		return true
	}, time.Minute, time.Millisecond)
}

// asked is the id of the event that asks a question, "" for none.
func (w *serviceWorld) asked(run, interrupt string) string {
	w.TB.Helper()
	for _, o := range w.head(run).Interrupts {
		if o.InterruptID == interrupt {
			return o.Position.ID
		}
	}
	return ""
}

// attempt is the epoch of an open call, 0 for none.
func (w *serviceWorld) attempt(run string, key schema.CallKey) schema.Epoch {
	w.TB.Helper()
	key.Occurrence = max(key.Occurrence, 1)
	for _, c := range w.head(run).OpenCalls {
		if c.CallKey == key {
			return c.Epoch
		}
	}
	return 0
}

// askPlain is ask of the request as it is.
func (w *serviceWorld) askPlain(verb, run string, req any) (*answer, error) {
	w.TB.Helper()
	body, ok := req.([]byte)
	if !ok {
		var err error
		body, err = json.Marshal(req)
		require.NoError(w.TB, err)
	}
	sub, err := w.client.SubscribeSync(w.client.NewRespInbox())
	require.NoError(w.TB, err)
	defer func() { _ = sub.Unsubscribe() }()
	require.NoError(w.TB, w.client.PublishRequest(schema.ServiceSubject(verb, "default", run), sub.Subject, body))
	a, answered := &answer{}, false
	for n := 1; ; n++ {
		m, err := sub.NextMsg(time.Minute)
		if err != nil {
			return a, fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		if !schema.Streamed(verb) && m.Header.Get(schema.HeaderErrorCode) == "" {
			require.Empty(w.TB, m.Header, "one reply, without number and kind")
			a.first, a.bytes = m.Data, len(m.Data)
			return a, nil
		}
		require.Equal(w.TB, strconv.Itoa(n), m.Header.Get(schema.HeaderReply), "replies are numbered")
		if m.Header.Get(schema.HeaderErrorCode) != "" {
			e := new(schema.ServiceError)
			require.NoError(w.TB, json.Unmarshal(m.Data, e))
			require.Equal(w.TB, strconv.Itoa(e.Code.HTTPStatus()), m.Header.Get(schema.HeaderErrorCode))
			require.NotEmpty(w.TB, m.Header.Get(schema.HeaderError))
			require.NotEmpty(w.TB, e.Hint)
			return a, e
		}
		require.Empty(w.TB, m.Reply, "no answer waits for its client")
		kind := m.Header.Get(schema.HeaderKind)
		a.kinds = append(a.kinds, kind)
		a.bytes += len(m.Data)
		switch kind {
		case schema.KindAnswer:
			a.first = append(a.first, m.Data...)
			answered = true
		case schema.KindPart:
			require.False(w.TB, answered)
			a.first = append(a.first, m.Data...)
			a.parts++
		case schema.KindSegment:
			a.segments = append(a.segments, m.Data)
		case schema.KindFrames:
			a.frames = append(a.frames, m.Data)
		case schema.KindEnd:
			require.Empty(w.TB, m.Data)
			require.NotNil(w.TB, a.first)
			return a, nil
		default:
			require.FailNow(w.TB, "unknown kind of reply", kind)
		}
	}
}

// get reads a run, view events page by page.
func (w *serviceWorld) get(run, view string) (*schema.GetReply, *answer) {
	w.TB.Helper()
	a, err := w.ask(schema.VerbGet, run, schema.GetRequest{View: view})
	require.NoError(w.TB, err)
	reply := decodeAs[schema.GetReply](w.TB, a.first)
	for reply.Next != "" {
		next, err := w.ask(schema.VerbGet, run, schema.GetRequest{View: view, After: reply.Next})
		require.NoError(w.TB, err)
		reply = decodeAs[schema.GetReply](w.TB, next.first)
		a.kinds, a.segments, a.frames = append(a.kinds, next.kinds...), append(a.segments, next.segments...), append(a.frames, next.frames...)
	}
	return reply, a
}

func (w *serviceWorld) recover(run string, req schema.RecoverRequest) (*schema.RecoverReply, *answer) {
	w.TB.Helper()
	a, err := w.ask(schema.VerbRecover, run, req)
	require.NoError(w.TB, err)
	return decodeAs[schema.RecoverReply](w.TB, a.first), a
}

func decodeAs[T any](tb testing.TB, b []byte) *T {
	tb.Helper()
	v := new(T)
	require.NoError(tb, json.Unmarshal(b, v))
	return v
}

// refused is the error with which a request must be answered.
func (w *serviceWorld) refused(verb, run string, req any) *schema.ServiceError {
	w.TB.Helper()
	_, err := w.ask(verb, run, req)
	e := new(schema.ServiceError)
	require.ErrorAs(w.TB, err, &e)
	return e
}

func takeover(executor, request string) schema.RecoverRequest {
	return schema.RecoverRequest{Executor: executor, Agent: "agent-1", RequestID: request}
}

// sealByHand moves the first n events of the writer into segments of at most per events each, counts them in a
// checkpoint at the given number of events, and purges the sealed ones from the log if asked.
func (w *serviceWorld) sealByHand(x *writer, n, per int, purge bool) schema.SegmentIndex {
	w.TB.Helper()
	index := w.sealMore(x, schema.SegmentIndex{}, n, per)
	if purge {
		for _, rec := range x.Acked[:n] {
			w.deleteMsg(rec.Stream)
		}
	}
	return index
}

// openOn opens the shard for a daemon with that JetStream.
func (w *serviceWorld) openOn(js jetstream.JetStream, daemon string) *kvstore.Shard {
	w.TB.Helper()
	settings, _, err := kvstore.NewFleets(w.JS).Get(w.TB.Context(), "default")
	require.NoError(w.TB, err)
	shard, err := kvstore.OpenShard(js, settings, 0, daemon)
	require.NoError(w.TB, err)
	return shard
}

// sealMore seals more after the segments of the index.
func (w *serviceWorld) sealMore(x *writer, index schema.SegmentIndex, n, per int) schema.SegmentIndex {
	w.TB.Helper()
	x.Stamp()
	head := schema.NewHead("default", x.Run.Run)
	for i := range index.Events {
		head.Apply(schema.NoKeys, &x.Acked[i])
	}
	for from := int(index.Events); from < n; from += per {
		to := min(from+per, n)
		info := schema.SegmentInfo{
			Fleet: "default", Run: x.Run.Run, Number: index.Count + 1, Events: to - from,
			First: schema.PositionOf(&x.Acked[from]), Last: schema.PositionOf(&x.Acked[to-1]),
			DigestBefore: head.Digest,
		}
		var frames []byte
		for i := from; i < to; i++ {
			frames = schema.AppendFrame(frames, &x.Acked[i])
			head.Apply(schema.NoKeys, &x.Acked[i])
		}
		info.DigestAfter = head.Digest
		stored, err := schema.EncodeSegment(info, &head, frames)
		require.NoError(w.TB, err)
		require.NoError(w.TB, w.Shard.Segments.Create(w.TB.Context(), x.Run.Run, info.Number, stored))
		index = schema.SegmentIndex{
			Count: info.Number, Bytes: index.Bytes + int64(len(stored)), Events: index.Events + int64(info.Events),
			Last: info.Last, Digest: info.DigestAfter,
		}
	}
	return index
}

func (w *serviceWorld) deleteMsg(seq schema.StreamSequence) {
	w.TB.Helper()
	stream, err := w.JS.Stream(w.TB.Context(), w.Names.EventStream())
	require.NoError(w.TB, err)
	require.NoError(w.TB, stream.DeleteMsg(w.TB.Context(), uint64(seq)))
}

// checkpointAt puts a checkpoint of the writer's first n events, counting the segments.
func (w *serviceWorld) checkpointAt(x *writer, n int, index schema.SegmentIndex) {
	w.TB.Helper()
	head := schema.NewHead("default", x.Run.Run)
	c := &schema.Checkpoint{Segments: index, Incarnation: "2026-01-01T00:00:00Z"}
	for i := range n {
		head.Apply(schema.NoKeys, &x.Acked[i])
		if x.Acked[i].Stream > index.Last.Stream {
			c.TailEvents++
			c.TailBytes += int64(x.Acked[i].Size())
		}
	}
	c.Head = head
	_, rev, err := w.Shard.Checkpoints.GetFresh(w.TB.Context(), x.Run.Run)
	if err != nil {
		require.ErrorIs(w.TB, err, kvstore.ErrNotFound)
	}
	_, err = w.Shard.Checkpoints.Put(w.TB.Context(), c, rev)
	require.NoError(w.TB, err)
}

type serviceConfig = service.Config

// smallSeals makes a fold worker seal early.
func smallSeals() fold.Config {
	return fold.Config{SealBytes: 16 << 10, SealEvents: 16, SealMaxBytes: 64 << 10, SealMaxEvents: 64}
}

// requireOneWon requires that one of the concurrent requests came first, and that the others were refused with the
// code.
func requireOneWon(tb testing.TB, errs []error, code schema.Code) {
	tb.Helper()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
			continue
		}
		e := new(schema.ServiceError)
		require.ErrorAs(tb, err, &e)
		require.Equal(tb, code, e.Code)
	}
	require.Equal(tb, 1, won)
}

// replicated starts the world's service again, on a connection to which the event stream seems to have three replicas: reads need barriers then.
func (w *serviceWorld) replicated(cfg service.Config, now func() time.Time) *service.Service {
	w.TB.Helper()
	w.stop()
	js := asReplicated(w.TB, w.Server.Conn(w.TB), w.Names.EventStream())
	if cfg.Fleet, cfg.Name = "default", "service-1"; now == nil {
		now = time.Now
	}
	shards, log := []*kvstore.Shard{w.openOn(js, "service-1")}, natstest.Logger(w.TB)
	cfg.Timeout, w.liveRuns = cmp.Or(cfg.Timeout, testTimeout), liveness.NewLiveRuns(shards, 0, now, log)
	svc, err := service.New(cfg, js.Conn(), js, shards, w.liveRuns, now, log)
	require.NoError(w.TB, err)
	w.svc, w.stop = svc, w.start(svc)
	return svc
}

// asReplicated returns a JetStream on nc to which a stream with one replica seems to have three.
func asReplicated(tb testing.TB, nc *nats.Conn, stream string) jetstream.JetStream {
	tb.Helper()
	return natstest.Between(tb, nc, func(m *nats.Msg, subject string) {
		replicas := map[string]int{"$JS.API.STREAM.INFO." + stream: 3, "$JS.API.STREAM.UPDATE." + stream: 1}[subject]
		switch {
		case replicas == 0:
			natstest.Forward(nc, m, subject)
		case strings.Contains(subject, "UPDATE"):
			m.Data = withReplicas(m.Data, replicas, func(v map[string]any) map[string]any { return v })
			natstest.Forward(nc, m, subject)
		default:
			go func() {
				if got, err := nc.Request(subject, m.Data, time.Minute); err == nil {
					_ = nc.Publish(m.Reply, withReplicas(got.Data, replicas, func(v map[string]any) map[string]any {
						config, _ := v["config"].(map[string]any)
						return config
					}))
				}
			}()
		}
	})
}

// withReplicas is a JSON text with another number of replicas in its stream configuration.
func withReplicas(text []byte, replicas int, config func(map[string]any) map[string]any) []byte {
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		return text
	}
	if c := config(v); c != nil {
		c["num_replicas"] = replicas
	}
	changed, err := json.Marshal(v)
	if err != nil {
		return text
	}
	return changed
}

// state is the state after the first n events of the writer.
func (x *writer) state(n int) *schema.State {
	s := schema.NewState("default", x.Run.Run)
	for i := range n {
		s.Apply(schema.NoKeys, &x.Acked[i])
	}
	s.Settle()
	return s
}

// requireView requires that an answer has the whole of a state.
func requireView(tb testing.TB, want *schema.State, got *schema.State) {
	tb.Helper()
	wanted, err := json.Marshal(want.View(), json.Deterministic(true))
	require.NoError(tb, err)
	answered, err := json.Marshal(got, json.Deterministic(true))
	require.NoError(tb, err)
	require.Equal(tb, string(wanted), string(answered))
}
