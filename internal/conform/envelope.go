package conform

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/schema"
)

// envelope checks the attributes of an executor's event, accepted or not.
func (r *run) envelope(a *moment) {
	e := a.e
	if e.Subject == "" {
		run := r.name
		if run == "" {
			run = "the run's id"
		}
		r.found(ruleSubject, a, "ce-subject", run, "no subject")
	} else if e.Subject == r.name && !schema.ValidName(r.name) {
		r.found(ruleSubject, a, "ce-subject", "1 to 64 of A-Z a-z 0-9 _ -, beginning with a letter or digit", e.Subject)
	}
	_, executor, ok := schema.ParseSource(e.Source)
	switch has := r.head.Executor; {
	case !ok:
		r.found(ruleSource, a, "ce-source", "/waymark/<fleet>/<executor>", e.Source)
	case a.verdict.Kind == schema.Applied && has != "" && executor != has:
		r.found(ruleSource, a, "ce-source", "executor "+has+", which has the run", e.Source)
	}
	if e.LonePercents > 0 {
		r.found(rulePercent, a, "ce- headers", "%25 for a percent sign", fmt.Sprintf("%d percent signs that are not part of an escape", e.LonePercents))
	}
	switch at, err := time.Parse(time.RFC3339Nano, e.Time); {
	case e.Time == "":
		r.found(ruleTime, a, "ce-time", "a time such as 2026-01-31T12:00:00Z", "no time")
	case err == nil && !strings.HasSuffix(e.Time, "Z"):
		r.found(ruleTime, a, "ce-time", schema.FormatTime(at), e.Time)
	}
	if len(e.Data) > maxInline {
		r.found(ruleSize, a, "data", fmt.Sprintf("at most %d bytes", maxInline), fmt.Sprintf("%d bytes", len(e.Data)))
	}
	if e.Sequence != 0 && e.Subject != "" && !strings.HasPrefix(e.ID, e.Subject+".") {
		r.found(ruleIDForm, a, "ce-id", schema.EventID(e.Subject, e.Epoch, e.Sequence, e.ContentHash()), e.ID)
	}
	switch {
	case a.name == "" && meant(e.Type) != "":
		r.found(ruleType, a, "ce-type", meant(e.Type), e.Type)
	case a.name == "" && strings.HasPrefix(e.Type, schema.TypePrefix), a.name != "" && schema.NewData(a.name) == nil:
		r.found(ruleType, a, "ce-type", "a type of the vocabulary", e.Type)
	case a.name == "":
		return // a foreign type
	case e.DataContentType == "":
		r.found(ruleContentType, a, "ce-datacontenttype", schema.ContentTypeJSON, "no content type")
	}
	if a.data != nil {
		if members := unknown("", reflect.ValueOf(a.data), nil); len(members) > 0 {
			r.found(ruleMembers, a, members[0], "the members of "+a.name, strings.Join(members, ", "))
		}
	}
}

// meant is the type of the vocabulary that a foreign type resembles, "" for none.
func meant(text string) string {
	name := strings.TrimPrefix(strings.TrimSuffix(text, schema.TypeSuffix), schema.TypePrefix)
	if schema.NewData(name) == nil {
		return ""
	}
	return schema.TypeOf(name)
}

var rawValue = reflect.TypeFor[jsontext.Value]()

// unknown lists the JSON pointers of members outside the vocabulary, which the data types keep in Extra.
func unknown(path string, v reflect.Value, out []string) []string {
	if len(out) > 8 {
		return out
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			return unknown(path, v.Elem(), out)
		}
	case reflect.Slice:
		if v.Type() == rawValue {
			return out
		}
		for i := range v.Len() {
			out = unknown(fmt.Sprintf("%s/%d", path, i), v.Index(i), out)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			switch name, _, _ := strings.Cut(field.Tag.Get("json"), ","); {
			case !field.IsExported():
			case field.Name == "Extra":
				if raw, ok := reflect.TypeAssert[jsontext.Value](v.Field(i)); ok {
					out = append(out, members(path, raw)...)
				}
			case field.Anonymous:
				out = unknown(path, v.Field(i), out)
			case name == "base": // a fork's base is copied from a checkpoint, of whatever version
			default:
				out = unknown(path+"/"+name, v.Field(i), out)
			}
		}
	default:
	}
	return out
}

// members are the names of an object's members, as pointers.
func members(path string, object jsontext.Value) (out []string) {
	dec := jsontext.NewDecoder(strings.NewReader(string(object)))
	if t, err := dec.ReadToken(); err != nil || t.Kind() != '{' {
		return nil
	}
	for dec.PeekKind() == '"' {
		t, err := dec.ReadToken()
		if err != nil {
			return out
		}
		out = append(out, path+"/"+t.String())
		if dec.SkipValue() != nil {
			return out
		}
	}
	return out
}
