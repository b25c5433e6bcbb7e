package service_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// gated is a service whose reads of the log wait until the test allows them.
type gated struct {
	*serviceWorld
	mu   sync.Mutex
	gate func(request string, times int)
	seen map[string]int
}

// newGated makes one. The gate is called before each direct get of the log, with the request and its count.
func newGated(t *testing.T, cfg service.Config) *gated {
	t.Helper()
	w := newServiceWorld(t)
	w.stop()
	g := &gated{serviceWorld: w}
	nc := w.Server.Conn(t)
	js := natstest.Between(t, nc, func(m *nats.Msg, subject string) {
		if subject != "$JS.API.DIRECT.GET."+w.Names.EventStream() {
			natstest.Forward(nc, m, subject)
			return
		}
		g.mu.Lock()
		gate := g.gate
		if gate == nil {
			g.mu.Unlock()
			natstest.Forward(nc, m, subject)
			return
		}
		g.seen[string(m.Data)]++
		times := g.seen[string(m.Data)]
		g.mu.Unlock()
		go func() { // the other requests continue
			gate(string(m.Data), times)
			natstest.Forward(nc, m, subject)
		}()
	})
	shard := w.openOn(js, "service-1")
	cfg.Fleet, cfg.Name = "default", "service-1"
	svc, err := newService(t, cfg, js, []*kvstore.Shard{shard}, time.Now)
	require.NoError(t, err)
	g.svc = svc
	g.stop = w.start(g.svc)
	return g
}

// arm sets the gate.
func (g *gated) arm(gate func(request string, times int)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gate, g.seen = gate, make(map[string]int)
}

// Wherever the segments end, wherever the checkpoint is, purged or not: the answer is the same.
func TestStream_EverySegmentBoundary_SameReply(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	runs := 0
	step := 1
	if testing.Short() {
		step = 7
		t.Log("short: each seventh cut")
	}
	for cut := 0; cut < 22; cut += step {
		for _, purge := range []bool{false, true} {
			for _, at := range []int{cut, (cut + 21) / 2, 21} {
				if at == 0 {
					continue
				}
				runs++
				x := w.aRun(fmt.Sprintf("run-%d", runs), 5, 20)
				require.Len(t, x.Acked, 21)
				index := w.sealByHand(x, cut, 4, false)
				w.checkpointAt(x, at, index)
				if purge { // sealed events, strictly below the checkpoint's position
					for _, rec := range x.Acked[:min(cut, at-1)] {
						w.deleteMsg(rec.Stream)
					}
				}
				reply, a := w.get(x.Run.Run, schema.ViewEvents)
				require.True(t, reply.Complete)
				require.Equal(t, x.Model(), reply.Head, "cut %d at %d", cut, at)
				require.Len(t, a.segments, index.Count)
				got := a.records(t)
				require.Len(t, got, len(x.Acked))
				for i := range got {
					require.True(t, x.Acked[i].Equal(&got[i]), "cut %d at %d: event %d", cut, at, i)
				}
			}
		}
	}
	require.Zero(t, w.svc.Stats().Holes.Load())
	require.Zero(t, w.svc.Stats().Regressions.Load())
}

func TestStream_LogPurgedDuringRead_FoundInSegments(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// counted: a newer checkpoint counts the newer segments.
		counted bool
	}{
		{"with the newer checkpoint", true},
		{"with the newer checkpoint lost", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := newGated(t, service.Config{})
			x, moved := g.purgedBefore(1, 100, c.counted)
			g.wholeEvents(x)
			require.True(t, *moved)
		})
	}
}

// A tail that was too long to keep is read twice. If it leaves the log in between, the request fails, and its repeat
// finds the events in the newer segments.
func TestStream_LongTailPurgedBetweenItsReads_FoundByTheRepeat(t *testing.T) {
	t.Parallel()
	g := newGated(t, service.Config{})
	x, moved := g.purgedBefore(2, 150<<10, true)
	_, err := g.ask(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents})
	var e *schema.ServiceError
	require.ErrorAs(t, err, &e)
	require.Equal(t, schema.CodeUnavailable, e.Code)
	require.True(t, *moved)
	g.wholeEvents(x)
}

