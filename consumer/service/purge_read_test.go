package service_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// tapped is a service whose requests to JetStream are seen before they are sent.
func newTapped(t *testing.T) (*serviceWorld, *foldtest.Tap) {
	t.Helper()
	server := natstest.Start(t)
	w := &serviceWorld{World: &foldtest.World{
		TB: t, Server: server, NC: server.Conn(t), Fleet: kvstore.FleetConfig{Fleet: "default", QuotaBytes: 256 << 20},
		Names: schema.NamesOf("default", 0),
	}}
	w.JS = foldtest.JetStream(t, w.NC)
	w.Provision()
	w.Shard = w.Open("tester")
	w.client = server.Conn(t)
	d := &foldtest.Tap{Prefixes: []string{"$JS.API.DIRECT.GET.", "$JS.API.STREAM.MSG.GET.", "$JS.API.CONSUMER.CREATE.", w.Names.EventSubject("")}}
	nc := server.Conn(t, nats.SetCustomDialer(d))
	js := foldtest.JetStream(t, nc)
	shard, err := kvstore.OpenShard(js, schema.FleetSettings{
		Format: schema.SettingsFormat, Fleet: "default", Shards: 1, Replicas: 1, QuotaBytes: 256 << 20,
		ReserveBytes: kvstore.DefaultReserveBytes, CheckpointsPerRun: 5,
	}, 0, "service-1")
	require.NoError(t, err)
	w.shards = []*kvstore.Shard{shard}
	w.svc, err = newService(t, service.Config{Fleet: "default", Name: "service-1"}, js, w.shards, time.Now)
	require.NoError(t, err)
	w.start(w.svc)
	return w, d
}

// mover seals, checkpoints and purges a run by hand, step by step, like fold worker and purger.
type mover struct {
	w     *serviceWorld
	x     *writer
	head  schema.Head // of the sealed events
	index schema.SegmentIndex
	n     int // sealed events
}

func newMover(w *serviceWorld, x *writer) *mover {
	return &mover{w: w, x: x, head: schema.NewHead("default", x.Run.Run)}
}

// seal stores the next segment, up to event number to.
func (m *mover) seal(to int) {
	m.x.Stamp()
	info := schema.SegmentInfo{
		Fleet: "default", Run: m.x.Run.Run, Number: m.index.Count + 1, Events: to - m.n,
		First: schema.PositionOf(&m.x.Acked[m.n]), Last: schema.PositionOf(&m.x.Acked[to-1]),
		DigestBefore: m.head.Digest,
	}
	var frames []byte
	for ; m.n < to; m.n++ {
		frames = schema.AppendFrame(frames, &m.x.Acked[m.n])
		m.head.Apply(schema.NoKeys, &m.x.Acked[m.n])
	}
	info.DigestAfter = m.head.Digest
	stored, err := schema.EncodeSegment(info, nil, frames)
	require.NoError(m.w.TB, err)
	require.NoError(m.w.TB, m.w.Shard.Segments.Create(m.w.TB.Context(), m.x.Run.Run, info.Number, stored))
	m.index = schema.SegmentIndex{
		Count: info.Number, Bytes: m.index.Bytes + int64(len(stored)), Events: m.index.Events + int64(info.Events),
		Last: info.Last, Digest: info.DigestAfter,
	}
}

// checkpoint counts the sealed events, at event number at.
func (m *mover) checkpoint(at int) { m.w.checkpointAt(m.x, at, m.index) }

// purge removes the sealed events.
func (m *mover) purge() {
	c, _, err := m.w.Shard.Checkpoints.GetFresh(m.w.TB.Context(), m.x.Run.Run)
	require.NoError(m.w.TB, err)
	_, err = m.w.Shard.PurgeRun(m.w.TB.Context(), m.x.Run.Run, min(c.Segments.Last.Stream, c.Position.Stream-1)+1)
	require.NoError(m.w.TB, err)
}

// steps are what fold worker and purger do to a run of 41 events, of which the first are sealed and purged at once.
func (m *mover) steps() []func() {
	m.seal(9)
	m.checkpoint(13)
	m.purge()
	return []func(){
		func() { m.checkpoint(20) },
		func() { m.seal(17) },
		func() { m.checkpoint(21) },
		m.purge,
		func() { m.seal(25) },
		func() { m.checkpoint(30) },
		m.purge,
		func() { m.seal(33) },
		func() { m.checkpoint(41) },
		m.purge,
		func() { m.seal(41) },
		func() { m.checkpoint(41) },
		m.purge,
	}
}

