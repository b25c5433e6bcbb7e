package service_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/schema"
)

// messagesAt reads the messages of a run at a point by small pages, the oldest first.
func (w *serviceWorld) messagesAt(run, at string) (list []string, pages int) {
	w.TB.Helper()
	req := schema.GetRequest{At: at, MaxBytes: 16 << 10}
	for {
		a, err := w.ask(schema.VerbGet, run, req)
		require.NoError(w.TB, err)
		pages++
		page := decodeAs[schema.GetReply](w.TB, a.first).State
		var these []string
		for i := range page.Messages {
			these = append(these, textOf(w.TB, page.Messages[i]))
		}
		list = append(these, list...)
		if page.Older == nil {
			return list, pages
		}
		req = page.Older.Request
	}
}

func (x *writer) messages(tb testing.TB, s *schema.State) (list []string) {
	tb.Helper()
	v := s.View()
	for i := range v.Messages {
		list = append(list, textOf(tb, v.Messages[i]))
	}
	return list
}

// The state at a record does not depend on the cache: the pages of a long run, in any order, add up to its conversation there.
func TestKept_LongRunAtItsRecords_PagesAddUp(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	_, stop := w.Fold(fold.Config{Holder: "worker", SealEvents: 16, SealMaxEvents: 32})
	defer stop()
	x := w.writer("run-1")
	x.Start()
	for range 120 {
		x.conversation(4000)
	}
	n := len(x.Acked)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return uint64(c.Position.Stream) == x.Last && c.Segments.Count > 10 })
	order := rand.New(rand.NewPCG(1, 2)).Perm(n)[:8] //nolint:gosec // an order
	for _, i := range slices.Concat(order, order, []int{n - 1}) {
		at := fmt.Sprintf("record:%d", i+1)
		got, pages := w.messagesAt("run-1", at)
		require.Equal(t, x.messages(t, x.whole(i+1)), got, at)
		if i > n/2 {
			require.Greater(t, pages, 10, at)
		}
	}
	got, _ := w.messagesAt("run-1", "")
	require.Equal(t, x.messages(t, x.whole(n)), got)
	kept := service.KeptBytes(w.svc)
	require.Positive(t, kept)
	require.Less(t, kept, int64(32<<20))
	t.Logf("%d records, %d KiB kept", n, kept>>10)
}

// whole is the state after the first events, folded from the first record.
func (x *writer) whole(n int) *schema.State {
	s := schema.NewState("default", x.Run.Run)
	for i := range n {
		s.Apply(schema.NoKeys, &x.Acked[i])
	}
	return s
}

// Work that a rewind left behind is in the states before the rewind and not in those after it, whatever is cached.
func TestKept_Rewind_EachRecordHasItsOwnContent(t *testing.T) {
	t.Parallel()
	w, log := rewound(t)
	fold := func(n int) *schema.State {
		s := schema.NewState("default", "run-1")
		head := schema.NewHead("default", "run-1")
		for i := range n {
			head.Apply(schema.NoKeys, &log[i])
		}
		s.Expect(head.Superseded)
		for i := range n {
			s.Apply(schema.NoKeys, &log[i])
		}
		return s
	}
	x := &writer{}
	for range 2 {
		for _, n := range []int{len(log), 49, 60, 21, 50, 51, 30, len(log) - 1} {
			got, _ := w.messagesAt("run-1", fmt.Sprintf("record:%d", n))
			require.Equal(t, x.messages(t, fold(n)), got, "record %d", n)
		}
	}
}

// Each replica drops the cached states of a removed run, also one that did not remove it.
func TestKept_RemovedRun_IsForgotten(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.Fold(fold.Config{Holder: "worker", SealEvents: 8, SealMaxEvents: 16})
	x := w.writer("run-1")
	x.Start()
	for range 8 {
		x.conversation(100)
	}
	x.Publish(&schema.RunEndedData{Status: string(schema.StatusCompleted)}, 0)
	w.awaitCheckpoint("run-1", func(c *schema.Checkpoint) bool { return c.Status.Terminal() && c.Segments.Count > 1 })
	w.messagesAt("run-1", "")
	require.Positive(t, service.KeptBytes(w.svc))
	service.SweepKept(t.Context(), w.svc)
	require.Positive(t, service.KeptBytes(w.svc), "a run that is there is kept")
	first, stop := w.svc, w.stop
	stop()
	other, err := newService(t, service.Config{Fleet: "default", Name: "service-2"}, w.JS, w.shards, time.Now)
	require.NoError(t, err)
	w.start(other)
	w.messagesAt("run-1", "")
	require.Positive(t, service.KeptBytes(other))
	_, err = w.ask(schema.VerbErase, "run-1", schema.EraseRequest{By: "ann", Reason: "asked"})
	require.NoError(t, err)
	require.Zero(t, service.KeptBytes(other), "who removes it forgets it at once")
	require.Positive(t, service.KeptBytes(first))
	service.SweepKept(t.Context(), first)
	require.Zero(t, service.KeptBytes(first))
}

func textOf(tb testing.TB, v any) string {
	tb.Helper()
	b, err := json.Marshal(v, json.Deterministic(true))
	require.NoError(tb, err)
	return string(b)
}
