package schema_test

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/waymarkio/waymark/schema"
)

// TestFold_PreparedAnyOrder_Same prepares a log from its end, on many goroutines.
func TestFold_PreparedAnyOrder_Same(t *testing.T) {
	var log []schema.Record
	ordinaryRun(t, 20, func(rec *schema.Record) { log = append(log, *rec) })
	log = append(log, log[3], schema.Record{Stream: 1 << 20, Body: []byte("no event")})
	prepared := make([]schema.Prepared, len(log))
	var group errgroup.Group
	for i := len(log) - 1; i >= 0; i-- {
		group.Go(func() error {
			prepared[i] = schema.Prepare(schema.NoKeys, &log[i])
			return nil
		})
	}
	require.NoError(t, group.Wait())
	ahead, at := schema.NewHead("default", "run-01hq3v8j5k"), schema.NewHead("default", "run-01hq3v8j5k")
	for i := range log {
		require.Equal(t, schema.PositionOf(&log[i]), prepared[i].Position())
		require.Equal(t, at.Apply(schema.NoKeys, &log[i]), ahead.ApplyPrepared(&prepared[i]))
		require.Equal(t, at, ahead)
	}
	require.Positive(t, at.Counts.DeadLetters)
}

func TestPrepareSealed_AnyEvent_SameAsItsRecord(t *testing.T) {
	for name, change := range map[string]func(*schema.Event){
		"as sealed":               func(*schema.Event) {},
		"a year of five digits":   func(e *schema.Event) { e.Time = "12026-01-02T03:04:05Z" },
		"no time":                 func(e *schema.Event) { e.Time = "" },
		"a turn below zero":       func(e *schema.Event) { e.Turn = -1 },
		"no epoch":                func(e *schema.Event) { e.Epoch = 0 },
		"an epoch out of range":   func(e *schema.Event) { e.Epoch = math.MaxUint32 },
		"a later epoch":           func(e *schema.Event) { e.Epoch++ },
		"a line feed in the type": func(e *schema.Event) { e.Type += "\n" },
		"a long type":             func(e *schema.Event) { e.Type = strings.Repeat("x", schema.MaxAttribute+1) },
		"another type":            func(e *schema.Event) { e.Type = "com.example.é %41" },
		"no source":               func(e *schema.Event) { e.Source = "" },
		"invalid UTF-8":           func(e *schema.Event) { e.Source = "/a\xff" },
		"another run":             func(e *schema.Event) { e.Subject = strings.Repeat("x", schema.MaxIdentifier+1) },
		"no reference":            func(e *schema.Event) { e.DataRef = "elsewhere" },
		"an invalid attribute":    func(e *schema.Event) { e.Extensions = map[string]string{"Note-1": "x"} },
		"another content type":    func(e *schema.Event) { e.DataContentType = "text/plain" },
		"no JSON":                 func(e *schema.Event) { e.Data = []byte("{") },
		"other data":              func(e *schema.Event) { e.Data = []byte(`{"turn":7}`) },
	} {
		t.Run(name, func(t *testing.T) {
			at := schema.NewHead("default", "run-01hq3v8j5k")
			ordinaryRun(t, 2, func(rec *schema.Record) {
				e, err := schema.Decode(rec.Header, rec.Body)
				require.NoError(t, err)
				change(e)
				p := schema.PrepareSealed(e, e.Seal(), nil)
				own, log := at.Clone(), at.Clone()
				header, body := e.Encode()
				verdict := log.Apply(schema.ExecutorsOnly, &schema.Record{Header: header, Body: body})
				require.Equal(t, verdict, own.ApplyPrepared(&p))
				require.Equal(t, log, own)
				at.Apply(schema.ExecutorsOnly, rec)
			})
		})
	}
}

