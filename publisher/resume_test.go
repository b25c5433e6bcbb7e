package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

func TestResume_Run_ContinuesExactly(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	require.NoError(t, turn.AddMessage(t.Context(), assistant(schema.Text("half an answer"))))
	for epoch := schema.Epoch(2); epoch < 5; epoch++ {
		run = resume(t, f, "r1")
		require.Equal(t, epoch, run.Epoch())
		w.requireSameFold(run)
		turn = run.OpenTurn()
		require.Equal(t, int32(1), turn.Number())
		require.NoError(t, run.Mark(t.Context(), "here"))
		require.Equal(t, schema.Sequence(1), run.Head().Sequence, "the sequence begins again")
	}
	again, err := run.StartTurn(t.Context(), publisher.TurnSpec{Number: 1, Messages: []schema.Message{user("once more")}})
	require.NoError(t, err, "the interrupted turn may be started again")
	_, err = again.Answer(t.Context(), publisher.Answer{Message: assistant(schema.Text("whole"))})
	require.NoError(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{}))
	s := w.requireSameFold(run)
	require.Len(t, s.Messages, 2, "what the repeated turn superseded is gone")
}

func TestResume_SameRequest_ContinuesEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	start(t, f, "r1")
	for range 3 {
		run, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{RequestID: "deploy-17"})
		require.NoError(t, err)
		require.Equal(t, schema.Epoch(2), run.Epoch())
		require.NoError(t, run.Mark(t.Context(), "here"))
		w.requireSameFold(run)
	}
	require.Equal(t, []string{"run.started", "run.resumed", "checkpoint.marked", "checkpoint.marked", "checkpoint.marked"}, names(w.log("r1")))
}

func TestResume_RunWasTakenOverSinceItWasSeen_IsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	seen := start(t, f, "r1").Epoch()
	other, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{ExpectedEpoch: seen})
	require.NoError(t, err)
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{ExpectedEpoch: seen})
	require.ErrorIs(t, err, publisher.ErrConflict)
	require.ErrorContains(t, err, "in epoch 2, with executor "+f.Executor())
	require.NoError(t, other.Mark(t.Context(), "here"), "it keeps the run")
}

func TestResume_Invalid_RefusedWithReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	for _, id := range []string{"ended", "reopened"} {
		require.NoError(t, start(t, f, id).End(t.Context(), publisher.RunEnd{}))
	}
	start(t, f, "r1")
	tests := map[string]struct {
		run  string
		spec publisher.ResumeSpec
		want error
	}{
		"a run that is not there":     {run: "missing", want: publisher.ErrRunNotFound},
		"a run that has ended":        {run: "ended", want: publisher.ErrRunEnded},
		"a run of another agent":      {run: "r1", spec: publisher.ResumeSpec{Agent: "writer"}, want: publisher.ErrWrongAgent},
		"a run that is not claimable": {run: "r1", spec: publisher.ResumeSpec{Reason: "claim"}, want: publisher.ErrConflict},
		"a name outside the rules":    {run: "a.b", want: publisher.ErrConfig},
		"a run that ended, reopened":  {run: "reopened", spec: publisher.ResumeSpec{Reason: "reopen"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := f.Resume(t.Context(), test.run, test.spec)
			require.ErrorIs(t, err, test.want)
			var said *schema.ServiceError
			if test.want != nil && !errors.Is(test.want, publisher.ErrConfig) {
				require.ErrorAs(t, err, &said)
				require.NotEmpty(t, said.Hint)
			}
		})
	}
}

func TestRead_Acknowledged_AllShown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	start(t, f, "r2")
	for i := range 20 {
		require.NoError(t, run.AddMessage(t.Context(), user(fmt.Sprint(i))))
		head, err := f.Head(t.Context(), "r1")
		require.NoError(t, err)
		require.Equal(t, run.Head(), head)
	}
	s, err := f.Get(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, run.State(), s)
	var seen []schema.Record
	require.NoError(t, f.Events(t.Context(), "r1", func(rec schema.Record) error {
		seen = append(seen, rec)
		return nil
	}))
	require.Equal(t, names(w.log("r1")), names(seen))
	enough := errors.New("enough")
	require.ErrorIs(t, f.Events(t.Context(), "r1", func(schema.Record) error { return enough }), enough)
	_, err = f.Get(t.Context(), "missing")
	require.ErrorIs(t, err, publisher.ErrRunNotFound)
	require.NoError(t, run.Mark(t.Context(), "reading takes nothing over"))
}

