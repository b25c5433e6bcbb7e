package service_test

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/liveness"
	"github.com/waymarkio/waymark/consumer/service"
	"github.com/waymarkio/waymark/internal/harness/natstest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// storeRun stores a run as a fold worker does: its entries in the indexes, and its checkpoint.
func (w *serviceWorld) storeRun(shards int, h schema.Head) {
	w.TB.Helper()
	cps := w.shards[schema.ShardOf(h.Run, shards)].Checkpoints
	var puts []kvstore.IndexPut
	if h.InLiveIndex() {
		_, err := cps.PutLive(w.TB.Context(), kvstore.LivePut{Live: schema.LiveOf(&h)})
		require.NoError(w.TB, err)
	}
	if !h.Live() {
		e := schema.EndedOf(&h)
		puts = append(puts, kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &e})
	}
	for _, key := range schema.ChildKeys(&h) {
		puts = append(puts, kvstore.IndexPut{Key: key})
	}
	require.NoError(w.TB, cps.PutIndex(w.TB.Context(), puts...))
	_, err := cps.Put(w.TB.Context(), &schema.Checkpoint{Head: h}, 0)
	require.NoError(w.TB, err)
}

// folded marks every shard as folded up to a position.
func (w *serviceWorld) folded(at schema.StreamSequence) {
	w.TB.Helper()
	for _, s := range w.shards {
		_, err := s.Checkpoints.PutWatermark(w.TB.Context(), kvstore.Watermark{Incarnation: "i", Position: schema.Position{Stream: at, ID: "x"}}, 0)
		require.NoError(w.TB, err)
	}
}

// page asks for one page.
func (w *serviceWorld) page(req schema.ListRequest) *schema.ListReply {
	w.TB.Helper()
	a, err := w.ask(schema.VerbList, "", req)
	require.NoError(w.TB, err)
	return decodeAs[schema.ListReply](w.TB, a.first)
}

// awaitIndex waits until the index of ended runs is complete, which is a moment after the worker has folded the log.
func (w *serviceWorld) awaitIndex() {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool { return !w.page(schema.ListRequest{}).Incomplete }, time.Minute, 10*time.Millisecond)
}

// list asks for all pages.
func (w *serviceWorld) list(req schema.ListRequest) []string {
	w.TB.Helper()
	all := []string{}
	for range 1000 {
		reply := w.page(req)
		require.False(w.TB, reply.Incomplete)
		require.LessOrEqual(w.TB, len(reply.Runs), cmp.Or(req.Limit, schema.DefaultList))
		for _, r := range reply.Runs {
			all = append(all, r.Run)
		}
		if req.After = reply.Next; req.After == "" {
			return all
		}
	}
	require.FailNow(w.TB, "the list does not end")
	return nil
}

