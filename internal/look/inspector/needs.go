package inspector

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/answerschema"
	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/internal/look/inbox"
	"github.com/waymarkio/waymark/internal/look/standstill"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// needs caches what stands still, and the state of the shards.
type needs struct {
	cached cached[*stock]
	fleet  cached[*schema.FleetReply]
	// known is the last known number of things.
	known atomic.Int64
}

// needsOld is the age at which the things are read again.
const needsOld = time.Second

func (n *needs) get(s *Inspector, patience time.Duration) (*stock, bool, error) {
	return n.look(s, needsOld, patience)
}

// look is get of a stock that may be older.
func (n *needs) look(s *Inspector, old, patience time.Duration) (*stock, bool, error) {
	return n.cached.get(old, patience, func(ctx context.Context) (*stock, error) {
		k, err := s.takeStock(ctx)
		if err == nil {
			n.known.Store(int64(len(k.Reasons)))
		}
		return k, err
	})
}

func (n *needs) forget() {
	n.cached.forget()
	n.fleet.forget()
}

func (n *needs) count() int { return int(n.known.Load()) }

// thing is something that needs a person.
type thing struct {
	*standstill.Reason
	Commands []string
	// Path is the run's page, and Anchor the place on the page of all things.
	Path, Anchor string
	Text         string
	// Ref is the thing in a form.
	Ref string
	// Question is the full question; nil if it was not read, and Unread says why.
	Question *question
	Unread   string
}

// question has the facts for an answer.
type question struct {
	inbox.Question
	Message, Arguments, Schema string
	Approval                   bool
	// Fields of the form for the schema; none for a schema beyond what forms support.
	Fields []field
	Late   string
	// Whole are the addresses of cut fields, by name.
	Whole map[string]string
	// Readable names the keys of an encrypted run if the answer would be stored in plain text; else empty.
	Readable string
}

// field of a form.
type field struct {
	Name, Title, Kind string
	Options           []string
	Required          bool
}

func (s *Inspector) thingsOf(list []standstill.Reason) []thing {
	things := make([]thing, len(list))
	for i := range list {
		r := &list[i]
		things[i] = thing{Reason: r, Path: runPath(r.Run, ""), Anchor: r.ID, Text: s.whyOf(r), Ref: url.Values{
			"id": {r.ID}, "run": {r.Run}, "kind": {r.Kind}, "interrupt": {r.InterruptID}, "turn": {fmt.Sprint(r.Turn)}, "call": {r.ToolCallID},
			"occurrence": {fmt.Sprint(r.Occurrence)}, "seen": {fmt.Sprint(r.CallEpoch())},
		}.Encode()}
		for _, command := range inbox.Commands(s.Prompt, r) {
			things[i].Commands = append(things[i].Commands, output.Printable(command))
		}
	}
	return things
}

// whyOf says why a run stands still, without content if pages show none.
func (s *Inspector) whyOf(r *standstill.Reason) string {
	switch {
	case !s.NoContent:
		return r.Why
	case r.Kind == standstill.Held:
		return "held: " + r.Tool + " may have run"
	case r.Kind == standstill.Waiting, r.Kind == standstill.Quarantined:
		return r.Kind
	}
	return r.Why
}

func (s *Inspector) things(f *inbox.Found, most int) []thing {
	return s.thingsOf(f.Reasons[:min(len(f.Reasons), most)])
}

// needsBody is the page of things that need a person.
type needsBody struct {
	// Groups have the things that one answer may suit, the oldest first.
	Groups     [][]thing
	More       int
	Unread     []inbox.Unread
	Incomplete bool
	Pending    bool
}

// thingsMost bounds the things on the page.
const thingsMost = 50