func TestRead_LargeRun_PageByPage(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a run of 20 MiB")
	}
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1"})
	require.NoError(t, err)
	text := strings.Repeat("x", 100<<10)
	for range 200 { // 20 MB, five pages
		require.NoError(t, run.AddMessage(t.Context(), user(text)))
	}
	n := 0
	require.NoError(t, f.Events(t.Context(), "r1", func(schema.Record) error {
		n++
		return nil
	}))
	require.Equal(t, 201, n)
	again := resume(t, f, "r1")
	require.Len(t, again.State().Messages, 200)
	require.NoError(t, again.Mark(t.Context(), "here"))
}

func TestRequest_NoDaemon_Reported(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = time.Second })
	run := start(t, f, "r1")
	_, err := f.Head(t.Context(), "r1")
	require.ErrorIs(t, err, publisher.ErrNoService)
	require.ErrorContains(t, err, "waymark serve")
	require.NoError(t, run.Mark(t.Context(), "here"), "publishing needs no daemon")
}

// answering replies to requests of a verb with messages, as a daemon in trouble might.
func answering(t *testing.T, w *world, verb string, reply func(try int, m *nats.Msg, send func(n int, kind string, body []byte))) {
	t.Helper()
	try := 0
	sub, err := w.nc.Subscribe(schema.ServiceSubject(verb, "default", "*"), func(m *nats.Msg) {
		try++
		reply(try, m, func(n int, kind string, body []byte) {
			out := nats.NewMsg(m.Reply)
			out.Header.Set(schema.HeaderReply, fmt.Sprint(n))
			out.Header.Set(schema.HeaderKind, kind)
			out.Data = body
			_ = w.nc.PublishMsg(out)
		})
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	require.NoError(t, w.nc.Flush())
}

func TestReply_Interrupted_NotUsed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = 2 * time.Second })
	run := start(t, f, "r1")
	require.NoError(t, run.Mark(t.Context(), "a"))
	head := run.Head()
	first, err := json.Marshal(&schema.GetReply{Head: head, Complete: true})
	require.NoError(t, err)
	recs := w.log("r1")
	frame := func(i int) []byte { return schema.AppendFrame(nil, &recs[i]) }
	whole := func(send func(int, string, []byte)) {
		send(1, schema.KindAnswer, first)
		send(2, schema.KindFrames, frame(0))
		send(3, schema.KindFrames, frame(1))
		send(4, schema.KindEnd, nil)
	}
	tests := map[string]struct {
		reply func(try int, send func(int, string, []byte))
		want  error
	}{
		"a whole answer": {reply: func(_ int, send func(int, string, []byte)) { whole(send) }},
		"a hole is asked for again": {reply: func(try int, send func(int, string, []byte)) {
			if try > 1 {
				whole(send)
				return
			}
			send(1, schema.KindAnswer, first)
			send(3, schema.KindFrames, frame(1))
			send(4, schema.KindEnd, nil)
		}},
		"an answer that breaks off is asked for again": {reply: func(try int, send func(int, string, []byte)) {
			if try > 1 {
				whole(send)
				return
			}
			send(1, schema.KindAnswer, first)
			send(2, schema.KindFrames, frame(0))
		}},
		"a reply that comes twice counts once": {reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, first)
			send(2, schema.KindFrames, frame(0))
			send(2, schema.KindFrames, frame(0))
			send(3, schema.KindFrames, frame(1))
			send(4, schema.KindEnd, nil)
		}},
		"a missing event is noticed": {want: publisher.ErrIncomplete, reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, first)
			send(2, schema.KindFrames, frame(0))
			send(3, schema.KindEnd, nil)
		}},
		"damaged frames are noticed": {want: publisher.ErrBadAnswer, reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, first)
			send(2, schema.KindFrames, frame(0)[:20])
			send(3, schema.KindEnd, nil)
		}},
		"a damaged segment is noticed": {want: publisher.ErrBadAnswer, reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, first)
			send(2, schema.KindSegment, []byte("{}\nno segment"))
		}},
		"an answer that is no JSON": {want: publisher.ErrBadAnswer, reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, []byte("hello"))
		}},
		"a kind that was not requested": {want: publisher.ErrBadAnswer, reply: func(_ int, send func(int, string, []byte)) {
			send(1, schema.KindAnswer, first)
			send(2, "surprise", nil)
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			answering(t, w, schema.VerbGet, func(try int, _ *nats.Msg, send func(int, string, []byte)) { test.reply(try, send) })
			s, err := f.Get(t.Context(), "r1")
			require.ErrorIs(t, err, test.want)
			if test.want == nil {
				require.Equal(t, run.State(), s)
			}
			n := 0
			err = f.Events(t.Context(), "r1", func(schema.Record) error {
				n++
				return nil
			})
			require.ErrorIs(t, err, test.want)
			if test.want == nil {
				require.Equal(t, 2, n, "no record is shown twice")
			}
		})
	}
}

