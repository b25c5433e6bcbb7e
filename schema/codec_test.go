package schema_test

import (
	"bytes"
	stdjson "encoding/json" // another reader of JSON
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

func binary(extra ...string) map[string][]string {
	header := map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1"}, "ce-source": {"/s"}, "ce-type": {"t"}}
	for i := 0; i < len(extra); i += 2 {
		header[extra[i]] = []string{extra[i+1]}
	}
	return header
}

func TestCodec_HeaderValues_PercentDecodedOnce(t *testing.T) {
	for _, tc := range []struct {
		name, header, text, back string
	}{
		{"plain text", "abc", "abc", "abc"},
		{"space and quote", "a%20%22b%22", `a "b"`, "a%20%22b%22"},
		{"raw space is kept and written escaped", "a b", "a b", "a%20b"},
		{"an escaped percent is not decoded again", "%2541", "%41", "%2541"},
		{"lower-case digits are read, upper-case written", "%c3%a9", "é", "%C3%A9"},
		{"raw UTF-8 is read", "é", "é", "%C3%A9"},
		{"beyond the basic plane", "%F0%9F%90%9B", "🐛", "%F0%9F%90%9B"},
		{"a lone percent is kept", "100%", "100%", "100%25"},
		{"two lone percents", "%zz %4", "%zz %4", "%25zz%20%254"},
		{"a tilde needs no escape", "~", "~", "~"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := schema.Decode(binary("ce-note", tc.header), nil)
			require.NoError(t, err)
			require.Equal(t, tc.text, e.Extensions["note"])
			header, _ := e.Encode()
			require.Equal(t, tc.back, header["ce-note"][0])
		})
	}
}

func TestCodec_InvalidHeaders_Refused(t *testing.T) {
	for _, tc := range []struct {
		name      string
		header    map[string][]string
		attribute string
	}{
		{"another version", binary("ce-specversion", "0.3"), "specversion"},
		{"no id", binary("ce-id", ""), "id"},
		{"no source", binary("ce-source", ""), "source"},
		{"no type", binary("ce-type", ""), "type"},
		{"invalid UTF-8 behind escapes", binary("ce-note", "%ff"), "note"},
		{"a raw invalid byte", binary("ce-note", "\xff"), "note"},
		{"an escaped control character", binary("ce-note", "%0A"), "note"},
		{"a C1 control character", binary("ce-note", "\u0085"), "note"},
		{"DEL", binary("ce-note", "%7F"), "note"},
		{"NUL", binary("ce-id", "%00"), "id"},
		{"given twice in one name", map[string][]string{"ce-specversion": {"1.0"}, "ce-id": {"1", "1"}}, "id"},
		{"given twice in two cases", binary("CE-ID", "1"), "id"},
		{"an underscore in a name", binary("ce-a_b", "x"), `"a_b"`},
		{"a dash in a name", binary("ce-a-b", "x"), `"a-b"`},
		{"21 letters", binary("ce-"+strings.Repeat("a", 21), "x"), `"` + strings.Repeat("a", 21) + `"`},
		{"an attribute called data", binary("ce-data", "x"), "data"},
		{"a long value", binary("ce-note", strings.Repeat("x", schema.MaxAttribute+1)), "note"},
		{"epoch 0", binary("ce-epoch", "0"), "epoch"},
		{"epoch beyond 32 bits", binary("ce-epoch", "2147483648"), "epoch"},
		{"epoch with a sign", binary("ce-epoch", "+1"), "epoch"},
		{"epoch that is a fraction", binary("ce-epoch", "1.0"), "epoch"},
		{"negative turn", binary("ce-turn", "-1"), "turn"},
		{"turn beyond 32 bits", binary("ce-turn", "2147483648"), "turn"},
		{"empty turn", binary("ce-turn", ""), "turn"},
		{"sequence 0", binary("ce-epoch", "1", "ce-sequence", "0"), "sequence"},
		{"sequence of 21 digits", binary("ce-epoch", "1", "ce-sequence", strings.Repeat("0", 20)+"1"), "sequence"},
		{"sequence beyond 63 bits", binary("ce-epoch", "1", "ce-sequence", "9223372036854775808"), "sequence"},
		{"sequence without epoch", binary("ce-sequence", "1"), "epoch"},
		{"time without zone", binary("ce-time", "2026-01-01T00:00:00"), "time"},
		{"dataref to the web", binary("ce-dataref", "https://example.org/x"), "dataref"},
		{"dataref with a path", binary("ce-dataref", "waymark-blob:../x.sha256-"+strings.Repeat("0", 64)), "dataref"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := schema.Decode(tc.header, nil)
			var bad *schema.AttributeError
			require.ErrorAs(t, err, &bad)
			require.Equal(t, tc.attribute, bad.Name)
		})
	}
	many := binary()
	for i := range schema.MaxExtensions + 1 {
		many[fmt.Sprintf("ce-x%d", i)] = []string{"v"}
	}
	_, err := schema.Decode(many, nil)
	require.ErrorContains(t, err, "more than")
}

