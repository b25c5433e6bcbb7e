package service_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/consumer/fold"
	"github.com/waymarkio/waymark/internal/harness/fleettest"
	"github.com/waymarkio/waymark/internal/harness/referencefold"
	"github.com/waymarkio/waymark/kvstore"
	"github.com/waymarkio/waymark/schema"
)

// wrong is a message of a run that must not count.
type wrong struct {
	name string
	// reason of its dead letter; "" for none, since it changes nothing.
	reason schema.Reason
	make   func() (nats.Header, []byte)
}

// wrongs are all faults that a message of the writer's run can have. The run is in epoch 2.
func (x *writer) wrongs() []wrong {
	say := &schema.MessageAddedData{Message: schema.Message{Role: schema.RoleUser, Parts: []schema.Part{schema.Text("forged")}}}
	next := func() *schema.Event {
		e, err := x.Run.Event(say, 0, time.Unix(1_700_000_000, 0), 0)
		require.NoError(x.World.TB, err)
		return e
	}
	var list []wrong
	raw := func(name string, reason schema.Reason, header nats.Header, body []byte) {
		list = append(list, wrong{name, reason, func() (nats.Header, []byte) { return header, body }})
	}
	// forged is the valid next event, with one change.
	forged := func(name string, reason schema.Reason, change func(*schema.Event)) {
		list = append(list, wrong{name, reason, func() (nats.Header, []byte) {
			e := next()
			id := e.ID
			if change(e); e.ID == id {
				e.ID = schema.EventID(e.Subject, e.Epoch, e.Sequence, e.ContentHash())
			}
			return e.Encode()
		}})
	}
	// own is the executor's own next event, with data that cannot be folded: the next event comes after it.
	own := func(name, data string) {
		list = append(list, wrong{name, schema.ReasonInvalidData, func() (nats.Header, []byte) {
			e := next()
			e.Data = []byte(data)
			e.Seal()
			require.NoError(x.World.TB, x.Run.Commit(e))
			return e.Encode()
		}})
	}
	const nesting = 5000
	raw("garbage", schema.ReasonNotCloudEvent, nil, []byte("no event at all"))
	raw("as large as a message may be", schema.ReasonNotCloudEvent, nil, make([]byte, kvstore.MaxEventMessage-512))
	raw("a future version of CloudEvents", schema.ReasonInvalidAttribute,
		nats.Header{"ce-specversion": {"2.0"}, "ce-id": {"x"}, "ce-source": {"/s"}, "ce-type": {"t"}}, []byte("{}"))
	own("deep JSON", `{"message":{"role":"user","parts":[]},"x":`+strings.Repeat("[", nesting)+strings.Repeat("]", nesting)+`}`)
	own("a member twice", `{"message":{"role":"user","parts":[]},"message":{"role":"user","parts":[]}}`)
	own("invalid UTF-8", "{\"message\":{\"role\":\"user\xff\",\"parts\":[]}}")
	own("no JSON", `{"message":`)
	own("a payload of a negative size", `{"message":{"role":"user","parts":[{"type":"text"}]},"refs":[{"path":"/message/parts/0/content","dataref":"`+
		schema.DataRef("bad", strings.Repeat("0", 64))+`","size":-1}]}`)
	forged("forked", schema.ReasonForked, func(e *schema.Event) { e.Sequence = 1 })
	forged("of an older epoch", schema.ReasonFenced, func(e *schema.Event) { e.Epoch, e.Sequence = 1, 99 })
	forged("of another fleet", schema.ReasonInvalidAttribute, func(e *schema.Event) { e.Source = schema.Source("other", "mallory") })
	forged("of another run", schema.ReasonInvalidAttribute, func(e *schema.Event) { e.Subject = "elsewhere" })
	forged("under another's id", schema.ReasonInvalidAttribute, func(e *schema.Event) { e.ID = "bad.2.1.deadbeef" })
	again := x.Acked[len(x.Acked)-1]
	raw("one of before again", "", again.Header, again.Body)
	return list
}