func TestRequest_DaemonBusy_Retried(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet()
	run := start(t, f, "r1")
	first, err := json.Marshal(&schema.GetReply{Head: run.Head(), Complete: true})
	require.NoError(t, err)
	answering(t, w, schema.VerbGet, func(try int, m *nats.Msg, send func(int, string, []byte)) {
		if try < 3 {
			out := nats.NewMsg(m.Reply)
			out.Header.Set(schema.HeaderErrorCode, "429")
			out.Header.Set(schema.HeaderError, "busy")
			out.Data = []byte(`{"code":"overloaded","message":"busy","hint":"ask again"}`)
			_ = w.nc.PublishMsg(out)
			return
		}
		send(1, schema.KindAnswer, first)
		send(2, schema.KindEnd, nil)
	})
	head, err := f.Head(t.Context(), "r1")
	require.NoError(t, err)
	require.Equal(t, run.Head(), head)
}

func TestResume_IncompleteRun_RefusedUnlessAllowed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet()
	run := start(t, f, "r1")
	// An executor without this SDK leaves a hole.
	writer := schema.Writer{Fleet: "default", Run: "r1", Executor: "exec-0", Epoch: 1, Last: 5}
	e, err := writer.Event(&schema.CheckpointMarkedData{Name: "late"}, 0, time.Now(), 0)
	require.NoError(t, err)
	w.put(e)
	_, err = f.Get(t.Context(), run.ID())
	var incomplete *publisher.IncompleteError
	require.ErrorAs(t, err, &incomplete)
	require.Equal(t, schema.Sequence(2), incomplete.Gaps[0].From)
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{RequestID: "q1"})
	require.ErrorIs(t, err, publisher.ErrIncomplete)
	again, err := f.Resume(t.Context(), "r1", publisher.ResumeSpec{RequestID: "q1", AllowGaps: true})
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(2), again.Epoch())
	require.NoError(t, again.Mark(t.Context(), "here"))
	require.Equal(t, w.fold("r1"), again.State())
}

// requireLog waits until a run has that many events in the log, whichever replica shows it.
func (w *world) requireLog(run string, events int) {
	w.tb.Helper()
	for range 3 { // each reading may come from another one
		require.Eventually(w.tb, func() bool { return len(w.log(run)) == events }, patience, 5*time.Millisecond)
	}
}

// purged purges what the run has in the log but for its last event, as the purger does with what is sealed, and answers reads with all of it.
func (w *world) purged(t *testing.T, run string) (all []schema.Record, state *schema.State) {
	t.Helper()
	stream, err := w.js.Stream(t.Context(), w.names.EventStream())
	require.NoError(t, err)
	all = w.log(run)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSubject(w.names.EventSubject(run)), jetstream.WithPurgeSequence(uint64(all[len(all)-1].Stream))))
	w.requireLog(run, 1)
	state = schema.NewState("default", run)
	for i := range all {
		state.Apply(schema.NoKeys, &all[i])
	}
	answering(t, w, schema.VerbGet, func(_ int, _ *nats.Msg, send func(int, string, []byte)) {
		first, err := json.Marshal(&schema.GetReply{Head: state.Head, Complete: true})
		if err != nil {
			return
		}
		send(1, schema.KindAnswer, first)
		var frames []byte
		for i := range all {
			frames = schema.AppendFrame(frames, &all[i])
		}
		send(2, schema.KindFrames, frames)
		send(3, schema.KindEnd, nil)
	})
	return all, state
}

