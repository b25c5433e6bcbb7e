package publisher_test

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/waymarkio/waymark/publisher"
	"github.com/waymarkio/waymark/schema"
)

// canary is in no word of the program.
const canary = "xyzzy-canary-4711"

func redacting(c *publisher.Config) {
	c.Redaction = &publisher.Redaction{
		Fields:    []string{"password", "api-key"},
		Detectors: append(publisher.SecretDetectors(), publisher.Detector{Name: "canary", Pattern: regexp.MustCompile(canary)}),
	}
}

// everything that the server stores, of all streams.
func (w *world) everything() string {
	w.tb.Helper()
	var all strings.Builder
	names := w.js.StreamNames(w.tb.Context())
	for name := range names.Name() {
		stream, err := w.js.Stream(w.tb.Context(), name)
		require.NoError(w.tb, err)
		for seq := stream.CachedInfo().State.FirstSeq; seq <= stream.CachedInfo().State.LastSeq; seq++ {
			m, err := stream.GetMsg(w.tb.Context(), seq)
			if err != nil {
				continue // purged
			}
			all.Write(m.Data)
			for k, v := range m.Header {
				all.WriteString(k + strings.Join(v, " "))
			}
		}
	}
	require.NoError(w.tb, names.Err())
	return all.String()
}

func TestRedact_Removed_Nowhere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.serve()
	f := w.fleet(redacting)
	run, err := f.Start(t.Context(), publisher.RunSpec{ID: "r1", Task: "use " + canary, Labels: map[string]string{"password": canary}})
	require.NoError(t, err)
	require.NoError(t, run.Publish(t.Context(), &schema.MessageAddedData{Message: user("it is " + canary + ", says he")}, 0))
	large := strings.Repeat("words ", 60<<10) + canary
	require.NoError(t, run.Publish(t.Context(), &schema.MessageAddedData{Message: user(large)}, 0))
	turn := openTurn(t, run)
	call := publisher.ToolCall{
		ID: "c1", Name: "login", Replay: schema.ReplayPure, Arguments: raw(`{"user":"ann","Password":"` + canary + `","deep":[{"API_KEY":{"a":"` + canary + `"}}]}`),
	}
	given := ""
	result, err := turn.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		given = string(call.Arguments)
		return publisher.Result(map[string]string{"token": canary, "ok": "yes"})
	})
	require.NoError(t, err)
	require.Contains(t, given, canary, "the tool has the real arguments")
	require.Contains(t, string(result.Result), canary, "its caller has the real result")
	require.NoError(t, run.Error(t.Context(), schema.Error{Type: "login", Message: "bad " + canary}, "run"))
	require.NotContains(t, w.everything(), canary)
	w.requireSameFold(run)

	// Another executor has what was recorded, and asks for the same call with its real arguments.
	next := resume(t, w.fleet(redacting), "r1")
	again, err := next.StartTurn(t.Context(), publisher.TurnSpec{Number: 1})
	require.NoError(t, err)
	replayed, err := again.Tool(t.Context(), call, func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
		require.Fail(t, "the call is recorded")
		return publisher.ToolResult{}, nil
	})
	require.NoError(t, err, "the arguments are those that were recorded, but for what was taken out")
	require.JSONEq(t, `{"ok":"yes","token":"[redacted:canary]"}`, string(replayed.Result))
	state := next.State()
	require.Equal(t, "use [redacted:canary]", state.Started.Task)
	require.Equal(t, "[redacted]", state.Started.Labels["password"])
	require.JSONEq(t, `{"user":"ann","Password":"[redacted]","deep":[{"API_KEY":"[redacted]"}]}`, string(state.Calls[0].Arguments))
}

