package service_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/consumer/verify"
	"github.com/waymarkio/waymark/internal/harness/foldtest"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// eraseSoon is a fold worker that settles removals soon.
func eraseSoon() fold.Config {
	cfg := foldtest.Hasty()
	cfg.SafeAfter = 50 * time.Millisecond
	return cfg
}

// end ends the run of a writer.
func (x *writer) end(status schema.Status) schema.StreamSequence {
	x.World.TB.Helper()
	return x.Publish(&schema.RunEndedData{Status: string(status)}, 0)
}

// erase asks for the removal of a run until it is done.
func (w *serviceWorld) erase(run string, force bool) schema.Removal {
	w.TB.Helper()
	var reply schema.EraseReply
	require.Eventually(w.TB, func() bool {
		a, err := w.ask(schema.VerbErase, run, schema.EraseRequest{By: "tester", Reason: "asked", Force: force})
		if told, ok := errors.AsType[*schema.ServiceError](err); ok && told.Code == schema.CodeUnavailable {
			return false // the index of runs may be incomplete
		}
		require.NoError(w.TB, err)
		reply = schema.EraseReply{}
		require.NoError(w.TB, json.Unmarshal(a.first, &reply))
		return reply.Done
	}, time.Minute, 10*time.Millisecond, "run %s is not removed", run)
	return reply.Removal
}

// awaitFolded waits until the shard is folded up to a position.
func (w *serviceWorld) awaitFolded(at schema.StreamSequence) {
	w.TB.Helper()
	require.Eventually(w.TB, func() bool {
		mark, _, err := w.Shard.Checkpoints.Watermark(w.TB.Context())
		return err == nil && mark.Position.Stream >= at
	}, time.Minute, 10*time.Millisecond)
}

// erasing is a world with a fold worker and live runs that are kept up to date.
func erasing(tb testing.TB) (w *serviceWorld, stopWorker func()) {
	tb.Helper()
	return erasingIn(tb, newServiceWorld(tb))
}

// erasingIn is [erasing] in a world.
func erasingIn(tb testing.TB, w *serviceWorld) (_ *serviceWorld, stopWorker func()) {
	tb.Helper()
	w.follow(w.liveRuns)
	_, stopWorker = w.Fold(eraseSoon())
	return w, stopWorker
}

// left asks for the remaining data of a removed run.
func (w *serviceWorld) left(receipt *schema.Removal) schema.ErasedParts {
	w.TB.Helper()
	a, err := w.ask(schema.VerbErase, receipt.Run, schema.EraseRequest{Check: true})
	require.NoError(w.TB, err)
	var reply schema.EraseReply
	require.NoError(w.TB, json.Unmarshal(a.first, &reply))
	require.NotNil(w.TB, reply.Left)
	return *reply.Left
}

// requireNothingLeft checks that nothing of a removed run is stored.
func (w *serviceWorld) requireNothingLeft(receipt *schema.Removal) {
	w.TB.Helper()
	left := w.left(receipt)
	require.True(w.TB, left.None(), "%+v", left)
}

// refusedAs sends a request that must be refused with a code.
func (w *serviceWorld) refusedAs(code schema.Code, verb, run string, req any) {
	w.TB.Helper()
	told := w.refused(verb, run, req)
	require.Equal(w.TB, code, told.Code, told.Error())
}

// publishRaw publishes without compare-and-set, like a client without the SDK.
func (w *serviceWorld) publishRaw(run string, header nats.Header, body []byte) {
	w.TB.Helper()
	_, err := w.JS.PublishMsg(w.TB.Context(), &nats.Msg{Subject: w.Names.EventSubject(run), Header: header, Data: body})
	require.NoError(w.TB, err)
}

// Without a backup nothing else could end such a run, and what its checkpoints quote would stay for ever.
func TestErase_LogPurgedByHand_RemovedWithForceAlone(t *testing.T) {
	t.Parallel()
	for name, payload := range map[string]int{"nothing sealed": 10, "segments": 3000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, _ := erasing(t)
			x := w.writer("gone")
			x.Start()
			w.awaitFolded(x.TurnOf(payload))
			before, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "gone")
			require.NoError(t, err)
			require.Equal(t, payload > 1000, before.Segments.Count > 0)
			log, err := w.JS.Stream(t.Context(), w.Names.EventStream())
			require.NoError(t, err)
			require.NoError(t, log.Purge(t.Context()))
			told := w.refused(schema.VerbErase, "gone", schema.EraseRequest{By: "tester"})
			require.Contains(t, []schema.Code{schema.CodeDamaged, schema.CodeNeeded}, told.Code)
			receipt := w.erase("gone", true)
			w.requireNothingLeft(&receipt)
			w.refusedAs(schema.CodeErased, schema.VerbGet, "gone", schema.GetRequest{})
		})
	}
}

