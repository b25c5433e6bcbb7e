package service_test

import (
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

func TestService_MicroPing_Discovered(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) { c.Version = "1.2.3" })
	m, err := w.client.RequestWithContext(t.Context(), "$SRV.PING.waymark", nil)
	require.NoError(t, err)
	ping := decodeAs[micro.Ping](t, m.Data)
	require.Equal(t, "waymark", ping.Name)
	require.Equal(t, "1.2.3", ping.Version)
	require.Equal(t, "default", ping.Metadata["fleet"])
	m, err = w.client.RequestWithContext(t.Context(), "$SRV.INFO.waymark", nil)
	require.NoError(t, err)
	info := decodeAs[micro.Info](t, m.Data)
	subjects := map[string]string{}
	for _, e := range info.Endpoints {
		subjects[e.Name] = e.Subject
		require.Equal(t, "waymark", e.QueueGroup, e.Name)
		require.NotEmpty(t, e.Metadata["response"])
	}
	require.Equal(t, map[string]string{
		"recover": "waymark.recover.default.*", "get": "waymark.get.default.*", "list": "waymark.list.default",
		"history": "waymark.history.default.*", "records": "waymark.records.default.*", "settle": "waymark.settle.default.*",
		"input": "waymark.input.default.*", "cancel": "waymark.cancel.default.*", "handoff": "waymark.handoff.default.*",
		"claim": "waymark.claim.default", "fleet": "waymark.fleet.default", "mark": "waymark.mark.default.*", "signal": "waymark.signal.default.*",
		"fork": "waymark.fork.default.*", "erase": "waymark.erase.default.*", "cleanup": "waymark.cleanup.default", "executors": "waymark.executors.default", "pause": "waymark.pause.default",
		"limit": "waymark.limit.default", "schedule": "waymark.schedule.default",
	}, subjects)
}

func TestConfig_Invalid_NamesField(t *testing.T) {
	t.Parallel()
	ok := serviceConfig{Fleet: "default", Name: "service-1"}
	require.NoError(t, ok.Validate())
	for name, change := range map[string]func(*serviceConfig){
		"Fleet": func(c *serviceConfig) { c.Fleet = "a.b" },
		"Name":  func(c *serviceConfig) { c.Name = "" },
		"Grace": func(c *serviceConfig) { c.Grace = -1 },
	} {
		c := ok
		change(&c)
		err := c.Validate()
		require.ErrorIs(t, err, service.ErrConfig)
		require.ErrorContains(t, err, name)
	}
}

// Sixty-four concurrent reads share a few barriers, and older barriers do not accumulate.
func TestBarrier_ConcurrentReads_ShareOne(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.replicated(service.Config{}, nil)
	w.aRun("run-1", 1, 10)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 20 {
				w.get("run-1", schema.ViewHead)
			}
		})
	}
	wg.Wait()
	barriers := w.svc.Stats().Barriers.Load()
	require.Less(t, barriers, int64(320), "requests shared barriers")
	require.Positive(t, barriers)
	t.Logf("320 reads, %d barriers", barriers)
}

func TestBarrier_Older_Purged(t *testing.T) {
	if testing.Short() {
		t.Skip("short: barriers are published until older ones are purged")
	}
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	clock := time.Unix(1_700_000_000, 0)
	var mu sync.Mutex
	now := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		clock = clock.Add(time.Second)
		return clock
	}
	svc := w.replicated(service.Config{}, now)
	for range 200 {
		w.get("run-1", schema.ViewHead)
	}
	require.EqualValues(t, 200, svc.Stats().Barriers.Load())
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter(w.Names.EventSubject(schema.BarrierRun)))
	require.NoError(t, err)
	require.LessOrEqual(t, info.State.Subjects[w.Names.EventSubject(schema.BarrierRun)], uint64(65))
}