// Every filter gives the same runs as reading every run, in the same order, whatever the size of the pages.
func TestList_Filters_EqualFullScan(t *testing.T) {
	t.Parallel()
	const shards = 3
	if testing.Short() {
		t.Skip("short: 150 runs are listed in some hundred ways")
	}
	runs, bases := 150, 12
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) { f.Shards, f.QuotaBytes = shards, kvstore.MinQuotaBytes })
	random := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a test's data
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	all := make([]schema.Head, runs)
	at := schema.StreamSequence(0)
	for i, n := range random.Perm(runs) {
		h := &all[i]
		// Few and many runs close together in the log.
		at += schema.StreamSequence(1 + []int{0, 3, 900, 70_000, 3_000_000}[random.IntN(5)])
		*h = schema.Head{
			Fleet: "default", Run: fmt.Sprintf("run-%03d", n), Agent: []string{"alpha", "beta", ""}[random.IntN(3)], Epoch: 1,
			Status: allStatuses[random.IntN(len(allStatuses))], Labels: map[string]string{"n": fmt.Sprint(random.IntN(4))},
			Position: schema.Position{Stream: at, ID: "x"}, Stalled: random.IntN(5), ModelTier: []string{"", "small", "large"}[random.IntN(3)],
			CompletedBy: []string{"", "done"}[random.IntN(2)], Limit: []string{"", "turns"}[random.IntN(2)],
			StartedAt: schema.FormatTime(began.Add(time.Duration(random.IntN(20)) * time.Minute)),
			UpdatedAt: schema.FormatTime(began.Add(time.Duration(at) * time.Second)),
		}
		if of := fmt.Sprintf("run-%03d", random.IntN(12)); of != h.Run {
			switch random.IntN(5) {
			case 0:
				h.Parent = &schema.Parent{Run: of}
			case 1:
				h.ResumedFrom = of
			case 2:
				h.Handoff = &schema.HandoffSource{Run: of}
			}
		}
		if random.IntN(9) == 0 {
			h.Handoffs = []schema.OpenHandoff{{HandoffID: "h", Status: schema.HandoffStatusOffered}}
		}
		if random.IntN(4) == 0 {
			h.OpenCalls = []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}, State: []schema.CallState{schema.CallBegun, schema.CallHeld}[random.IntN(2)]}}
		}
		w.storeRun(shards, *h)
	}
	w.folded(at)
	sorted := func(keep func(*schema.Head) bool) []string {
		var list []schema.Head
		for _, h := range all {
			if keep(&h) {
				list = append(list, h)
			}
		}
		slices.SortFunc(list, func(a, b schema.Head) int {
			switch {
			case a.Live() && b.Live():
				return cmp.Or(strings.Compare(b.StartedAt, a.StartedAt), strings.Compare(a.Run, b.Run))
			case a.Live():
				return -1
			case b.Live():
				return 1
			}
			return cmp.Compare(b.Position.Stream, a.Position.Stream)
		})
		names := []string{}
		for _, h := range list {
			names = append(names, h.Run)
		}
		return names
	}
	started := func(run string) string {
		return all[slices.IndexFunc(all, func(h schema.Head) bool { return h.Run == run })].StartedAt
	}
	for _, c := range []struct {
		name string
		req  schema.ListRequest
		keep func(*schema.Head) bool
	}{
		{"all", schema.ListRequest{}, func(*schema.Head) bool { return true }},
		{"agent", schema.ListRequest{Agent: "beta"}, func(h *schema.Head) bool { return h.Agent == "beta" }},
		{"of an unknown agent", schema.ListRequest{Agent: "unknown"}, func(*schema.Head) bool { return false }},
		{"live", schema.ListRequest{Status: []schema.Status{"running", "waiting"}}, func(h *schema.Head) bool { return h.Status == "running" || h.Status == "waiting" }},
		{"ended", schema.ListRequest{Status: []schema.Status{"failed"}, Agent: "alpha"}, func(h *schema.Head) bool { return h.Status == "failed" && h.Agent == "alpha" }},
		{"both", schema.ListRequest{Status: []schema.Status{"failed", "cancelled", "orphaned"}}, func(h *schema.Head) bool {
			return h.Status == "failed" || h.Status == "cancelled" || h.Status == "orphaned"
		}},
		{"label", schema.ListRequest{Labels: map[string]string{"n": "2"}}, func(h *schema.Head) bool { return h.Labels["n"] == "2" }},
		{"no such label", schema.ListRequest{Labels: map[string]string{"m": "2"}}, func(*schema.Head) bool { return false }},
		{"tier", schema.ListRequest{ModelTier: "large"}, func(h *schema.Head) bool { return h.ModelTier == "large" }},
		{"tier of live runs", schema.ListRequest{ModelTier: "small", Status: []schema.Status{"running"}}, func(h *schema.Head) bool { return h.ModelTier == "small" && h.Status == "running" }},
		{"by a tool", schema.ListRequest{Completion: []schema.Completion{"tool"}}, func(h *schema.Head) bool { return h.Status == "completed" && h.CompletedBy != "" }},
		{"by no tool", schema.ListRequest{Completion: []schema.Completion{"limit", "executor"}, ModelTier: "small"}, func(h *schema.Head) bool {
			return h.ModelTier == "small" && (h.Status == "completed" && h.CompletedBy == "" || h.Status == "failed" && h.Limit != "")
		}},
		{"behind a limit", schema.ListRequest{Completion: []schema.Completion{"limit"}, Status: []schema.Status{"completed", "failed"}}, func(h *schema.Head) bool {
			return h.Limit != "" && (h.Status == "completed" && h.CompletedBy == "" || h.Status == "failed")
		}},
		{"failed behind a limit", schema.ListRequest{Completion: []schema.Completion{"limit"}, Status: []schema.Status{"failed", "running"}}, func(h *schema.Head) bool {
			return h.Limit != "" && h.Status == "failed"
		}},
		{"completion of failed runs", schema.ListRequest{Completion: []schema.Completion{"tool"}, Status: []schema.Status{"failed"}}, func(*schema.Head) bool { return false }},
		{"held", schema.ListRequest{Held: true}, func(h *schema.Head) bool { return len(h.HeldCalls()) > 0 }},
		{"held and ended", schema.ListRequest{Held: true, Status: []schema.Status{"failed", "completed"}}, func(h *schema.Head) bool {
			return len(h.HeldCalls()) > 0 && (h.Status == "failed" || h.Status == "completed")
		}},
		{"offered", schema.ListRequest{Offered: true}, (*schema.Head).Offered},
		{"offered and ended", schema.ListRequest{Offered: true, Status: []schema.Status{"failed", "completed"}}, func(h *schema.Head) bool {
			return h.Offered() && (h.Status == "failed" || h.Status == "completed")
		}},
		{"quarantined", schema.ListRequest{Quarantined: true}, func(h *schema.Head) bool { return h.Status.Claimable() && h.Stalled >= 3 }},
		{"quarantined and ended", schema.ListRequest{Quarantined: true, Status: []schema.Status{"failed"}}, func(*schema.Head) bool { return false }},
	} {
		want := sorted(c.keep)
		if c.req.Held { // all of them are in the live index
			slices.SortFunc(want, func(a, b string) int {
				return cmp.Or(strings.Compare(started(b), started(a)), strings.Compare(a, b))
			})
			require.NotEmpty(t, want)
		}
		for _, limit := range []int{0, 1, 7, len(want), len(want) + 1} {
			c.req.Limit = limit
			require.Equal(t, want, w.list(c.req), "%s, limit %d", c.name, limit)
		}
	}
	for i := range bases {
		of := fmt.Sprintf("run-%03d", i)
		parent := func(h *schema.Head) bool { return h.Parent != nil && h.Parent.Run == of }
		related := func(h *schema.Head) bool {
			return parent(h) || h.ResumedFrom == of || h.Handoff != nil && h.Handoff.Run == of
		}
		for _, limit := range []int{1, 2, 100} {
			want := sorted(parent)
			slices.Sort(want)
			require.Equal(t, want, w.list(schema.ListRequest{Parent: of, Limit: limit}))
			want = sorted(related)
			slices.Sort(want)
			require.Equal(t, want, w.list(schema.ListRequest{Related: of, Limit: limit}))
			want = sorted(func(h *schema.Head) bool { return related(h) && h.Agent == "alpha" && h.Status.Terminal() })
			slices.Sort(want)
			require.Equal(t, want, w.list(schema.ListRequest{Related: of, Agent: "alpha", Status: []schema.Status{"completed", "failed", "cancelled"}, Limit: limit}))
		}
	}
}

