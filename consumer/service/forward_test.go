package service_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/randomlog"
	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/internal/nats/eventlog"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// forwardSeeds is the number of random runs, and forwardChecks that of the records of each that are asked for.
	forwardSeeds, forwardChecks = 64, 10
	// forwardShort is the number of random runs in a short test.
	forwardShort = 8
)

// sealingSix is a world whose fold worker seals each six events and purges them at once.
func sealingSix(t *testing.T) (w *serviceWorld, begin func()) {
	t.Helper()
	w = newServiceWorld(t)
	return w, func() {
		w.Fold(fold.Config{Holder: "worker", SealEvents: 6, SealMaxEvents: 6, SealBytes: 1, IdleSealBytes: 1, PurgeAfter: time.Nanosecond, Synced: true, SweepEvery: 20 * time.Millisecond})
	}
}

// awaitSeals waits until a run's log is folded up to a record, and most of it is sealed.
func (w *serviceWorld) awaitSeals(run string, records int64) {
	w.TB.Helper()
	w.awaitCheckpoint(run, func(c *schema.Checkpoint) bool { return c.Records >= records && c.Segments.Events >= records-12 })
}

// requirePurged waits until half of the log is purged.
func (w *serviceWorld) requirePurged() {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		stream, err := w.JS.Stream(w.TB.Context(), w.Names.EventStream())
		require.NoError(w.TB, err)
		s := stream.CachedInfo().State
		return 2*s.Msgs < s.LastSeq
	}, testTimeout, 10*time.Millisecond)
}

func jsonOf(tb testing.TB, v any) string {
	tb.Helper()
	text, err := json.Marshal(v, json.Deterministic(true))
	require.NoError(tb, err)
	return string(text)
}

// The state of a run at any of its records is the fold of the records up to it, whatever a later one rewinds: for logs
// with everything that can go wrong, whose records are sealed and purged.
func TestState_RandomLogsWithRewinds_IsTheFoldOfThePrefix(t *testing.T) {
	t.Parallel()
	seeds := forwardSeeds
	if testing.Short() {
		seeds = forwardShort
		t.Logf("short: %d of %d seeds", seeds, forwardSeeds)
	}
	w, begin := sealingSix(t)
	logs := make(map[string][]schema.Record)
	rewinds := 0
	for seed := range seeds {
		run := fmt.Sprintf("random-%d", seed)
		s := rapid.Custom(func(t *rapid.T) *randomlog.Log {
			s := randomlog.Draw(t, randomlog.Config{Fleet: "default", Run: run}, 25)
			for range rapid.IntRange(1, 3).Draw(t, "rewinds") {
				if to := rewindOf(s.Records, rapid.IntRange(1, len(s.Records)).Draw(t, "record")); to != nil {
					s.Rewind(to)
				}
				for range rapid.IntRange(0, 10).Draw(t, "more") {
					s.Step()
				}
			}
			return s
		}).Example(seed)
		for i := range s.Records {
			w.publishRecord(run, &s.Records[i])
		}
		logs[run] = w.logOf(run)
	}
	begin()
	for run, log := range logs {
		head := schema.NewHead("default", run)
		for i := range log {
			head.Apply(schema.NoKeys, &log[i])
		}
		if head.Status != "" {
			w.awaitSeals(run, head.Records)
		}
	}
	w.requirePurged()
	checked := 0
	for seed := range seeds {
		run := fmt.Sprintf("random-%d", seed)
		log := logs[run]
		at := make([]schema.Head, len(log))
		head := schema.NewHead("default", run)
		for i := range log {
			head.Apply(schema.NoKeys, &log[i])
			at[i] = head.Clone()
		}
		if head.Status == "" {
			continue // nothing was accepted
		}
		rewinds += len(head.Superseded)
		for _, i := range rand.New(rand.NewPCG(uint64(seed), 1)).Perm(len(log))[:min(forwardChecks, len(log))] { //nolint:gosec // an order
			if at[i].Records == 0 || i > 0 && at[i].Records == at[i-1].Records {
				continue // a record that does not count
			}
			want := schema.NewState("default", run)
			for j := range i + 1 {
				want.Apply(schema.NoKeys, &log[j])
			}
			if m := referencefold.Fold(schema.NoKeys, "default", run, log[:i+1]); !m.Beyond {
				require.Empty(t, m.StateDifferences(want), "run %s at record %d", run, at[i].Records)
			}
			reply, _ := w.at(run, schema.ViewState, fmt.Sprintf("record:%d", at[i].Records))
			require.Equal(t, want.Head, reply.Head)
			require.Equal(t, jsonOf(t, want.View()), jsonOf(t, reply.State), "run %s at record %d", run, at[i].Records)
			checked++
		}
	}
	require.GreaterOrEqual(t, checked, seeds*forwardChecks*3/4)
	require.GreaterOrEqual(t, rewinds, seeds/2)
}

