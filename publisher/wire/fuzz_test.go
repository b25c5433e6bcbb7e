package wire_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

// comesBack reads arbitrary bytes as a response: nothing panics, and what was read is in the next request as it was. sent takes from a
// response what the request must have, and had from the request what it has.
func comesBack(t *testing.T, f wire.Form, response []byte, sent, had func(body map[string]any) []any) {
	t.Helper()
	answer, err := f.Answer(response)
	if err != nil {
		return
	}
	conversation, err := recorded([]byte(`"done"`), answer, user("Go on."))
	if err != nil {
		return // ids that no event can carry, which the loop replaces
	}
	request, err := f.Request(publisher.ModelRequest{Messages: conversation}, nil)
	if err != nil {
		t.Fatalf("%s\nis no conversation: %v", response, err)
	}
	if !jsontext.Value(request).IsValid() {
		t.Fatalf("no JSON: %s", request)
	}
	var in, out map[string]any
	if err := json.Unmarshal(response, &in); err != nil {
		return // a number that no float can hold
	}
	if err := json.Unmarshal(request, &out); err != nil {
		t.Fatal(err)
	}
	if want, got := sent(in), had(out); !reflect.DeepEqual(want, got) {
		t.Fatalf("%s\nhas\n%v\nand came back as\n%v", response, want, got)
	}
}

func FuzzAnthropic(f *testing.F) {
	f.Add([]byte(anthropicResponse))
	f.Add([]byte(`{"type":"message","role":"assistant","content":[{"type":"text","text":""},{"type":"text"},{"type":"thinking"},{"type":"image","source":{}},5]}`))
	f.Add([]byte(`{"type":"message","content":[{"type":"tool_use","input":null},{"type":"tool_use","id":"a","name":"b"},{"type":"tool_result"}]}`))
	f.Fuzz(func(t *testing.T, response []byte) {
		sent := func(in map[string]any) []any {
			content, _ := in["content"].([]any)
			return slices.DeleteFunc(content, func(b any) bool {
				// Empty texts, and thoughts that are not signed.
				block, _ := b.(map[string]any)
				filled := 0
				for name, v := range block {
					if list, isList := v.([]any); name != "type" && name != "thinking" && name != "text" && v != nil && (!isList || len(list) > 0) {
						filled++
					}
				}
				text, isText := block["text"].(string)
				switch block["type"] {
				case "text":
					return isText && strings.TrimSpace(text) == "" && filled == 0
				case "thinking":
					_, isThought := block["thinking"].(string)
					return len(block) == 1 || isThought && len(block) == 2
				}
				return false
			})
		}
		had := func(out map[string]any) []any {
			for _, m := range out["messages"].([]any) { //nolint:errcheck // it is a list of objects
				if at(m, "role") == "assistant" {
					return madeValid(m.(map[string]any)["content"].([]any)) //nolint:errcheck // as above
				}
			}
			return []any{}
		}
		comesBack(t, wire.Anthropic, response, func(in map[string]any) []any { return append([]any{}, madeValid(sent(in))...) }, had)
	})
}

// madeValid removes the members of calls that a valid request has in another form: ids, and arguments that are no
// object.
func madeValid(items []any) []any {
	for _, item := range items {
		call, _ := item.(map[string]any)
		switch call["type"] {
		case "tool_use":
			repaired(call, "id", call, "input")
		case "function_call":
			repaired(call, "call_id", call, "arguments")
		case "custom_tool_call":
			repaired(call, "call_id", call, "input")
		}
	}
	return items
}

func repaired(call map[string]any, idName string, inner map[string]any, arguments string) {
	if _, isText := call[idName].(string); isText || call[idName] == nil {
		delete(call, idName)
	}
	v := inner[arguments]
	if text, isText := v.(string); isText && json.Unmarshal([]byte(text), &v) != nil {
		v = nil
	}
	if o, isObject := v.(map[string]any); !isObject || len(o) == 0 || o["arguments"] != nil {
		delete(inner, arguments)
	}
}