var allStatuses = []schema.Status{
	schema.StatusRunning, schema.StatusWaiting, schema.StatusInterrupted, schema.StatusOrphaned,
	schema.StatusCompleted, schema.StatusCompleted, schema.StatusFailed, schema.StatusFailed, schema.StatusCancelled,
}

func TestList_UnreadableRun_ShownAndNoStaleEntries(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	head := func(run string, status schema.Status, at schema.StreamSequence) schema.Head {
		return schema.Head{
			Fleet: "default", Run: run, Agent: "agent-1", Status: status, Epoch: 1, Position: schema.Position{Stream: at, ID: "x"},
			Parent: &schema.Parent{Run: "top"}, StartedAt: "2026-01-01T00:00:00Z", Labels: map[string]string{"a": "b"},
		}
	}
	for _, h := range []schema.Head{head("junk-live", "running", 1), head("junk-ended", "failed", 2), head("gone-live", "running", 3), head("gone-ended", "failed", 4), head("back", "failed", 5), head("later", "failed", 6)} {
		w.storeRun(1, h)
	}
	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	held := head("junk-held", "failed", 10)
	held.OpenCalls = []schema.OpenCall{{CallKey: schema.CallKey{Turn: 1, ToolCallID: "c", Occurrence: 1}}}
	w.storeRun(1, held)
	for _, run := range []string{"junk-live", "junk-ended", "junk-held"} {
		_, err := kv.PutString(t.Context(), run, "junk")
		require.NoError(t, err)
	}
	for _, run := range []string{"gone-live", "gone-ended"} {
		require.NoError(t, kv.Delete(t.Context(), run))
	}
	// A server crash can bring back entries of a run that is live again, or was written to after its end.
	for run, h := range map[string]schema.Head{"back": head("back", "running", 7), "later": head("later", "failed", 8)} {
		e, err := kv.Get(t.Context(), run)
		require.NoError(t, err)
		_, err = w.Shard.Checkpoints.Put(t.Context(), &schema.Checkpoint{Head: h}, schema.Revision(e.Revision()))
		require.NoError(t, err)
		if h.Live() {
			_, err := w.Shard.Checkpoints.PutLive(t.Context(), kvstore.LivePut{Live: schema.LiveOf(&h)})
			require.NoError(t, err)
			continue
		}
		entry, older := schema.EndedOf(&h), schema.EndedOf(&h)
		older.Status = schema.StatusCancelled
		require.NoError(t, w.Shard.Checkpoints.PutIndex(t.Context(), kvstore.IndexPut{Key: schema.EndedKey(&h), Ended: &entry},
			kvstore.IndexPut{Key: schema.EndedKeys(&h)[2], Ended: &older}))
	}
	for _, key := range []string{"_.ended.agent-1.failed.junk-entry", "_.ended.agent-1.asleep.x", "_.ended.a.b.failed.y", "_.ended.z"} {
		_, err := kv.PutString(t.Context(), key, "junk")
		require.NoError(t, err)
	}
	h := head("junk-entry", "failed", 9)
	_, err = w.Shard.Checkpoints.Put(t.Context(), &schema.Checkpoint{Head: h}, 0)
	require.NoError(t, err)
	w.folded(20)

	for _, limit := range []int{1, 100} {
		require.Equal(t, []string{"back", "junk-live", "junk-entry", "later", "junk-held", "junk-ended"}, w.list(schema.ListRequest{Limit: limit}))
		require.Equal(t, []string{"junk-held"}, w.list(schema.ListRequest{Limit: limit, Held: true}))
	}
	lines := w.page(schema.ListRequest{}).Runs
	require.Equal(t, schema.StatusRunning, lines[1].Status)
	require.Equal(t, schema.RunSummary{
		Run: "junk-ended", Agent: "agent-1", Status: "failed", Epoch: 1, Labels: map[string]string{"a": "b"}, Parent: "top", StartedAt: "2026-01-01T00:00:00Z",
	}, lines[5])
	require.Equal(t, []string{"back", "junk-ended", "junk-held", "junk-live", "later"}, w.list(schema.ListRequest{Parent: "top"}))
}