// Whatever a client puts into one run, in any order, the run stays the same, with a dead letter for each refusal, and
// ninety-nine other runs are not affected.
func TestRead_OneDamagedRunOfHundred_OthersUndisturbed(t *testing.T) {
	if testing.Short() {
		t.Skip("short: a hundred runs are folded")
	}
	t.Parallel()
	w := newServiceWorld(t)
	worker, _ := w.Fold(fold.Config{})
	bad := w.aRun("bad", 1, 10)
	var others []*writer
	for i := range 99 {
		x := w.writer(fmt.Sprintf("good-%02d", i))
		x.Start()
		others = append(others, x)
	}
	reply, _ := w.recover("bad", takeover("executor-2", "req-1"))
	taken := w.Log("bad")
	bad.Acked = append(bad.Acked, taken[len(taken)-1])
	bad.resume(reply, "executor-2")
	bad.TurnOf(10)

	_, err := w.JS.Publish(t.Context(), w.Names.EventSubject("bad"), make([]byte, kvstore.MaxEventMessage+1))
	require.Error(t, err, "a larger one is not stored")

	var reasons []schema.Reason
	cases := bad.wrongs()
	for i, c := range cases {
		header, body := c.make()
		ack, err := w.JS.PublishMsg(t.Context(), &nats.Msg{Subject: w.Names.EventSubject("bad"), Header: header, Data: body})
		require.NoError(t, err, c.name)
		bad.Last = ack.Sequence
		bad.Acked = append(bad.Acked, schema.NewRecord(schema.StreamSequence(ack.Sequence), header, body))
		if c.reason != "" {
			reasons = append(reasons, c.reason)
		}
		// The valid writers continue between any two.
		for n := i; n < len(others); n += len(cases) {
			others[n].TurnOf(10)
		}
	}
	last := bad.TurnOf(10)
	for _, x := range others {
		last = x.TurnOf(10)
	}
	w.awaitFolded(last)

	letters := fleettest.Letters(t, w.JS, "default")
	var told []schema.Reason
	for _, l := range letters {
		require.Equal(t, "bad", l.Run)
		told = append(told, l.Reason)
	}
	require.Equal(t, reasons, told)
	require.Zero(t, worker.Stats().Rebuilds.Load())

	head, _ := w.get("bad", schema.ViewHead)
	require.True(t, head.Complete, "%v", head.Gaps)
	require.Equal(t, bad.Model(), head.Head)
	require.EqualValues(t, 14+5, head.Head.Counts.Events, "the start, three turns, the takeover, and five of the executor's whose data counts for nothing")
	require.EqualValues(t, 6, head.Head.Counts.Messages)
	require.Empty(t, referencefold.Fold(schema.NoKeys, "default", "bad", w.Log("bad")).Differences(&head.Head))
	for i, x := range others {
		if i%20 == 0 {
			w.everyView(x)
		}
		got, _ := w.get(x.Run.Run, schema.ViewHead)
		require.Equal(t, x.Model(), got.Head)
	}
	next, _ := w.recover("bad", takeover("executor-3", "req-2"))
	require.EqualValues(t, 3, next.Epoch)
	require.True(t, next.Complete)
}

// An event that shows that one before it is missing is named as a gap, and the run is never taken for complete. This
// happens when a client stores an executor's events in another order than their numbers.
func TestRead_EventsOutOfOrder_NamedGap(t *testing.T) {
	t.Parallel()
	source := newServiceWorld(t).aRun("run-1", 1, 10)
	ahead := source.Run
	ahead.Epoch, ahead.Last = 9, 0
	e, err := ahead.Event(&schema.ErrorRaisedData{Error: schema.Error{Type: "t", Message: "of an epoch to come"}}, 0, time.Unix(1_700_000_000, 0), 0)
	require.NoError(t, err)
	header, body := e.Encode()
	events := append(source.Acked, schema.NewRecord(0, header, body))
	for name, order := range map[string][]int{
		"two changed places": {0, 1, 2, 4, 3}, "one came late": {0, 1, 3, 4, 2}, "the first came last": {1, 2, 3, 4, 0},
		"one of an epoch whose takeover is not there": {0, 1, 2, 3, 4, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newServiceWorld(t)
			w.Fold(fold.Config{})
			for _, i := range order {
				w.publishRaw("run-1", events[i].Header, events[i].Body)
			}
			whole := w.aRun("run-2", 1, 10)
			w.awaitFolded(schema.StreamSequence(whole.Last))
			head, a := w.get("run-1", schema.ViewEvents)
			require.False(t, head.Complete)
			require.NotEmpty(t, head.Gaps)
			require.Empty(t, referencefold.Fold(schema.NoKeys, "default", "run-1", w.Log("run-1")).Differences(&head.Head))
			require.Len(t, a.records(t), len(order), "nothing is thrown away")
			c, _, err := w.Shard.Checkpoints.GetFresh(t.Context(), "run-1")
			require.NoError(t, err)
			require.Equal(t, head.Head.Digest, c.Digest)
			require.False(t, c.Complete())
			w.everyView(whole)
			reply, _ := w.recover("run-1", takeover("executor-2", "req-1"))
			require.False(t, reply.Complete)
			require.Equal(t, head.Gaps, reply.Gaps)
		})
	}
}