// purgedBefore has a run whose newer part is sealed and purged just before a part of the log is read for the nth time.
// counted: a newer checkpoint counts the newer segments.
func (g *gated) purgedBefore(n, payload int, counted bool) (x *writer, moved *bool) {
	g.TB.Helper()
	x, moved = g.aRun("run-1", 12, payload), new(bool)
	require.Len(g.TB, x.Acked, 49)
	index := g.sealByHand(x, 8, 8, true)
	g.checkpointAt(x, 20, index)
	g.arm(func(request string, times int) {
		if *moved || !strings.Contains(request, "next_by_subj") || times != n {
			return
		}
		*moved = true
		newer := g.sealMore(x, index, 40, 8)
		if counted {
			g.checkpointAt(x, 48, newer)
		}
		for _, rec := range x.Acked[8:40] {
			g.deleteMsg(rec.Stream)
		}
	})
	return x, moved
}

// wholeEvents asks for all events of a run.
func (g *gated) wholeEvents(x *writer) {
	g.TB.Helper()
	reply, a := g.get("run-1", schema.ViewEvents)
	require.True(g.TB, reply.Complete, "%v", reply.Gaps)
	require.Equal(g.TB, x.Model(), reply.Head)
	got := a.records(g.TB)
	require.Len(g.TB, got, len(x.Acked))
	for i := range got {
		require.True(g.TB, x.Acked[i].Equal(&got[i]), "event %d", i)
	}
	require.Zero(g.TB, g.svc.Stats().Holes.Load(), "no gap was named")
	require.Zero(g.TB, g.svc.Stats().Regressions.Load())
}

func TestStream_SegmentMissing_EventsFromLog(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 8, 10)
	require.Len(t, x.Acked, 33)
	w.checkpointAt(x, len(x.Acked), w.sealByHand(x, 24, 8, false))
	// The second segment is lost and the log lost its end: it is read again, with the first segment alone, because
	// the log still has the later events.
	stream, err := w.JS.Stream(t.Context(), "KV_"+w.Names.SegmentBucket())
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+w.Names.SegmentBucket()+"."+schema.SegmentKey("run-1", 2))))
	for _, r := range x.Acked[28:] {
		w.deleteMsg(r.Stream)
	}
	reply, a := w.get("run-1", schema.ViewEvents)
	require.False(t, reply.Complete)
	require.Len(t, reply.Gaps, 1)
	require.EqualValues(t, 29, reply.Gaps[0].From)
	require.Len(t, a.segments, 1)
	got := a.records(t)
	require.Len(t, got, 28)
	for i := range got {
		require.True(t, x.Acked[i].Equal(&got[i]), "event %d", i)
	}
	require.Equal(t, reply.Head, a.fold(t, "run-1").Head)
}