func TestErase_Run_LeavesOnlyTombstone(t *testing.T) {
	t.Parallel()
	w, stopWorker := erasing(t)
	x := w.writer("gone")
	x.Start()
	for range 10 {
		x.TurnOf(3000)
	}
	last := x.end(schema.StatusCompleted)
	kept := w.writer("kept")
	kept.Start()
	kept.TurnOf(3000)
	end := kept.end(schema.StatusFailed)
	w.awaitFolded(end)
	before, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "gone")
	require.NoError(t, err)
	require.Positive(t, before.Segments.Count)

	receipt := w.erase("gone", false)
	require.Equal(t, "tester", receipt.By)
	require.Equal(t, before.Digest, receipt.Digest)
	require.Equal(t, schema.StatusCompleted, receipt.Status)
	require.Equal(t, last, receipt.Position.Stream)
	require.Equal(t, before.Counts.Events, receipt.Events)
	require.Equal(t, before.Segments.Count, receipt.Segments)
	require.Equal(t, before.Segments.Bytes+before.TailBytes, receipt.Bytes)
	w.requireNothingLeft(&receipt)
	log := w.Log("gone")
	require.Len(t, log, 1, "the mark alone")
	require.True(t, isErased(&log[0]))
	_, err = w.Shard.Segments.Get(t.Context(), "gone", 1)
	require.ErrorIs(t, err, kvstore.ErrNotFound)

	// No request is answered with it, and no executor can begin it again.
	w.refusedAs(schema.CodeErased, schema.VerbGet, "gone", schema.GetRequest{})
	w.refusedAs(schema.CodeErased, schema.VerbRecover, "gone", schema.RecoverRequest{Executor: "e", RequestID: "r", Reason: schema.TakeoverReopen})
	w.refusedAs(schema.CodeErased, schema.VerbCancel, "gone", schema.CancelRequest{By: "tester"})
	a, err := w.ask(schema.VerbList, "", schema.ListRequest{})
	require.NoError(t, err)
	var list schema.ListReply
	require.NoError(t, json.Unmarshal(a.first, &list))
	require.Len(t, list.Runs, 1)
	require.Equal(t, "kept", list.Runs[0].Run)
	again := w.erase("gone", false)
	require.Equal(t, receipt, again, "asked again it is answered with the same receipt")
	_, err = verify.Run(t.Context(), w.JS, w.Shard, "default", "gone")
	require.ErrorIs(t, err, verify.ErrNoRun, "there is nothing to verify")
	v, err := verify.Run(t.Context(), w.JS, w.Shard, "default", "kept")
	require.NoError(t, err)
	require.Empty(t, v.Findings)

	// Late events, without compare-and-set, are refused and removed, too; also after the checkpoints were lost.
	late := func() {
		e := schema.Event{
			ID: "late", Source: schema.Source("default", "executor-9"), Type: schema.TypeOf(schema.RunStarted), Subject: "gone",
			Time: schema.FormatTime(time.Now()), DataContentType: schema.ContentTypeJSON, Data: []byte(`{"agent":"secret"}`),
		}
		header, body := e.Encode()
		w.publishRaw("gone", header, body)
		require.Eventually(t, func() bool {
			log := w.Log("gone")
			return len(log) == 1 && isErased(&log[0]) && log[0].Stream > last
		}, time.Minute, 10*time.Millisecond, "the late event is still there")
		require.Eventually(t, func() bool {
			left := w.left(&receipt)
			return left.None()
		}, time.Minute, 5*time.Millisecond)
		w.refusedAs(schema.CodeErased, schema.VerbGet, "gone", schema.GetRequest{})
	}
	late()
	stopWorker()
	require.NoError(t, w.JS.DeleteKeyValue(t.Context(), w.Names.CheckpointBucket()))
	w.Fold(eraseSoon())
	require.Eventually(t, func() bool {
		c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "gone")
		return err == nil && c.Status == schema.StatusErased
	}, time.Minute, 10*time.Millisecond, "folded again it is one that was removed")
	late()
	require.Eventually(t, func() bool {
		runs, err := w.Shard.Removals.Runs(t.Context())
		require.NoError(t, err)
		return len(runs) == 0
	}, time.Minute, 5*time.Millisecond, "it settles")
}