func (s *Inspector) needsPage(ctx context.Context, _ *http.Request) (*view, error) {
	list, ok, err := s.needs.get(s, 5*time.Second)
	if err != nil {
		return nil, err
	}
	v := s.view("Needs you", "needs", "inbox")
	body := needsBody{Pending: !ok}
	v.Body = &body
	if !ok {
		return v, nil
	}
	v.Title = fmt.Sprintf("(%d) Needs you", len(list.Reasons))
	body.Unread, body.Incomplete = list.Unread, list.Incomplete
	things := s.things(&list.Found, thingsMost)
	body.More = len(list.Reasons) - len(things)
	if !s.NoContent {
		err = s.askAll(ctx, things)
	}
	at := make(map[string]int)
	for i := range things {
		key := things[i].group()
		if _, ok := at[key]; !ok {
			at[key] = len(body.Groups)
			body.Groups = append(body.Groups, nil)
		}
		body.Groups[at[key]] = append(body.Groups[at[key]], things[i])
	}
	return v, err
}

// group is the same for things that one answer may suit: of one agent and kind, with the same tool and schema.
func (t *thing) group() string {
	switch {
	case t.Question == nil, t.Question.Encrypted[inbox.FieldSchema] != "":
		return t.ID
	case t.Wait != nil:
		return strings.Join([]string{t.Agent, t.Kind, t.Wait.Reason, t.Tool, t.Question.Schema, t.Question.Readable}, "\x00")
	}
	return strings.Join([]string{t.Agent, t.Kind, t.Tool, string(t.Status), t.Question.Readable}, "\x00")
}

// question reads the full question.
func (s *Inspector) question(ctx context.Context, r *standstill.Reason) (*question, error) {
	state, _, err := s.stateOf(ctx, r.Run, "")
	if err != nil {
		return nil, err
	}
	wait := inbox.WaitOf(r)
	q := question{Question: inbox.Asked(ctx, s.Fleet, state, wait), Approval: wait.Approval()}
	readable := func(name, text string) string {
		if key := q.Encrypted[name]; key != "" {
			return encryption.Placeholder(key)
		}
		return text
	}
	q.Message = readable(inbox.FieldMessage, q.Question.Message)
	q.Arguments = readable(inbox.FieldArguments, pretty(q.Question.Arguments))
	if err := q.ArgumentsErr; err != nil {
		q.Arguments = "cannot be read: " + err.Error()
	}
	q.Schema = readable(inbox.FieldSchema, pretty(q.ResponseSchema))
	if q.SchemaErr != nil {
		q.Schema = q.SchemaErr.Error()
	}
	if !q.Approval && r.Kind == standstill.Waiting && q.Encrypted[inbox.FieldSchema] == "" {
		q.Fields = fieldsOf(q.ResponseSchema)
	}
	if keys := state.Head.KeyIDs; len(keys) > 0 && !s.Fleet.HasKeys() {
		q.Readable = strings.Join(keys, ", ")
	}
	if call := state.Call(wait.CallKey()); call != nil && call.Late != nil {
		late := call.Late
		value, err := s.Fleet.Field(ctx, late.Refs, "/result", late.Result)
		switch key := encryption.KeyOf(late.Refs, "/result"); {
		case late.Error != nil:
			q.Late = late.Error.Type + ": " + encryption.ReadableField(late.Error.Message, late.Refs, "/error/message")
		case err != nil && key != "":
			q.Late = encryption.Placeholder(key)
		case err != nil:
			q.Late = "cannot be read: " + err.Error()
		default:
			q.Late = pretty(value)
		}
	}
	return &q, nil
}

// mostFields bounds the fields of a form.
const mostFields = 12

// fieldsOf returns the form for a schema: an object of texts, numbers, booleans and choices. Another schema has no form.
func fieldsOf(v jsontext.Value) []field {
	object, err := answerschema.Parse(v)
	if err != nil || !slices.Equal(object.Types, []string{"object"}) || len(object.Properties) == 0 || len(object.Properties) > mostFields {
		return nil
	}
	var list []field
	for _, name := range slices.Sorted(maps.Keys(object.Properties)) {
		p := object.Properties[name]
		f := field{Name: name, Title: cmp.Or(p.Title, name), Required: slices.Contains(object.Required, name)}
		if len(p.Types) != 1 || !slices.Contains([]string{"string", "number", "integer", "boolean"}, p.Types[0]) {
			return nil
		}
		f.Kind = p.Types[0]
		for _, value := range p.Enum {
			text, err := jsontext.AppendUnquote(nil, value)
			if err != nil {
				return nil
			}
			f.Options = append(f.Options, string(text))
		}
		list = append(list, f)
	}
	return list
}

