package fleetclient

import (
	"errors"
	"strconv"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// FuzzReplies delivers replies of the daemon in any order.
func FuzzReplies(f *testing.F) {
	head := schema.NewHead("f", "r-1")
	answer, err := json.Marshal(&schema.RecoverReply{Head: head, Epoch: 2, NextSequence: 1, Complete: true})
	require.NoError(f, err)
	frame := schema.NewRecord(1, map[string][]string{"ce-id": {"x"}}, []byte("{}"))
	f.Add("1", schema.KindAnswer, "", answer)
	f.Add("2", schema.KindFrames, "", schema.AppendFrame(nil, &frame))
	f.Add("2", schema.KindSegment, "", []byte("{}\nx"))
	f.Add("3", schema.KindEnd, "", []byte(nil))
	f.Add("", "", "503", []byte(`{"code":"unavailable","message":"m","hint":"h"}`))
	f.Fuzz(func(t *testing.T, number, kind, code string, body []byte) {
		m := nats.NewMsg("_INBOX.x")
		for name, value := range map[string]string{schema.HeaderReply: number, schema.HeaderKind: kind, schema.HeaderErrorCode: code} {
			if value != "" {
				m.Header.Set(name, value)
			}
		}
		m.Data = body
		tryReplies(t, m)
	})
}

// tryReplies tries the message as the first, a later and a repeated reply.
func tryReplies(t *testing.T, m *nats.Msg) {
	t.Helper()
	state := schema.NewState("f", "r-1")
	for _, next := range []int{1, 2, 3} {
		var out schema.RecoverReply
		a := &Replies{
			next: next, answered: next > 1,
			Answer: func(body []byte) error { return Decode(body, &out) },
			Piece: func(kind string, frames []byte) error {
				if kind != schema.KindFrames && kind != schema.KindSegment {
					return ErrBadAnswer
				}
				return schema.ReadFrames(frames, func(rec schema.Record) bool {
					state.Apply(schema.NoKeys, &rec)
					return true
				})
			},
		}
		done, err := a.take(unpack(m))
		if err != nil {
			require.True(t, done || errors.Is(err, ErrBadAnswer) || errors.Is(err, schema.ErrCorrupt), "%v", err)
			continue
		}
		if n, err := strconv.Atoi(m.Header.Get(schema.HeaderReply)); err == nil && n == next {
			require.Equal(t, next+1, a.next)
			again, err := a.take(unpack(m))
			require.NoError(t, err)
			require.False(t, again, "a reply that was taken is not taken again")
		}
	}
}