// An executor writes the description of a large payload. A false one must not remove another run's content, nor block
// a removal.
func TestErase_FalseBlobDescription_RemovesNothingElse(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	bucket := schema.BlobBucket("default")
	store, err := w.JS.ObjectStore(t.Context(), bucket)
	require.NoError(t, err)
	name := func(run, digit string) string { return schema.BlobName(run, strings.Repeat(digit, 64)) }
	kept, err := store.PutBytes(t.Context(), name("kept", "0"), []byte("kept"))
	require.NoError(t, err)
	for digit, about := range map[string]string{
		"1": `{"name":%q,"bucket":%q,"nuid":"*","size":4,"chunks":1}`,
		"2": `{"name":%q,"bucket":%q,"nuid":"","size":4,"chunks":1}`,
		"3": `{"name":%[1]q,"bucket":"OTHER","nuid":"` + kept.NUID + `","size":4,"chunks":1}`,
		"4": `{"name":"` + name("kept", "0") + `","bucket":%[2]q,"nuid":"` + kept.NUID + `","size":4,"chunks":1}`,
	} {
		object := name("gone", digit)
		_, err := w.JS.Publish(t.Context(), "$O."+bucket+".M."+base64.URLEncoding.EncodeToString([]byte(object)), fmt.Appendf(nil, about, object, bucket))
		require.NoError(t, err)
	}
	x := w.writer("gone")
	x.Start()
	w.awaitFolded(x.end(schema.StatusCompleted))
	receipt := w.erase("gone", false)
	w.requireNothingLeft(&receipt)
	content, err := store.GetBytes(t.Context(), name("kept", "0"))
	require.NoError(t, err)
	require.Equal(t, "kept", string(content))
	list, err := store.List(t.Context())
	require.NoError(t, err)
	require.Len(t, list, 1)
}

// A client publishes a copy of an event that the daemon wrote for this run, and that the log refused because the run
// went on.
func TestErase_RefusedEventStoredLater_RemovesNothing(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	x := w.writer("run-1")
	x.Start()
	x.TurnOf(100)
	e := w.erasing(x, func(r *schema.Removal) { r.Position = schema.PositionOf(&x.Acked[0]) })
	w.publishRaw("run-1", e.Header, e.Data)
	x.adopt(w.lastOf("run-1").Stream)
	w.awaitFolded(x.end(schema.StatusCompleted))
	require.Equal(t, schema.StatusCompleted, w.status("run-1"))
}

func TestErase_NeededRun_Refused(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	live := w.writer("live")
	live.Start()
	pinned := w.writer("pinned")
	pinned.Start()
	pinned.Publish(&schema.CheckpointMarkedData{Name: "here"}, 0)
	pinned.end(schema.StatusCompleted)
	// An executor without the SDK need not write that a fork continues its base.
	for base, from := range map[string]string{"base": "base", "base-2": ""} {
		x := w.writer(base)
		x.Start()
		x.TurnOf(100)
		x.end(schema.StatusCompleted)
		var head schema.GetReply
		a, err := w.ask(schema.VerbGet, base, schema.GetRequest{At: "turn:1"})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(a.first, &head))
		w.control(schema.VerbFork, base, schema.ForkRequest{Fork: "fork-of-" + base, By: "executor-1"})
		fork := w.writer("fork-of-" + base)
		fork.Publish(&schema.RunStartedData{Agent: "coder", Executor: "executor-1", ResumedFrom: from, Base: schema.BaseOf(schema.Point{Kind: schema.PointTurn, Number: 1}, head.At.Records, &head.Head)}, 0)
		fork.end(schema.StatusCompleted)
	}

	ask := schema.EraseRequest{By: "tester"}
	w.refusedAs(schema.CodeNeeded, schema.VerbErase, "live", ask)
	w.refusedAs(schema.CodeNeeded, schema.VerbErase, "pinned", ask)
	ask.Force = true
	for _, run := range []string{"live", "pinned"} {
		receipt := w.erase(run, true)
		w.requireNothingLeft(&receipt)
	}
	w.refusedAs(schema.CodeNotFound, schema.VerbErase, "unknown", ask)
	for _, base := range []string{"base", "base-2"} {
		told := w.refused(schema.VerbErase, base, ask)
		require.Equal(t, schema.CodeNeeded, told.Code, told.Error())
		require.Contains(t, told.Message, "fork-of-"+base)
		require.Equal(t, schema.StatusCompleted, w.status(base), "a refusal leaves nothing behind")
		w.erase("fork-of-"+base, false)
		w.erase(base, false)
		w.refusedAs(schema.CodeErased, schema.VerbGet, base, schema.GetRequest{At: "turn:1"})
	}
}

