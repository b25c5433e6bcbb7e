package mcp

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// keyMeta is the member of _meta that tells the server the idempotency key of a call. callMeta tells the client the
	// identity of a call that it did not name, and recordedMeta that the tool did not run now.
	keyMeta, callMeta, recordedMeta = "io.waymark/idempotencyKey", "io.waymark/call", "io.waymark/recorded"
	// wireError is the type of a failure that is an error of JSON-RPC.
	wireError, cancelled = "mcp", "cancelled"
)

// members are an object with the member _meta.
type members struct {
	Meta map[string]jsontext.Value `json:"_meta,omitzero"`
	Rest jsontext.Value            `json:",embed"`
}

// params of tools/call.
type params struct {
	Name      string         `json:"name"`
	Arguments jsontext.Value `json:"arguments,omitzero"`
	members
}

// with returns members with one more.
func with(meta map[string]jsontext.Value, name string, value any) map[string]jsontext.Value {
	if meta == nil {
		meta = make(map[string]jsontext.Value)
	}
	meta[name], _ = json.Marshal(value) // a text or a truth value
	return meta
}

// add adds a member to the _meta of an answer.
func add(m *jsonrpc.Response, name string, value any) *jsonrpc.Response {
	var result members
	if m.Error == nil && decode(m.Result, &result) == nil {
		result.Meta = with(result.Meta, name, value)
		m.Result, _ = json.Marshal(&result, json.Deterministic(true)) // it was JSON
	}
	return m
}

// decode reads what client or server sent. Names are exact and unique: no server reads other members out of it.
func decode(text []byte, into any) error {
	return json.Unmarshal(session.Clean(text), into) //nolint:wrapcheck // it names the member
}

// said is the answer to a call that has no outcome.
func said(r *jsonrpc.Request, format string, args ...any) *jsonrpc.Response {
	return text(r, "waymark: "+fmt.Sprintf(format, args...), true)
}

// text is an answer with a text.
func text(r *jsonrpc.Request, content string, isError bool) *jsonrpc.Response {
	quoted, _ := json.Marshal(content, jsontext.AllowInvalidUTF8(true)) // a text
	return &jsonrpc.Response{ID: r.ID, Result: fmt.Appendf(nil, `{"isError":%t,"content":[{"type":"text","text":%s}]}`, isError, quoted)}
}

// call records a call of a tool, and returns its answer.
func (p *proxy) call(ctx context.Context, x *exchange, r *jsonrpc.Request) *jsonrpc.Response {
	c := params{Arguments: jsontext.Value("{}")}
	if err := decode(r.Params, &c); err != nil || c.Name == "" {
		return &jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("params of tools/call: %v", err)}}
	}
	s, err := p.open(ctx, &c)
	if err != nil {
		return said(r, "the call was not recorded, so it was not made: %v", err)
	}
	id, digest, named, err := p.identify(ctx, s, &c)
	if err != nil {
		return said(r, "the call was not made: %v", err)
	}
	m := p.outcome(ctx, x, r, &c, s, id, digest)
	if !named {
		add(m, callMeta, id)
	}
	return m
}

// outcome brings a call to its outcome: the recorded one, or the server's once it is recorded.
func (p *proxy) outcome(ctx context.Context, x *exchange, r *jsonrpc.Request, c *params, s *session.Session, id, digest string) *jsonrpc.Response {
	replay := p.policy(ctx, c)
	p.mu.Lock()
	key := p.inputs[id]
	delete(p.inputs, id)
	p.mu.Unlock()
	var err error
	if key != "" {
		_, err = s.MayBegin(ctx, id)
	} else {
		call := publisher.ToolCall{ID: id, Name: c.Name, Arguments: []byte(c.Arguments), Replay: replay}
		if replay == schema.ReplayVerify {
			call.VerifySubject = verifySubject(s.Run().ID())
		}
		begun, result, err := s.Call(ctx, call)
		if begun == nil {
			return p.recorded(ctx, r, s, id, digest, result, err)
		}
		key = begun.IdempotencyKey
	}
	c.Meta = with(c.Meta, keyMeta, key)
	p.mu.Lock()
	x.guarded = !replay.Rerunnable()
	p.mu.Unlock()
	var m *jsonrpc.Response
	with, failed := json.Marshal(c, json.Deterministic(true))
	if err = cmp.Or(err, failed); err != nil {
		err = fmt.Errorf("%w: it was not made: %w", publisher.ErrLost, err)
	} else {
		m, err = p.send(x, &jsonrpc.Request{ID: r.ID, Method: r.Method, Params: with})
	}
	var returned publisher.ToolResult
	if err == nil && m.Error != nil {
		wire := servers(m.Error)
		err = session.Failure{Type: wireError, Message: wire.Message, Code: strings.TrimSpace(fmt.Sprintf("%d %s", wire.Code, wire.Data))}
	} else if err == nil {
		var result struct {
			IsError *bool  `json:"isError"`
			Type    string `json:"resultType"`
		}
		_ = decode(m.Result, &result) // another result is not read
		if result.Type == "input_required" {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.inputs[id] = key // the client makes the call again, with the input
			return m
		}
		returned = publisher.ToolResult{Result: []byte(session.Clean(m.Result)), IsError: result.IsError}
	}
	failed = s.Return(context.WithoutCancel(ctx), id, returned, err)
	switch {
	case errors.Is(err, publisher.ErrLost):
		if !replay.Rerunnable() {
			select {
			case p.lost <- err:
			default: // the proxy ends already
			}
		}
		return said(r, "the outcome of the call is not known: %v", err)
	case failed != nil:
		return said(r, "the outcome of the call was not recorded for this client: %v", failed)
	case m == nil:
		return said(r, "%v", err)
	}
	return m
}