func TestRedact_KnownForms_Found(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) { c.Redaction = &publisher.Redaction{Detectors: publisher.SecretDetectors()} })
	run := start(t, f, "r1")
	// Put together here, so that no scanner takes this file for a leak.
	for name, secret := range map[string]string{
		"private-key":     "-----BEGIN EC " + "PRIVATE KEY-----\nMHcCAQEE\n-----END EC " + "PRIVATE KEY-----",
		"aws-key":         "AKIA" + "IOSFODNN7EXAMPLE",
		"github-token":    "ghp_" + strings.Repeat("a1", 18),
		"slack-token":     "xoxb-" + "123456789012-abc",
		"api-key":         "sk-" + "proj-" + strings.Repeat("x9", 12),
		"nkey-seed":       "SU" + strings.Repeat("A2", 28),
		"jwt":             "eyJhbGciOiJIUzI1" + ".eyJzdWIiOiIxMjM0" + ".c2lnbmF0dXJlMTIz",
		"authorization":   "Bearer " + strings.Repeat("z", 24),
		"password-in-url": "nats://user:hunter2" + "@host:4222",
	} {
		require.NoError(t, run.Publish(t.Context(), &schema.MessageAddedData{Message: user("before " + secret + " after")}, 0), name)
		log := w.log("r1")
		body := string(log[len(log)-1].Body)
		require.Contains(t, body, "[redacted:"+name+"]", name)
		require.Contains(t, body, "before ", name)
		require.Contains(t, body, " after", name)
	}
	for _, harmless := range []string{"a task", "sk-1", "see https://host:4222/path", "basic idea", "run_id 5f1d", "AKIA"} {
		require.NoError(t, run.Publish(t.Context(), &schema.MessageAddedData{Message: user(harmless)}, 0))
		log := w.log("r1")
		require.Contains(t, string(log[len(log)-1].Body), harmless)
	}
}

func TestRedact_AnyEvent_StaysValid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.fleet(func(c *publisher.Config) {
		// Names of Waymark's own members, and a detector that finds nearly everything.
		c.Redaction = &publisher.Redaction{
			Fields:    []string{"agent", "name", "tool_call_id", "role", "parts", "status"},
			Detectors: []publisher.Detector{{Name: "word", Pattern: regexp.MustCompile(`[a-z]+`)}},
		}
	})
	run := start(t, f, "r1")
	turn := openTurn(t, run)
	_, err := turn.Tool(t.Context(), publisher.ToolCall{ID: "c1", Name: "add", Arguments: raw(`{"name":"x","n":1}`)},
		func(context.Context, publisher.Invocation) (publisher.ToolResult, error) {
			return publisher.Result("text")
		})
	require.NoError(t, err)
	require.NoError(t, run.End(t.Context(), publisher.RunEnd{Status: schema.StatusCompleted}))
	state := w.requireSameFold(run)
	require.Equal(t, "coder", state.Started.Agent)
	require.Equal(t, "add", state.Calls[0].Name)
	require.JSONEq(t, `{"name":"[redacted]","n":1}`, string(state.Calls[0].Arguments))
}

func TestRedact_Impossible_Refused(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]publisher.Redaction{
		"no pattern":   {Detectors: []publisher.Detector{{Name: "a"}}},
		"no name":      {Detectors: []publisher.Detector{{Pattern: regexp.MustCompile("x")}}},
		"matches all":  {Detectors: []publisher.Detector{{Name: "a", Pattern: regexp.MustCompile("x*")}}},
		"empty member": {Fields: []string{"_-"}},
	} {
		_, err := publisher.Connect(t.Context(), publisher.Config{URL: "nats://127.0.0.1:1", Executor: "e", Redaction: &r})
		require.ErrorIs(t, err, publisher.ErrConfig, name)
	}
}

// Whatever the JSON is, what is left is JSON, without the member's value, and taking out once more changes nothing.
func TestRedact_JSON_StaysJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var value any = canary
		for range rapid.IntRange(0, 6).Draw(rt, "depth") {
			if rapid.Bool().Draw(rt, "array") {
				value = []any{rapid.Float64Range(-9, 9).Draw(rt, "number"), value, rapid.String().Draw(rt, "text")}
			} else {
				value = map[string]any{rapid.SampledFrom([]string{"a", "id", "content", "é\n"}).Draw(rt, "member"): value, "password": value}
			}
		}
		in, err := json.Marshal(value)
		require.NoError(rt, err)
		once, err := publisher.RedactValue(&publisher.Redaction{
			Fields: []string{"password"}, Detectors: []publisher.Detector{{Name: "canary", Pattern: regexp.MustCompile(canary)}},
		}, in)
		require.NoError(rt, err)
		require.True(rt, jsontext.Value(once).IsValid())
		require.NotContains(rt, string(once), canary)
		twice, err := publisher.RedactValue(&publisher.Redaction{
			Fields: []string{"password"}, Detectors: []publisher.Detector{{Name: "canary", Pattern: regexp.MustCompile(canary)}},
		}, once)
		require.NoError(rt, err)
		require.JSONEq(rt, string(once), string(twice))
	})
}
