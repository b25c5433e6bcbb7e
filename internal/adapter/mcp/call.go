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

// add adds a member to the _meta of an answer, and texts to its content.
func add(m *jsonrpc.Response, name string, value any, texts ...string) *jsonrpc.Response {
	var result struct {
		Content []jsontext.Value `json:"content,omitzero"`
		members
	}
	if m.Error == nil && decode(m.Result, &result) == nil {
		result.Meta = with(result.Meta, name, value)
		for _, text := range texts {
			result.Content = append(result.Content, fmt.Appendf(nil, `{"type":"text","text":%q}`, text))
		}
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
	s, id, given, err := p.open(ctx, &c)
	if err != nil {
		return said(r, "the call was not recorded, so it was not made: %v", err)
	}
	var notes []string
	if given != "" && id != given {
		notes = []string{"waymark: the tool did not run now. This is the result of the same call before. If you mean another one, call again."}
	}
	m := p.outcome(ctx, x, r, &c, s, id, notes)
	p.opening.Lock()
	defer p.opening.Unlock()
	if !has(s, id) {
		delete(p.taken, id) // the client makes the call again
	}
	if id != given {
		add(m, callMeta, id)
	}
	return m
}

// has reports whether a call has an outcome.
func has(s *session.Session, id string) (outcome bool) {
	s.Run().View(func(state *schema.State) {
		outcome = slices.ContainsFunc(state.Calls, func(c schema.Call) bool { return c.ToolCallID == id && c.Outcome != schema.OutcomeOpen })
	})
	return outcome
}

// outcome brings a call to its outcome: the recorded one, or the server's once it is recorded.
func (p *proxy) outcome(ctx context.Context, x *exchange, r *jsonrpc.Request, c *params, s *session.Session, id string, notes []string) *jsonrpc.Response {
	p.opening.Lock()
	replay := p.policy(ctx, c) // calls that are made together do not wait for each other's tool
	p.opening.Unlock()
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
			return p.recorded(ctx, r, s, result, err, notes)
		}
		key = begun.IdempotencyKey
	}
	c.Meta = with(c.Meta, keyMeta, key)
	p.mu.Lock()
	x.guarded = !replay.Rerunnable()
	p.mu.Unlock()
	var m *jsonrpc.Response
	body, failed := json.Marshal(c, json.Deterministic(true))
	if err = cmp.Or(err, failed); err != nil {
		err = fmt.Errorf("%w: it was not made: %w", publisher.ErrLost, err)
	} else {
		m, err = p.send(x, &jsonrpc.Request{ID: r.ID, Method: r.Method, Params: body})
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

// recorded is the answer to a call that does not run now. The notes are added to an outcome.
func (p *proxy) recorded(ctx context.Context, r *jsonrpc.Request, s *session.Session, result publisher.ToolResult, err error, notes []string) *jsonrpc.Response {
	if held, ok := errors.AsType[*publisher.HeldError](err); ok {
		go func() { _ = s.Run().AwaitSettled(ctx, held.Key) }() // it publishes the question, and ends with the proxy
		return said(r, "this call may have had its effect, so it does not run again: %v. See: waymark plan %s. Once it is settled, make the call again.", err, held.Run)
	}
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
	case errors.Is(err, publisher.ErrFenced):
		return said(r, "%v. Two servers with the same command need names: waymark mcp --server NAME", err)
	case err != nil:
		return said(r, "%v", err)
	}
	return add(m, recordedMeta, true, notes...)
}

// identify returns the id of a call in its run, and the client's. A call with the tool and the arguments of one that this
// process has not answered yet is that one, unless the client, which gives ids, is seen to have its result, or the tool is
// pure. A call that the process made after the result shows it.
func (p *proxy) identify(ctx context.Context, s *session.Session, c *params) (id, given string, err error) {
	digest := p.digest(c.Name, c.Arguments)
	for _, name := range []string{"claudecode/toolUseId", "callId"} { // Claude Code, Codex
		if value, ok := c.Meta[name]; ok && given == "" {
			_ = decode(value, &given) // another type is no id
		}
	}
	var like []schema.Call
	s.Run().View(func(state *schema.State) {
		last := make(map[schema.Epoch]string) // when a process made its last call
		for _, old := range slices.Backward(state.Calls) {
			last[old.Epoch] = cmp.Or(last[old.Epoch], old.CalledAt)
			by, taken := p.taken[old.ToolCallID]
			switch {
			case given != "" && (old.ToolCallID == given || by == given):
				id = old.ToolCallID
			case taken || old.Name != c.Name:
			case given == "" || old.Outcome == schema.OutcomeOpen ||
				old.Replay != schema.ReplayPure && !schema.ParseTime(last[old.Epoch]).After(schema.ParseTime(old.ClosedAt)):
				like = append(like, old)
			}
		}
	})
	for _, old := range slices.Backward(like) {
		if id != "" {
			break
		}
		arguments, err := p.Fleet.Field(ctx, old.Refs, "/arguments", old.Arguments)
		if err != nil {
			return "", "", err //nolint:wrapcheck // it names the field
		}
		if p.digest(old.Name, arguments) == digest {
			id = old.ToolCallID
		}
	}
	id = cmp.Or(id, given)
	for n := 1; id == ""; n++ {
		id = fmt.Sprintf("%.40s-%s.%d", c.Name, digest, n)
		if _, taken := p.taken[id]; taken {
			id = ""
		}
	}
	p.taken[id] = given
	return id, given, nil
}

// digest of a tool of the server and its arguments.
func (p *proxy) digest(name string, arguments jsontext.Value) string {
	arguments = arguments.Clone()
	_ = arguments.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false)) // it is JSON
	return fmt.Sprintf("%x", sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%s", p.Name, name, arguments)))[:12]
}

// open identifies a call. The first one starts the run, or takes it over.
func (p *proxy) open(ctx context.Context, c *params) (s *session.Session, id, given string, err error) {
	p.opening.Lock()
	defer p.opening.Unlock()
	if p.session == nil {
		err = p.start(ctx, c)
	}
	if err == nil {
		id, given, err = p.identify(ctx, p.session, c)
	}
	return p.session, id, given, err
}

// start starts the run, or takes it over.
func (p *proxy) start(ctx context.Context, c *params) error {
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
		return err //nolint:wrapcheck // it names the run
	}
	if p.stopVerify, err = publisher.ServeVerify(p.Fleet.Conn(), verifySubject(id), "", p.verify); err != nil { //nolint:contextcheck // each question has its own
		return errors.Join(err, run.Interrupt(ctx, schema.InterruptedShutdown))
	}
	p.session = session.New(run)
	p.Log.Info().Str("run", id).Msg("calls are recorded")
	return nil
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
