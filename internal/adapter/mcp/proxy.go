package mcp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/rs/zerolog"

	"github.com/waymarkio/waymark/internal/adapter/session"
	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

const (
	// grace is how long the server may take to answer a cancelled call, a question of the proxy, or a call after the end.
	grace = 5 * time.Second
	// codeRejected is the SDK's code for a request that may not have reached the server.
	codeRejected = -32005
)

// Config says what a proxy works with.
type Config struct {
	Client, Server mcp.Transport
	// Web is the HTTP client of Server; nil for another transport.
	Web *Web
	// Name of the server.
	Name string
	// Fleet records the calls. If it is nil, all messages pass unrecorded.
	Fleet *publisher.Fleet
	// Run is the id of the run. If it is empty, the run is that of the client's Session, or of the session that the first
	// call names, or a new one.
	Run, Session string
	// Policies of tools. With Trust they may be looser than the server's annotations.
	Policies Policies
	Trust    bool
	Log      zerolog.Logger
}

// proxy passes messages on in both directions.
type proxy struct {
	Config
	client, server mcp.Connection
	// working are the calls that are not answered. gone is closed when the server sends nothing more. lost gets the error
	// of a call that only another epoch can settle.
	working sync.WaitGroup
	gone    chan struct{}
	lost    chan error

	opening sync.Mutex
	session *session.Session
	// taken are the calls that this process answers or has answered, with the ids of the client.
	taken      map[string]string
	stopVerify func() error

	mu sync.Mutex
	// ending: no more calls begin.
	ending bool
	// waits are the requests whose answers the proxy waits for.
	waits map[jsonrpc.ID]*exchange
	// tools are the policies by the annotations of the listed tools. meta is what each request has in place of a session.
	tools map[string]schema.Replay
	meta  map[string]jsontext.Value
	// inputs has the keys of calls whose client was asked for input.
	inputs map[string]string
}

// exchange is a request whose answer the proxy waits for.
type exchange struct {
	// ctx ends with stop: the request must not be sent.
	ctx       context.Context //nolint:containedctx // the request's own life
	stop      context.CancelFunc
	answer    chan *jsonrpc.Response
	cancelled chan struct{}
	sent      bool
	// guarded: what it does must not be done twice, so its outcome is awaited also when the client wants none.
	guarded bool
}

// Serve passes messages on until the client has closed its connection, the server has gone, or ctx ends. It finishes and
// records the calls that run, after the end of ctx within a short time. Then it ends the run.
func Serve(ctx context.Context, cfg Config) (err error) {
	p := &proxy{
		Config: cfg, gone: make(chan struct{}), lost: make(chan error, 1), waits: make(map[jsonrpc.ID]*exchange),
		taken: make(map[string]string), inputs: make(map[string]string),
	}
	live, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	if p.server, err = cfg.Server.Connect(live); err != nil {
		return fmt.Errorf("MCP server: %w", err)
	}
	if p.client, err = cfg.Client.Connect(live); err != nil {
		return errors.Join(err, p.server.Close())
	}
	served, closed := make(chan error, 1), make(chan error, 1)
	go func() {
		served <- p.fromServer(live)
		close(p.gone)
	}()
	go func() { closed <- p.fromClient(live) }()
	select {
	case err = <-closed:
	case err = <-served:
		err = fmt.Errorf("the MCP server has ended its connection: %w", err)
	case err = <-p.lost:
	case <-ctx.Done():
	}
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	stopped := context.AfterFunc(ctx, func() { time.AfterFunc(grace, end) })
	p.working.Wait()
	stopped()
	err = errors.Join(err, p.finish(context.WithoutCancel(ctx), err))
	_ = p.server.Close() // it was told to end
	return err
}

// fromClient passes the client's messages on, until its connection ends.
func (p *proxy) fromClient(ctx context.Context) error {
	for {
		m, err := p.client.Read(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("MCP client: %w", err)
		}
		r, ok := m.(*jsonrpc.Request)
		switch {
		case ok && r.Method == "tools/call" && p.Fleet != nil: // without an id it is not one
			x := p.expect(ctx, r)
			if x != nil && !p.work(func() {
				answer := p.call(ctx, x, r)
				p.forget(r.ID)
				_ = p.client.Write(ctx, answer) // a client that has gone needs no answer
			}) {
				_ = p.client.Write(ctx, said(r, "the call was not made: the proxy ends"))
			}
		case ok && r.Method == "notifications/cancelled" && p.cancel(r):
		case ok && r.IsCall() && p.Web != nil: // until the answer begins
			go p.pass(ctx, r)
		default:
			p.pass(ctx, m)
			if ok && r.Method == "notifications/initialized" && p.Web != nil {
				go p.pass(listening(ctx))
			}
		}
	}
}

// work works on a call, unless the proxy ends.
func (p *proxy) work(call func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ending {
		p.working.Go(call)
	}
	return !p.ending
}

