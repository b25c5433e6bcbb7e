package schema_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/schema"
)

// compileSchema compiles a generated file. Formats are asserted.
func compileSchema(tb testing.TB, name string) *jsonschema.Schema {
	tb.Helper()
	text, err := os.ReadFile(filepath.Join("jsonschema", name+".json"))
	require.NoError(tb, err, "go generate ./schema/... writes it")
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(tb, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(tb, c.AddResource("file:///"+name+".json", document))
	compiled, err := c.Compile("file:///" + name + ".json")
	require.NoError(tb, err)
	return compiled
}

func checkSchema(t require.TestingT, s *jsonschema.Schema, text []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return s.Validate(value)
}

// TestJSONSchema_Validate_Agree changes one member of a sample at a time, in many ways, and compares both verdicts.
// They differ only where JSON has two forms for one Go value: the schemas refuse null and, for enumerations, empty
// text (to us both mean absent), and accept 1.0 as an integer.
func TestJSONSchema_Validate_Agree(t *testing.T) {
	for _, d := range samples() {
		t.Run(d.EventName(), func(t *testing.T) {
			s := compileSchema(t, d.EventName())
			text := mustJSON(t, d)
			require.NoError(t, checkSchema(t, s, text))
			accepted, refused := 0, 0
			agree := func(example any, what string) {
				changed := mustJSON(t, example)
				_, parseErr := schema.ParseData(&schema.Event{Type: schema.TypeOf(d.EventName()), Data: changed})
				schemaErr := checkSchema(t, s, changed)
				if (parseErr == nil) != (schemaErr == nil) {
					t.Errorf("%s\n  in %s\n  Validate: %v\n  schema: %v", what, changed, parseErr, schemaErr)
				}
				if parseErr == nil {
					accepted++
				} else {
					refused++
				}
			}
			var root any
			require.NoError(t, json.Unmarshal(text, &root))
			for _, path := range memberPaths(root, "") {
				for _, value := range []any{
					remove{},
					"x", "?!", strings.Repeat("x", 257), "a\x01b", -1.0, 0.0, 1.0, 2.5, 1e12, true,
					[]any{},
					[]any{1.0},
					map[string]any{},
					map[string]any{"of_a_later_version": 1.0},
				} {
					var example any
					require.NoError(t, json.Unmarshal(text, &example))
					if setMember(example, path, value) {
						agree(example, path+" = "+string(mustJSON(t, value)))
					}
				}
			}
			require.Positive(t, accepted)
			require.Positive(t, refused)
		})
	}
}

// remove removes a member.
type remove struct{}

// memberPaths lists the paths of all members. Any JSON (arguments, results) is a leaf.
func memberPaths(v any, at string) (paths []string) {
	switch v := v.(type) {
	case map[string]any:
		for name, m := range v {
			paths = append(paths, at+"/"+name)
			switch name {
			case "arguments", "result", "payload", "source", "response_schema", "output", "content", "labels":
			default:
				paths = append(paths, memberPaths(m, at+"/"+name)...)
			}
		}
	case []any:
		for i, m := range v {
			paths = append(paths, memberPaths(m, at+"/"+string(rune('0'+i)))...)
		}
	}
	return paths
}

func setMember(v any, path string, value any) bool {
	name, rest, deeper := strings.Cut(path[1:], "/")
	switch v := v.(type) {
	case map[string]any:
		switch {
		case deeper:
			return setMember(v[name], "/"+rest, value)
		case value == remove{}:
			delete(v, name)
		default:
			v[name] = value
		}
		return true
	case []any:
		return deeper && setMember(v[name[0]-'0'], "/"+rest, value)
	}
	return false
}

func TestJSONSchema_FoldOutput_Satisfied(t *testing.T) {
	head, checkpoint, state, turn := compileSchema(t, "head"), compileSchema(t, "checkpoint"), compileSchema(t, "state"), compileSchema(t, "turn")
	rapid.Check(t, func(t *rapid.T) {
		s := schema.NewState("f", "r1")
		log := drawLog(t, 30)
		shown := schema.Overview{}
		for i := range log {
			v := s.Apply(schema.NoKeys, &log[i])
			for _, n := range shown.Apply(&s.Head, &v) {
				require.NoError(t, checkSchema(t, turn, mustMarshal(t, n.Data)))
			}
		}
		if s.Head.Status == "" {
			return // nothing was accepted, and no checkpoint is put
		}
		require.NoError(t, checkSchema(t, head, mustMarshal(t, s.Head)))
		require.NoError(t, checkSchema(t, state, mustMarshal(t, s)))
		stored, err := schema.EncodeCheckpoint(&schema.Checkpoint{Overview: shown.Of(&s.Head, 0), Head: s.Head})
		require.NoError(t, err)
		require.NoError(t, checkSchema(t, checkpoint, stored))
	})
}

func TestJSONSchema_RequestsAndReplies_Satisfied(t *testing.T) {
	for name, value := range map[string]any{
		"recover-request": schema.RecoverRequest{Executor: "e", RequestID: "q", View: schema.ViewState},
		"recover-reply":   schema.RecoverReply{Head: schema.Head{Status: schema.StatusRunning}, Epoch: 2, NextSequence: 1, InDoubt: []schema.OpenCall{{Replay: schema.ReplayHold, State: schema.CallHeld}}},
		"get-request":     schema.GetRequest{},
		"get-reply":       schema.GetReply{Head: schema.Head{Status: schema.StatusRunning}},
		"list-request":    schema.ListRequest{Status: []schema.Status{schema.StatusOrphaned}},
		"list-reply":      schema.ListReply{Runs: []schema.RunSummary{{Run: "r1", Status: schema.StatusFailed}}},
		"history-reply":   schema.HistoryReply{Checkpoints: []schema.HistoryEntry{{Status: schema.StatusRunning}}},
		"settle-request":  schema.SettleRequest{How: schema.SettledAbandoned, By: "ann"},
		"service-error":   schema.ServiceError{Code: schema.CodeStorageFull, Message: "full"},
		"segment-info":    schema.SegmentInfo{Run: "r1"},
	} {
		require.NoError(t, checkSchema(t, compileSchema(t, name), mustJSON(t, value)), name)
	}
	require.Error(t, checkSchema(t, compileSchema(t, "recover-request"), []byte(`{"executor":"e"}`)))
	require.Error(t, checkSchema(t, compileSchema(t, "service-error"), []byte(`{"code":"unheard_of","message":"x"}`)))
}
