package schema_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

func TestSealed_Event_FoldsAsRecord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawKeyed(t, 40, nil)
		whole := schema.NewState("f", "r1")
		sealed := schema.NewState("f", "r1")
		for i := range s.Records {
			rec := s.Records[i]
			data, made := s.Sealed[i]
			if !made {
				require.Equal(t, whole.Apply(schema.NoKeys, &rec), sealed.Apply(schema.NoKeys, &rec))
				continue
			}
			e, err := schema.Decode(rec.Header, rec.Body)
			require.NoError(t, err)
			told, asked := whole.Head.Clone(), whole.Head.Clone()
			nowhere := rec
			nowhere.Stream = 0
			want := told.Apply(schema.ExecutorsOnly, &nowhere)
			require.Equal(t, brief(want), brief(asked.ApplySealed(e, e.ContentHash(), data, 0)))
			require.Equal(t, told, asked, "record %d", i)

			own, err := schema.ParseData(e)
			require.NoError(t, err)
			require.Equal(t, brief(whole.Apply(schema.ExecutorsOnly, &rec)), brief(sealed.ApplySealed(e, e.ContentHash(), own, rec.Stream)))
			require.Equal(t, settled(whole), settled(sealed), "record %d", i)
			require.Equal(t, brief(whole.Apply(schema.ExecutorsOnly, &rec)), brief(sealed.ApplySealed(e, e.ContentHash(), own, rec.Stream)), "once more")
			require.Equal(t, settled(whole), settled(sealed), "once more")
		}
	})
}

func TestSealed_InvalidEvent_Refused(t *testing.T) {
	deep := make([]byte, 0, 2*schema.MaxJSONDepth+2)
	for range schema.MaxJSONDepth + 1 {
		deep = append(deep, '[')
	}
	for range schema.MaxJSONDepth + 1 {
		deep = append(deep, ']')
	}
	data := &schema.MessageAddedData{Message: userMessage("hi")}
	data.Message.Source = deep
	w := schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1}
	e, err := w.Event(data, 0, time.Unix(1, 0), 0)
	require.NoError(t, err)
	head := schema.NewHead("f", "r1")
	require.Equal(t, schema.ReasonInvalidData, head.ApplySealed(e, e.ContentHash(), data, 0).Reason)
}

// The caller of a publish may reuse the event's data: a head that folded it must not change with it.
func TestSealed_Head_KeepsNoData(t *testing.T) {
	for i := range samples() {
		data := samples()[i] // made again: they share what they refer to
		t.Run(data.EventName(), func(t *testing.T) {
			w := schema.Writer{Fleet: "f", Run: "r1", Executor: "ex-1", Epoch: 1}
			head := schema.NewHead("f", "r1")
			turn := &schema.TurnStartedData{Turn: 1}
			if data.EventName() == turn.EventName() {
				turn.Turn = 0
			}
			for i, d := range []schema.Data{turn, &schema.ToolCalledData{ToolCallID: "c1", Name: "ls"}, data} {
				if i == 0 && turn.Turn == 0 || i == 1 && d.EventName() == data.EventName() {
					continue
				}
				e, err := w.Event(d, 1, time.Unix(1, 0), 0)
				require.NoError(t, err)
				head.ApplySealed(e, e.ContentHash(), d, schema.StreamSequence(i+1)) //nolint:gosec // a small count
				w.Last++
			}
			before := mustMarshal(t, head)
			scribble(reflect.ValueOf(data))
			require.Equal(t, string(before), string(mustMarshal(t, head)))
		})
	}
}

// scribble overwrites whatever v refers to.
func scribble(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			scribble(v.Elem())
			v.Elem().SetZero()
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			scribble(field)
		}
	case reflect.Slice:
		for i := range v.Len() {
			scribble(v.Index(i))
			v.Index(i).SetZero()
		}
	case reflect.Map:
		v.Clear()
	default:
	}
}