func TestService_Overload_RefusedAtOnce(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) {
		c.Workers, c.Queue, c.Timeout = 1, 2, time.Minute
	})
	w.aRun("run-1", 1, 10)
	inbox := w.client.NewRespInbox()
	sub, err := w.client.SubscribeSync(inbox)
	require.NoError(t, err)
	const burst = 100
	for range burst {
		require.NoError(t, w.client.PublishRequest("waymark.get.default.run-1", inbox, []byte(`{}`)))
	}
	served, refused, ends := 0, 0, 0
	for served+refused < burst || ends < served {
		m, err := sub.NextMsg(time.Minute)
		require.NoError(t, err)
		switch {
		case m.Header.Get(schema.HeaderErrorCode) != "":
			require.Equal(t, "429", m.Header.Get(schema.HeaderErrorCode))
			e := decodeAs[schema.ServiceError](t, m.Data)
			require.Equal(t, schema.CodeOverloaded, e.Code)
			require.NotEmpty(t, e.Hint)
			refused++
		case m.Header.Get(schema.HeaderKind) == schema.KindEnd:
			ends++
		default:
			served++
		}
	}
	require.Positive(t, refused)
	require.Positive(t, served)
	require.EqualValues(t, refused, w.svc.Stats().Errors()[schema.CodeOverloaded])
	w.get("run-1", schema.ViewHead) // and service goes on
}

func TestService_ManyLargeReads_BytesBounded(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) {
		c.Workers, c.QueueBytes = 1, 1<<20
	})
	w.aRun("run-1", 1, 10)
	body := append([]byte(`{"x":"`), make([]byte, 700<<10)...)
	for i := range body[6:] {
		body[6+i] = 'x'
	}
	body = append(body, `"}`...)
	inbox := w.client.NewRespInbox()
	sub, err := w.client.SubscribeSync(inbox)
	require.NoError(t, err)
	for range 20 {
		require.NoError(t, w.client.PublishRequest("waymark.get.default.run-1", inbox, body))
	}
	refused := 0
	for answered := 0; answered < 20; {
		m, err := sub.NextMsg(time.Minute)
		require.NoError(t, err)
		if m.Header.Get(schema.HeaderKind) != schema.KindEnd {
			answered++
		}
		if m.Header.Get(schema.HeaderErrorCode) == "429" {
			refused++
		}
	}
	require.Positive(t, refused)
}

// stored is how long a test waits until the events that it wrote are stored.
const stored = 5 * time.Minute

// long publishes a run of n events with payload bytes each, in atomic-free asynchronous singles.
func (w *serviceWorld) long(id string, n, payload int) *writer {
	w.TB.Helper()
	x := w.writer(id)
	x.Start()
	var failed atomic.Pointer[error]
	js, err := jetstream.New(w.NC, jetstream.WithPublishAsyncMaxPending(256), jetstream.WithPublishAsyncErrHandler(
		func(_ jetstream.JetStream, _ *nats.Msg, err error) { failed.Store(&err) }))
	require.NoError(w.TB, err)
	for i := range n {
		d := &schema.ErrorRaisedData{Error: schema.Error{Type: "noise", Message: string(foldtest.Noise(payload, int64(i))[1 : payload+1])}}
		e, err := x.Run.Event(d, 0, time.Unix(1_700_000_000, 0), 0)
		require.NoError(w.TB, err)
		require.NoError(w.TB, x.Run.Commit(e))
		header, body := e.Encode()
		// By default the client gives up when no event was stored for 200 ms, which happens on a busy machine.
		_, err = js.PublishMsgAsync(&nats.Msg{Subject: w.Names.EventSubject(id), Header: header, Data: body}, jetstream.WithStallWait(stored))
		require.NoError(w.TB, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(stored):
		require.FailNow(w.TB, "events not stored in time")
	}
	if err := failed.Load(); err != nil {
		require.NoError(w.TB, *err, "an event was not stored")
	}
	return x
}

func TestTakeover_StateTooLarge_RefusedBeforeWrite(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run of 19 MiB")
	}
	t.Parallel()
	w := newServiceWorld(t)
	w.long("run-1", 300, 64<<10)
	req := takeover("executor-2", "req-1")
	req.View = schema.ViewState
	e := w.refused(schema.VerbRecover, "run-1", req)
	require.Equal(t, schema.CodeTooLarge, e.Code)
	require.Contains(t, e.Hint, "events")
	require.Zero(t, w.svc.Stats().Takeovers.Load())
	reply, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, 1, reply.Head.Epoch)
}

