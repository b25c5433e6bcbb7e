package schema

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// UnknownToolType is the error type of a call for which its executor has no tool: the model made the name up.
const UnknownToolType = "unknown_tool"

// Content is a value of an event's data that an executor may encrypt. The rest of an event stays readable, because
// the fold, the daemon or people need it.
type Content struct {
	// Path is the JSON Pointer (RFC 6901) of the value in the data, as in [Ref].
	Path string
	// IDs are the ids next to the value and above it, from the top: those of its call, its question, its key.
	IDs []string
	// Tool is the path of the nearest tool name, next to the value or above it, and ToolName that name; empty for
	// none.
	Tool, ToolName string
	// Name reports that the value is the name of a tool. It is content if the model invented it.
	Name bool
	// Large reports that the value may be in the blob store.
	Large bool

	get func() (jsontext.Value, error)
	set func(jsontext.Value) error
}

// JSON returns the value, and nil where there is none.
func (c *Content) JSON() (jsontext.Value, error) { return c.get() }

// Set replaces the value by a JSON value, or removes it with nil. A text accepts only a JSON string.
func (c *Content) Set(value jsontext.Value) error { return c.set(value) }

// Contents returns the values that are content of an event's data, or of a part of the state, given by a pointer to it,
// in the order of its fields. Set changes them there.
func Contents(of any) []Content {
	w := contentWalk{}
	w.fields("", nil, reflect.ValueOf(of).Elem())
	return w.found
}

// InventedNames are the paths of the tool names in an answer that the model invented: in calls without such a tool,
// and in the message parts that name them.
func (d *TurnAnsweredData) InventedNames() map[string]bool {
	var paths map[string]bool
	for i := range d.Calls {
		c := &d.Calls[i]
		if c.Error == nil || c.Error.Type != UnknownToolType {
			continue
		}
		if paths == nil {
			paths = make(map[string]bool)
		}
		paths[fmt.Sprintf("/calls/%d/name", i)] = true
		for j := range d.Message.Parts {
			if p := &d.Message.Parts[j]; p.Type == PartToolCall && (p.ID == c.ToolCallID || p.Name == c.Name) {
				paths[fmt.Sprintf("/message/parts/%d/name", j)] = true
			}
		}
	}
	return paths
}

// Open makes a state without events keep content as open leaves it. open is called with the data of each event whose
// content the state keeps, and may change it: it decrypts values, removes their refs, and sets [Ref.Place] of the
// others. The head stays that of a reader without keys.
func (s *State) Open(open func(e *Event, data Data)) { s.open = open }

func (s *State) opened(v Verdict) {
	if s.open != nil && v.Data != nil {
		s.open(v.Event, v.Data)
	}
}

// contentWalk finds content by the field tag content: text, large for one that may be in the blob store, or name for
// the name of a tool.
type contentWalk struct {
	found []Content
	// tool is the path of the tool name above the current value, and toolName that name.
	tool, toolName string
}

var (
	valueType = reflect.TypeFor[jsontext.Value]()
	baseType  = reflect.TypeFor[Base]()
	refType   = reflect.TypeFor[Ref]()
)

// ids are the members that identify the owner of a value.
var ids = map[string]bool{
	"role": true, "tool_call_id": true, "interrupt_id": true, "signal_id": true, "handoff_id": true, "artifact_id": true, "phase": true, "key": true, "id": true,
}

func (w *contentWalk) fields(path string, above []string, v reflect.Value) {
	t := v.Type()
	of := slices.Clip(above)
	tool, toolName := w.tool, w.toolName
	defer func() { w.tool, w.toolName = tool, toolName }()
	for i := range t.NumField() {
		switch name, field := memberName(t.Field(i)), v.Field(i); {
		case ids[name] && field.Kind() == reflect.String:
			of = append(of, name+"="+field.String())
		case name == "occurrence" && field.CanInt():
			of = append(of, name+"="+strconv.FormatInt(max(field.Int(), 1), 10))
		case t.Field(i).Tag.Get("content") == "name" && field.String() != "":
			w.tool, w.toolName = path+"/"+name, field.String()
		}
	}
	for i := range t.NumField() {
		f, field := t.Field(i), v.Field(i)
		switch tag, isContent := f.Tag.Lookup("content"); {
		case isContent:
			w.values(Content{Path: path + "/" + memberName(f), IDs: of, Name: tag == "name", Large: tag == "large"}, field)
		case f.Type == valueType && strings.HasSuffix(f.Tag.Get("json"), ",embed"):
			w.members(path, of, field)
		case f.Anonymous:
			w.fields(path, of, field)
		default:
			w.below(path+"/"+memberName(f), of, field)
		}
	}
}

