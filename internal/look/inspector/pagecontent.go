package inspector

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/waymarkio/waymark/internal/base/encryption"
	"github.com/waymarkio/waymark/internal/base/output"
	"github.com/waymarkio/waymark/internal/look/failure"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// messagesShown bounds the messages of a page, and fieldCut one of their fields, in bytes.
	messagesShown, fieldCut = 50, 8 << 10
	// contentMost bounds the stored size of a run whose content is shown: rendering holds it in memory.
	contentMost = 256 << 20
)

// conversationBody is the page of the conversation.
type conversationBody struct {
	Messages []messageRow
	// Older is the address of the messages before; empty for none. Latest is the address of the end, if the page shows an earlier part.
	Older, Latest string
	Left          int
	Compacted     *schema.Compacted
	NoContent     bool
	At            string
}

type messageRow struct {
	// Class is the role; empty for an unknown one.
	Role, Class, Name, Time string
	Turn                    int32
	First                   bool
	Parts                   []partRow
}

// partRow is a part of a message.
type partRow struct {
	Kind, Title, Text string
	// Whole is the address of the full text, if it was cut.
	Whole string
	Error bool
}

// content reads the state of a run at a point. It folds the events here, because the daemon has no content keys.
func (s *Inspector) content(ctx context.Context, run, at string) (*schema.GetReply, error) {
	reply, err := s.headAt(ctx, run, at)
	if err != nil {
		return nil, err
	}
	if reply.Bytes > contentMost {
		return nil, failure.New(failure.Refused, "read its events: "+schema.Command("waymark events", " --all --no-follow", run), "run %s has %s, the pages show the content of runs up to %s", run, output.Bytes(reply.Bytes), output.Bytes(contentMost))
	}
	if at == "" {
		at = fmt.Sprintf("record:%d", reply.Head.Records) // what came since would not fit the head
	}
	state, _, err := s.stateOf(ctx, run, at)
	if err != nil {
		return nil, err
	}
	reply.State = state.View()
	return reply, nil
}

// point parses the point in an address, as commands do.
func point(r *http.Request) (string, error) {
	text := r.URL.Query().Get("at")
	if text == "" {
		return "", nil
	}
	p, err := schema.ParsePoint(text)
	if err != nil {
		return "", failure.New(failure.Usage, "write a point as commands take it, such as record:12 or turn:3", "%v", err)
	}
	return p.String(), nil
}

func (s *Inspector) conversationPage(ctx context.Context, r *http.Request) (*view, error) {
	run := r.PathValue("run")
	at, err := point(r)
	if err != nil {
		return nil, err
	}
	reply, err := s.content(ctx, run, at)
	if err != nil {
		return nil, err
	}
	flags := " --full"
	if at != "" {
		flags += schema.Flag("at", at)
	}
	v, err := s.runView(ctx, reply, "conversation", schema.Command("runs get", flags, run))
	if err != nil {
		return nil, err
	}
	body := conversationBody{NoContent: s.NoContent, At: at, Compacted: reply.State.Compacted}
	path := v.Run.Path + "/conversation"
	// The page ends before a message.
	last := len(reply.State.Messages)
	if before := number(r.URL.Query().Get("before")); before > 0 {
		last = min(before, last)
	}
	first := max(last-messagesShown, 0)
	if first > 0 {
		body.Older = path + "?" + url.Values{"at": {cmp.Or(at, fmt.Sprintf("record:%d", reply.Head.Records))}, "before": {fmt.Sprint(first)}}.Encode()
		body.Left = first
	}
	if r.URL.Query().Has("before") || at != "" {
		body.Latest = path
	}
	if !s.NoContent {
		body.Messages = messagesOf(run, at, reply.State)[first:last]
	}
	v.Body = &body
	return v, nil
}

var roles = []string{schema.RoleSystem, schema.RoleUser, schema.RoleAssistant, schema.RoleTool}

// messagesOf are the messages of a page, with the outcomes of their calls.
func messagesOf(run, at string, v *schema.State) []messageRow {
	rows, turn, tools := make([]messageRow, len(v.Messages)), int32(-1), make(map[string]string)
	for i := range v.Messages {
		m := encryption.ReadableValue(v.Messages[i], v.Messages[i].Refs)
		row := messageRow{Role: m.Role, Name: m.Name, Time: m.Time, Turn: m.Turn, First: m.Turn != turn && m.Turn > 0}
		turn = m.Turn
		if slices.Contains(roles, m.Role) {
			row.Class = m.Role
		}
		for j := range m.Parts {
			p := &m.Parts[j]
			part := partOf(p, func() string { return wholePath(run, at, m.EventID, m.Turn, j, p) })
			switch p.Type {
			case schema.PartToolCall:
				tools[p.ID] = p.Name
			case schema.PartToolCallResponse:
				part.Title = cmp.Or(tools[p.ID], p.ID)
			}
			row.Parts = append(row.Parts, part)
		}
		rows[i] = row
	}
	return rows
}