// A daemon whose clock is weeks ahead does not take a run for old that ended just now.
func TestCleanup_SkewedClock_UsesServerTime(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	x := w.writer("run-1")
	x.Start()
	w.awaitFolded(x.end(schema.StatusCompleted))
	w.stop()
	settings, _, err := kvstore.NewFleets(w.JS).Get(t.Context(), "default")
	require.NoError(t, err)
	js := foldtest.JetStream(t, w.Server.Conn(t))
	shard, err := kvstore.OpenShard(js, settings, 0, "service-2")
	require.NoError(t, err)
	ahead := func() time.Time { return time.Now().Add(40 * 24 * time.Hour) }
	w.svc, err = newService(t, serviceConfig{Fleet: "default", Name: "service-2"}, js, []*kvstore.Shard{shard}, ahead)
	require.NoError(t, err)
	w.start(w.svc)
	ask := func() schema.CleanupReply {
		a, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true, Policy: &schema.RetentionPolicy{CompletedSeconds: 24 * 60 * 60}})
		require.NoError(t, err)
		var reply schema.CleanupReply
		require.NoError(t, json.Unmarshal(a.first, &reply))
		return reply
	}
	require.Empty(t, ask().Items)
}

func TestService_CleanupInANewFleet_WaitsForTheIndex(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	w.storeRun(1, schema.Head{Fleet: "default", Run: "run-1", Status: "running", Epoch: 1, Position: schema.Position{Stream: 1, ID: "x"}})
	answered := make(chan error, 1)
	go func() {
		_, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true, Policy: &schema.RetentionPolicy{CompletedSeconds: 1}})
		answered <- err
	}()
	select {
	case err := <-answered:
		require.Fail(t, "answered without an index", "%v", err)
	case <-time.After(100 * time.Millisecond):
	}
	w.folded(1)
	require.NoError(t, <-answered)
}

func TestService_IndexIsNotBuilt_CleanupIsRefused(t *testing.T) {
	t.Parallel()
	w := newServiceWorld(t)
	x := w.writer("run-1")
	x.Start()
	w.stop()
	js := foldtest.JetStream(t, w.Server.Conn(t))
	svc, err := newService(t, serviceConfig{Fleet: "default", Name: "service-2", Timeout: 2 * time.Second}, js, w.shards, time.Now)
	require.NoError(t, err)
	w.start(svc)
	_, err = w.ask(schema.VerbCleanup, "", schema.CleanupRequest{DryRun: true, Policy: &schema.RetentionPolicy{CompletedSeconds: 1}})
	refused, ok := errors.AsType[*schema.ServiceError](err)
	require.True(t, ok, "%v", err)
	require.Equal(t, schema.CodeUnavailable, refused.Code)
	require.Equal(t, "the index of the runs of shard 0 is being built", refused.Message)
	require.NotEmpty(t, refused.Hint)
}

func TestCleanup_Plan_RemovesExactlyIt(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	var end schema.StreamSequence
	for i := range 12 {
		x := w.writer(fmt.Sprintf("run-%02d", i))
		x.Start()
		x.TurnOf(200)
		switch i % 4 {
		case 0:
			end = x.end(schema.StatusCompleted)
		case 1:
			end = x.end(schema.StatusFailed)
		case 2:
			x.Publish(&schema.CheckpointMarkedData{Name: "pin"}, 0)
			end = x.end(schema.StatusCompleted)
		}
	}
	w.awaitFolded(end)
	policy := &schema.RetentionPolicy{CompletedSeconds: 1, FailedSeconds: 3600, GraceSeconds: 1}
	page := func(req schema.CleanupRequest) (reply schema.CleanupReply) {
		a, err := w.ask(schema.VerbCleanup, "", req)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(a.first, &reply))
		return reply
	}
	all := func(dry bool) (items []schema.CleanupItem) {
		req := schema.CleanupRequest{Policy: policy, DryRun: dry, By: "tester", Limit: 2}
		for {
			reply := page(req)
			items = append(items, reply.Items...)
			if req.After = reply.Next; req.After == "" {
				return items
			}
		}
	}
	var dry []schema.CleanupItem
	require.Eventually(t, func() bool {
		dry = all(true)
		removed := 0
		for i := range dry {
			if dry[i].Remove {
				removed++
			}
		}
		return removed == 3 && len(dry) == 9
	}, time.Minute, 50*time.Millisecond)
	require.Len(t, w.list(schema.ListRequest{Limit: 1000}), 12, "a dry run removes nothing")
	require.ElementsMatch(t, dry, all(false), "the removed runs are the planned ones")
	for i := range dry {
		if dry[i].Remove {
			w.erase(dry[i].Run, false) // waits for the daemon
		}
	}
	want := map[string]bool{}
	for i := range 12 {
		want[fmt.Sprintf("run-%02d", i)] = i%4 != 0
	}
	have := map[string]bool{}
	for _, run := range w.list(schema.ListRequest{Limit: 1000}) {
		have[run] = true
	}
	for run, kept := range want {
		require.Equal(t, kept, have[run], run)
	}
	w.refusedAs(schema.CodeBadRequest, schema.VerbCleanup, "", schema.CleanupRequest{Policy: policy, By: "x", Status: []schema.Status{schema.StatusRunning}})
	w.refusedAs(schema.CodeBadRequest, schema.VerbCleanup, "", schema.CleanupRequest{Policy: policy})
}