// below walks into what a field holds.
func (w *contentWalk) below(path string, of []string, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Type().Elem() != baseType {
			w.below(path, of, v.Elem())
		}
	case reflect.Struct:
		w.fields(path, of, v)
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Struct || v.Type().Elem() == refType {
			return
		}
		for i := range v.Len() {
			w.fields(path+"/"+strconv.Itoa(i), of, v.Index(i))
		}
	default:
	}
}

// values adds a field of content: a text, an optional text, a JSON value, a list of texts or a map of them.
func (w *contentWalk) values(c Content, v reflect.Value) {
	path := c.Path
	switch field := v.Addr().Interface().(type) {
	case *string:
		w.addText(c, func() string { return *field }, func(text string) { *field = text })
	case **string:
		c.get = func() (jsontext.Value, error) {
			if *field == nil {
				return nil, nil
			}
			return json.Marshal(**field)
		}
		c.set = func(to jsontext.Value) error {
			if to == nil {
				*field = nil
				return nil
			}
			text := ""
			if err := json.Unmarshal(to, &text); err != nil {
				return err
			}
			*field = &text
			return nil
		}
		w.add(c)
	case *jsontext.Value:
		c.get = func() (jsontext.Value, error) { return *field, nil }
		c.set = func(to jsontext.Value) error {
			*field = to
			return nil
		}
		w.add(c)
	case *[]string:
		for i := range *field {
			c.Path = path + "/" + strconv.Itoa(i)
			w.values(c, reflect.ValueOf(*field).Index(i))
		}
	case *map[string]string:
		for _, key := range slices.Sorted(maps.Keys(*field)) {
			c.Path = path + "/" + pointerToken(key)
			w.addText(c, func() string { return (*field)[key] }, func(text string) { (*field)[key] = text })
		}
	default:
		panic(fmt.Sprintf("schema: field %s of type %s cannot be content", path, v.Type()))
	}
}

// addText adds a text.
func (w *contentWalk) addText(c Content, get func() string, set func(string)) {
	c.get = func() (jsontext.Value, error) { return textJSON(get()) }
	c.set = func(to jsontext.Value) error {
		text := ""
		if to != nil {
			if err := json.Unmarshal(to, &text); err != nil {
				return err
			}
		}
		set(text)
		return nil
	}
	w.add(c)
}

// members adds the members that this version does not know.
func (w *contentWalk) members(path string, of []string, v reflect.Value) {
	extra, _ := reflect.TypeAssert[*jsontext.Value](v.Addr()) // the walk has compared its type
	if len(*extra) == 0 {
		return
	}
	var members map[string]jsontext.Value
	if err := json.Unmarshal(*extra, &members); err != nil {
		w.add(Content{Path: path, IDs: of, get: func() (jsontext.Value, error) { return nil, err }, set: func(jsontext.Value) error { return err }})
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		w.add(Content{
			Path: path + "/" + pointerToken(name), IDs: of,
			get: func() (jsontext.Value, error) { return members[name], nil },
			set: func(to jsontext.Value) (err error) {
				members[name] = to
				*extra, err = json.Marshal(members, json.Deterministic(true))
				return err
			},
		})
	}
}

func (w *contentWalk) add(c Content) {
	c.Tool, c.ToolName = w.tool, w.toolName
	w.found = append(w.found, c)
}

func textJSON(text string) (jsontext.Value, error) {
	if text == "" {
		return nil, nil
	}
	return json.Marshal(text)
}

// memberName is the name of a field's JSON member.
func memberName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// pointerToken is a member's name in a JSON Pointer.
func pointerToken(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// isEncrypted reports whether refs say that the value at a path is encrypted.
func isEncrypted(refs []Ref, path string) bool {
	return slices.ContainsFunc(refs, func(r Ref) bool { return r.Path == path && r.KeyID != "" })
}

// MaxKeyIDs bounds the ids of keys that a head has.
const MaxKeyIDs = 16

// noteKeys notes the keys that an event's content is encrypted with.
func (h *Head) noteKeys(refs *[]Ref) {
	if refs == nil {
		return
	}
	for i := range *refs {
		h.noteKey((*refs)[i].KeyID)
	}
}

func (h *Head) noteKey(id string) {
	if id == "" || slices.Contains(h.KeyIDs, id) {
		return
	}
	if len(h.KeyIDs) >= MaxKeyIDs {
		h.KeyIDs = slices.Delete(slices.Clone(h.KeyIDs), 0, len(h.KeyIDs)-MaxKeyIDs+1)
	}
	h.KeyIDs = append(slices.Clip(h.KeyIDs), id)
}