func TestCodec_ValidHeaders_Accepted(t *testing.T) {
	e, err := schema.Decode(map[string][]string{
		"CE-SpecVersion": {"1.0"}, "Ce-Id": {"1"}, "ce-SOURCE": {"/s"}, "cE-type": {"t"}, "ce-none": {},
		"ce-epoch": {"2147483647"}, "ce-turn": {"2147483647"}, "ce-sequence": {"9223372036854775807"},
		"ce-aaaaaaaaaaaaaaaaaaaa": {"20 letters"}, "Content-Type": {"text/plain"}, "X-Other": {"a", "b"},
	}, []byte("x"))
	require.NoError(t, err)
	require.Equal(t, schema.Epoch(math.MaxInt32), e.Epoch)
	require.Equal(t, int32(math.MaxInt32), e.Turn)
	require.Equal(t, schema.Sequence(math.MaxInt64), e.Sequence)
	require.Equal(t, "text/plain", e.DataContentType)
	require.Len(t, e.Extensions, 1)
}

func TestCodec_Mode_ChosenInOrder(t *testing.T) {
	envelope := `{"specversion":"1.0","id":"structured","source":"/s","type":"t"}`
	for _, tc := range []struct {
		name   string
		header map[string][]string
		body   string
		id     string
	}{
		{"structured content type before ce-specversion", binary("Content-Type", "Application/CloudEvents+JSON ; charset=utf-8"), envelope, "structured"},
		{"ce-specversion before the body's form", binary(), envelope, "1"},
		{"ce-specversion with a batch content type", binary("content-type", "application/cloudevents-batch+json"), "[]", "1"},
		{"a plain publish of an envelope", nil, " \n" + envelope, "structured"},
		{"specversion may stand anywhere at the top", nil, `{"data":{"specversion":"1.0"},"id":"structured","source":"/s","type":"t","specversion":"1.0"}`, "structured"},
		{"a batch is refused", map[string][]string{"content-type": {"application/cloudevents-batch+json"}}, envelope, ""},
		{"no CloudEvent at all", nil, "hello", ""},
		{"specversion only below the top", nil, `{"data":{"specversion":"1.0"}}`, ""},
		{"structured, but not JSON", map[string][]string{"content-type": {"application/cloudevents+json"}}, "<xml/>", ""},
		{"structured, but an array", map[string][]string{"content-type": {"application/cloudevents+json"}}, "[]", ""},
		{"text after the envelope", nil, envelope + "x", ""},
		{"a member given twice", nil, `{"specversion":"1.0","id":"a","id":"b","source":"/s","type":"t"}`, ""},
		{"invalid UTF-8", nil, `{"specversion":"1.0","id":"` + "\xff" + `","source":"/s","type":"t"}`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, err := schema.Decode(tc.header, []byte(tc.body))
			if tc.id == "" {
				require.ErrorIs(t, err, schema.ErrNotCloudEvent)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tc.id, e.ID)
		})
	}
}

