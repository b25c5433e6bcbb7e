package wire_test

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
	"github.com/waymarkio/waymark/schema"
)

// record is a run of some messages and outcomes, folded from its events.
type record struct {
	state *schema.State
	w     schema.Writer
}

func newRecord() *record {
	r := &record{schema.NewState("default", "r1"), schema.Writer{Fleet: "default", Run: "r1", Executor: "ex-1", Epoch: 1}}
	r.add(&schema.RunStartedData{Agent: "coder", Executor: "ex-1"}, 0)
	return r
}

// add folds an event; one that the fold refuses changes nothing.
func (r *record) add(data schema.Data, turn int32) {
	e, err := r.w.Event(data, turn, time.Unix(0, 0), 0)
	if err != nil {
		return
	}
	header, body := e.Encode()
	rec := schema.NewRecord(r.state.Head.Position.Stream+1, header, body)
	if v := r.state.Apply(schema.NoKeys, &rec); v.Kind == schema.Applied {
		_ = r.w.Commit(e)
	}
}

func (r *record) says(role string, parts ...schema.Part) {
	r.add(&schema.MessageAddedData{Message: schema.Message{Role: role, Parts: parts}}, 0)
}

func callPart(id, arguments string) schema.Part {
	return schema.Part{Type: schema.PartToolCall, ID: id, Name: "look", Arguments: jsontext.Value(arguments)}
}

func responsePart(id, response string) schema.Part {
	return schema.Part{Type: schema.PartToolCallResponse, ID: id, Response: jsontext.Value(response)}
}

func TestRequest_ResultsThatDoNotPair_AreMadeValid(t *testing.T) {
	t.Parallel()
	for name, tell := range map[string]func(r *record){
		"a second result": func(r *record) {
			r.says("assistant", callPart("c1", `{}`))
			r.says("tool", responsePart("c1", `"one"`))
			r.says("tool", responsePart("c1", `"again"`))
		},
		"a result without a call": func(r *record) { r.says("tool", responsePart("zz", `"lost"`)) },
		"a call without a result": func(r *record) { r.says("assistant", callPart("c1", `{}`)) },
		"a late result": func(r *record) {
			r.says("assistant", callPart("c1", `{}`))
			r.says("user", schema.Text("Well?"))
			r.says("tool", responsePart("c1", `"late"`))
		},
		"one id in each turn": func(r *record) {
			for range 3 {
				r.says("assistant", callPart("call_0", `{}`))
				r.says("tool", responsePart("call_0", `"yes"`))
			}
		},
		"ids that differ by a sign": func(r *record) { r.says("assistant", callPart("c.1", `{}`), callPart("c_1", `{}`)) },
		"no id":                     func(r *record) { r.says("assistant", callPart("", `{}`), callPart("", `{}`)) },
		"a list of arguments":       func(r *record) { r.says("assistant", callPart("c1", `[1]`)) },
		"a text of arguments":       func(r *record) { r.says("assistant", callPart("c1", `"{broken"`)) },
		"no arguments":              func(r *record) { r.says("assistant", callPart("c1", ``)) },
		"a call of the user":        func(r *record) { r.says("user", callPart("c1", `{}`)) },
		"an empty text":             func(r *record) { r.says("user", schema.Text(" \n")) },
		"only foreign reasoning":    func(r *record) { r.says("assistant", schema.Reasoning("Hm.")) },
		"texts of a tool":           func(r *record) { r.says("tool", schema.Text("It rains.")) },
		"a call without a name":     func(r *record) { r.says("assistant", named("")) },
		"a name with other signs":   func(r *record) { r.says("assistant", named("read.file now"), named("läs")) },
		"a long name":               func(r *record) { r.says("assistant", named(strings.Repeat("a", 65))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRecord()
			r.says("user", schema.Text("Look."))
			tell(r)
			r.says("user", schema.Text("Go on."))
			checkRequests(t, r.state.Conversation())
		})
	}
	r := newRecord()
	r.says("assistant", callPart("c1", `{}`))
	r.says("tool", responsePart("c1", `"one"`), responsePart("c1", `"again"`), responsePart("zz", `"lost"`))
	text, err := wire.OpenAIChat.Request(publisher.ModelRequest{Messages: r.state.Conversation()}, nil)
	require.NoError(t, err)
	for _, said := range []string{`again`, `lost`, `Response that matches no open call (id \"zz\")`} {
		require.Contains(t, string(text), said, "nothing is left out in silence")
	}
}

func TestRequest_NameThatProvidersRefuse_SameInCallAndResponse(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"": "unnamed", "read.file now": "read_file_now", strings.Repeat("a", 99): strings.Repeat("a", 64), "läs": "l_s", "look": "look"} {
		call, response := callPart("c1", `{}`), responsePart("c1", `"yes"`)
		call.Name, response.Name = name, name
		valid := schema.ValidHistory([]schema.Message{{Role: schema.RoleAssistant, Parts: []schema.Part{call}}, {Role: schema.RoleTool, Parts: []schema.Part{response}}})
		require.Equal(t, want, valid[0].Parts[0].Name)
		if name == "" {
			want = "" // a response needs no name
		}
		require.Equal(t, want, valid[1].Parts[0].Name)
	}
}

