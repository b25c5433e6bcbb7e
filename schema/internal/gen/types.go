package main

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

type object = map[string]any

// document is one file of JSON Schema.
type document struct {
	file, title string
	root        reflect.Type
}

// builder makes the JSON Schemas of types. Those of struct types are kept by name and referenced.
type builder struct {
	source *source
	defs   map[string]object
	// ofEvents are the types within events' data: their required members come from their rules, elsewhere from the JSON
	// tag (members without omitzero).
	ofEvents map[string]bool
	events   []string
}

func newBuilder(dir string) (*builder, error) {
	src, err := readSource(dir)
	if err != nil {
		return nil, err
	}
	return &builder{source: src, defs: map[string]object{}, ofEvents: map[string]bool{}, events: schema.EventNames()}, nil
}

// others are the types besides events that have their own schema.
func others() []document {
	return []document{
		{"head", "Head", reflect.TypeFor[schema.Head]()},
		{"checkpoint", "Checkpoint", reflect.TypeFor[schema.Checkpoint]()},
		{"state", "State", reflect.TypeFor[schema.State]()},
		{"plan", "Plan", reflect.TypeFor[schema.Plan]()},
		{"segment-info", "SegmentInfo", reflect.TypeFor[schema.SegmentInfo]()},
		{"recover-request", "RecoverRequest", reflect.TypeFor[schema.RecoverRequest]()},
		{"recover-reply", "RecoverReply", reflect.TypeFor[schema.RecoverReply]()},
		{"get-request", "GetRequest", reflect.TypeFor[schema.GetRequest]()},
		{"get-reply", "GetReply", reflect.TypeFor[schema.GetReply]()},
		{"list-request", "ListRequest", reflect.TypeFor[schema.ListRequest]()},
		{"list-reply", "ListReply", reflect.TypeFor[schema.ListReply]()},
		{"history-reply", "HistoryReply", reflect.TypeFor[schema.HistoryReply]()},
		{"records-request", "RecordsRequest", reflect.TypeFor[schema.RecordsRequest]()},
		{"records-reply", "RecordsReply", reflect.TypeFor[schema.RecordsReply]()},
		{"settle-request", "SettleRequest", reflect.TypeFor[schema.SettleRequest]()},
		{"claim-request", "ClaimRequest", reflect.TypeFor[schema.ClaimRequest]()},
		{"claim-reply", "ClaimReply", reflect.TypeFor[schema.ClaimReply]()},
		{"input-request", "InputRequest", reflect.TypeFor[schema.InputRequest]()},
		{"cancel-request", "CancelRequest", reflect.TypeFor[schema.CancelRequest]()},
		{"signal-request", "SignalRequest", reflect.TypeFor[schema.SignalRequest]()},
		{"fork-request", "ForkRequest", reflect.TypeFor[schema.ForkRequest]()},
		{"mark-request", "MarkRequest", reflect.TypeFor[schema.MarkRequest]()},
		{"handoff-request", "HandoffRequest", reflect.TypeFor[schema.HandoffRequest]()},
		{"erase-request", "EraseRequest", reflect.TypeFor[schema.EraseRequest]()},
		{"erase-reply", "EraseReply", reflect.TypeFor[schema.EraseReply]()},
		{"cleanup-request", "CleanupRequest", reflect.TypeFor[schema.CleanupRequest]()},
		{"pause-request", "PauseRequest", reflect.TypeFor[schema.PauseRequest]()},
		{"pause-reply", "PauseReply", reflect.TypeFor[schema.PauseReply]()},
		{"limit-request", "LimitRequest", reflect.TypeFor[schema.LimitRequest]()},
		{"limit-reply", "LimitReply", reflect.TypeFor[schema.LimitReply]()},
		{"schedule-request", "ScheduleRequest", reflect.TypeFor[schema.ScheduleRequest]()},
		{"schedule-reply", "ScheduleReply", reflect.TypeFor[schema.ScheduleReply]()},
		{"cleanup-reply", "CleanupReply", reflect.TypeFor[schema.CleanupReply]()},
		{"fleet-request", "FleetRequest", reflect.TypeFor[schema.FleetRequest]()},
		{"executors-request", "ExecutorsRequest", reflect.TypeFor[schema.ExecutorsRequest]()},
		{"executors-reply", "ExecutorsReply", reflect.TypeFor[schema.ExecutorsReply]()},
		{"fleet-reply", "FleetReply", reflect.TypeFor[schema.FleetReply]()},
		{"control-reply", "ControlReply", reflect.TypeFor[schema.ControlReply]()},
		{"heartbeat", "Heartbeat", reflect.TypeFor[schema.Heartbeat]()},
		{"notice", "Notice", reflect.TypeFor[schema.Notice]()},
		{"turn", "Turn", reflect.TypeFor[schema.TurnData]()},
		{"verify-request", "VerifyRequest", reflect.TypeFor[schema.VerifyRequest]()},
		{"verify-reply", "VerifyReply", reflect.TypeFor[schema.VerifyReply]()},
		{"service-error", "ServiceError", reflect.TypeFor[schema.ServiceError]()},
	}
}

