package mcp

import (
	"context"
	"crypto/rand"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Web adds to the SDK's HTTP transport what the SDK does for its own client alone: it names the negotiated version of the
// protocol in each request, and keeps a stream for messages that belong to no request.
type Web struct {
	// Token is the bearer token; empty means none. A server to which the address redirects does not get it.
	Token   string
	host    string
	version atomic.Value // a string
}

// Transport returns the transport to an address.
func (w *Web) Transport(address string) mcp.Transport {
	if u, err := url.Parse(address); err == nil { // else the transport says so
		w.host = u.Scheme + "://" + u.Host
	}
	return &mcp.StreamableClientTransport{Endpoint: address, HTTPClient: &http.Client{Transport: w}, DisableStandaloneSSE: true}
}

// listen is the method and the id of the request that becomes the stream, marked by inStream in its context. No client
// has it.
var listen = "waymark/" + rand.Text() //nolint:gochecknoglobals // a constant of the process

type inStream struct{}

func listening(ctx context.Context) (context.Context, jsonrpc.Message) {
	id, _ := jsonrpc.MakeID(listen) // a string
	return context.WithValue(ctx, inStream{}, true), &jsonrpc.Request{ID: id, Method: listen}
}

// RoundTrip sends a request.
func (w *Web) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if version, ok := w.version.Load().(string); ok && r.Header.Get("Mcp-Protocol-Version") == "" {
		r.Header.Set("Mcp-Protocol-Version", version)
	}
	if w.Token != "" && r.URL.Scheme+"://"+r.URL.Host == w.host {
		r.Header.Set("Authorization", "Bearer "+w.Token)
	}
	if r.Context().Value(inStream{}) == nil {
		return http.DefaultTransport.RoundTrip(r)
	}
	r.Method, r.Body, r.ContentLength = http.MethodGet, nil, 0
	r.Header.Del("Content-Type")
	r.Header.Set("Accept", "text/event-stream")
	m, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && (m.StatusCode != http.StatusOK || !strings.HasPrefix(m.Header.Get("Content-Type"), "text/event-stream")) {
		_ = m.Body.Close() // the server has no such stream
		m.StatusCode, m.Header = http.StatusOK, http.Header{"Content-Type": {"application/json"}}
		m.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":"` + listen + `","result":{}}`))
	}
	return m, err
}

// heard looks at an answer of the server: the one to initialize has the version. own: it is the end of the stream, which
// is opened again.
func (w *Web) heard(m *jsonrpc.Response, again func()) (own bool) {
	if m.ID.Raw() == listen {
		if m.Error != nil {
			time.AfterFunc(time.Second, again)
		}
		return true
	}
	var initialized struct {
		Version string `json:"protocolVersion"`
	}
	if w.version.Load() == nil && decode(m.Result, &initialized) == nil && initialized.Version != "" {
		w.version.Store(initialized.Version)
	}
	return false
}
