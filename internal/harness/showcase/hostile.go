package showcase

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// HostileTexts must have no effect on a page. A text that a browser ran would set window.pwned or load from /pwned.
var HostileTexts = []string{
	`<script>window.pwned=1</script>`,
	`"><img src=/pwned onerror="window.pwned=1">`,
	`'><svg/onload=window.pwned=1>`,
	`javascript:window.pwned=1`,
	`</pre></textarea></title><script src=/pwned></script>`,
	`{{.CSRF}} {{template "layout"}} ${window.pwned=1}`,
	"\x1b[31mred\x1b[0m \x1b]8;;http://evil\x07link\x07",
	"user\u202etxt.exe \u2066hidden\u2069 zero\u200bwidth",
	"</script><!--<script>\ndata: x\n\nevent: page\ndata: <script>window.pwned=1</script>",
	`&lt;script&gt;window.pwned=1&lt;/script&gt;`,
}

// Hostile makes a run whose every field is hostile text, one that asks with it, and one with a call in doubt. It returns their ids.
func (s *Stage) Hostile() []string {
	s.tb.Helper()
	ctx := s.tb.Context()
	all := strings.Join(HostileTexts, "\n")
	long := strings.Repeat("<b>long</b>", 1<<20/11)
	quoted := func(text string) json.RawMessage {
		b, err := json.Marshal(text)
		require.NoError(s.tb, err)
		return b
	}
	box := s.Executor("box-1")
	spec := publisher.RunSpec{
		ID: "hostile", Agent: "coder", Task: all, ThreadID: HostileTexts[1], Model: HostileTexts[0], ModelTier: HostileTexts[1], Provider: HostileTexts[2],
		Labels: map[string]string{"team": HostileTexts[1]},
	}
	run, err := box.Start(ctx, spec)
	require.NoError(s.tb, err)
	image := "iVBORw0KGgo=\"><script>window.pwned=1</script>"
	require.NoError(s.tb, run.AddMessage(ctx, schema.Message{Role: schema.RoleUser, Name: HostileTexts[1], Parts: []schema.Part{
		schema.Text(all), schema.Reasoning(all), schema.Text(long),
		{Type: schema.PartBlob, MimeType: "image/png", Content: &image},
		{Type: schema.PartBlob, MimeType: "image/svg+xml", Content: &HostileTexts[2]},
		{Type: schema.PartURI, URI: HostileTexts[3], MimeType: HostileTexts[0]},
		{Type: HostileTexts[0], Content: &all},
	}}))
	calls := []publisher.ToolCall{
		{ID: HostileTexts[1], Name: HostileTexts[0], Replay: publisher.Pure, Arguments: json.RawMessage(`{"a":` + string(quoted(all)) + `}`), SideEffect: all},
		{ID: "b", Name: HostileTexts[4], Replay: publisher.Pure, Arguments: json.RawMessage(`{}`)},
	}
	turn := s.Say(run, time.Second, all, all, calls...)
	s.Do(turn, calls[0], time.Second, "diff --git a b\n--- a\n+++ b\n@@ "+all+"\n+"+all, nil)
	s.Do(turn, calls[1], time.Second, nil, errors.New(all))
	require.NoError(s.tb, run.SetState(ctx, "key", all))
	require.NoError(s.tb, run.Artifact(ctx, schema.ArtifactAddedData{ArtifactID: "a", Name: HostileTexts[1], MediaType: HostileTexts[0], URI: HostileTexts[3]}))
	require.NoError(s.tb, run.Error(ctx, schema.Error{Type: "odd", Message: all}, "run"))
	require.NoError(s.tb, run.End(ctx, publisher.RunEnd{Status: schema.StatusFailed, Summary: all, Error: &schema.Error{Type: HostileTexts[0], Message: all}}))
	spec.ID = "hostile-asks"
	asks, err := box.Start(ctx, spec)
	require.NoError(s.tb, err)
	response, err := json.Marshal(map[string]any{"type": "object", "properties": map[string]any{HostileTexts[1]: map[string]any{"type": "string", "title": HostileTexts[0], "enum": HostileTexts}}})
	require.NoError(s.tb, err)
	require.NoError(s.tb, asks.Wait(ctx, schema.RunWaitingData{InterruptID: HostileTexts[1], Reason: schema.WaitHumanInput, Message: all, ResponseSchema: response}))
	spec.ID, spec.Parent = "hostile-doubt", &schema.Parent{Run: "hostile", Turn: 1, ToolCallID: HostileTexts[0]}
	doubt, err := box.Start(ctx, spec)
	require.NoError(s.tb, err)
	held := publisher.ToolCall{ID: HostileTexts[2], Name: HostileTexts[0], Replay: publisher.Hold, Arguments: json.RawMessage(`{"a":` + string(quoted(all)) + `}`), SideEffect: all}
	turn = s.Say(doubt, time.Second, "", "", held)
	require.NoError(s.tb, turn.Begin(ctx, schema.CallKey{Turn: 1, ToolCallID: held.ID, Occurrence: 1}))
	doubt, err = s.Executor("box-2").Resume(ctx, "hostile-doubt", publisher.ResumeSpec{})
	require.NoError(s.tb, err)
	_, err = doubt.OpenTurn().Tool(ctx, held, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		return publisher.ToolResult{}, nil
	})
	require.ErrorIs(s.tb, err, publisher.ErrHeld)
	return []string{"hostile", "hostile-asks", "hostile-doubt"}
}
