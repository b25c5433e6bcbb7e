package publisher_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// reply is what a daemon made by a test sends.
type reply struct {
	kind string
	body []byte
}

// answering serves reads of run r1 with the given replies.
func (w *world) answering(t *testing.T, replies ...reply) {
	t.Helper()
	sub, err := w.nc.Subscribe(schema.ServiceSubject(schema.VerbGet, "default", "r1"), func(m *nats.Msg) {
		for i, r := range replies {
			out := nats.NewMsg(m.Reply)
			out.Header.Set(schema.HeaderReply, strconv.Itoa(i+1))
			out.Header.Set(schema.HeaderKind, r.kind)
			out.Data = r.body
			_ = w.nc.PublishMsg(out)
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	require.NoError(t, w.nc.Flush())
}

// content is a run of a few events: in frames, in a segment, and the answer that goes with it.
func content(t *testing.T, agent string) (frames, segment, answer reply, head schema.Head) {
	t.Helper()
	run := schema.Writer{Fleet: "default", Run: "r1", Executor: "e1", Epoch: 1}
	head = schema.NewHead("default", "r1")
	info := schema.SegmentInfo{Fleet: "default", Run: "r1", Number: 1}
	var buf []byte
	for i, d := range []schema.Data{
		&schema.RunStartedData{Executor: "e1", Agent: agent},
		&schema.ErrorRaisedData{Error: schema.Error{Type: "noise", Message: agent}},
	} {
		e, err := run.Event(d, 0, time.Unix(1_700_000_000, 0), 0)
		require.NoError(t, err)
		require.NoError(t, run.Commit(e))
		header, body := e.Encode()
		rec := schema.NewRecord(schema.StreamSequence(i+1), header, body)
		buf = schema.AppendFrame(buf, &rec)
		require.Equal(t, schema.Applied, head.Apply(schema.NoKeys, &rec).Kind)
		if i == 0 {
			info.First = schema.PositionOf(&rec)
		}
		info.Last, info.Events = schema.PositionOf(&rec), i+1
	}
	info.DigestAfter = head.Digest
	stored, err := schema.EncodeSegment(info, nil, buf)
	require.NoError(t, err)
	first, err := json.Marshal(&schema.GetReply{Head: head, Complete: true, Gaps: []schema.Gap{}})
	require.NoError(t, err)
	return reply{schema.KindFrames, buf}, reply{schema.KindSegment, stored}, reply{schema.KindAnswer, first}, head
}

func TestReplies_ContentBeforeOrAfterHead_Accepted(t *testing.T) {
	t.Parallel()
	frames, segment, answer, head := content(t, "agent-1")
	_, wrong, _, _ := content(t, "agent-2")
	end := reply{kind: schema.KindEnd}
	for _, c := range []struct {
		name    string
		replies []reply
		// get is what Get returns, events what Events does.
		get, events error
	}{
		{"segments before it", []reply{segment, answer, end}, nil, nil},
		{"frames behind it", []reply{answer, frames, end}, nil, nil},
		{"records of another run are noticed", []reply{wrong, answer, end}, publisher.ErrIncomplete, publisher.ErrIncomplete},
		{"an end without an answer is none", []reply{segment, end}, publisher.ErrBadAnswer, publisher.ErrBadAnswer},
		{"it comes once", []reply{segment, answer, answer, end}, publisher.ErrBadAnswer, publisher.ErrBadAnswer},
		{"a damaged segment is none", []reply{{schema.KindSegment, wrong.body[:len(wrong.body)-1]}, answer, end}, publisher.ErrBadAnswer, publisher.ErrBadAnswer},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.answering(t, c.replies...)
			f := w.fleet()
			state, err := f.Get(t.Context(), "r1")
			if c.get == nil {
				require.NoError(t, err)
				require.Contains(t, []string{head.Digest, ""}, state.Head.Digest)
			} else {
				require.ErrorIs(t, err, c.get)
			}
			var seen []schema.StreamSequence
			err = f.Events(t.Context(), "r1", func(rec schema.Record) error {
				seen = append(seen, rec.Stream)
				return nil
			})
			if c.events == nil {
				require.NoError(t, err)
				require.Equal(t, []schema.StreamSequence{1, 2}, seen)
			} else {
				require.ErrorIs(t, err, c.events)
			}
		})
	}
}

// A page that breaks off may end earlier when the daemon sends it again, if it sealed the run in between. Events yields no
// record twice.
func TestEvents_RepeatedPageIsShorter_EachRecordOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.RequestTimeout = 5 * time.Second })
	frames, _, answer, _ := content(t, "agent-1")
	var recs [][]byte
	require.NoError(t, schema.ReadFrames(frames.body, func(rec schema.Record) bool {
		recs = append(recs, schema.AppendFrame(nil, &rec))
		return true
	}))
	require.Len(t, recs, 2)
	var full schema.GetReply
	require.NoError(t, json.Unmarshal(answer.body, &full))
	part := full
	part.Next = "1.1.-1"
	first, err := json.Marshal(&part)
	require.NoError(t, err)
	n := 0
	sub, err := w.nc.Subscribe(schema.ServiceSubject(schema.VerbGet, "default", "r1"), func(m *nats.Msg) {
		n++ // one at a time
		send := func(i int, kind string, body []byte) {
			_ = w.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Data: body, Header: nats.Header{schema.HeaderReply: {strconv.Itoa(i)}, schema.HeaderKind: {kind}}})
		}
		switch n {
		case 1: // both records of the tail, then the daemon stops
			send(1, schema.KindFrames, frames.body)
			e, _ := json.Marshal(schema.Fail(schema.CodeUnavailable, "again", "stopping"))
			_ = w.nc.PublishMsg(&nats.Msg{Subject: m.Reply, Data: e, Header: nats.Header{schema.HeaderReply: {"2"}, schema.HeaderError: {"stopping"}, schema.HeaderErrorCode: {"503"}}})
		case 2: // the daemon has sealed a segment, and the page ends with it
			send(1, schema.KindFrames, recs[0])
			send(2, schema.KindAnswer, first)
			send(3, schema.KindEnd, nil)
		default:
			send(1, schema.KindFrames, recs[1])
			send(2, schema.KindAnswer, answer.body)
			send(3, schema.KindEnd, nil)
		}
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	require.NoError(t, w.nc.Flush())
	var got []schema.StreamSequence
	err = f.Events(t.Context(), "r1", func(rec schema.Record) error {
		got = append(got, rec.Stream)
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, []schema.StreamSequence{1, 2}, got)
}