func TestList_IndexIncomplete_Reported(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.storeRun(1, schema.Head{Fleet: "default", Run: "run-1", Status: "running", Epoch: 1, Position: schema.Position{Stream: 1, ID: "x"}})
	_, err := w.JS.Publish(t.Context(), w.Names.EventSubject("run-1"), []byte("x"))
	require.NoError(t, err)
	require.True(t, w.page(schema.ListRequest{}).Incomplete)
	require.True(t, w.page(schema.ListRequest{Parent: "run-1"}).Incomplete)
	require.False(t, w.page(schema.ListRequest{Status: []schema.Status{"running"}}).Incomplete, "runs that live are not read from it")
	w.folded(1)
	require.False(t, w.page(schema.ListRequest{}).Incomplete)
}

// The fold worker of a new shard begins by a record that it indexes the shard.
func TestList_EmptyLogBeingIndexed_Complete(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	_, err := w.Shard.Checkpoints.PutWatermark(t.Context(), kvstore.Watermark{Incarnation: "i", RebuildTo: 1}, 0)
	require.NoError(t, err)
	require.False(t, w.page(schema.ListRequest{}).Incomplete, "a new fleet has no runs")
	require.False(t, w.page(schema.ListRequest{Parent: "run-1"}).Incomplete)
	_, err = w.JS.Publish(t.Context(), w.Names.EventSubject("run-1"), []byte("x"))
	require.NoError(t, err)
	require.True(t, w.page(schema.ListRequest{}).Incomplete, "the log has events that are not indexed")
}