// recorded is the answer to a call that does not run now.
func (p *proxy) recorded(ctx context.Context, r *jsonrpc.Request, s *session.Session, id, digest string, result publisher.ToolResult, err error) *jsonrpc.Response {
	if !errors.Is(err, publisher.ErrHeld) {
		p.deliver(ctx, s, id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if held, ok := errors.AsType[*publisher.HeldError](err); ok {
		if p.owed[digest] == "" {
			go func() { _ = s.Run().AwaitSettled(ctx, held.Key) }() // it publishes the question, and ends with the proxy
		}
		p.owed[digest] = held.Key.ToolCallID
		return said(r, "this call may have had its effect, so it does not run again: %v. See: waymark plan %s. Once it is settled, make the call again.", err, held.Run)
	}
	delete(p.owed, digest)
	m := &jsonrpc.Response{ID: r.ID, Result: result.Result}
	if value := jsontext.Value(result.Result); value.Kind() != '{' { // a person's
		content := string(value)
		_ = decode(value, &content) // another value is shown as it is
		m = text(r, content, false)
	}
	failed, ok := errors.AsType[*publisher.ToolError](err)
	switch {
	case ok && failed.Failure.Type == wireError:
		number, data, _ := strings.Cut(failed.Failure.Code, " ")
		code, _ := strconv.ParseInt(number, 10, 64) // as it was recorded
		m.Result, m.Error = nil, &jsonrpc.Error{Code: code, Message: failed.Failure.Message, Data: []byte(data)}
	case ok:
		m = text(r, failed.Failure.Message, true)
	case err != nil:
		return said(r, "%v", err)
	}
	return add(m, recordedMeta, true)
}

// deliveredKey is the state of a run that lists the settled calls whose outcome a client has got.
const deliveredKey = "mcp.delivered"

// deliver remembers that a client gets the outcome of a call. If that was settled, the next call like it is another one.
func (p *proxy) deliver(ctx context.Context, s *session.Session, id string) {
	was := false
	s.Run().View(func(state *schema.State) {
		was = slices.ContainsFunc(state.Calls, func(c schema.Call) bool { return c.ToolCallID == id && settled(&c) })
	})
	if !was {
		return
	}
	var ids []string
	_, err := s.Run().GetState(ctx, deliveredKey, &ids)
	if err == nil && !slices.Contains(ids, id) {
		err = s.Run().SetState(ctx, deliveredKey, append(ids, id))
	}
	if err != nil {
		p.Log.Warn().Err(err).Str("call", id).Msg("the next call like this one gets its outcome")
	}
}

// settled reports whether the outcome of a call is that of a settlement.
func settled(c *schema.Call) bool {
	return c.Outcome != schema.OutcomeOpen && len(c.Settlements) > 0 && c.Settlements[len(c.Settlements)-1] != schema.SettledRerun
}

// identify returns the id of a call in its run: the client's, or one of what it calls and how often that was called. A
// call that was held here, or that an earlier process left in doubt, keeps its id when the client makes it again, also
// once it was settled and no client has its outcome.
func (p *proxy) identify(ctx context.Context, s *session.Session, c *params) (id, digest string, named bool, err error) {
	digest = p.digest(c.Name, c.Arguments)
	var given string
	for _, name := range []string{"claudecode/toolUseId", "callId"} { // Claude Code, Codex
		if value, ok := c.Meta[name]; ok && given == "" {
			_ = decode(value, &given) // another type is no id
		}
	}
	var delivered []string
	if _, err := s.Run().GetState(ctx, deliveredKey, &delivered); err != nil {
		return "", "", false, err //nolint:wrapcheck // it names the key
	}
	var unanswered []schema.Call
	s.Run().View(func(state *schema.State) {
		for i := range state.Calls {
			switch old := &state.Calls[i]; {
			case old.ToolCallID == given:
				named = true
			case old.Name == c.Name && (old.InDoubt || settled(old) && !slices.Contains(delivered, old.ToolCallID)):
				unanswered = append(unanswered, *old)
			}
		}
	})
	same := ""
	for i := range unanswered {
		old := &unanswered[i]
		arguments, err := p.Fleet.Field(ctx, old.Refs, "/arguments", old.Arguments)
		if err != nil {
			return "", "", false, err //nolint:wrapcheck // it names the field
		}
		if same == "" && p.digest(old.Name, arguments) == digest {
			same = old.ToolCallID
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	id = cmp.Or(p.owed[digest], same)
	if given != "" && (named || id == "") {
		return given, digest, true, nil
	}
	counted := func() string { return fmt.Sprintf("%.40s-%s.%d", c.Name, digest, p.seen[digest]) }
	if id == "" && p.inputs[counted()] == "" {
		p.seen[digest]++
	}
	return cmp.Or(id, counted()), digest, false, nil
}

// digest of a tool of the server and its arguments.
func (p *proxy) digest(name string, arguments jsontext.Value) string {
	arguments = arguments.Clone()
	_ = arguments.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) // it is JSON
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", p.Name, name, arguments)))[:12]
}

// open returns the session of the run. The first call starts the run, or takes it over.
func (p *proxy) open(ctx context.Context, c *params) (*session.Session, error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.session != nil {
		return p.session, nil
	}
	p.mu.Lock()
	for _, name := range []string{mcp.MetaKeyProtocolVersion, mcp.MetaKeyClientInfo, mcp.MetaKeyClientCapabilities} {
		if value, ok := c.Meta[name]; ok {
			p.meta = with(p.meta, name, value)
		}
	}
	p.mu.Unlock()
	client, id := p.Session, cmp.Or(p.Run, "mcp-"+strings.ToLower(rand.Text()))
	if value, ok := c.Meta["sessionId"]; ok && client == "" { // Codex
		_ = decode(value, &client) // another type is none
	}
	if p.Run == "" && client != "" {
		id = fmt.Sprintf("mcp-%x", sha256.Sum256([]byte(p.Name+"\x00"+client)))[:36]
	}
	run, _, err := session.Open(ctx, p.Fleet, publisher.RunSpec{ID: id, Agent: "mcp", Task: p.Name})
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the run
	}
	if p.stopVerify, err = publisher.ServeVerify(p.Fleet.Conn(), verifySubject(id), "", p.verify); err != nil { //nolint:contextcheck // each question has its own
		return nil, errors.Join(err, run.Interrupt(ctx, schema.InterruptedShutdown))
	}
	p.session = session.New(run)
	p.Log.Info().Str("run", id).Msg("calls are recorded")
	return p.session, nil
}

// finish ends the run. A run with a call in doubt is left to the next process, or a person.
func (p *proxy) finish(ctx context.Context, cause error) error {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.session == nil {
		return nil
	}
	p.session.Close()
	run := p.session.Run()
	ctx, cancel := context.WithTimeout(ctx, 2*grace)
	defer cancel()
	err := p.stopVerify()
	if lost := run.Sync(ctx); run.Err() != nil {
		return errors.Join(err, lost)
	}
	if len(run.Head().OpenCalls) > 0 {
		p.Log.Warn().Msgf("a call has no outcome: see waymark plan %s", run.ID())
		_ = p.server.Close() // before others ask what became of the call, what the server does has ended
		return errors.Join(err, run.Interrupt(ctx, schema.InterruptedShutdown))
	}
	var end publisher.RunEnd
	if run.CancelRequested() {
		end.Status = schema.StatusCancelled
	} else if cause != nil {
		end.Error = &schema.Error{Type: wireError, Message: cause.Error()}
	}
	return errors.Join(err, run.End(ctx, end))
}