// rewindOf is the base of a rewind to record n of a log; nil if the run cannot continue there.
func rewindOf(log []schema.Record, n int) *schema.Base {
	head := schema.Head{}
	for i := range log[:n] {
		head.Apply(schema.NoKeys, &log[i])
	}
	if head.Digest == "" {
		return nil
	}
	at := head.Clone()
	var later []schema.OpenSignal
	for i := range log[n:] {
		later = append(later, schema.SentSignal(&head, head.Apply(schema.NoKeys, &log[n+i]))...)
	}
	to, err := schema.RewindTo(schema.Point{Kind: schema.PointRecord, Number: uint64(at.Records)}, &at, later) //nolint:gosec // a small number
	if err != nil {
		return nil
	}
	return to
}

// publishRecord stores a record as it is.
func (w *serviceWorld) publishRecord(run string, rec *schema.Record) {
	w.TB.Helper()
	m := &nats.Msg{Subject: w.Names.EventSubject(run), Header: rec.Header, Data: rec.Body}
	_, err := w.JS.PublishMsg(w.TB.Context(), m)
	if !errors.Is(err, nats.ErrBadHeaderMsg) { // no client can send it
		require.NoError(w.TB, err)
	}
}

// logOf reads a run's log.
func (w *serviceWorld) logOf(run string) (log []schema.Record) {
	w.TB.Helper()
	require.NoError(w.TB, eventlog.Read(w.TB.Context(), w.JS, w.Names, run, 1, func(rec schema.Record) error {
		log = append(log, rec)
		return nil
	}))
	return log
}

// What a handle had at a record is what the service answers there, and what a client folds: while the run is rewound
// and forked, waits, and gets signals, and its records are sealed and purged.
func TestState_RandomHandlesWithRewinds_IsWhatTheyHad(t *testing.T) {
	t.Parallel()
	seeds := forwardSeeds
	if testing.Short() {
		seeds = forwardShort
		t.Logf("short: %d of %d seeds", seeds, forwardSeeds)
	}
	w, begin := sealingSix(t)
	begin()
	fleet, err := publisher.Connect(t.Context(), publisher.Config{URL: w.Server.URL(), Options: w.Server.Options(), Fleet: "default", Executor: "box-1", Agent: "coder"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, fleet.Close(context.WithoutCancel(t.Context()))) })
	checked, rewound := 0, 0
	for seed := range seeds {
		id := fmt.Sprintf("live-%d", seed)
		l := &live{t: t, w: w, rnd: rand.New(rand.NewPCG(uint64(seed), 2)), seen: make(map[int64]*schema.State)} //nolint:gosec // chooses
		l.run, err = fleet.Start(t.Context(), publisher.RunSpec{ID: id})
		require.NoError(t, err)
		l.look()
		for range 3 {
			l.steps(8)
			at := schema.Point{Kind: schema.PointRecord, Number: uint64(1 + l.rnd.IntN(int(l.run.Head().Records)))} //nolint:gosec // a small number
			run, err := fleet.Resume(t.Context(), id, publisher.ResumeSpec{At: at})
			require.NoError(t, err)
			l.run = run
			l.look()
			rewound++
		}
		l.steps(4)
		checked += l.check(fleet)
		at := schema.Point{Kind: schema.PointRecord, Number: uint64(1 + l.rnd.IntN(int(l.run.Head().Records)))} //nolint:gosec // a small number
		l.run, err = fleet.Fork(t.Context(), publisher.ForkSpec{ID: id + "-fork", Base: id, At: at})
		require.NoError(t, err)
		clear(l.seen)
		l.look()
		l.steps(6)
		checked += l.check(fleet)
		require.NoError(t, l.run.End(t.Context(), publisher.RunEnd{}))
	}
	w.requirePurged()
	require.Equal(t, 3*seeds, rewound)
	require.GreaterOrEqual(t, checked, seeds*forwardChecks)
}