// A server whose disk is full may answer that it has none of the messages that it has.
func TestList_StoreHasNothing_SaysThatRunsMayBeMissing(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	require.False(t, w.page(schema.ListRequest{}).Incomplete, "a new fleet has no runs")
	w.storeRun(1, schema.Head{Fleet: "default", Run: "run-1", Status: "running", Epoch: 1, Position: schema.Position{Stream: 1, ID: "x"}})
	w.folded(1)
	require.False(t, w.page(schema.ListRequest{}).Incomplete)
	bucket, err := w.JS.Stream(t.Context(), "KV_"+w.Names.CheckpointBucket())
	require.NoError(t, err)
	forget := func(key string) {
		require.NoError(t, bucket.Purge(t.Context(), jetstream.WithPurgeSubject("$KV."+w.Names.CheckpointBucket()+"."+key)))
	}
	forget("run-1")
	page := w.page(schema.ListRequest{})
	require.Empty(t, page.Runs)
	require.True(t, page.Incomplete, "the index names a run")
	forget(">")
	_, err = w.JS.Publish(t.Context(), w.Names.EventSubject("run-1"), []byte("x"))
	require.NoError(t, err)
	require.True(t, w.page(schema.ListRequest{}).Incomplete, "the log has events, and nothing says how far it is folded")
}

func TestList_UnknownFilter_Refused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	for i := range 3 {
		w.storeRun(1, schema.Head{Fleet: "default", Run: fmt.Sprint("run-", i), Status: "running", Epoch: 1, Position: schema.Position{Stream: 1, ID: "x"}})
	}
	w.folded(1)
	next := w.page(schema.ListRequest{Limit: 1}).Next
	require.NotEmpty(t, next)
	for path, req := range map[string]schema.ListRequest{
		"/limit": {Limit: 5000}, "/status/0": {Status: []schema.Status{"asleep"}}, "/related": {Related: "a.b"},
		"/parent": {Parent: "a b"}, "/since": {Since: "yesterday"}, "/until": {Until: "2026-01-01"},
	} {
		require.Contains(t, w.refused(schema.VerbList, "", req).Message, path)
	}
	require.Contains(t, w.refused(schema.VerbList, "", schema.ListRequest{After: "run-1"}).Message, "not a place of a list")
	require.Contains(t, w.refused(schema.VerbList, "", schema.ListRequest{After: strings.Repeat("x", 1<<17)}).Message, "not a place of a list")
	require.Contains(t, w.refused(schema.VerbList, "", schema.ListRequest{After: next, Agent: "other"}).Message, "another list")
	require.Contains(t, w.refused(schema.VerbList, "", schema.ListRequest{Parent: "run-1", Since: "2026-01-01T00:00:00Z"}).Message, "/parent")
	require.Len(t, w.page(schema.ListRequest{After: next, Limit: 2}).Runs, 2, "the size of a page may change")
}

// While runs start and end, a list that is read page by page has every run once that existed from its beginning to
// its end, and none twice.
func TestList_RunsEndMeanwhile_EachOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 60 runs end while lists are read")
	}
	t.Parallel()
	const runs, limit = 60, 3
	w := newServiceWorld(t)
	w.follow(w.liveRuns)
	worker, stop := w.Fold(fold.Config{LiveRuns: w.liveRuns, Linger: time.Millisecond})
	defer stop()
	var open []*writer
	for i := range runs {
		x := w.writer(fmt.Sprintf("run-%02d", i))
		x.Start()
		open = append(open, x)
	}
	folded := func(at schema.StreamSequence) {
		t.Helper()
		require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= uint64(at) }, time.Minute, time.Millisecond)
	}
	folded(open[runs-1].Acked[0].Stream)
	require.Eventually(t, func() bool { return w.liveRuns.Counts().Live == runs }, time.Minute, time.Millisecond)
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's choice
	var last schema.StreamSequence
	end := func() {
		if len(open) == 0 {
			return
		}
		i := random.IntN(len(open))
		last = open[i].Publish(&schema.RunEndedData{Status: "completed"}, 0)
		open = slices.Delete(open, i, i+1)
	}
	for round := 0; len(open) > 0; round++ {
		seen := map[string]int{}
		req := schema.ListRequest{Limit: limit}
		for page := 0; ; page++ {
			reply := w.page(req)
			for _, r := range reply.Runs {
				seen[r.Run]++
			}
			if req.After = reply.Next; req.After == "" {
				break
			}
			if page%3 == 0 {
				end() // the next page is requested before this is folded, or after it
			}
			if page%6 == 0 {
				folded(last)
			}
		}
		require.Len(t, seen, runs, "round %d", round)
		for run, n := range seen {
			require.Equal(t, 1, n, "round %d: %s", round, run)
		}
	}
	folded(last)
	require.Len(t, w.list(schema.ListRequest{Status: []schema.Status{"completed"}}), runs)
	require.Eventually(t, func() bool { return w.liveRuns.Counts().Live == 0 }, time.Minute, time.Millisecond)
	require.Empty(t, w.list(schema.ListRequest{Status: []schema.Status{"running"}}))
}