// wholePath is the address of one field in full.
func wholePath(run, at, event string, turn int32, part int, p *schema.Part) string {
	q := url.Values{}
	if at != "" {
		q.Set("at", at)
	}
	switch p.Type {
	case schema.PartToolCall, schema.PartToolCallResponse:
		q.Set("call", p.ID)
		q.Set("turn", fmt.Sprint(cmp.Or(p.CallTurn, turn)))
		q.Set("occurrence", fmt.Sprint(max(p.Occurrence, 1)))
		q.Set("field", "arguments")
		if p.Type == schema.PartToolCallResponse {
			q.Set("field", "result")
		}
	default:
		q.Set("event", event)
		q.Set("part", fmt.Sprint(part))
	}
	return runPath(run, "/whole?"+q.Encode())
}

// partOf formats a part.
func partOf(p *schema.Part, whole func() string) partRow {
	row := partRow{Kind: p.Type}
	switch p.Type {
	case schema.PartText, schema.PartReasoning:
	case schema.PartToolCall:
		row.Title, row.Text = p.Name, pretty(p.Arguments)
	case schema.PartToolCallResponse:
		row.Title, row.Text, row.Error = p.ID, readable(p.Response), p.IsError
	default:
		row.Kind, row.Title = "other", output.Words(p.Type, p.Modality, p.MimeType, p.URI, p.FileID)
	}
	if p.Content != nil {
		row.Text = *p.Content
	}
	if len(row.Text) > fieldCut {
		row.Text, row.Whole = cut(row.Text, fieldCut), whole()
	}
	return row
}

// readable formats a result: a text unchanged, another value as JSON.
func readable(v jsontext.Value) string {
	var text string
	if v.Kind() == '"' && json.Unmarshal(v, &text) == nil {
		return text
	}
	return pretty(v)
}

// plain serves a field in full, as plain text.
func (s *Inspector) plain(field func(ctx context.Context, r *http.Request) (string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.NoContent {
			s.trouble(w, r, failure.New(failure.Refused, "start it without --no-content", "this page shows no content"))
			return
		}
		text, err := field(r.Context(), r)
		if err != nil {
			s.trouble(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; sandbox; frame-ancestors 'none'")
		_, _ = w.Write([]byte(block(text))) // the viewer may be gone
	}
}

// field is one field of a message or a call in full.
func (s *Inspector) field(ctx context.Context, r *http.Request) (string, error) {
	q, run := r.URL.Query(), r.PathValue("run")
	at, err := point(r)
	if err != nil {
		return "", err
	}
	state, _, err := s.stateOf(ctx, run, at)
	if err != nil {
		return "", err
	}
	if q.Get("call") == "" {
		for i := range state.Messages {
			m := encryption.ReadableValue(state.Messages[i].Message, state.Messages[i].Refs)
			if part := number(q.Get("part")); state.Messages[i].EventID == q.Get("event") && part < len(m.Parts) && m.Parts[part].Content != nil {
				return *m.Parts[part].Content, nil
			}
		}
		return "", failure.New(failure.NotFound, "", "run %s has no such message, or no longer", run)
	}
	key := schema.CallKey{Turn: int32(number(q.Get("turn"))), ToolCallID: q.Get("call"), Occurrence: number(q.Get("occurrence"))} //nolint:gosec // a turn
	call := state.Call(key)
	if call == nil {
		return "", failure.New(failure.NotFound, "", "run %s has no such call, or no longer", run)
	}
	field, value := "/arguments", call.Arguments
	if q.Get("field") == "result" {
		field, value = "/result", call.Result
	}
	if value, err = s.Fleet.Field(ctx, call.Refs, field, value); err != nil {
		if key := encryption.KeyOf(call.Refs, field); key != "" {
			return encryption.Placeholder(key), nil
		}
		return "", err
	}
	return readable(value), nil
}

// stateOf reads the state of a run at a point, or at its end without one. missing names its missing events.
func (s *Inspector) stateOf(ctx context.Context, run, at string) (state *schema.State, missing, err error) {
	if err := schema.CheckName("run id", run); err != nil {
		return nil, nil, failure.New(failure.NotFound, "", "%v", err)
	}
	if at == "" {
		state, err = s.Fleet.Get(ctx, run)
	} else {
		var p schema.Point
		if p, err = schema.ParsePoint(at); err == nil {
			state, err = s.Fleet.GetAt(ctx, run, p)
		}
	}
	if errors.Is(err, publisher.ErrIncomplete) && state != nil {
		missing, err = err, nil
	}
	return state, missing, err
}

// headAt reads the head of a run at a point.
func (s *Inspector) headAt(ctx context.Context, run, at string) (*schema.GetReply, error) {
	reply := new(schema.GetReply)
	return reply, s.Fleet.Ask(ctx, schema.VerbGet, run, schema.GetRequest{View: schema.ViewHead, At: at}, reply)
}