func TestCodec_StructuredMembers_Checked(t *testing.T) {
	base := `"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for _, tc := range []struct {
		name, members string
		check         func(*testing.T, *schema.Event)
		attribute     string
	}{
		{name: "JSON data is kept byte for byte", members: `"data": { "a" : [1.0, "\u0041"] }`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.True(t, bytes.Equal([]byte(`{ "a" : [1.0, "\u0041"] }`), e.Data))
		}},
		{name: "data_base64", members: `"data_base64":"/wD+","datacontenttype":"application/octet-stream"`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, []byte{0xff, 0, 0xfe}, e.Data)
		}},
		{name: "a string under a text content type is the text", members: `"data":"a\"b","datacontenttype":"text/plain"`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, `a"b`, string(e.Data))
		}},
		{name: "a string under JSON stays JSON", members: `"data":"a","datacontenttype":"application/vnd.x+json"`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, `"a"`, string(e.Data))
		}},
		{name: "null attributes are absent", members: `"time":null,"epoch":null,"note":null`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Zero(t, e.Epoch)
			require.Empty(t, e.Extensions)
		}},
		{name: "integers as numbers", members: `"epoch":2,"turn":3,"sequence":"4","count":5,"flag":true`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, schema.Epoch(2), e.Epoch)
			require.Equal(t, map[string]string{"count": "5", "flag": "true"}, e.Extensions)
		}},
		{name: "integers as strings", members: `"epoch":"2","turn":"3","sequence":"00000000000000000004"`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, int32(3), e.Turn)
			require.Equal(t, schema.Sequence(4), e.Sequence)
		}},
		{name: "percent signs mean themselves", members: `"note":"%41"`, check: func(t *testing.T, e *schema.Event) {
			t.Helper()
			require.Equal(t, "%41", e.Extensions["note"])
		}},
		{name: "data and data_base64", members: `"data":1,"data_base64":"MQ=="`, attribute: "data_base64"},
		{name: "data_base64 that is none", members: `"data_base64":"?"`, attribute: "data_base64"},
		{name: "data_base64 that is a number", members: `"data_base64":1`, attribute: "data_base64"},
		{name: "an object as attribute", members: `"note":{}`, attribute: "note"},
		{name: "an upper-case name", members: `"Note":"x"`, attribute: `"Note"`},
		{name: "an escaped control character", members: `"note":"\n"`, attribute: "note"},
		{name: "a fraction as epoch", members: `"epoch":1.5`, attribute: "epoch"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			body := []byte("{" + base + "," + tc.members + "}")
			e, err := schema.Decode(nil, body)
			if tc.attribute != "" {
				var bad *schema.AttributeError
				require.ErrorAs(t, err, &bad)
				require.Equal(t, tc.attribute, bad.Name)
				return
			}
			require.NoError(t, err)
			tc.check(t, e)
			clear(body)
			tc.check(t, e) // the event does not change with a reused envelope
		})
	}
}

func TestCodec_ValidEvent_SameInBothModes(t *testing.T) {
	text := rapid.StringMatching(`[ -~¡-퟿😀-😏]{0,20}`)
	rapid.Check(t, func(t *rapid.T) {
		e := &schema.Event{
			ID: "i" + text.Draw(t, "id"), Source: "s" + text.Draw(t, "source"), Type: "t" + text.Draw(t, "type"),
			Subject: text.Draw(t, "subject"), Turn: rapid.Int32Min(0).Draw(t, "turn"),
			Epoch:           schema.Epoch(rapid.IntRange(1, math.MaxInt32).Draw(t, "epoch")), //nolint:gosec // in range
			Sequence:        schema.Sequence(rapid.Uint64Range(0, math.MaxInt64).Draw(t, "sequence")),
			DataContentType: rapid.SampledFrom([]string{"", "application/json", "text/plain", "application/x+json"}).Draw(t, "content type"),
		}
		for name, value := range rapid.MapOfN(rapid.StringMatching(`x[a-z0-9]{1,19}`), text, 0, 3).Draw(t, "extensions") {
			if e.Extensions == nil {
				e.Extensions = map[string]string{}
			}
			e.Extensions[name] = value
		}
		switch e.DataContentType {
		case "text/plain":
			e.Data = rapid.SliceOf(rapid.Byte()).Draw(t, "data")
		default:
			e.Data = []byte(rapid.SampledFrom([]string{"", "null", " {} ", `{"b":1,"a":[]}`, `"x"`, "1.50", "\t[1]"}).Draw(t, "json"))
		}
		header, body := e.Encode()
		back, err := schema.Decode(header, body)
		require.NoError(t, err)
		require.Equal(t, normal(e), normal(back))
		structured, err := e.EncodeStructured()
		require.NoError(t, err)
		back, err = schema.Decode(nil, structured)
		require.NoError(t, err)
		require.Equal(t, normal(e), normal(back))
		require.Equal(t, e.ContentHash(), back.ContentHash())
	})
}