// live drives a run by chance.
type live struct {
	t   *testing.T
	w   *serviceWorld
	rnd *rand.Rand
	run *publisher.Run
	// seen are the handle's states, by their last record.
	seen map[int64]*schema.State
}

func (l *live) look() {
	state := l.run.State()
	l.seen[state.Head.Records] = state
}

func (l *live) steps(n int) {
	l.t.Helper()
	for range n {
		h := l.run.Head()
		if l.rnd.IntN(6) == 0 {
			_, err := l.w.ask(schema.VerbSignal, l.run.ID(), schema.SignalRequest{SignalID: fmt.Sprintf("s%d", h.Records), Name: "go on", By: "ann"})
			require.NoError(l.t, err)
		}
		data, turn := l.draw(&h)
		err := l.run.Publish(l.t.Context(), data, turn)
		if !errors.Is(err, publisher.ErrRejected) {
			require.NoError(l.t, err)
		}
		l.look()
	}
}

// draw returns an event that the run may accept.
func (l *live) draw(h *schema.Head) (schema.Data, int32) {
	text := fmt.Sprint("text ", l.rnd.IntN(1000))
	said := schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text(text)}}
	key := fmt.Sprintf("k%d", l.rnd.IntN(3))
	if n := len(h.OpenCalls); n > 0 && l.rnd.IntN(2) == 0 {
		c := &h.OpenCalls[l.rnd.IntN(n)]
		switch {
		case c.State.InDoubt():
			return &schema.ToolSettledData{ToolCallID: c.ToolCallID, Occurrence: c.Occurrence, How: schema.SettledAbandoned}, c.Turn
		case c.State.Requested() && l.rnd.IntN(2) == 0:
			return &schema.ToolCalledData{ToolCallID: c.ToolCallID, Occurrence: c.Occurrence, Name: c.Name}, c.Turn
		}
		return &schema.ToolReturnedData{ToolCallID: c.ToolCallID, Occurrence: c.Occurrence, Result: jsontext.Value(`"` + text + `"`)}, c.Turn
	}
	switch l.rnd.IntN(12) {
	case 0, 1:
		return &schema.TurnStartedData{Turn: h.Turn + 1, Messages: []schema.Message{said}}, h.Turn + 1
	case 2, 3:
		answer := schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{schema.CallPart("c1", "pay")}}
		turn := h.Turn
		if !h.TurnOpen || h.TurnAnswered {
			turn++
		}
		return &schema.TurnAnsweredData{Turn: turn, Message: answer, Calls: []schema.RequestedCall{{ToolCallID: "c1", Name: "pay", Replay: schema.ReplayPure}}}, turn
	case 4, 5:
		return &schema.StateSetData{Key: key, Value: jsontext.Value(`"` + text + `"`)}, 0
	case 6:
		return &schema.StateDeletedData{Key: key}, 0
	case 7:
		return &schema.RunWaitingData{InterruptID: key, Reason: schema.WaitHumanInput, Message: text}, 0
	case 8:
		return &schema.PhaseCompletedData{Phase: key, Output: jsontext.Value(`1`)}, 0
	case 9:
		return &schema.ErrorRaisedData{Error: schema.Error{Type: "odd", Message: text}}, 0
	case 10:
		if len(h.Signals) > 0 {
			return &schema.SignalConsumedData{SignalIDs: []string{h.Signals[0].SignalID}}, 0
		}
		fallthrough
	default:
		return &schema.MessageAddedData{Message: said}, 0
	}
}

// check compares the states that the handle had with those of the service and of a client, and counts them.
func (l *live) check(fleet *publisher.Fleet) (checked int) {
	l.t.Helper()
	id := l.run.ID()
	l.w.awaitSeals(id, l.run.Head().Records)
	for records, had := range l.seen {
		if checked == forwardChecks {
			break
		}
		checked++
		point := schema.Point{Kind: schema.PointRecord, Number: uint64(records)} //nolint:gosec // a count
		reply, _ := l.w.at(id, schema.ViewState, point.String())
		require.Equal(l.t, jsonOf(l.t, had.View()), jsonOf(l.t, reply.State), "run %s at record %d", id, records)
		folded, err := fleet.GetAt(l.t.Context(), id, point)
		require.NoError(l.t, err)
		require.Equal(l.t, jsonOf(l.t, had), jsonOf(l.t, folded), "run %s at record %d", id, records)
	}
	return checked
}