func TestList_Order_ByAge(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	worker, stop := w.Fold(fold.Config{})
	defer stop()
	first, second, third := w.writer("first"), w.writer("second"), w.writer("third")
	first.Start()
	second.Start()
	third.Start()
	first.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	stored := func(x *writer) time.Time {
		t.Helper()
		m, err := stream.GetMsg(t.Context(), uint64(x.Acked[len(x.Acked)-1].Stream))
		require.NoError(t, err)
		return m.Time
	}
	second.Publish(&schema.RunEndedData{Status: "failed"}, 0)
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= second.Last }, time.Minute, time.Millisecond)
	w.awaitIndex()
	ended := stored(second)
	text := func(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }
	require.Equal(t, []string{"third", "second", "first"}, w.list(schema.ListRequest{}))
	// A client that asks for the last hour sends a slightly later time for each page.
	page := w.page(schema.ListRequest{Since: text(stored(first)), Limit: 1})
	require.Equal(t, "second", page.Runs[0].Run)
	page = w.page(schema.ListRequest{Since: text(ended.Add(time.Minute)), Limit: 1, After: page.Next})
	require.Equal(t, "first", page.Runs[0].Run)
	// The runs say that they were started in 2023; the server knows when they ended.
	require.Equal(t, []string{"second"}, w.list(schema.ListRequest{Since: text(ended)}))
	require.Equal(t, []string{"third", "first"}, w.list(schema.ListRequest{Until: text(ended)}))
	require.Equal(t, []string{"second", "first"}, w.list(schema.ListRequest{Since: text(stored(first))}))
	require.Empty(t, w.list(schema.ListRequest{Since: text(time.Now().Add(time.Hour))}))
	require.Empty(t, w.list(schema.ListRequest{Until: "2020-01-01T00:00:00Z"}))
	require.Equal(t, []string{"third", "second", "first"}, w.list(schema.ListRequest{Until: text(time.Now().Add(time.Hour)), Since: "2020-01-01T00:00:00Z"}))
}

// Until uses the server's clock: the daemon's own has no effect.
func TestList_LateDaemonClock_UntilHolds(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.stop()
	worker, stop := w.Fold(fold.Config{})
	defer stop()
	x := w.writer("ended")
	x.Start()
	x.Publish(&schema.RunEndedData{Status: "completed"}, 0)
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= x.Last }, time.Minute, time.Millisecond)
	stream, err := w.JS.Stream(t.Context(), w.Names.EventStream())
	require.NoError(t, err)
	m, err := stream.GetMsg(t.Context(), x.Last)
	require.NoError(t, err)
	now := func() time.Time { return time.Now().Add(-time.Hour) }
	log, shards := natstest.Logger(t), []*kvstore.Shard{w.Shard}
	w.liveRuns = liveness.NewLiveRuns(shards, 0, now, log)
	late, err := service.New(serviceConfig{Fleet: "default", Name: "late", Timeout: testTimeout}, w.NC, w.JS, shards, w.liveRuns, now, log)
	require.NoError(t, err)
	w.start(late)
	w.awaitIndex()
	require.Equal(t, []string{"ended"}, w.list(schema.ListRequest{}))
	require.Empty(t, w.list(schema.ListRequest{Until: m.Time.UTC().Format(time.RFC3339Nano)}))
}