// pass sends a message of the client to the server.
func (p *proxy) pass(ctx context.Context, m jsonrpc.Message) {
	err := p.server.Write(ctx, m)
	if r, ok := m.(*jsonrpc.Request); err != nil && ok && r.IsCall() && r.Method != listen {
		if wire := servers(err); wire != nil {
			err = wire
		}
		_ = p.client.Write(ctx, &jsonrpc.Response{ID: r.ID, Error: err}) // a client that has gone needs no answer
	}
}

// fromServer passes the server's messages on, until its connection ends.
func (p *proxy) fromServer(ctx context.Context) error {
	for {
		m, err := p.server.Read(ctx)
		if err != nil {
			return err //nolint:wrapcheck // the caller does
		}
		switch m := m.(type) {
		case *jsonrpc.Request:
			if m.Method == "notifications/tools/list_changed" {
				p.mu.Lock()
				p.tools = nil
				p.mu.Unlock()
			}
		case *jsonrpc.Response:
			p.mu.Lock()
			x := p.waits[m.ID]
			p.mu.Unlock()
			if x != nil {
				select {
				case x.answer <- m:
				default: // a second answer
				}
				continue
			}
			if p.Web != nil && p.Web.heard(m, func() { p.pass(listening(ctx)) }) {
				continue
			}
		}
		_ = p.client.Write(ctx, m) // a client that has gone needs no message
	}
}

// expect makes room for the answer to a request; nil if it has no id, or the id of another one.
func (p *proxy) expect(ctx context.Context, r *jsonrpc.Request) *exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits[r.ID] != nil || !r.IsCall() {
		return nil
	}
	x := &exchange{answer: make(chan *jsonrpc.Response, 1), cancelled: make(chan struct{})}
	x.ctx, x.stop = context.WithCancel(ctx)
	p.waits[r.ID] = x
	return x
}

// forget ends the wait for an answer.
func (p *proxy) forget(id jsonrpc.ID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits[id].stop()
	delete(p.waits, id)
}

// cancel cancels a call. done: the server need not be told.
func (p *proxy) cancel(r *jsonrpc.Request) (done bool) {
	var said struct {
		ID any `json:"requestId"`
	}
	if decode(r.Params, &said) != nil {
		return false
	}
	id, err := jsonrpc.MakeID(said.ID)
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.waits[id]
	if err != nil || x == nil || x.ctx.Err() != nil {
		return false
	}
	select {
	case <-x.cancelled:
	default:
		close(x.cancelled)
	}
	if x.sent && (x.guarded || p.Web == nil || p.meta == nil) {
		return false
	}
	x.stop() // it is not sent; or it has no session and is sent by HTTP, where its end cancels it
	return true
}

// send sends a request and waits for the answer. The error wraps publisher.ErrLost if none will come.
func (p *proxy) send(x *exchange, r *jsonrpc.Request) (*jsonrpc.Response, error) {
	p.mu.Lock()
	x.sent = x.ctx.Err() == nil
	p.mu.Unlock()
	if !x.sent {
		return nil, session.Failure{Type: cancelled, Message: "the call was cancelled before the server had it"}
	}
	go func() {
		if err := p.server.Write(x.ctx, r); err != nil {
			select {
			case x.answer <- &jsonrpc.Response{ID: r.ID, Error: err}:
			default: // it has one
			}
		}
	}()
	gone, stop, over := p.gone, x.cancelled, (<-chan time.Time)(nil)
	ended := x.ctx.Done()
	for {
		select {
		case m := <-x.answer:
			wire := servers(m.Error)
			if wire != nil {
				m.Error = wire
			}
			if (m.Error == nil) != (wire != nil) {
				return m, nil
			}
			if stop != nil { // the transport's error
				return nil, fmt.Errorf("%w: %w", publisher.ErrLost, m.Error)
			}
		case <-stop:
			if stop = nil; !x.guarded {
				over = time.After(grace)
			}
		case <-over:
			return nil, session.Failure{Type: cancelled, Message: "the call was cancelled, and the server has not answered"}
		case <-ended:
			if ended = nil; stop != nil || x.guarded {
				return nil, fmt.Errorf("%w: the proxy ends", publisher.ErrLost)
			}
		case <-gone:
			gone = nil
			if len(x.answer) == 0 {
				return nil, fmt.Errorf("%w: the MCP server has ended its connection", publisher.ErrLost)
			}
		}
	}
}

// servers returns the server's own error in an error; nil if it is the transport's.
func servers(err error) *jsonrpc.Error {
	if wire, ok := errors.AsType[*jsonrpc.Error](err); ok && wire.Code != codeRejected {
		return wire
	}
	return nil
}

// ask sends the proxy's own request.
func (p *proxy) ask(ctx context.Context, method string, params any) (jsontext.Value, error) {
	text, err := json.Marshal(params, json.Deterministic(true))
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the value
	}
	id, _ := jsonrpc.MakeID("waymark/" + rand.Text()) // a string, which no client has
	ctx, stop := context.WithTimeout(ctx, grace)
	defer stop()
	r := &jsonrpc.Request{ID: id, Method: method, Params: text}
	x := p.expect(ctx, r)
	defer p.forget(id)
	m, err := p.send(x, r)
	if err == nil {
		err = m.Error
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return jsontext.Value(m.Result), nil
}