// whole adds to a call what the API demands of it: a type, a name and arguments.
func whole(c any) {
	call, _ := c.(map[string]any)
	member, arguments := "function", "arguments"
	if _, custom := call["custom"]; custom {
		member, arguments = "custom", "input"
	}
	if _, has := call["type"]; !has {
		call["type"] = member
	}
	if inner, _ := call[member].(map[string]any); inner != nil {
		repaired(call, "id", inner, arguments)
		if inner["name"] == nil {
			inner["name"] = ""
		}
	}
}

func FuzzOpenAIChat(f *testing.F) {
	f.Add([]byte(chatResponse))
	f.Add([]byte(`{"choices":[{"message":{"role":"assistant","content":[{"type":"text","text":"a"},{"type":"refusal","refusal":"b"},{"type":"image_url"},5]}}]}`))
	f.Add([]byte(`{"choices":[{"message":{"role":"assistant","content":{"a":1},"name":"n","tool_calls":[{"id":"a","function":{"name":"f"}},{"id":"b","type":"x","function":{"name":"g","arguments":null}}]}}]}`))
	f.Fuzz(func(t *testing.T, response []byte) {
		clean := func(m any) []any {
			message, _ := m.(map[string]any)
			for name, v := range message {
				if list, isList := v.([]any); v == nil && name != "content" || isList && len(list) == 0 && name != "content" {
					delete(message, name)
				}
			}
			isEmpty := func(v any) bool {
				text, isText := v.(string)
				return isText && strings.TrimSpace(text) == ""
			}
			if _, has := message["content"]; !has || isEmpty(message["content"]) {
				message["content"] = nil
			}
			if list, isList := message["content"].([]any); isList {
				message["content"] = slices.DeleteFunc(list, func(b any) bool {
					block, _ := b.(map[string]any)
					return len(block) == 2 && block["type"] == "text" && isEmpty(block["text"])
				})
			}
			calls, _ := message["tool_calls"].([]any)
			for _, c := range calls {
				whole(c)
			}
			return []any{message}
		}
		comesBack(t, wire.OpenAIChat, response, func(in map[string]any) []any {
			return clean(at(in, "choices", 0, "message"))
		}, func(out map[string]any) []any {
			if m := at(out, "messages", 1); m != nil {
				return clean(m)
			}
			// A message without parts is not sent: it has no content.
			var in map[string]any
			_ = json.Unmarshal(response, &in)
			return clean(at(in, "choices", 0, "message"))
		})
	})
}

func FuzzOpenAIResponses(f *testing.F) {
	f.Add([]byte(responsesResponse))
	f.Add([]byte(`{"status":"completed","output":[5,{"type":"reasoning"},{"type":"reasoning","summary":[{"text":"a"},5,{}]},{"type":"message","role":"assistant","content":[]}]}`))
	f.Add([]byte(`{"status":"completed","output":[{"type":"message","role":"user","content":[{"type":"output_text","text":"a"}]},{"type":"function_call","call_id":"a","name":"f","arguments":{"a":1}}]}`))
	f.Fuzz(func(t *testing.T, response []byte) {
		comesBack(t, wire.OpenAIResponses, response, func(in map[string]any) []any {
			output, _ := in["output"].([]any)
			for _, item := range output {
				switch call, _ := item.(map[string]any); call["type"] {
				case "function_call", "custom_tool_call":
					if call["name"] == nil {
						call["name"] = ""
					}
				}
			}
			return append([]any{}, madeValid(output)...)
		}, func(out map[string]any) []any {
			input, _ := out["input"].([]any)
			input = input[1:] // what the user said
			return append([]any{}, slices.DeleteFunc(madeValid(input), func(item any) bool {
				typ := at(item, "type")
				return (typ == "function_call_output" || typ == "custom_tool_call_output") && len(item.(map[string]any)) == 3 && at(item, "output") == "done" //nolint:errcheck // it is an object
			})...)
		})
	})
}