// A read is complete and has no gap, whatever is sealed, counted and purged between any two of its own steps.
func TestRead_LogMovedMeanwhile_Exact(t *testing.T) {
	t.Parallel()
	w, d := newTapped(t)
	const requests = 12
	seed := uint64(time.Now().UnixNano()) //nolint:gosec // any number will do
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // schedules
	step := 1
	if testing.Short() {
		step = 10
		t.Log("short: 16 of 160 rounds")
	}
	for round := 0; round < 160; round += step {
		run := fmt.Sprintf("run-%d", round)
		x := w.writer(run)
		x.Start()
		for range 10 {
			x.TurnOf(50)
		}
		require.Len(t, x.Acked, 41)
		steps := newMover(w, x).steps()
		// at is the request before which each step is taken.
		at := make([]int, len(steps))
		switch {
		case round < requests: // all of it before one request
			for i := range at {
				at[i] = round
			}
		case round < requests+len(steps): // one step a request, the first ones before anything
			for i := range at {
				at[i] = max(0, i-(round-requests))
			}
		default:
			for i := range at {
				at[i] = random.IntN(requests)
			}
			slices.Sort(at)
		}
		request, next := 0, 0
		d.Set(func(string) {
			for next < len(steps) && at[next] <= request {
				steps[next]()
				next++
			}
			request++
		})
		msg := fmt.Sprintf("seed %d, round %d, steps before requests %v", seed, round, at)
		want := x.Model()
		view := []string{schema.ViewHead, schema.ViewEvents, schema.ViewState}[round%3]
		if round%2 == 0 {
			reply, a := w.get(run, view)
			require.True(t, reply.Complete, msg)
			require.Empty(t, reply.Gaps, msg)
			require.Equal(t, want, reply.Head, msg)
			if view == schema.ViewEvents {
				require.Len(t, a.records(t), len(x.Acked), msg)
				require.Equal(t, want, a.fold(t, run).Head, msg)
			}
		} else {
			reply, a := w.recover(run, takeover("executor-2", fmt.Sprintf("request-%d", round)))
			require.True(t, reply.Complete, msg)
			require.Empty(t, reply.Gaps, msg)
			require.EqualValues(t, 2, reply.Epoch, msg)
			require.Equal(t, want.Counts.Events+1, reply.Head.Counts.Events, msg)
			_ = a
		}
		d.Set(nil)
		for ; next < len(steps); next++ {
			steps[next]()
		}
	}
	stats := w.svc.Stats()
	require.Zero(t, stats.Holes.Load(), "no hole was said")
	require.Zero(t, stats.Regressions.Load(), "no regression was said")
	t.Logf("folds from scratch %d", stats.FoldsFromScratch.Load())
}

// However often events are moved, a moved event is never taken for lost.
func TestRead_LogMovesBeforeEachRequest_LosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("short: the log moves before each request of each view")
	}
	t.Parallel()
	w, d := newTapped(t)
	for i, prefix := range []string{"$JS.API.DIRECT.GET." + w.Names.EventStream(), "$JS.API.STREAM.MSG.GET.", "$JS.API."} {
		for _, view := range []string{schema.ViewHead, schema.ViewEvents, schema.ViewState} {
			run := fmt.Sprintf("run-%d-%s", i, view)
			x := w.writer(run)
			x.Start()
			for range 40 {
				x.TurnOf(50)
			}
			m := newMover(w, x)
			m.seal(5)
			m.checkpoint(9)
			m.purge()
			d.Set(func(subject string) {
				if strings.HasPrefix(subject, prefix) && m.n+4 <= len(x.Acked) {
					m.seal(m.n + 4)
					m.checkpoint(min(m.n+2, len(x.Acked)))
					m.purge()
				}
			})
			reply, a := w.get(run, view)
			require.True(t, reply.Complete, run)
			require.Empty(t, reply.Gaps, run)
			require.Equal(t, x.Model(), reply.Head, run)
			if view == schema.ViewEvents {
				require.Equal(t, x.Model(), a.fold(t, run).Head, run)
			}
			d.Set(nil)
		}
	}
	require.Zero(t, w.svc.Stats().Holes.Load(), "no hole was said")
	require.Zero(t, w.svc.Stats().Regressions.Load(), "no regression was said")
}

// Control events have no sequences: purging them between two parts of a read leaves no gap.
func TestRead_ControlEventPurgedBetweenPieces_NotMissed(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 6,300 events are published one by one")
	}
	t.Parallel()
	const marks, first = 700, 3
	for from, piece := range map[string]int{"a checkpoint": 3, "scratch": 2, "scratch, between two pieces": 3} {
		for _, view := range []string{schema.ViewHead, schema.ViewEvents, schema.ViewState} {
			t.Run(view+" from "+from, func(t *testing.T) {
				t.Parallel()
				w, d := newTapped(t)
				x := w.writer("run-1")
				x.Start()
				x.TurnOf(10)
				for i := range marks {
					e, err := schema.NewControl("default", "operator", "run-1", 1, fmt.Sprintf("n%d", i), &schema.CheckpointMarkedData{Name: "here", By: "alice"}, time.Unix(1_700_000_000, 0))
					require.NoError(t, err)
					x.Send(e)
				}
				m := newMover(w, x)
				if from == "a checkpoint" {
					m.seal(first)
					m.checkpoint(first + 1)
				}
				pieces, moved := 0, false
				d.Set(func(subject string) {
					if subject != "$JS.API.DIRECT.GET."+w.Names.EventStream() {
						return
					}
					if pieces++; pieces >= piece && !moved {
						moved = true
						m.seal(marks - 20)
						m.checkpoint(marks - 10)
						m.purge()
					}
				})
				reply, a := w.get("run-1", view)
				d.Set(nil)
				require.True(t, moved, "the log was read in pieces")
				require.True(t, reply.Complete)
				require.Equal(t, x.Model(), reply.Head)
				if view == schema.ViewEvents {
					require.Len(t, a.records(t), len(x.Acked))
				}
				require.Zero(t, w.svc.Stats().Holes.Load())
			})
		}
	}
}
