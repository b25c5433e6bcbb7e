package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/wire"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := serve(ctx, os.Args[1], os.Args[2:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mcp:", err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, server string, args ...string) (err error) {
	session, err := mcp.NewClient(&mcp.Implementation{Name: "clerk", Version: "1"}, nil).Connect(ctx, &mcp.CommandTransport{Command: exec.CommandContext(ctx, server, args...)}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	tools, err := tools(ctx, session)
	if err != nil {
		return err
	}
	fleet, err := publisher.Connect(ctx, publisher.Config{Executor: "clerk-1"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.Close(context.WithoutCancel(ctx))) }()
	executor, err := fleet.NewExecutor(publisher.ExecutorSpec{Loops: map[string]publisher.Loop{"clerk": clerk(openai.NewClient(option.WithMaxRetries(0)), tools)}})
	if err != nil {
		return err
	}
	return executor.Serve(ctx)
}

// clerk works with tools.
func clerk(client openai.Client, tools []publisher.Tool) publisher.Loop {
	return publisher.Loop{Model: wire.Model(wire.OpenAIChat, map[string]any{"model": "gpt-5.5"}, client.Post), Tools: tools}
}

// tools are the tools of a trusted MCP server: the server's annotations decide the policy of each tool. A tool without
// annotations may have any effect, so its calls are held in doubt.
func tools(ctx context.Context, session *mcp.ClientSession) (list []publisher.Tool, err error) {
	for t, err := range session.Tools(ctx, nil) {
		if err != nil {
			return nil, err
		}
		parameters, err := json.Marshal(t.InputSchema)
		if err != nil {
			return nil, err
		}
		tool := publisher.Tool{Name: t.Name, Description: t.Description, Parameters: parameters, Replay: publisher.Hold}
		if t.Annotations != nil && t.Annotations.ReadOnlyHint {
			tool.Replay = publisher.Pure
		} else if t.Annotations != nil && t.Annotations.IdempotentHint {
			tool.Replay = publisher.Idempotent
		}
		tool.Run = func(ctx context.Context, call publisher.Invocation) (publisher.ToolResult, error) {
			arguments, text := call.Arguments, ""
			if json.Unmarshal(arguments, &text) == nil { // as OpenAI's APIs send them
				arguments = json.RawMessage(cmp.Or(text, "{}"))
			}
			result, err := session.CallTool(ctx, &mcp.CallToolParams{
				Name: call.Name, Arguments: arguments, Meta: mcp.Meta{"io.waymark/idempotencyKey": call.IdempotencyKey},
			})
			if err != nil {
				return publisher.ToolResult{}, err
			}
			content, err := json.Marshal(result.Content)
			return publisher.ToolResult{Result: content, IsError: &result.IsError}, err
		}
		list = append(list, tool)
	}
	return list, nil
}