// valueOf is the answer of a form: the fields of a schema, a text, or JSON.
func valueOf(r *http.Request, fields []field) (jsontext.Value, error) {
	f := r.PostForm
	switch f.Get("as") {
	case "fields":
		out := make(map[string]jsontext.Value)
		for i, field := range fields {
			text := f.Get(fmt.Sprintf("f.%d", i))
			if text == "" && !field.Required {
				continue
			}
			if at := number(text); text != "" && at < len(field.Options) {
				text = field.Options[at]
			}
			value := jsontext.Value(text)
			if field.Kind == "string" {
				b, err := json.Marshal(text)
				if err != nil {
					return nil, failure.New(failure.Usage, "write plain text", "%s is not UTF-8", field.Title)
				}
				value = b
			} else if !value.IsValid() {
				return nil, failure.New(failure.Usage, "go back and write a value", "%s is no %s: %q", field.Title, field.Kind, text)
			}
			out[field.Name] = value
		}
		return json.Marshal(out, json.Deterministic(true))
	case "text":
		if f.Get("text") == "" {
			return nil, failure.New(failure.Usage, `go back and write an answer; an empty text is "" as JSON`, "there is no answer")
		}
		return json.Marshal(f.Get("text"))
	}
	v := jsontext.Value(strings.TrimSpace(f.Get("text")))
	if !v.IsValid() {
		return nil, failure.New(failure.Usage, `text is JSON only in quotes, such as "blue"`, "the value is not JSON")
	}
	return v, nil
}

// current reads the thing of a form again. If it is not needed any more, the error says whose answer came first.
func (s *Inspector) current(ctx context.Context, f url.Values) (*standstill.Reason, error) {
	t := &standstill.Reason{
		Run: f.Get("run"), Kind: f.Get("kind"), InterruptID: f.Get("interrupt"), Turn: int32(number(f.Get("turn"))), //nolint:gosec // a turn
		ToolCallID: f.Get("call"), Occurrence: number(f.Get("occurrence")),
	}
	now, err := inbox.ReasonsOf(ctx, s.Fleet, t.Run)
	if err != nil {
		return nil, err
	}
	found := inbox.Find(t, now)
	if found == nil {
		return nil, s.late(ctx, t, nil)
	}
	if found.Kind != standstill.Quarantined && found.ID != f.Get("id") {
		return nil, failure.New(failure.Conflict, "go back, read what is asked now, and answer that", "run %s asks something else by now", t.Run)
	}
	return found, nil
}

// late says whose answer came first. err is the refusal of the service, if there was one.
func (s *Inspector) late(ctx context.Context, t *standstill.Reason, err error) error {
	how, readErr := inbox.HowEnded(ctx, s.Fleet, t)
	if readErr != nil && ctx.Err() != nil {
		return readErr
	}
	return &failure.Error{Code: failure.Conflict, What: t.Run + ": " + how, Hint: "nothing was changed; see the run", Err: err}
}

// refused explains the refusal of an answer.
func (s *Inspector) refused(ctx context.Context, t *standstill.Reason, err error) error {
	service, ok := errors.AsType[*schema.ServiceError](err)
	if !ok {
		return err
	}
	switch service.Code {
	case schema.CodeConflict, schema.CodeUnknownInterrupt, schema.CodeNotInDoubt:
		return s.late(ctx, t, err)
	case schema.CodeInvalidAnswer:
		if places := inbox.Problems(service); places != "" {
			return &failure.Error{Code: failure.Usage, What: "the answer is not what run " + t.Run + " asks for: " + places, Hint: "go back and change it", Err: err}
		}
	default:
	}
	return err
}