// A run that is larger than a page is read page by page, whatever is sealed and purged between two pages.
func TestPages_SealedBetweenPages_TheRunExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	pages := func(run string, between func()) (got []schema.Record, n int) {
		for after := ""; ; n++ {
			a, err := w.ask(schema.VerbGet, run, schema.GetRequest{View: schema.ViewEvents, After: after})
			require.NoError(t, err)
			require.Equal(t, []string{schema.KindAnswer, schema.KindEnd}, a.kinds[len(a.kinds)-2:])
			require.LessOrEqual(t, a.bytes-len(a.first), schema.PageBytes)
			got = append(got, a.records(t)...)
			reply := decodeAs[schema.GetReply](t, a.first)
			require.True(t, reply.Complete, "%v", reply.Gaps)
			if after = reply.Next; after == "" {
				return got, n + 1
			}
			between()
		}
	}
	for i, per := range []int{1, 3, 8} {
		x := w.aRun(fmt.Sprint("run-", i), 26, 240<<10) // four events in a turn, and one page of about 17 turns
		got, n := pages(x.Run.Run, func() {
			w.checkpointAt(x, len(x.Acked), w.sealByHand(x, 100, per, false))
			for _, rec := range x.Acked[:99] {
				w.deleteMsg(rec.Stream)
			}
		})
		require.Equal(t, 2, n)
		require.Len(t, got, len(x.Acked))
		for k := range got {
			require.True(t, x.Acked[k].Equal(&got[k]), "%d in a segment: event %d", per, k)
		}
	}
	e := w.refused(schema.VerbGet, "run-0", schema.GetRequest{View: schema.ViewEvents, After: "9223372036854775807.9223372036854775807.9223372036854775807"})
	require.Equal(t, schema.CodeUnavailable, e.Code, "a place that is not there is not the end")
	for _, after := range []string{"x", "1.2", "0.0.-1", "1.-1.-1", "1.0.-2", "01.0.-1", "1.0.-1 ", "1.0.9223372036854775808"} {
		e := w.refused(schema.VerbGet, "run-0", schema.GetRequest{View: schema.ViewEvents, After: after})
		require.Equal(t, schema.CodeBadRequest, e.Code, after)
	}
	require.Equal(t, schema.CodeBadRequest, w.refused(schema.VerbGet, "run-0", schema.GetRequest{After: "1.0.-1"}).Code, "view state has no pages")
}

// The content up to a point ends at the point on every page; a takeover is continued by its own request.
func TestPages_PointAndTakeover_EachPageBelongsToItsRequest(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 26, 240<<10)
	got, req := []schema.Record(nil), schema.GetRequest{View: schema.ViewEvents, At: "record:85"}
	for {
		a, err := w.ask(schema.VerbGet, "run-1", req)
		require.NoError(t, err)
		reply := decodeAs[schema.GetReply](t, a.first)
		require.EqualValues(t, 85, reply.At.Records)
		require.Equal(t, x.state(85).Head.Digest, reply.Head.Digest)
		got = append(got, a.records(t)...)
		if req.After = reply.Next; req.After == "" {
			break
		}
	}
	require.Len(t, got, 85)

	took := takeover("executor-2", "req-1")
	took.View = schema.ViewEvents
	for n := 0; ; n++ {
		reply, _ := w.recover("run-1", took)
		require.EqualValues(t, 2, reply.Epoch, "all pages are of one takeover")
		if took.After = reply.Next; took.After == "" {
			require.Positive(t, n)
			break
		}
	}
	require.EqualValues(t, 1, w.svc.Stats().Takeovers.Load())
	w.recover("run-1", takeover("executor-3", "req-2"))
	took.After = "1.3.-1"
	require.Equal(t, schema.CodeConflict, w.refused(schema.VerbRecover, "run-1", took).Code, "the next executor has it")
}

// A page that is read from an older checkpoint than the page before is asked for again: its place counts segments that
// the older one does not have.
func TestPages_OlderCheckpointOnTheSecondPage_IsRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.aRun("run-1", 26, 240<<10)
	older := w.sealMore(x, schema.SegmentIndex{}, 8, 8)
	index := w.sealMore(x, older, 80, 8)
	for _, at := range []string{"", "record:100"} {
		w.checkpointAt(x, len(x.Acked), index)
		a, err := w.ask(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents, At: at})
		require.NoError(t, err)
		next := decodeAs[schema.GetReply](t, a.first).Next
		require.NotEmpty(t, next)
		w.checkpointAt(x, 20, older)
		e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents, At: at, After: next})
		require.Equal(t, schema.CodeUnavailable, e.Code)
		if at != "" {
			e := w.refused(schema.VerbGet, "run-1", schema.GetRequest{View: schema.ViewEvents, At: at, After: "1.0.-1"})
			require.Equal(t, schema.CodeBadRequest, e.Code, "it would pass the point")
		}
	}
}