// named is a call of a tool that the model made up.
func named(name string) schema.Part {
	return schema.Part{Type: schema.PartToolCall, ID: "made up " + name, Name: name, Arguments: jsontext.Value(`{}`)}
}

func TestRequest_UnknownRole_MessageOfTheUserThatSaysIt(t *testing.T) {
	t.Parallel()
	for _, role := range []string{"critic", "function", ""} {
		given := []schema.Message{user("Look."), {Role: role, Parts: []schema.Part{schema.Text("Too long."), callPart("c1", `{}`)}}}
		checkRequests(t, given)
		valid := schema.ValidHistory(given)
		require.Equal(t, []schema.Message{user("Look."), {Role: schema.RoleUser, Parts: []schema.Part{
			schema.Text(fmt.Sprintf("Message of the role %q:", role)), schema.Text("Too long."),
		}}, user(fmt.Sprintf(`Call of "look" by the role %s: {}`, role))}, valid)
		require.Equal(t, valid, schema.ValidHistory(valid))
		require.Equal(t, role, given[1].Role, "the given messages stay")
	}
}

// A model with the settings of its own, such as one that leaves old messages out, breaks pairs that the record has.
func TestRequest_AnyMessages_AreMadeValid(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, given := newRecord(), []schema.Message(nil)
		turn := int32(0)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				turn++
				d := &schema.TurnAnsweredData{Turn: turn, Message: schema.Message{Role: schema.RoleAssistant, Parts: drawParts(t)}}
				for range rapid.IntRange(0, 3).Draw(t, "calls") {
					c := schema.RequestedCall{ToolCallID: drawID(t), Name: drawName(t), Arguments: drawArguments(t), Replay: schema.ReplayPure}
					if d.Calls = append(d.Calls, c); rapid.Bool().Draw(t, "named") {
						d.Message.Parts = append(d.Message.Parts, schema.CallPart(c.ToolCallID, c.Name))
					}
				}
				r.add(d, turn)
			case 1:
				r.add(&schema.ToolReturnedData{ToolCallID: drawID(t), Result: []byte(`"done"`), Occurrence: rapid.IntRange(0, 2).Draw(t, "occurrence")}, turn)
			case 2:
				r.add(&schema.TurnEndedData{Turn: turn}, turn)
			default:
				m := schema.Message{Role: rapid.SampledFrom([]string{"system", "user", "assistant", "tool", "critic", "function", ""}).Draw(t, "role"), Parts: drawParts(t)}
				given = append(given, m)
				r.add(&schema.MessageAddedData{Message: m}, rapid.SampledFrom([]int32{0, turn}).Draw(t, "turn"))
			}
		}
		conversation := r.state.Conversation()
		require.Equal(t, conversation, schema.ValidHistory(conversation), "a valid history stays")
		checkRequests(t, conversation)
		checkRequests(t, given)
		checkRequests(t, conversation[rapid.IntRange(0, len(conversation)).Draw(t, "from"):])
	})
}

func drawID(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "a-2", "b.c", "b_c", "d"}).Draw(t, "id")
}

func drawName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"look", "look-2", "", "read.file now", "läs", "\xff", strings.Repeat("ö", 65), strings.Repeat("a", 129)}).Draw(t, "name")
}

func drawArguments(t *rapid.T) jsontext.Value {
	return jsontext.Value(rapid.SampledFrom([]string{``, `null`, `{}`, `{"a":1}`, `"{\"a\": 1}"`, `"{"`, `""`, `[1]`, `7`, `true`}).Draw(t, "arguments"))
}

func drawParts(t *rapid.T) (parts []schema.Part) {
	for range rapid.IntRange(0, 4).Draw(t, "parts") {
		switch rapid.IntRange(0, 5).Draw(t, "part") {
		case 0, 1:
			parts = append(parts, schema.Part{Type: schema.PartToolCall, ID: drawID(t), Name: drawName(t), Arguments: drawArguments(t)})
		case 2, 3:
			parts = append(parts, schema.Part{
				Type: schema.PartToolCallResponse, ID: drawID(t), Response: []byte(rapid.SampledFrom([]string{``, `"x"`, `{"y":1}`}).Draw(t, "response")),
				Occurrence: rapid.IntRange(0, 2).Draw(t, "occurrence"), CallTurn: int32(rapid.IntRange(0, 2).Draw(t, "call turn")),
			})
		case 4:
			parts = append(parts, schema.Reasoning("hm"))
		default:
			parts = append(parts, schema.Text(rapid.SampledFrom([]string{"", " ", "text"}).Draw(t, "text")))
		}
	}
	return parts
}

// checkRequests judges the requests of all forms by the rules of the providers.
func checkRequests(t require.TestingT, conversation []schema.Message) {
	for _, f := range forms {
		text, err := f.Request(publisher.ModelRequest{Messages: conversation}, nil)
		require.NoError(t, err, f)
		var body map[string]any
		require.NoError(t, json.Unmarshal(text, &body))
		switch f {
		case wire.Anthropic:
			err = judgeAnthropic(body)
		case wire.OpenAIChat:
			err = judgeChat(body)
		case wire.OpenAIResponses:
			err = judgeResponses(body)
		}
		require.NoError(t, err, "%s: %s", f, text)
	}
}