func (s *Inspector) answer(ctx context.Context, r *http.Request, thing url.Values) (next, said string, err error) {
	t, err := s.current(ctx, thing)
	if err != nil {
		return "", "", err
	}
	if t.Wait == nil {
		return "", "", failure.New(failure.Usage, "settle it instead", "%s of run %s is no question", t.Kind, t.Run)
	}
	request := schema.InputRequest{InterruptID: t.InterruptID, EventID: t.Wait.Position.ID, Status: schema.InputResolved, By: s.By}
	what := "answered"
	switch do := r.PostForm.Get("do"); do {
	case "allow", "deny":
		request.Payload, err = inbox.Decision(do == "allow", r.PostForm.Get("reason"))
		what = map[string]string{"allow": "allowed", "deny": "denied"}[do]
	case "cancel":
		request.Status, what = schema.InputCancelled, "called off"
	default:
		var fields []field
		if r.PostForm.Get("as") == "fields" {
			q, err := s.question(ctx, t)
			if err != nil {
				return "", "", err
			}
			fields = q.Fields
		}
		request.Payload, err = valueOf(r, fields)
	}
	if err != nil {
		return "", "", err
	}
	if err := s.Fleet.CheckAnswer(ctx, t.Run, publisher.Input{InterruptID: t.InterruptID, Status: request.Status, Payload: []byte(request.Payload)}); err != nil {
		if invalid, ok := errors.AsType[*publisher.InvalidAnswerError](err); ok && invalid.Said != nil {
			err = invalid.Said
		}
		return "", "", s.refused(ctx, t, err)
	}
	var reply schema.ControlReply
	if err := s.Fleet.Ask(ctx, schema.VerbInput, t.Run, request, &reply); err != nil {
		return "", "", s.refused(ctx, t, err)
	}
	return "/needs-you", fmt.Sprintf("%s: %s, as %s.", t.Run, what, s.By), nil
}

func (s *Inspector) settle(ctx context.Context, r *http.Request, thing url.Values) (next, said string, err error) {
	t, err := s.current(ctx, thing)
	if err != nil {
		return "", "", err
	}
	seen, err := strconv.ParseUint(thing.Get("seen"), 10, 31)
	if err != nil {
		return "", "", failure.New(failure.Usage, "use one of the buttons", "the form does not name the attempt at the call")
	}
	request := schema.SettleRequest{CallKey: t.Key(), CallEpoch: schema.Epoch(seen), By: s.By}
	switch how := r.PostForm.Get("do"); how {
	case "decided":
		request.How = schema.SettledDecided
		if request.Result, err = valueOf(r, nil); err != nil {
			return "", "", err
		}
	case "rerun":
		request.How = schema.SettledRerun
	case "abandoned":
		request.How = schema.SettledAbandoned
	default:
		return "", "", failure.New(failure.Usage, "use one of the buttons", "%q is no way to settle a call", how)
	}
	var reply schema.ControlReply
	if err := s.Fleet.Ask(ctx, schema.VerbSettle, t.Run, request, &reply); err != nil {
		return "", "", s.refused(ctx, t, err)
	}
	return "/needs-you", fmt.Sprintf("%s: call %s settled as %s, as %s.", t.Run, t.ToolCallID, request.How, s.By), nil
}

// mark marks the current point of a run.
func (s *Inspector) mark(ctx context.Context, r *http.Request) (next, said string, err error) {
	run, name := r.PathValue("run"), strings.TrimSpace(r.PostForm.Get("name"))
	var reply schema.ControlReply
	if err := s.Fleet.Ask(ctx, schema.VerbMark, run, schema.MarkRequest{Name: name, By: s.By, RequestID: rand.Text()}, &reply); err != nil {
		return "", "", err
	}
	return runPath(run, ""), "Marked " + run + " as " + name + ".", nil
}