func TestResolve_PurgedTail_ReadFromDaemon(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := start(t, w.fleet(func(c *publisher.Config) { c.PublishTimeout = 10 * time.Second }), "r1")
	require.NoError(t, run.Mark(t.Context(), "one"))
	w.control("r1", 1, &schema.RunCancelRequestedData{By: "anna"})
	w.control("r1", 1, &schema.RunOrphanedData{})
	// The handle has not met the run's last event yet.
	_, s := w.purged(t, "r1")
	require.NoError(t, run.Mark(t.Context(), "two"))
	require.True(t, run.CancelRequested(), "the purged event was met, too")
	last := w.log("r1")
	s.Apply(schema.NoKeys, &last[1])
	s.Settle()
	require.Equal(t, s, run.State())
}

// The acknowledgement was lost. Until the event is sent again, others have written behind it, and it is sealed and purged: of three servers
// the leader calls it a duplicate of a message that is not there any more.
func TestResolve_PurgedDuplicate_FoundWithDaemon(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := newProxy(t, c.servers[0].ClientURL())
	nc, err := nats.Connect(p.url(), nats.ReconnectBufSize(-1))
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	f := c.fleet(func(cfg *publisher.Config) { cfg.Conn, cfg.PublishTimeout = nc, 20*time.Second })
	for id, behind := range map[string]schema.Data{
		"goes-on":    &schema.RunCancelRequestedData{By: "anna"},
		"taken-over": &schema.RunResumedData{Executor: "exec-2", Reason: "request", RequestID: "q"},
	} {
		t.Run(id, func(t *testing.T) {
			run := start(t, f, id)
			p.dropAcks(-1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			marked := make(chan error, 1)
			go func() { marked <- run.Mark(ctx, "one") }()
			c.requireLog(id, 2)
			cancel()
			require.ErrorIs(t, <-marked, publisher.ErrUnresolved)
			p.dropAcks(0)
			epoch := schema.Epoch(1)
			if resumed, ok := behind.(*schema.RunResumedData); ok {
				head := c.fold(id).Head
				resumed.From, epoch = schema.From{Epoch: head.Epoch, Sequence: head.Sequence, Digest: head.Digest}, 2
			}
			c.control(id, epoch, behind)
			c.requireLog(id, 3)
			all, state := c.purged(t, id)
			require.NoError(t, run.Resolve(t.Context()), "it is durable")
			if epoch == 2 {
				require.ErrorIs(t, run.Err(), publisher.ErrFenced)
				state = schema.NewState("default", id)
				state.Apply(schema.NoKeys, &all[0])
				state.Apply(schema.NoKeys, &all[1])
			}
			state.Settle()
			require.Equal(t, state, run.State())
		})
	}
}

func TestFleet_Closed_Refuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f, err := publisher.Connect(t.Context(), publisher.Config{URL: w.server.URL(), Options: w.server.Options(), Executor: "exec-1", Agent: "coder"})
	require.NoError(t, err)
	run := start(t, f, "r1")
	require.NoError(t, f.Close(context.WithoutCancel(t.Context())))
	require.NoError(t, f.Close(t.Context()), "twice is fine")
	require.ErrorIs(t, run.Mark(t.Context(), "late"), publisher.ErrStopped)
	_, err = f.Start(t.Context(), publisher.RunSpec{ID: "r2"})
	require.ErrorIs(t, err, publisher.ErrStopped)
	_, err = f.Resume(t.Context(), "r1", publisher.ResumeSpec{})
	require.ErrorIs(t, err, publisher.ErrStopped)
}
