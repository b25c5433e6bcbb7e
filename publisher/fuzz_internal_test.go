package publisher

import (
	"errors"
	"strconv"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/schema"
)

// FuzzAnswers tries what the SDK is answered: replies of the daemon put together in any order, a tool's word about a
// call, a person's about an approval, the content of a blob, and values that are searched for what is large or secret.
func FuzzAnswers(f *testing.F) {
	head := schema.NewHead("f", "r-1")
	answer, err := json.Marshal(&schema.RecoverReply{Head: head, Epoch: 2, NextSequence: 1, Complete: true})
	require.NoError(f, err)
	frame := schema.NewRecord(1, map[string][]string{"ce-id": {"x"}}, []byte("{}"))
	f.Add(uint8(0), "1", schema.KindAnswer, "", answer)
	f.Add(uint8(0), "2", schema.KindFrames, "", schema.AppendFrame(nil, &frame))
	f.Add(uint8(0), "2", schema.KindSegment, "", []byte("{}\nx"))
	f.Add(uint8(0), "3", schema.KindAgain, "", []byte(nil))
	f.Add(uint8(0), "", "", "503", []byte(`{"code":"unavailable","message":"m","hint":"h"}`))
	f.Add(uint8(0), "", "", "422", []byte(`{"code":"invalid_answer","message":"m","details":[{"path":"/a","problem":"p"}]}`))
	f.Add(uint8(1), "", "", "", []byte(`{"outcome":"done","result":{"a":1}}`))
	f.Add(uint8(2), "", "", "", []byte(`{"decision":"allow","reason":"r"}`))
	f.Add(uint8(3), "", "", "", []byte(`"text"`))
	f.Add(uint8(4), "", "", "", []byte(`{"a":{"b":["xxxxxxxxxxxxxxxx",1]},"password":"p"}`))
	redactor := newRedactor(&Redaction{Fields: []string{"password"}})
	f.Fuzz(func(t *testing.T, kind uint8, number, replyKind, code string, body []byte) {
		m := nats.NewMsg("_INBOX.x")
		for name, value := range map[string]string{schema.HeaderReply: number, schema.HeaderKind: replyKind, schema.HeaderErrorCode: code} {
			if value != "" {
				m.Header.Set(name, value)
			}
		}
		m.Data = body
		switch kind % 5 {
		case 0:
			tryReplies(t, m)
		case 1:
			reply, err := readVerify(m)
			if err == nil {
				require.Contains(t, []string{schema.VerifyDone, schema.VerifyNotDone}, reply.Outcome)
				return
			}
			_, ok := errors.AsType[*unverified](err)
			require.True(t, ok, "%v", err)
		case 2:
			decision, _ := approvalOf(&schema.RunInputData{Payload: body})
			require.Contains(t, []string{schema.DecisionAllow, schema.DecisionDeny}, decision)
		case 3:
			var value jsontext.Value
			var pointer *string
			var text string
			for _, target := range []field{{value: &value}, {text: &pointer}, {str: &text}} {
				target.remove()
				if err := target.set(body); err != nil {
					target.remove()
				}
			}
		case 4:
			if !jsontext.Value(body).IsValid() {
				return
			}
			_, size := largestField(body)
			require.LessOrEqual(t, size, len(body))
			out, err := redactor.value(body)
			require.NoError(t, err)
			require.True(t, out.IsValid())
		}
	})
}

// tryReplies takes the message as the first, a later and a repeated reply.
func tryReplies(t *testing.T, m *nats.Msg) {
	t.Helper()
	state := schema.NewState("f", "r-1")
	for _, next := range []int{1, 2, 3} {
		var out schema.RecoverReply
		a := &replies{
			next: next, answered: next > 1,
			answer: func(body []byte) error { return decodeAnswer(body, &out) },
			again:  func() { state = schema.NewState("f", "r-1") },
			piece: func(kind string, frames []byte) error {
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