func TestService_ServerGone_UnavailableThenBack(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(_ *kvstore.FleetConfig, c *serviceConfig) { c.Timeout = 500 * time.Millisecond })
	x := w.aRun("run-1", 1, 10)
	// The event stream loses its server while requests still arrive: this test deletes it instead.
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	cfg := stream.CachedInfo().Config
	require.NoError(t, w.JS.DeleteStream(t.Context(), cfg.Name))
	for _, verb := range []string{schema.VerbGet, schema.VerbRecover} {
		var req any = schema.GetRequest{}
		if verb == schema.VerbRecover {
			req = takeover("executor-2", "req-1")
		}
		start := time.Now()
		e := w.refused(verb, "run-1", req)
		require.Equal(t, schema.CodeUnavailable, e.Code)
		require.Less(t, time.Since(start), time.Minute)
	}
	_, err = w.JS.CreateStream(t.Context(), cfg)
	require.NoError(t, err)
	for _, r := range x.Acked {
		_, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("run-1"), Header: r.Header, Data: r.Body})
		require.NoError(t, err)
	}
	w.awaitHead("run-1")

	// A restart of the server: the service and its subscriptions come back by themselves.
	w.Server.Restart(t)
	require.Eventually(t, func() bool {
		_, err := w.client.Request("waymark.get.default.run-1", nil, 200*time.Millisecond)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	reply := w.awaitHead("run-1")
	require.True(t, reply.Complete)
	require.Equal(t, x.Model().Digest, reply.Head.Digest)
}

// awaitHead asks for a run until it is answered: a request with a short timeout may be refused on a loaded machine.
func (w *serviceWorld) awaitHead(run string) *schema.GetReply {
	w.TB.Helper()
	var reply *schema.GetReply
	deadline := time.Now().Add(time.Minute)
	for reply == nil {
		a, err := w.ask(schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead})
		if err == nil {
			reply = decodeAs[schema.GetReply](w.TB, a.first)
			continue
		}
		var e *schema.ServiceError
		require.ErrorAs(w.TB, err, &e)
		require.Equal(w.TB, schema.CodeUnavailable, e.Code)
		require.True(w.TB, time.Now().Before(deadline), "no answer within a minute: %v", err)
	}
	return reply
}

func TestService_Stop_FinishesRequests(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.long("run-1", 200, 64<<10)
	sub, err := w.client.SubscribeSync(w.client.NewRespInbox())
	require.NoError(t, err)
	require.NoError(t, w.client.PublishRequest("waymark.get.default.run-1", sub.Subject, []byte(`{"view":"events"}`)))
	_, err = sub.NextMsg(time.Minute)
	require.NoError(t, err)
	stopped := make(chan struct{})
	go func() {
		w.stop()
		close(stopped)
	}()
	for {
		m, err := sub.NextMsg(time.Minute)
		require.NoError(t, err)
		require.Empty(t, m.Header.Get(schema.HeaderErrorCode))
		if m.Header.Get(schema.HeaderKind) == schema.KindEnd {
			break
		}
	}
	<-stopped
	_, err = w.client.Request("waymark.get.default.run-1", nil, time.Second)
	require.ErrorIs(t, err, nats.ErrNoResponders)
}

func TestService_ConnectionClosed_RunEnds(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	nc := w.Server.Conn(t)
	svc, err := newService(t, serviceConfig{Fleet: "default", Name: "service-2"}, foldtest.JetStream(t, nc), []*kvstore.Shard{w.Shard}, time.Now)
	require.NoError(t, err)
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- svc.Run(ctx) }()
	<-svc.Ready()
	nc.Close()
	select {
	case err := <-done:
		require.ErrorIs(t, err, nats.ErrConnectionClosed)
	case <-time.After(time.Minute):
		require.FailNow(t, "Run did not end")
	}
}

func TestHistory_Run_ListsKeptCheckpoints(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 3, 10)
	for _, n := range []int{2, 5, 9} {
		w.checkpointAt(x, n, schema.SegmentIndex{})
	}
	a, err := w.ask(schema.VerbHistory, "run-1", []byte(nil))
	require.NoError(t, err)
	reply := decodeAs[schema.HistoryReply](t, a.first)
	require.Len(t, reply.Checkpoints, 3)
	require.EqualValues(t, 9, reply.Checkpoints[0].Sequence)
	require.EqualValues(t, 2, reply.Checkpoints[2].Sequence)
	require.Equal(t, schema.CodeNotFound, w.refused(schema.VerbHistory, "unknown", []byte(nil)).Code)
	w.aRun("run-2", 1, 10)
	a, err = w.ask(schema.VerbHistory, "run-2", []byte(nil))
	require.NoError(t, err)
	require.JSONEq(t, `{"run":"run-2","checkpoints":[]}`, string(a.first))
}

