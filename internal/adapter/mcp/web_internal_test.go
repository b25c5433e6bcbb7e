package mcp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/stretchr/testify/require"
)

// The token goes to the server that it is for, and to no other one.
func TestWeb_Redirect_OtherServerGetsNoToken(t *testing.T) {
	t.Parallel()
	got := make(chan string, 2)
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(other.Close)
	own := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Authorization")
		http.Redirect(w, r, strings.Replace(other.URL, "127.0.0.1", "localhost", 1), http.StatusTemporaryRedirect)
	}))
	t.Cleanup(own.Close)
	web := &Web{Token: "secret"}
	connection, err := web.Transport(own.URL).Connect(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = connection.Close() })
	id, err := jsonrpc.MakeID("1")
	require.NoError(t, err)
	_ = connection.Write(context.WithoutCancel(t.Context()), &jsonrpc.Request{ID: id, Method: "ping"}) // it has no answer
	require.Equal(t, "Bearer secret", <-got)
	require.Empty(t, <-got)
}