// A lost index is filled once, while lists say that they are incomplete.
func TestIndex_Lost_IsFilledAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("short: 1,400 events are published one by one")
	}
	t.Parallel()
	w := newServiceWorld(t)
	worker, stop := w.Fold(fold.Config{})
	var last *writer
	want := []string{}
	for i := range 700 {
		last = w.writer(fmt.Sprintf("run-%03d", i))
		last.Publish(&schema.RunStartedData{Agent: "agent-1", Executor: "executor-1", ResumedFrom: "top"}, 0)
		last.Publish(&schema.RunEndedData{Status: "completed"}, 0)
		want = append(want, last.Run.Run)
	}
	require.Eventually(t, func() bool { return worker.Stats().Position.Load() >= last.Last }, time.Minute, time.Millisecond)
	w.awaitIndex()
	stop()
	children := slices.Clone(want)
	slices.Reverse(want)
	require.Equal(t, want, w.list(schema.ListRequest{}))
	require.Equal(t, children, w.list(schema.ListRequest{Related: "top"}))

	kv, err := w.JS.KeyValue(t.Context(), w.Names.CheckpointBucket())
	require.NoError(t, err)
	require.NoError(t, w.Shard.Checkpoints.ClearIndex(t.Context(), 1<<62))
	require.NoError(t, kv.Purge(t.Context(), schema.WatermarkKey))
	_, err = kv.PutString(t.Context(), "run-400", "junk")
	require.NoError(t, err)
	reply := w.page(schema.ListRequest{})
	require.True(t, reply.Incomplete)
	require.Empty(t, reply.Runs)

	_, stop = w.Fold(fold.Config{})
	defer stop()
	w.awaitIndex()
	require.Equal(t, want, w.list(schema.ListRequest{}))
	require.Equal(t, children, w.list(schema.ListRequest{Related: "top"}))
	stop()

	// A lost bucket is restored completely.
	require.NoError(t, w.JS.DeleteKeyValue(t.Context(), w.Names.CheckpointBucket()))
	_, stop = w.Fold(fold.Config{})
	defer stop()
	require.Eventually(t, func() bool {
		a, err := w.ask(schema.VerbList, "", schema.ListRequest{})
		if e, ok := errors.AsType[*schema.ServiceError](err); ok {
			require.Equal(t, schema.CodeUnavailable, e.Code)
			return false
		}
		require.NoError(t, err)
		return !decodeAs[schema.ListReply](t, a.first).Incomplete
	}, time.Minute, 10*time.Millisecond)
	require.Equal(t, want, w.list(schema.ListRequest{}))
}

// Pages end where their checkpoints are large together, and have each run once all the same.
func TestList_LargeCheckpoints_ShorterPages(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t, func(f *kvstore.FleetConfig, _ *serviceConfig) { f.Shards, f.QuotaBytes = 2, kvstore.MinQuotaBytes })
	var live, ended []string
	for i := range 40 {
		h := schema.Head{
			Fleet: "default", Run: fmt.Sprintf("run-%02d", i), Agent: "a", Epoch: 1, Status: schema.StatusRunning, Position: schema.Position{Stream: schema.StreamSequence(i + 1), ID: "x"},
			Parent: &schema.Parent{Run: "parent"}, StartedAt: schema.FormatTime(time.Unix(int64(i), 0)), CompletedPhases: []string{strings.Repeat("x", 400_000)},
		}
		if i%2 == 0 {
			h.Status, ended = schema.StatusCompleted, append(ended, h.Run)
		} else {
			live = append(live, h.Run)
		}
		w.storeRun(2, h)
	}
	w.folded(100)
	for _, req := range []schema.ListRequest{{}, {Parent: "parent"}, {Status: []schema.Status{schema.StatusRunning}}, {Status: []schema.Status{schema.StatusCompleted}}} {
		want := slices.Concat(live, ended)
		switch {
		case len(req.Status) == 0:
		case req.Status[0] == schema.StatusRunning:
			want = live
		default:
			want = ended
		}
		require.ElementsMatch(t, want, w.list(req))
	}
	require.Less(t, len(w.page(schema.ListRequest{Parent: "parent"}).Runs), 30, "some megabytes of each shard")
}