func TestPrepareSealed_DataOfWriter_SameAsParsed(t *testing.T) {
	shared := 0
	check := func(t *testing.T, data schema.Data) {
		t.Helper()
		body, err := schema.MarshalData(data)
		require.NoError(t, err)
		e := &schema.Event{
			ID: "r.1.1.0", Source: "/waymark/default/e", Type: schema.TypeOf(data.EventName()), Subject: "r", Time: "2026-01-02T03:04:05Z", Epoch: 1, Sequence: 1,
			DataContentType: schema.ContentTypeJSON, Data: body,
		}
		parsed, err := schema.ParseData(e)
		require.NoError(t, err)
		p := schema.PrepareSealed(e, e.Seal(), data)
		require.Equal(t, parsed, p.Data())
		require.NotSame(t, data, p.Data())
		if schema.Shared(e, data) {
			shared++
		}
	}
	for _, data := range samples() {
		t.Run(data.EventName(), func(t *testing.T) { check(t, data) })
	}
	require.Greater(t, shared, 10, "few events are not parsed again")
	t.Run("a usage of nothing", func(t *testing.T) {
		check(t, &schema.TurnAnsweredData{Turn: 1, Message: schema.Message{Role: schema.RoleAssistant}, Usage: &schema.Usage{}})
		check(t, &schema.TurnEndedData{Turn: 1, Usage: &schema.Usage{}})
	})
	t.Run("a value that is in texts and between them", func(t *testing.T) {
		check(t, &schema.TurnAnsweredData{
			Turn: 1, Message: assistantMessage(schema.Text("x")), FinishReasons: []string{"[ ", "]"},
			Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Arguments: []byte(`[ ","]`)}},
		})
	})
	for name, value := range map[string]string{
		"spaces": ` { "a" : [ 1, 2 ] } `, "escapes": `"\u0041\/"`, "null": `null`, "a number": `1.50e+1`, "a large number": `123456789012345678901234567890`,
		"nothing in it": `{}`, "depth": strings.Repeat("[", schema.MaxJSONDepth-4) + strings.Repeat("]", schema.MaxJSONDepth-4),
		"a value that is in a text, too": `[1, 2]`,
	} {
		t.Run(name, func(t *testing.T) {
			yes, text := true, "add [1, 2]"
			check(t, &schema.ToolReturnedData{ToolCallID: "c", Result: []byte(value), Source: []byte(value), IsError: &yes})
			check(t, &schema.StateSetData{Key: "k", Value: []byte(value)})
			check(t, &schema.TurnAnsweredData{
				Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{{Type: schema.PartText, Content: &text}}},
				Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Arguments: []byte(value)}},
			})
			check(t, &schema.TurnAnsweredData{
				Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{}, Extra: []byte(`{"b":1,"a":{}}`)},
				Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Arguments: []byte(value)}}, FinishReasons: []string{"stop", ""},
			})
		})
	}
}

func TestPrepareSealed_CallerChangesItsData_KeepsItsOwn(t *testing.T) {
	result, text := []byte(`{"a":"before"}`), "before"
	data := &schema.TurnAnsweredData{
		Turn: 1, Message: schema.Message{Role: schema.RoleAssistant, Parts: []schema.Part{{Type: schema.PartText, Content: &text}}}, FinishReasons: []string{"stop"},
		Calls: []schema.RequestedCall{{ToolCallID: "c", Name: "n", Arguments: result}}, Usage: &schema.Usage{InputTokens: 1},
	}
	body, err := schema.MarshalData(data)
	require.NoError(t, err)
	e := &schema.Event{
		Source: "/waymark/default/e", Type: schema.TypeOf(data.EventName()), Subject: "r", Time: "2026-01-02T03:04:05Z", Epoch: 1, Sequence: 1,
		DataContentType: schema.ContentTypeJSON, Data: body,
	}
	require.True(t, schema.Shared(e, data))
	p := schema.PrepareSealed(e, e.Seal(), data)
	copy(result, `{"a":"AFTER!"}`)
	text, data.FinishReasons[0], data.Message.Parts[0].Type, data.Calls[0].Name, data.Usage.InputTokens = "after", "x", "x", "x", 2
	parsed, err := schema.ParseData(e)
	require.NoError(t, err)
	require.Equal(t, parsed, p.Data())
}
