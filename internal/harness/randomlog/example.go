package randomlog

import (
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// drawn are the types of executors' events that a log draws with values of their own.
var drawn = []string{
	schema.RunStarted, schema.RunWaiting, schema.RunInterrupted, schema.RunEnded, schema.TurnStarted, schema.TurnAnswered, schema.TurnEnded,
	schema.MessageAdded, schema.ToolCalled, schema.ToolReturned, schema.ToolFailed, schema.ToolDecided, schema.ToolSettled, schema.PhaseStarted,
	schema.PhaseCompleted, schema.StateSet, schema.StateDeleted, schema.SignalConsumed, schema.ContextCompacted, schema.HandoffOffered,
	schema.ArtifactAdded, schema.CheckpointMarked,
}

// rare returns an event of one of the other types. It draws nothing, so that a new type does not move all fixed seeds.
func (s *Log) rare() schema.Data {
	others := slices.DeleteFunc(schema.EventNames(), func(name string) bool { return schema.ControlOnly(name) || slices.Contains(drawn, name) })
	return Example(others[len(s.Records)%len(others)])
}

// Example returns valid data of an event of the vocabulary, made of the tags of its fields: each of them is set that the
// others do not forbid.
func Example(event string) schema.Data {
	data := schema.NewData(event)
	fill(reflect.ValueOf(data).Elem(), "")
	return data
}

// fill sets a value as the rules of its field say.
func fill(v reflect.Value, rules string) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.Type() != reflect.TypeFor[*schema.Base]() { // a base has a whole head
			v.Set(reflect.New(v.Type().Elem()))
			fill(v.Elem(), rules)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "" && !f.Anonymous, name == "-", name == "refs":
			case f.Type.Kind() == reflect.Slice:
				if f.Type == reflect.TypeFor[jsontext.Value]() {
					v.Field(i).SetBytes([]byte("1"))
					continue
				}
				v.Field(i).Set(reflect.MakeSlice(f.Type, 1, 1))
				fill(v.Field(i).Index(0), f.Tag.Get("each"))
			case f.Type.Kind() == reflect.Map:
				v.Field(i).Set(reflect.ValueOf(map[string]string{"k": "v"}))
			case name == "role":
				v.Field(i).SetString(schema.RoleAssistant) // that of an answer
			default:
				fill(v.Field(i), f.Tag.Get("check"))
			}
		}
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(text(rules))
	default:
		if v.CanInt() {
			v.SetInt(1)
		} else {
			v.SetUint(1)
		}
	}
}

func text(rules string) string {
	for rule := range strings.SplitSeq(rules, ",") {
		switch name, value, _ := strings.Cut(rule, "="); name {
		case "oneof":
			first, _, _ := strings.Cut(value, "|")
			return first
		case "hash":
			return strings.Repeat("0", 64)
		case "time":
			return "2026-01-01T00:00:00Z"
		}
	}
	return "x"
}