// A base is kept as long as its fork, and blocks no other removal. Once the fork is removed, a cleanup takes the base.
func TestCleanup_BaseOfKeptFork_KeptUntilTheForkGoes(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	base := w.writer("base")
	base.Start()
	base.TurnOf(100)
	base.end(schema.StatusCompleted)
	w.control(schema.VerbFork, "base", schema.ForkRequest{Fork: "fork", By: "executor-1"})
	w.control(schema.VerbFork, "base", schema.ForkRequest{Fork: "never-began", By: "executor-1"})
	fork := w.forkAt(base, "fork", len(base.Acked))
	fork.Publish(&schema.CheckpointMarkedData{Name: "pin"}, 0)
	fork.end(schema.StatusCompleted)
	other := w.writer("other")
	other.Start()
	w.awaitFolded(other.end(schema.StatusCompleted))
	policy := &schema.RetentionPolicy{CompletedSeconds: 1, GraceSeconds: 1}
	cleanup := func() map[string]schema.CleanupItem {
		items := map[string]schema.CleanupItem{}
		a, err := w.ask(schema.VerbCleanup, "", schema.CleanupRequest{Policy: policy, By: "tester", Limit: 10})
		require.NoError(t, err)
		for _, item := range decodeAs[schema.CleanupReply](t, a.first).Items {
			items[item.Run] = item
		}
		return items
	}
	require.Eventually(t, func() bool { return cleanup()["other"].Remove }, time.Minute, 50*time.Millisecond)
	w.refusedAs(schema.CodeErased, schema.VerbGet, "other", schema.GetRequest{})
	items := cleanup()
	require.Equal(t, schema.WhyPinned, items["fork"].Why)
	require.Equal(t, schema.WhyBase, items["base"].Why)
	require.Contains(t, items["base"].Detail, "fork")
	w.erase("fork", true)
	require.Eventually(t, func() bool { return cleanup()["base"].Remove }, time.Minute, 50*time.Millisecond)
	for _, run := range []string{"base", "never-began"} {
		w.refusedAs(schema.CodeErased, schema.VerbGet, run, schema.GetRequest{})
	}
}

// isErased reports whether a record is run.erased.
func isErased(rec *schema.Record) bool {
	e, err := schema.Decode(rec.Header, rec.Body)
	return err == nil && schema.ErasedMark(e)
}

// A restore brings an erased run back: a check says so, and the same removal takes it out again.
func TestErase_CheckOfRestoredRun_NamesWhatIsStored(t *testing.T) {
	t.Parallel()
	w, _ := erasing(t)
	w.ended("back")
	a, err := w.ask(schema.VerbErase, "back", schema.EraseRequest{Check: true})
	require.NoError(t, err)
	var reply schema.EraseReply
	require.NoError(t, json.Unmarshal(a.first, &reply))
	require.Empty(t, reply.Removal.ID)
	require.False(t, reply.Left.None())
	for range 2 {
		a, err = w.ask(schema.VerbErase, "back", schema.EraseRequest{By: "tester", ID: "request-1"})
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(a.first, &reply))
		require.Equal(t, "request-1", reply.Removal.ID)
		require.False(t, reply.Already, "the same request again goes on")
	}
	receipt := w.erase("back", false)
	w.requireNothingLeft(&receipt)
}
