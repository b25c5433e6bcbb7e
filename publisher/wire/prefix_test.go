package wire_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/publisher/waymarktest"
	"github.com/waymarkio/waymark/publisher/wire"
)

// finals end the run.
var finals = map[wire.Form]string{
	wire.Anthropic:       `{"type":"message","role":"assistant","content":[{"type":"text","text":"Done."}],"stop_reason":"end_turn"}`,
	wire.OpenAIChat:      `{"choices":[{"index":0,"message":{"role":"assistant","content":"Done."},"finish_reason":"stop"}]}`,
	wire.OpenAIResponses: `{"status":"completed","output":[{"type":"message","id":"m","role":"assistant","content":[{"type":"output_text","text":"Done."}]}]}`,
}

// cached is what a provider has cached: the latest request of a run, by the bytes of its members.
type cached struct {
	mu     sync.Mutex
	latest map[string]json.RawMessage
}

// broken is the member of a request that does not begin with the bytes of the request before; empty for none.
func (c *cached) broken(t *testing.T, body []byte) string {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	now, was := map[string]json.RawMessage{}, c.latest
	require.NoError(t, json.Unmarshal(body, &now))
	c.latest = now
	for name, before := range was {
		if name == "messages" || name == "input" { // the list goes on behind its last element
			before = before[:len(before)-1]
		}
		if !strings.HasPrefix(string(now[name]), string(before)) {
			return name
		}
	}
	return ""
}

// Whatever event an executor was killed at, the next request begins with the bytes of the one before: system prompt,
// tools and settings are the same, and the messages go on behind them. So a provider's prompt cache has them.
func TestModel_TakeoverAtEachEvent_RequestBeginsWithTheBytesOfTheOneBefore(t *testing.T) {
	t.Parallel()
	responses := map[wire.Form]string{wire.Anthropic: anthropicResponse, wire.OpenAIChat: chatResponse, wire.OpenAIResponses: responsesResponse}
	for _, f := range forms {
		t.Run(string(f), func(t *testing.T) {
			t.Parallel()
			settings := map[string]any{"model": "m", "max_tokens": 100, "tools": []any{map[string]any{"type": "web_search"}}}
			waymarktest.CrashEverywhereWith(t, waymarktest.Crash{NoEffects: true, Run: publisher.RunSpec{Task: "Wie warm ist es in Zürich? <\u2028>"}}, func(out *waymarktest.Outside) publisher.Work {
				cache := waymarktest.Keep(out, "cache", func() *cached { return new(cached) })
				tool := func(name, result string) publisher.Tool {
					return publisher.NewTool(name, "Looks & tells.", publisher.Pure, func(_ context.Context, in map[string]any) (string, error) {
						return result, nil
					})
				}
				return publisher.Loop{
					System: "Be \"terse\".\n",
					Tools:  []publisher.Tool{tool("weather", "sunny, 21° <ü>\n"), tool("shell", "ok")},
					Model: func(ctx context.Context, request publisher.ModelRequest) (publisher.Answer, error) {
						return wire.Model(f, settings, func(_ context.Context, _ string, body, response any, _ ...option) error {
							text, _ := body.([]byte)
							if member := cache.broken(t, text); member != "" {
								t.Errorf("turn %d: %s does not begin with the bytes of the request before", request.Turn, member)
							}
							into, _ := response.(*[]byte)
							if *into = []byte(responses[f]); request.Turn > 2 {
								*into = []byte(finals[f])
							}
							return nil
						})(ctx, request)
					},
				}.Work
			})
		})
	}
}