func TestService_NoReplySubject_ChangesNothing(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.aRun("run-1", 1, 10)
	body, err := json.Marshal(takeover("executor-2", "req-1"))
	require.NoError(t, err)
	require.NoError(t, w.client.Publish("waymark.recover.default.run-1", body))
	reply, _ := w.get("run-1", schema.ViewHead)
	require.EqualValues(t, 1, reply.Head.Epoch)
}

func FuzzRequests(f *testing.F) {
	w := newServiceWorld(f, func(_ *kvstore.FleetConfig, c *serviceConfig) {
		c.Timeout = 2 * time.Second
	})
	w.Fold(fold.Config{})
	x := w.aRun("run-1", 1, 10)
	x.wait("w1", yesOrNo)
	x.wait("w2", `{"items":{"$ref":"#"},"pattern":"a+"}`)
	hash := x.offer("h1", "error")
	verbs := []string{
		schema.VerbRecover, schema.VerbGet, schema.VerbList, schema.VerbHistory, schema.VerbSettle,
		schema.VerbInput, schema.VerbCancel, schema.VerbHandoff, schema.VerbClaim, schema.VerbMark, schema.VerbFork, schema.VerbSignal, schema.VerbFleet,
		schema.VerbErase, schema.VerbCleanup, schema.VerbRecords, schema.VerbExecutors, schema.VerbPause, schema.VerbLimit, schema.VerbSchedule,
	}
	for i := range verbs {
		f.Add(uint16(i), []byte(`{"executor":"e","request_id":"r","view":"state","limit":3,"by":"a","how":"rerun","tool_call_id":"c"}`))
		f.Add(uint16(i), []byte(`{"executor":null,"after":-1}`))
		f.Add(uint16(i), []byte(`{"policy":{"keep":-1},"dry_run":true,"after":"bm90aGluZw","limit":-1,"request_id":"r","by":"a"}`))
		f.Add(uint16(i), []byte(`{"name":"m","by":"alice","move":true,"at":"turn:1","view":"events","run":"run-1"}`))
		f.Add(uint16(i), binary.AppendUvarint(nil, 1<<40))
		f.Add(uint16(i), []byte(`{"interrupt_id":"w1","payload":{"ok":true},"by":"alice","request_id":"r","reason":"x","labels":{"a":"b"},"agents":["a"]}`))
		f.Add(uint16(i), []byte(`{"interrupt_id":"w2","status":"cancelled","payload":[["a",1e9]],"by":"alice"}`))
		f.Add(uint16(i), []byte(`{"handoff_id":"h1","action":"accept","by":"e","child_run":"run-2","offer_hash":"`+hash+`"}`))
		f.Add(uint16(i), []byte(`{"handoff_id":"h1","action":"close","by":"e"}`))
		f.Add(uint16(i), []byte(`{"from":2,"limit":3,"brief":true,"max_bytes":4096}`))
		f.Add(uint16(i), []byte(`{"agent":"none","labels":{"a":"b"},"reason":"why","by":"alice"}`))
		f.Add(uint16(i), []byte(`{"agent":"none","labels":{"a":"b"},"end":true,"by":"alice"}`))
		f.Add(uint16(i), []byte(`{"agent":"none","each":"tenant","at_work":3,"day_tokens":5,"by":"alice"}`))
		f.Add(uint16(i), []byte(`{"name":"report","cron":"0 7 * * 1-5","time_zone":"Europe/Berlin","missed":"all","agent":"none","task":"t","by":"alice"}`))
		f.Add(uint16(i), []byte(`{"through":9223372036854775807,"buckets":1}`))
	}
	f.Fuzz(func(t *testing.T, verb uint16, body []byte) {
		w.TB = t
		v := verbs[int(verb)%len(verbs)]
		run := "run-1"
		if v == schema.VerbList || v == schema.VerbClaim || v == schema.VerbFleet || v == schema.VerbCleanup || v == schema.VerbExecutors || v == schema.VerbPause || v == schema.VerbLimit || v == schema.VerbSchedule {
			run = ""
		}
		if v == schema.VerbErase {
			run = "run-2" // the other verbs need run-1
		}
		_, err := w.ask(v, run, body)
		var e *schema.ServiceError
		if err != nil {
			require.ErrorAs(t, err, &e)
			require.NotEqual(t, schema.CodeInternal, e.Code)
		}
	})
}