func TestWriter_EventsInOrder_AreSealedAndCommitted(t *testing.T) {
	w := schema.Writer{Fleet: "f", Run: "r1", Executor: "e", Epoch: 3, Last: 4}
	a, err := w.Event(&schema.CheckpointMarkedData{Name: "a"}, 0, newTestRun(t).now(), 0)
	require.NoError(t, err)
	b, err := w.Event(&schema.CheckpointMarkedData{Name: "b"}, 0, newTestRun(t).now(), 1)
	require.NoError(t, err)
	require.Equal(t, "r1.3.5."+a.ContentHash().String()[:8], a.ID)
	require.Equal(t, "r1.3.6."+b.ContentHash().String()[:8], b.ID)
	require.Error(t, w.Commit(b), "an event after the next one cannot be durable before it")
	require.NoError(t, w.Commit(a))
	require.NoError(t, w.Commit(b))
	require.Error(t, w.Commit(b))
	require.False(t, a.IsControl())
	_, err = w.Event(&schema.ToolCalledData{}, 0, newTestRun(t).now(), 0)
	require.ErrorContains(t, err, "/tool_call_id")
}

// An executor can store an event with any body, and every reader of the log must be able to write it down. Otherwise
// one such event would end the export of its run, and every reading of the log as JSON.
func TestEncodeStructured_DataThatCannotBeEmbedded_IsBase64(t *testing.T) {
	t.Parallel()
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for name, data := range map[string]string{
		"no JSON": `{"turn":`, "two values": `1 2`, "a closing brace": `1}`, "a name twice": `{"a":1,"a":2}`, "too deep": nested(schema.MaxJSONDepth + 1),
		"a line feed": "{\n\"a\":1}", "a carriage return": "{\r\"a\":1}",
		"as deep as readers go": nested(10_000), "deeper than readers go": nested(10001), "invalid UTF-8": "\"\xff\"",
	} {
		e := &schema.Event{ID: "1", Source: "/waymark/f/e", Type: "io.waymark.turn.started.v1", Subject: "r", DataContentType: schema.ContentTypeJSON, Data: []byte(data)}
		require.Equal(t, strings.HasPrefix(data, "{\n") || strings.HasPrefix(data, "{\r"), e.Embeddable(), name)
		b, err := e.EncodeStructured()
		require.NoError(t, err, name)
		require.True(t, stdjson.Valid(b), name)
		require.NotContains(t, string(b), "\n", name)
		require.NotContains(t, string(b), `"data":`, name)
		back, err := schema.Decode(nil, b)
		require.NoError(t, err, name)
		require.Equal(t, data, string(back.Data), name)
		require.Equal(t, e.ContentHash(), back.ContentHash(), name)
	}
	e := &schema.Event{ID: "1", Source: "/waymark/f/e", Type: "x", Subject: "r", Data: []byte(nested(schema.MaxJSONDepth))}
	b, err := e.EncodeStructured()
	require.NoError(t, err)
	require.Contains(t, string(b), `"data":[[`)
}
