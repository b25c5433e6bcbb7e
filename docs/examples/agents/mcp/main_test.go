package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
)

type note struct {
	Text string `json:"text"`
}

// The clerk writes its note once, wherever it is killed: the MCP server is another process, and says nothing of its tool.
func TestClerk_KilledAnywhere_WritesOnce(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		message := `{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"add","arguments":"{\"text\":\"tea\"}"}}]}`
		if strings.Contains(string(body), `"tool"`) {
			message = `{"role":"assistant","content":"Noted."}`
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"id":"c1","object":"chat.completion","model":"gpt","choices":[{"index":0,"finish_reason":"stop","message":%s}]}`, message)
	}))
	defer api.Close()
	server := mcp.NewServer(&mcp.Implementation{Name: "notes", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "add"}, func(context.Context, *mcp.CallToolRequest, note) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "added"}}}, nil, nil
	})
	here, there := mcp.NewInMemoryTransports()
	serving, err := server.Connect(t.Context(), there, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = serving.Close() })
	session, err := mcp.NewClient(&mcp.Implementation{Name: "clerk", Version: "1"}, nil).Connect(t.Context(), here, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Close()) })
	found, err := tools(t.Context(), session)
	require.NoError(t, err)
	client := openai.NewClient(option.WithBaseURL(api.URL+"/v1/"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	waymarktest.CrashEverywhere(t, func(out *waymarktest.Outside) publisher.Work {
		counted := make([]publisher.Tool, len(found))
		for i, tool := range found {
			counted[i] = tool
			counted[i].Run = func(ctx context.Context, inv publisher.Invocation) (publisher.ToolResult, error) {
				if err := out.Effect(ctx, inv.Name+" "+string(inv.Arguments)); err != nil {
					return publisher.ToolResult{}, err
				}
				return tool.Run(ctx, inv)
			}
		}
		return clerk(client, counted).Work
	})
}