// pairs follows the calls and results of a request.
type pairs struct{ seen, open map[string]bool }

func newPairs() *pairs { return &pairs{map[string]bool{}, map[string]bool{}} }

// validName is what every provider allows as the name of a tool.
var validName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func (p *pairs) call(id, tool, arguments any) error {
	name, _ := id.(string)
	if name == "" || p.seen[name] {
		return fmt.Errorf("the id %q is empty or used twice", name)
	}
	if called, _ := tool.(string); !validName.MatchString(called) {
		return fmt.Errorf("the call %q has the name %q", name, called)
	}
	p.seen[name], p.open[name] = true, true
	if text, ok := arguments.(string); ok {
		if err := json.Unmarshal([]byte(text), &arguments); err != nil {
			return err
		}
	}
	if _, ok := arguments.(map[string]any); !ok {
		return fmt.Errorf("the arguments of %q are no object", name)
	}
	return nil
}

func (p *pairs) result(id any) error {
	name, _ := id.(string)
	if !p.open[name] {
		return fmt.Errorf("the result of %q has no open call", name)
	}
	delete(p.open, name)
	return nil
}

func (p *pairs) closed() error {
	if len(p.open) > 0 {
		return fmt.Errorf("calls without a result: %v", p.open)
	}
	return nil
}

func knownRole(role string) bool {
	return slices.Contains([]string{"system", "user", "assistant", "tool"}, role)
}

func isBlank(v any) bool {
	text, isText := v.(string)
	list, isList := v.([]any)
	return v == nil || isText && strings.TrimSpace(text) == "" || isList && len(list) == 0
}

func judgeAnthropic(body map[string]any) error {
	p, last := newPairs(), ""
	for _, m := range body["messages"].([]any) { //nolint:errcheck,forcetypeassert // a test may panic
		role, _ := at(m, "role").(string)
		blocks, _ := at(m, "content").([]any)
		if role == last || len(blocks) == 0 || role != "user" && role != "assistant" {
			return fmt.Errorf("an empty message, or two of the role %q, or one of an unknown role", role)
		}
		last = role
		for _, b := range blocks {
			var err error
			switch at(b, "type") {
			case "tool_use":
				if err = p.call(at(b, "id"), at(b, "name"), at(b, "input")); role != "assistant" {
					err = fmt.Errorf("a call of the role %s", role)
				}
			case "tool_result":
				if err = p.result(at(b, "tool_use_id")); role != "user" {
					err = fmt.Errorf("a result of the role %s", role)
				}
			case "text":
				if err = p.closedFor(role); isBlank(at(b, "text")) {
					err = fmt.Errorf("an empty text")
				}
			}
			if err != nil {
				return err
			}
		}
		if role == "user" {
			if err := p.closed(); err != nil {
				return err
			}
		}
	}
	return p.closed()
}

// closedFor demands that the results come before the texts of a user.
func (p *pairs) closedFor(role string) error {
	if role == "user" {
		return p.closed()
	}
	return nil
}

func judgeChat(body map[string]any) error {
	p := newPairs()
	for _, m := range body["messages"].([]any) { //nolint:errcheck,forcetypeassert // a test may panic
		if role, _ := at(m, "role").(string); !knownRole(role) {
			return fmt.Errorf("a message of the role %q", role)
		}
		if at(m, "role") == "tool" {
			if err := p.result(at(m, "tool_call_id")); err != nil {
				return err
			}
			continue
		}
		if err := p.closed(); err != nil {
			return err
		}
		calls, _ := at(m, "tool_calls").([]any)
		if isBlank(at(m, "content")) && len(calls) == 0 {
			return fmt.Errorf("an empty message of the role %v", at(m, "role"))
		}
		for _, c := range calls {
			if err := p.call(at(c, "id"), at(c, "function", "name"), at(c, "function", "arguments")); err != nil || at(m, "role") != "assistant" {
				return fmt.Errorf("a call of the role %v: %w", at(m, "role"), err)
			}
		}
	}
	return p.closed()
}

func judgeResponses(body map[string]any) error {
	p := newPairs()
	for _, item := range body["input"].([]any) { //nolint:errcheck,forcetypeassert // a test may panic
		var err error
		switch at(item, "type") {
		case "function_call":
			err = p.call(at(item, "call_id"), at(item, "name"), at(item, "arguments"))
		case "function_call_output":
			err = p.result(at(item, "call_id"))
		case "message":
			if role, _ := at(item, "role").(string); role == "tool" || !knownRole(role) {
				err = fmt.Errorf("a message of the role %q", role)
			}
			if isBlank(at(item, "content")) || isBlank(at(item, "content", 0, "text")) {
				err = fmt.Errorf("an empty message")
			}
		}
		if err != nil {
			return err
		}
	}
	return p.closed()
}