func (b *builder) documents() []document {
	docs := make([]document, 0, len(b.events))
	for _, name := range b.events {
		docs = append(docs, document{name, name, reflect.TypeOf(schema.NewData(name)).Elem()})
	}
	return append(docs, others()...)
}

func (b *builder) buildAll() error {
	for _, name := range b.events {
		b.markOfEvents(reflect.TypeOf(schema.NewData(name)).Elem())
	}
	for _, d := range b.documents() {
		b.schemaOf(d.root)
	}
	known := map[string]bool{}
	for name := range b.defs {
		known[name] = true
	}
	for _, name := range b.source.wire {
		if !known[name] {
			return fmt.Errorf("type %s of wire.go has no JSON Schema: add it to others", name)
		}
	}
	return nil
}

func (b *builder) markOfEvents(t reflect.Type) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || b.ofEvents[t.Name()] {
		return
	}
	b.ofEvents[t.Name()] = true
	for field := range t.Fields() {
		b.markOfEvents(field.Type)
	}
}

var rawType = reflect.TypeFor[jsontext.Value]()

// schemaOf returns the schema of a type; of a struct it is a reference.
func (b *builder) schemaOf(t reflect.Type) object {
	switch {
	case t == rawType:
		return object{} // any JSON
	case t.Kind() == reflect.Pointer:
		return b.schemaOf(t.Elem())
	}
	switch t.Kind() {
	case reflect.Struct:
		if b.defs[t.Name()] == nil {
			o := object{"type": "object", "properties": object{}}
			b.defs[t.Name()] = o
			describe(o, sentence(strings.TrimPrefix(b.source.doc[t.Name()], t.Name()+" ")))
			b.addFields(o, t)
			b.addRules(o, t)
			if closed(t) {
				o["additionalProperties"] = false
			}
		}
		return object{"$ref": "#/$defs/" + t.Name()}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return object{"type": "string", "contentEncoding": "base64"}
		}
		return object{"type": "array", "items": b.schemaOf(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": b.schemaOf(t.Elem())}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int32:
		return object{"type": "integer", "maximum": math.MaxInt32}
	case reflect.Uint32: // epochs: a CloudEvents Integer
		return object{"type": "integer", "minimum": 0, "maximum": math.MaxInt32}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer"}
	default:
		o := object{"type": "string"}
		// Reasons are open: a gap may have a reason that only the daemon gives.
		if values := b.source.values[t.Name()]; len(values) > 0 && t != reflect.TypeFor[schema.Reason]() {
			o["enum"] = values
		}
		return o
	}
}

// closed reports whether a type is a request to the daemon, which refuses members that it does not know.
func closed(t reflect.Type) bool {
	_, keeps := t.FieldByName("Extra")
	return strings.HasSuffix(t.Name(), "Request") && !keeps
}

// addFields adds the members of a struct and of those embedded in it.
func (b *builder) addFields(o object, t reflect.Type) {
	properties := child(o, "properties")
	for field := range t.Fields() {
		tag, given := field.Tag.Lookup("json")
		name, options, _ := strings.Cut(tag, ",")
		switch {
		case field.Anonymous && !given:
			b.addFields(o, field.Type)
			continue
		case name == "" || name == "-": // ",embed" keeps unknown members
			continue
		}
		p := b.schemaOf(field.Type)
		describe(p, b.source.doc[t.Name()+"."+field.Name])
		properties[name] = p
		if !b.ofEvents[t.Name()] && options != "omitzero" {
			requireMember(o, name)
		}
	}
}

// sentence begins with a capital: the name of the Go type at its beginning means nothing to other readers.
func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func describe(o object, text string) {
	if text != "" {
		o["description"] = text
	}
}

func child(o object, name string) object {
	c, ok := o[name].(object)
	if !ok {
		c = object{}
		o[name] = c
	}
	return c
}

func requireMember(o object, name string) {
	list, _ := o["required"].([]string)
	if !slices.Contains(list, name) {
		list = append(list, name)
		slices.Sort(list)
		o["required"] = list
	}
}

// standalone is a document with the definitions it needs.
func (b *builder) standalone(d document) object {
	o := maps.Clone(b.defs[d.root.Name()])
	o["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	o["$id"] = "urn:waymark:schema:" + d.file
	o["title"] = d.title
	needed := object{}
	b.collect(o, needed)
	delete(needed, d.root.Name())
	if len(needed) > 0 {
		o["$defs"] = needed
	}
	return o
}

// collect adds the definitions that v refers to.
func (b *builder) collect(v any, needed object) {
	switch v := v.(type) {
	case object:
		if ref, ok := v["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/$defs/")
			if needed[name] == nil {
				needed[name] = b.defs[name]
				b.collect(b.defs[name], needed)
			}
		}
		for _, c := range v {
			b.collect(c, needed)
		}
	case []any:
		for _, c := range v {
			b.collect(c, needed)
		}
	}
}
